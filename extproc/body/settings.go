package body

import (
	"fmt"
	"slices"

	"github.com/weirproxy/weir/policy"
)

// setting is a member that may be a parameter: at the top of the body, or in
// an object that is not content.
type setting struct {
	name []byte
	val  span
	cut  span // what to take out, with one comma
	path []string
	// known says that engines read parameters here: at the top, or in objects
	// of containerNames inside of one another.
	known bool
}

func (s *setting) top() bool { return len(s.path) == 0 }

// field is the setting's name for the caller: sampling_params.max_tokens.
func (s *setting) field() string {
	out := ""
	for _, p := range s.path {
		out += cut([]byte(p), 64) + "."
	}
	return out + cut(s.name, 64)
}

// settings visits the parameters of a body that was parsed; all visits those
// in objects where no engine is known to look, too. It ends when visit says so.
func (b *Body) settings(all bool, visit func(*setting) bool) {
	w := walk{data: b.data, all: all, visit: visit}
	for i := range b.fields {
		f := &b.fields[i]
		before := span{b.head, b.head}
		if i > 0 {
			before = b.fields[i-1].val
		}
		s := setting{name: f.name, val: f.val, known: true, cut: b.cutOf(before.hi, i == 0, f.val)}
		if !visit(&s) || !w.inside(&s) {
			return
		}
	}
}

// cutOf is the span of a member that begins behind before: with the comma in
// front of it, or, of the first one, with the one behind it.
func (b *Body) cutOf(before int, first bool, val span) span {
	if !first {
		return span{before, val.hi}
	}
	s := scanner{data: b.data, pos: val.hi}
	if s.peek() == ',' {
		return span{before, s.pos + 1}
	}
	return span{before, val.hi}
}

// walk visits the members of objects inside of a body.
type walk struct {
	data  []byte
	all   bool
	visit func(*setting) bool
	path  []string
}

// inside visits what a setting holds; false = visit wants no more.
func (w *walk) inside(s *setting) bool {
	c := w.data[s.val.lo]
	r := roles[string(s.name)]
	if c != '{' && c != '[' || r == roleContent || !w.all && (c != '{' || r != roleContainer) {
		return true
	}
	w.path = append(w.path, string(s.name))
	in := scanner{data: w.data, pos: s.val.lo}
	more := w.value(&in, s.known && c == '{' && r == roleContainer)
	w.path = w.path[:len(w.path)-1]
	return more
}

// value visits the members of the object, or of the array's objects, at the
// scanner's position.
func (w *walk) value(s *scanner, known bool) bool {
	switch s.peek() {
	case '{':
		return w.object(s, known)
	case '[':
		m := s.open()
		for s.elem(&m) {
			if !w.value(s, false) {
				return false
			}
		}
		return true
	}
	return s.value()
}

func (w *walk) object(s *scanner, known bool) bool {
	m := s.open()
	before, first := s.pos, true
	b := Body{data: w.data}
	for name, ok := s.next(&m); ok; name, ok = s.next(&m) {
		s.peek()
		lo := s.pos
		if !s.value() {
			return false
		}
		at := setting{name: name, val: span{lo, s.pos}, path: slices.Clone(w.path), known: known}
		at.cut = b.cutOf(before, first, at.val)
		if !w.visit(&at) || !w.inside(&at) {
			return false
		}
		before, first = s.pos, false
	}
	return s.err == nil
}

// countSettings reads caps, least outputs and choices under all the names that
// engines know. Those that the API defines were read already, and strictly.
func (b *Body) countSettings() (bad *Error) {
	if b.Kind != policy.OpenAIChat && b.Kind != policy.OpenAICompletions || !b.has(roleCap, roleMin, roleChoices, roleEOS, roleContainer) {
		return nil
	}
	b.settings(false, func(s *setting) bool {
		bad = b.countSetting(s)
		return bad == nil
	})
	return bad
}

// has reports whether one of the roles is played by a top-level field beyond
// those that the scanner reads itself: in most bodies none is.
func (b *Body) has(any ...role) bool {
	for i := range b.fields {
		name := string(b.fields[i].name)
		if r := roles[name]; r != noRole && slices.Contains(any, r) && !slices.Contains(known[:], name) {
			return true
		}
	}
	return false
}

func (b *Body) countSetting(s *setting) *Error {
	raw := b.data[s.val.lo:s.val.hi]
	r := roles[string(s.name)]
	switch {
	case string(raw) == "null" || s.top() && slices.Contains(known[:], string(s.name)):
		return nil
	case r == roleEOS:
		b.caps.toTheEnd = b.caps.toTheEnd || string(raw) == "true"
	case r == roleCap:
		v, err := settingNumber(s, raw, -1, MaxCap)
		b.caps.other = max(b.caps.other, v)
		b.caps.open = b.caps.open || err == nil && v <= 0 // engines read it as no cap
		return err
	case r == roleMin:
		v, err := settingNumber(s, raw, 0, MaxCap)
		b.caps.least = max(b.caps.least, v)
		return err
	case r == roleChoices:
		v, err := settingNumber(s, raw, 1, MaxChoices)
		if v > b.caps.width {
			b.caps.width, b.caps.widest = v, s.field()
		}
		return err
	}
	return nil
}

func settingNumber(s *setting, raw []byte, least, most int64) (int64, *Error) {
	if c := raw[0]; c == '-' || c-'0' <= 9 {
		if v, whole := wholeNumber(raw); whole && v >= least && v <= most {
			return v, nil
		}
	}
	return 0, invalid(s.field(), fmt.Sprintf("must be a whole number from %d to %d, not %s", least, most, shortValue(raw)))
}

// CheckBounds holds the number of choices and prompts against the policy's
// bounds; edits are those that will be made.
func (b *Body) CheckBounds(edits []Edit, p *policy.Body) *Error {
	c := b.caps.after(edits)
	if n := c.each(); n > p.MaxChoices {
		return invalid(c.widestName(), fmt.Sprintf("must be at most %d, not %d", p.MaxChoices, n))
	}
	if b.Prompts > p.MaxPrompts {
		field := "prompt"
		if b.Kind == policy.OpenAIEmbeddings {
			field = "input"
		}
		return invalid(field, fmt.Sprintf("must have at most %d elements, not %d", p.MaxPrompts, b.Prompts))
	}
	return nil
}

// WithoutPriority are the edits that take the caller's own priority out, at the
// top and wherever engines look for parameters. A name that a reader could take
// for it is refused.
func (b *Body) WithoutPriority() ([]Edit, *Error) {
	if err := b.CheckTwins(Priority); err != nil {
		return nil, err
	}
	if !b.has(rolePriority, roleContainer) {
		return nil, nil
	}
	var edits []Edit
	b.settings(false, func(s *setting) bool {
		if s.known && string(s.name) == Priority {
			edits = append(edits, Edit{cut: s.cut, top: s.top()})
		}
		return true
	})
	return edits, nil
}
