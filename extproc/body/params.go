package body

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// defaults are the values that the OpenAI API gives to fields that are not
// sent.
var defaults = map[string]string{
	"stream": "false", "temperature": "1", "top_p": "1",
	"presence_penalty": "0", "frequency_penalty": "0", "echo": "false", "logprobs": "false",
}

func defaultOf(field string) (string, bool) {
	switch roles[field] {
	case roleChoices:
		return "1", true
	case roleMin:
		return "0", true
	}
	def, ok := defaults[field]
	return def, ok
}

// CheckParams holds the body against the parameter scopes of an identity (K1,
// third level). It returns the edits that make the body comply, or an error
// of status 403 that names field, value and bound. The rules:
//
//   - A field that is sent must comply; it is never changed. A value that
//     cannot be compared (an object, an array, a string where a number is
//     bound) does not comply.
//   - A scope on one name of the output cap binds all of them, and its upper
//     bound all names of a demanded least; an upper bound on n, or an exact n,
//     binds all names of choices (names.go). They are bound at the top and in
//     every object that is not content. An output cap of 0 does not comply with
//     an upper bound, because some engines read it as no cap.
//   - Another spelling of a bound name is refused, unless unknown names are
//     allowed: then it is not looked at, nor is what stands in objects where no
//     engine is known to look.
//   - A field that is not sent (or null, or under a name alone that the API does
//     not read) counts as the API's default where
//     there is one; the output cap has none. Else, with clamp, it is set: to
//     the bound, or to the one value that "=" names; an output cap is set
//     under a name the API knows. Without clamp, and where "=" names several
//     values, the field must be sent.
//   - Embeddings generate nothing: fields of generation may be absent there.
//   - A name that differs from the scope's field only by case is refused.
//
// Several scopes on one field all bind.
func (b *Body) CheckParams(params []identity.Param, clamp bool, unknown policy.UnknownNames) ([]Edit, *Error) {
	if len(params) == 0 {
		return nil, nil
	}
	sent, err := b.checkSent(params, unknown)
	if err != nil {
		return nil, err
	}
	var edits []Edit
	for i := range params {
		if sent[i] {
			continue
		}
		p := &params[i]
		e, err := b.checkUnsent(p, clamp)
		if err != nil {
			return nil, err
		}
		if e.field != "" {
			if edits, err = tighten(edits, e, p, params); err != nil {
				return nil, err
			}
		}
	}
	return edits, nil
}

// checkSent checks every field that a scope binds and that was sent; sent says
// of which scopes there is one that the API reads.
func (b *Body) checkSent(params []identity.Param, unknown policy.UnknownNames) (sent []bool, err *Error) {
	families := make([]family, len(params))
	for i := range params {
		families[i] = familyOf(&params[i])
	}
	sent = make([]bool, len(params))
	var room [maxForm]byte
	b.settings(unknown == policy.RefuseUnknown, func(s *setting) bool {
		form := plainForm(s.name, room[:0])
		for i := range families {
			f := &families[i]
			switch f.spells(s.name, s.role, form) {
			case member:
				if string(b.data[s.val.lo:s.val.hi]) == "null" {
					continue
				}
				err = b.checkMember(s, f, &params[i])
				sent[i] = sent[i] || s.known && !s.listed && f.reads(b.Kind, string(s.name), s.top())
			case misspelt:
				if s.top() && twins(s.name, f.field) {
					err = twinError(s.name, f.field)
				} else if unknown == policy.RefuseUnknown {
					err = forbidden(s.field(), fmt.Sprintf("is no known name of %q, of which your key allows %s", f.field, bound(&params[i])))
				}
			}
			if err != nil {
				return false
			}
		}
		return true
	})
	return sent, err
}

func (b *Body) checkMember(s *setting, f *family, p *identity.Param) *Error {
	raw := b.data[s.val.lo:s.val.hi]
	if f.complies(p, string(s.name), raw) {
		return nil
	}
	return forbidden(s.field(), fmt.Sprintf("is %s; your key allows %s", shortValue(raw), bound(p)))
}

