package meter

import "bytes"

// Limits of a shape.
const (
	maxPrefix = 2048
	maxSuffix = 1024
)

// shape is an event that carries one text, without that text. The events of
// an answer differ in their text alone, so most of them are recognised by two
// comparisons instead of being read.
type shape struct{ prefix, suffix []byte }

// shapes are the two last shapes seen: two, for answers of two choices.
type shapes struct {
	known [2]shape
	next  int
}

// match counts the text of the event at the start of p and returns the
// event's length; 0 if it has no known shape, or if its text has escapes.
func (s *shapes) match(p []byte, t *textCount) int {
	for k := range s.known {
		h := &s.known[k]
		if len(h.prefix) == 0 || !bytes.HasPrefix(p, h.prefix) {
			continue
		}
		rest := p[len(h.prefix):]
		n := bytes.IndexByte(rest, '"')
		if n <= 0 || !bytes.HasPrefix(rest[n+1:], h.suffix) || !plainText(rest[:n]) {
			continue
		}
		t.add(rest[:n])
		return len(h.prefix) + n + 1 + len(h.suffix)
	}
	return 0
}

func plainText(p []byte) bool {
	for _, c := range p {
		if c < ' ' || c == '\\' {
			return false
		}
	}
	return true
}

// learn keeps the shape of an event whose text lies at [lo, hi).
func (s *shapes) learn(event []byte, lo, hi int) {
	if lo > maxPrefix || hi >= len(event) || len(event)-hi-1 > maxSuffix {
		return
	}
	h := &s.known[s.next]
	s.next = (s.next + 1) % len(s.known)
	h.prefix = append(h.prefix[:0], event[:lo]...)
	h.suffix = append(h.suffix[:0], event[hi+1:]...)
}
