package body

import (
	"fmt"
	"slices"

	"github.com/weirproxy/weir/policy"
)

// setting is a member that may be a parameter: at the top of the body, or in
// an object that is not content. It is valid during its visit alone.
type setting struct {
	name []byte
	role role
	val  span
	cut  span // what to take out, with one comma
	path [][]byte
	// known says that engines read parameters here: at the top, or in objects
	// of containerNames inside of one another, or in lists of those.
	known bool
	// listed says that it is one of a list's: it speaks for a part of the call.
	listed bool
}

func (s *setting) top() bool { return len(s.path) == 0 }

// field is the setting's name for the caller: sampling_params.max_tokens.
func (s *setting) field() string {
	out := ""
	for _, p := range s.path {
		out += cut(p, 64) + "."
	}
	return out + cut(s.name, 64)
}

// settings visits the parameters of a body that was parsed; all visits those
// in objects where no engine is known to look, too. It ends when visit says so.
// What a member holds inside of an object comes before the member: each byte is
// read once, however deep it lies.
func (b *Body) settings(all bool, visit func(*setting) bool) {
	w := walk{s: scanner{data: b.data, checked: true}, all: all, visit: visit}
	before := b.head
	for i := range b.fields {
		f := &b.fields[i]
		w.s.pos = f.val.lo
		w.at = setting{name: f.name, role: roles[string(f.name)], val: f.val, known: true, cut: cutOf(b.data, before, i == 0, f.val)}
		enters := w.enters(b.data[f.val.lo], w.at.role)
		if !visit(&w.at) || enters && !w.inside(f.name, w.at.role, true) {
			return
		}
		before = f.val.hi
	}
}

// cutOf is the span of a member that begins behind before: with the comma in
// front of it, or, of the first one, with the one behind it.
func cutOf(data []byte, before int, first bool, val span) span {
	if first {
		s := scanner{data: data, pos: val.hi}
		if s.peek() == ',' {
			return span{before, s.pos + 1}
		}
	}
	return span{before, val.hi}
}

// walk visits the members of objects inside of a body.
type walk struct {
	s     scanner
	all   bool
	visit func(*setting) bool
	path  [][]byte
	lists int // that are open
	at    setting
}

// enters reports whether a value that begins with c may hold parameters.
func (w *walk) enters(c byte, r role) bool {
	switch r {
	case roleContent:
		return false
	case roleInput:
		return c == '{'
	case roleContainer:
		return c == '{' || c == '['
	}
	return w.all && (c == '{' || c == '[')
}

// inside visits what the member of a name holds, which begins at the scanner's
// position; false = visit wants no more.
func (w *walk) inside(name []byte, r role, known bool) bool {
	w.path = append(w.path, name)
	ok := w.value(known && (r == roleContainer || r == roleInput))
	w.path = w.path[:len(w.path)-1]
	return ok
}

// value visits the members of the object, or of the array's objects, at the
// scanner's position.
func (w *walk) value(known bool) bool {
	switch w.s.peek() {
	case '{':
		return w.object(known)
	case '[':
		w.lists++
		m := w.s.open()
		for w.s.elem(&m) {
			if !w.value(known) {
				return false
			}
		}
		w.lists--
		return true
	}
	return w.s.value()
}

func (w *walk) object(known bool) bool {
	s := &w.s
	m := s.open()
	before, first := s.pos, true
	for name, ok := s.next(&m); ok; name, ok = s.next(&m) {
		r := roles[string(name)]
		c := s.peek()
		lo := s.pos
		if w.enters(c, r) {
			ok = w.inside(name, r, known)
		} else {
			ok = s.value()
		}
		if !ok {
			return false
		}
		val := span{lo, s.pos}
		w.at = setting{name: name, role: r, val: val, path: w.path, known: known, listed: w.lists > 0}
		if r == rolePriority {
			w.at.cut = cutOf(s.data, before, first, val)
		}
		if !w.visit(&w.at) {
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
		if r := roles[string(b.fields[i].name)]; r != noRole && slices.Contains(any, r) && !b.fields[i].isKnown() {
			return true
		}
	}
	return false
}

func (b *Body) countSetting(s *setting) *Error {
	raw := b.data[s.val.lo:s.val.hi]
	if string(raw) == "null" || s.top() && slices.Contains(known[:], string(s.name)) {
		return nil
	}
	switch s.role {
	case roleEOS:
		b.caps.toTheEnd = b.caps.toTheEnd || string(raw) != "false" // engines take 1, "yes" and others for true
	case roleCap:
		v, err := settingNumber(s, raw, -1, MaxCap)
		b.caps.other = max(b.caps.other, v)
		b.caps.open = b.caps.open || err == nil && v <= 0 // engines read it as no cap
		return err
	case roleMin:
		v, err := settingNumber(s, raw, 0, MaxCap)
		b.caps.least = max(b.caps.least, v)
		return err
	case roleChoices:
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
	if !b.has(rolePriority, roleContainer, roleInput) {
		return nil, nil
	}
	var edits []Edit
	var bad *Error
	b.settings(false, func(s *setting) bool {
		if s.role != rolePriority {
			return true
		}
		if len(edits) == MaxPriorities {
			bad = invalid(s.field(), fmt.Sprintf("must be in at most %d objects", MaxPriorities))
			return false
		}
		edits = append(edits, Edit{cut: s.cut, top: s.top()})
		return true
	})
	return edits, bad
}
