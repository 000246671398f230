package body

import (
	"bytes"
	"fmt"
)

// scanner reads one document in one pass. Methods return false after a
// failure, which is then in err.
type scanner struct {
	data  []byte
	pos   int
	depth int
	mode  mode
	// checked: the document was read before; names are known to be unique.
	checked bool
	names   [][]byte            // names of the open objects, innermost last
	spare   map[string]struct{} // of an object that was read; empty
	b       *Body
	err     *Error
}

// mode says what of the values being read counts as prompt text.
type mode uint8

const (
	modeSkip   mode = iota
	modeText        // string values
	modeSchema      // string values and names (tools, schemas)
)

func (s *scanner) refuse(e *Error) bool {
	if s.err == nil {
		s.err = e
	}
	return false
}

// broken refuses the body as invalid JSON at the current position.
func (s *scanner) broken(what string) bool {
	return s.refuse(&Error{400, CodeInvalidJSON, "",
		fmt.Sprintf("%s at byte %d of %d", what, s.pos, len(s.data))})
}

// unexpected refuses the byte at the current position, or the lack of one.
func (s *scanner) unexpected(want string) bool {
	if s.pos >= len(s.data) {
		return s.broken("it ends where " + want + " is expected")
	}
	return s.broken(fmt.Sprintf("0x%02x where %s is expected", s.data[s.pos], want))
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// members iterates over the object or array at the current position.
type members struct {
	base int                 // first of the object's names in scanner.names
	seen map[string]struct{} // of a large object's names
	more bool                // a member was read already
}

// linear is how many names are compared one by one before a map is used, so
// that an object of many names costs linear time.
const linear = 16

func (s *scanner) open() members {
	s.pos++
	s.depth++
	return members{base: len(s.names)}
}

func (s *scanner) close(m *members) {
	s.pos++
	s.depth--
	s.names = s.names[:m.base]
	if m.seen != nil && len(m.seen) <= 4*linear {
		clear(m.seen)
		s.spare = m.seen
	}
}

// deep refuses too much nesting; it is asked before the first member.
func (s *scanner) deep() bool {
	return s.depth <= MaxDepth || s.broken(fmt.Sprintf("more than %d nested levels", MaxDepth))
}

// next moves to the value of the object's next member and returns its
// resolved name; ok is false at the object's end and after a failure.
func (s *scanner) next(m *members) (name []byte, ok bool) {
	if !m.more && !s.deep() {
		return nil, false
	}
	c := s.peek()
	if c == '}' {
		s.close(m)
		return nil, false
	}
	if m.more {
		if c != ',' {
			return nil, s.unexpected("',' or '}'")
		}
		s.pos++
		c = s.peek()
	}
	m.more = true
	s.count(1)
	if c != '"' {
		return nil, s.unexpected("a name in quotes")
	}
	if name, ok = s.name(); !ok || !s.checked && !s.unique(m, name) {
		return nil, false
	}
	if s.peek() != ':' {
		return nil, s.unexpected("':'")
	}
	s.pos++
	return name, true
}

// elem moves to the array's next element.
func (s *scanner) elem(m *members) bool {
	if !m.more && !s.deep() {
		return false
	}
	c := s.peek()
	switch {
	case c == ']' && s.pos < len(s.data):
		s.close(m)
		return false
	case m.more && c != ',':
		return s.unexpected("',' or ']'")
	case m.more:
		s.pos++
	}
	m.more = true
	s.count(1)
	return true
}

// count takes bytes that are no strings for text of a prompt where they are.
func (s *scanner) count(n int) {
	if s.mode == modeSchema {
		s.b.PromptBytes += int64(n)
	}
}

// unique refuses a name that the object has already.
func (s *scanner) unique(m *members, name []byte) bool {
	names := s.names[m.base:]
	switch {
	case len(names) >= MaxMembers:
		return s.broken(fmt.Sprintf("an object of more than %d names", MaxMembers))
	case len(names) < linear:
		for _, n := range names {
			if bytes.Equal(n, name) {
				return s.duplicate(name)
			}
		}
	default:
		if m.seen == nil {
			if m.seen, s.spare = s.spare, nil; m.seen == nil {
				m.seen = make(map[string]struct{}, 4*linear)
			}
			for _, n := range names {
				m.seen[string(n)] = struct{}{}
			}
		}
		if _, dup := m.seen[string(name)]; dup {
			return s.duplicate(name)
		}
		m.seen[string(name)] = struct{}{}
	}
	s.names = append(s.names, name)
	return true
}

func (s *scanner) duplicate(name []byte) bool {
	return s.refuse(&Error{400, CodeDuplicate, cut(name, 64),
		fmt.Sprintf("the name %s appears twice in one object", shortName(name))})
}

// name reads a member's name and resolves its escapes.
func (s *scanner) name() ([]byte, bool) {
	lo := s.pos + 1
	escaped, ok := s.str(s.mode == modeSchema)
	if !ok {
		return nil, false
	}
	raw := s.data[lo : s.pos-1]
	if escaped {
		raw = unescape(raw)
	}
	return raw, true
}

// value reads any value.
func (s *scanner) value() bool {
	switch c := s.peek(); c {
	case '"':
		_, ok := s.str(s.mode != modeSkip)
		return ok
	case '{':
		m := s.open()
		for _, ok := s.next(&m); ok; _, ok = s.next(&m) {
			if !s.value() {
				return false
			}
		}
	case '[':
		m := s.open()
		for s.elem(&m) {
			if !s.value() {
				return false
			}
		}
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
	return s.err == nil
}

// as reads any value in the given mode.
func (s *scanner) as(m mode) bool {
	old := s.mode
	s.mode = m
	ok := s.value()
	s.mode = old
	return ok
}

func (s *scanner) literal(word string) bool {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return s.unexpected("true, false or null")
	}
	s.pos += len(word)
	s.count(len(word))
	return true
}

// number checks the grammar of RFC 8259 section 6.
func (s *scanner) number() bool {
	d, i := s.data, s.pos
	if i < len(d) && d[i] == '-' {
		i++
	}
	lo := i
	i = digits(d, i)
	if i == lo || (d[lo] == '0' && i > lo+1) {
		if s.pos = lo; i > lo {
			s.pos = lo + 1
		}
		return s.unexpected("a value")
	}
	if i < len(d) && d[i] == '.' {
		lo = i + 1
		if i = digits(d, lo); i == lo {
			s.pos = i
			return s.unexpected("a digit")
		}
	}
	if i < len(d) && d[i]|0x20 == 'e' {
		i++
		if i < len(d) && (d[i] == '+' || d[i] == '-') {
			i++
		}
		lo = i
		if i = digits(d, lo); i == lo {
			s.pos = i
			return s.unexpected("a digit")
		}
	}
	s.count(i - s.pos)
	s.pos = i
	return true
}

func digits(d []byte, i int) int {
	for i < len(d) && d[i]-'0' < 10 {
		i++
	}
	return i
}