// complies holds a value of the family against its scope. A demanded least is
// held against the upper bound of the cap.
func (f *family) complies(p *identity.Param, name string, raw []byte) bool {
	if !f.mins || roles[name] != roleMin {
		return complies(p, name, raw)
	}
	most := p.Bound
	if p.Op == identity.Equal && len(p.Enum) > 0 {
		most = math.Inf(-1)
		for _, word := range p.Enum {
			if v, err := strconv.ParseFloat(word, 64); err == nil {
				most = max(most, v)
			}
		}
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	return err == nil && v <= most
}

// CheckTwins refuses a name that differs from a field only by case, for a field
// that is going to be set: a reader that ignores case would take the other.
func (b *Body) CheckTwins(name string) *Error {
	for i := range b.fields {
		if twins(b.fields[i].name, name) {
			return twinError(b.fields[i].name, name)
		}
	}
	return nil
}

// complies compares a value that was sent with the scope.
func complies(p *identity.Param, name string, raw []byte) bool {
	if p.Op == identity.Equal && len(p.Enum) > 0 {
		return slices.ContainsFunc(p.Enum, func(want string) bool { return sameValue(raw, want) })
	}
	v, err := strconv.ParseFloat(string(raw), 64) // raw is valid JSON: a number, or no number at all
	if err != nil || math.IsInf(v, 0) {
		return false
	}
	switch p.Op {
	case identity.AtMost:
		return v <= p.Bound && (v > 0 || !isCap(name))
	case identity.AtLeast:
		return v >= p.Bound
	case identity.Equal:
		return v == p.Bound
	}
	return false
}

// sameValue compares a value with a word of the scope: strings by their
// resolved text, numbers as numbers, true and false by name.
func sameValue(raw []byte, want string) bool {
	switch raw[0] {
	case '"':
		return string(unescape(raw[1:len(raw)-1])) == want
	case '{', '[':
		return false
	case 't', 'f':
		return string(raw) == want
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	w, errW := strconv.ParseFloat(want, 64)
	return err == nil && errW == nil && v == w
}

// checkUnsent judges a scope whose field was not sent, and clamps.
func (b *Body) checkUnsent(p *identity.Param, clamp bool) (Edit, *Error) {
	ofCap := isCap(p.Field)
	def, known := defaultOf(p.Field)
	switch {
	case known && complies(p, p.Field, []byte(def)):
		return Edit{}, nil
	case b.Kind == policy.OpenAIEmbeddings && (known || ofCap):
		return Edit{}, nil
	}
	e, ok := fill(p)
	if ok && ofCap {
		e, ok = b.fillCap(p, e)
	}
	if !ok || !clamp {
		return Edit{}, forbidden(p.Field, "is not sent; your key allows "+bound(p))
	}
	return e, nil
}

// fill sets the field of a scope to the one value that follows from it.
func fill(p *identity.Param) (Edit, bool) {
	switch {
	case p.Op != identity.Equal || len(p.Enum) == 0:
		return SetNumber(p.Field, p.Bound), !math.IsNaN(p.Bound) && !math.IsInf(p.Bound, 0)
	case len(p.Enum) > 1:
		return Edit{}, false
	}
	word := p.Enum[0]
	if n, err := strconv.ParseFloat(word, 64); err == nil && sameValue([]byte(SetNumber("", n).json), word) {
		return SetNumber(p.Field, n), true
	}
	if word == "true" || word == "false" {
		return SetBool(p.Field, word == "true"), true
	}
	return SetString(p.Field, word), true
}

// fillCap makes an output cap a whole number that the API takes, under a name
// that it knows.
func (b *Body) fillCap(p *identity.Param, e Edit) (Edit, bool) {
	limit, err := strconv.ParseFloat(e.json, 64)
	if limit = math.Floor(min(limit, MaxCap)); err != nil || limit < 1 {
		return Edit{}, false
	}
	name := p.Field
	if b.Kind == policy.OpenAICompletions || b.Kind == policy.OpenAIChat && name != "max_completion_tokens" {
		name = "max_tokens"
	}
	return SetInt(name, int64(limit)), true
}

// tighten adds the edit e of scope p; where two scopes set one field, the
// value must comply with all of them.
func tighten(edits []Edit, e Edit, p *identity.Param, params []identity.Param) ([]Edit, *Error) {
	for i := range params {
		q := &params[i]
		if f := familyOf(q); !f.has(e.field) || complies(q, e.field, []byte(e.json)) {
			continue
		}
		if q.Op == p.Op {
			return edits, nil // the tighter one of the two sets it
		}
		return nil, forbidden(e.field, fmt.Sprintf("must be sent: your key allows %s and %s", bound(p), bound(q)))
	}
	if slices.ContainsFunc(edits, func(o Edit) bool { return o.field == e.field }) {
		return edits, nil
	}
	return append(edits, e), nil
}

// bound is the scope in words.
func bound(p *identity.Param) string {
	n := strconv.FormatFloat(p.Bound, 'f', -1, 64)
	switch {
	case p.Op == identity.AtMost:
		return "at most " + n
	case p.Op == identity.AtLeast:
		return "at least " + n
	case len(p.Enum) > 0:
		return "only " + strings.Join(p.Enum, " or ")
	}
	return "only " + n
}
