package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Param is one parameter scope: "max_tokens<=1024", "n=1",
// "temperature>=0", "model=a|b" (any numeric or enum field of the body).
// Params of an identity all bind, also two on one field.
type Param struct {
	Field string // top-level field of the body
	Op    Op
	Bound float64  // for numeric operators; finite
	Enum  []string // for Equal with names, sorted; a number is compared as a number too
}

// Op compares a body's field with a bound.
type Op uint8

// The operators. AtMost and AtLeast also say what a missing field is clamped
// to where the policy clamps.
const (
	AtMost Op = iota
	AtLeast
	Equal
)

// String is the operator as written in a scope.
func (o Op) String() string {
	switch o {
	case AtMost:
		return "<="
	case AtLeast:
		return ">="
	case Equal:
		return "="
	}
	return "?"
}

// What Check found. ErrAbsent leaves the choice to the caller: refuse, or set
// the field to what Fill says.
var (
	ErrAbsent  = errors.New("the field is absent and the key bounds it")
	ErrOutside = errors.New("the value is outside what the key allows")
)

// maxField bounds the name of a field in bytes.
const maxField = 64

// ParseParam reads one parameter scope. The first operator splits; a field
// has letters, digits, "_" and "-"; a bound is a finite decimal number; an
// enum has no empty and no repeated value. Anything else is an error.
func ParseParam(s string) (Param, error) {
	at := strings.IndexAny(s, "<>=")
	if at < 0 {
		return Param{}, fmt.Errorf("parameter scope %q: no operator <=, >= or =", clip(s))
	}
	p := Param{Field: s[:at], Op: Equal}
	rest := s[at+1:]
	if s[at] != '=' {
		if !strings.HasPrefix(rest, "=") {
			return Param{}, fmt.Errorf("parameter scope %q: the operators are <=, >= and =", clip(s))
		}
		rest = rest[1:]
		p.Op = AtMost
		if s[at] == '>' {
			p.Op = AtLeast
		}
	}
	if !isField(p.Field) {
		return Param{}, fmt.Errorf("parameter scope %q: the field has 1 to %d letters, digits, _ or -", clip(s), maxField)
	}
	if p.Op == Equal {
		return p.withEnum(s, rest)
	}
	bound, ok := number(rest)
	if !ok {
		return Param{}, fmt.Errorf("parameter scope %q: the bound is not a finite number", clip(s))
	}
	p.Bound = bound
	return p, nil
}

func (p Param) withEnum(s, list string) (Param, error) {
	if strings.ContainsAny(list, "<>=") {
		return Param{}, fmt.Errorf("parameter scope %q: more than one operator", clip(s))
	}
	p.Enum = strings.Split(list, "|")
	slices.Sort(p.Enum)
	for i, v := range p.Enum {
		if v == "" || i > 0 && v == p.Enum[i-1] {
			return Param{}, fmt.Errorf("parameter scope %q: a value is empty or repeated", clip(s))
		}
	}
	return p, nil
}

// String is the scope that ParseParam reads as p.
func (p Param) String() string {
	if p.Op == Equal {
		return p.Field + "=" + strings.Join(p.Enum, "|")
	}
	form := byte('f')
	if a := math.Abs(p.Bound); a >= 1e15 || a < 1e-6 && a > 0 {
		form = 'g'
	}
	return p.Field + p.Op.String() + strconv.FormatFloat(p.Bound, form, -1, 64)
}

// Check judges the field's value in a body: a number (any Go number or
// json.Number), a string or a bool as decoded; nil when the field is absent
// or null. It returns nil, or an error wrapping ErrAbsent or ErrOutside that
// names field, value and bound.
//
// AtMost and AtLeast want a number: a number written as a string is refused,
// because some servers would read it as one. Equal compares strings exactly
// and numbers by value; true and false are compared by name.
func (p Param) Check(v any) error {
	if v == nil {
		return fmt.Errorf("%s (allowed: %s): %w", p.Field, p, ErrAbsent)
	}
	if p.holds(v) {
		return nil
	}
	return fmt.Errorf("%s = %s (allowed: %s): %w", p.Field, shown(v), p, ErrOutside)
}

func (p Param) holds(v any) bool {
	n, isNumber := numeric(v)
	switch p.Op {
	case AtMost:
		return isNumber && n <= p.Bound
	case AtLeast:
		return isNumber && n >= p.Bound
	case Equal:
		if isNumber {
			return slices.ContainsFunc(p.Enum, func(e string) bool {
				b, ok := number(e)
				return ok && b == n
			})
		}
		switch v := v.(type) {
		case string:
			return slices.Contains(p.Enum, v)
		case bool:
			return slices.Contains(p.Enum, strconv.FormatBool(v))
		}
	}
	return false
}

// Fill is the value that an absent field is set to where the policy clamps:
// the bound, or the single value of Equal (a number where it reads as one).
// ok is false where no single value follows.
func (p Param) Fill() (v any, ok bool) {
	if p.Op != Equal {
		return p.Bound, true
	}
	if len(p.Enum) != 1 {
		return nil, false
	}
	if n, isNumber := number(p.Enum[0]); isNumber {
		return n, true
	}
	return p.Enum[0], true
}

// number reads a plain decimal number; no hexadecimal, underscore, inf, nan.
func number(s string) (float64, bool) {
	if s == "" || strings.Trim(s, "0123456789.eE+-") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil && !math.IsInf(n, 0)
}

// numeric turns a decoded JSON number into a float64. NaN is no number.
func numeric(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, !math.IsNaN(v)
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case json.Number:
		return number(v.String())
	}
	return 0, false
}

func isField(s string) bool {
	if s == "" || len(s) > maxField {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// shown is a value for an error message: short, and nothing of a structure.
func shown(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(clip(v))
	case bool, float64, int, int64, json.Number:
		return clip(fmt.Sprint(v))
	}
	return "a structure"
}

// clip bounds what an error repeats of its input.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
