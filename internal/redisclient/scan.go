package redisclient

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// ErrProtocol is of bytes that no Redis sends in answer to what was asked.
var ErrProtocol = errors.New("redis: protocol error")

// The bounds of one reply. The longest that is asked for is a part of the
// breakers' bus (about 1 MiB), the one with the most elements the slots of a
// large Cluster.
const (
	maxReply    = 4 << 20 // bytes
	maxElements = 1 << 17 // announced in it, at all depths together
	maxDepth    = 8       // of arrays in arrays
	maxLine     = 4096    // bytes of a line: an error's text, mostly
)

// scanner finds the end of one reply in bytes as they come, without holding
// more than its counters. RESP2, and RESP3 where resp3 says so.
// https://redis.io/docs/latest/develop/reference/protocol-spec/
type scanner struct {
	resp3    bool
	depth    int
	left     [maxDepth]int // elements still to come, by depth
	elements int           // announced so far
}

// next reads from b[at:], where b holds the reply from its first byte. It
// returns how far it came, and whether the reply ends there; more bytes are
// needed if it does not.
func (s *scanner) next(b []byte, at int) (to int, whole bool, err error) {
	for {
		end, ok, err := s.element(b, at)
		if err != nil || !ok {
			return at, false, err
		}
		at = end
		for s.depth > 0 && s.left[s.depth-1] == 0 {
			s.depth--
		}
		if s.depth == 0 {
			s.elements = 0
			return at, true, nil
		}
		s.left[s.depth-1]--
	}
}

// element reads one header, and the text that it announces.
func (s *scanner) element(b []byte, at int) (end int, ok bool, err error) {
	line, after, ok, err := cutLine(b, at)
	if err != nil || !ok {
		return at, false, err
	}
	switch kind := line[0]; kind {
	case '+', '-':
		return after, true, nil
	case ':':
		_, err = count(line, 1<<63-1, "")
		return after, err == nil, err
	case '$', '!', '=':
		if err = s.allowed(kind); err != nil {
			return at, false, err
		}
		return s.text(b, line, after)
	case '*', '~', '%', '>':
		if err = s.allowed(kind); err == nil {
			err = s.aggregate(line)
		}
		return after, err == nil, err
	case '_', '#', ',', '(':
		if err = s.allowed(kind); err == nil {
			err = scalar(line)
		}
		return after, err == nil, err
	default: // '|', attributes, and '?', streams, are never asked for
		return at, false, violation("a reply of the unknown type %q", kind)
	}
}

// allowed says whether a type may come on this connection.
func (s *scanner) allowed(kind byte) error {
	switch {
	case kind == '$' || kind == '*' || s.resp3 && kind != '>':
		return nil
	case kind == '>' && s.resp3 && s.depth == 0:
		return nil
	}
	return violation("a reply of the type %q, which was not agreed on", kind)
}

// text finds the end of a text whose length was announced.
func (s *scanner) text(b, line []byte, after int) (end int, ok bool, err error) {
	n, err := count(line, maxReply, "bytes")
	if err != nil {
		return 0, false, err
	}
	if n < 0 {
		return after, true, nil
	}
	if end = after + n + 2; end > maxReply {
		return 0, false, violation("a reply of more than %d bytes", maxReply)
	}
	if len(b) < end {
		return 0, false, nil
	}
	if b[end-2] != '\r' || b[end-1] != '\n' {
		return 0, false, violation("a text of %d bytes that does not end there", n)
	}
	return end, true, nil
}

// aggregate opens an array, a set, a map or a push.
func (s *scanner) aggregate(line []byte) error {
	n, err := count(line, maxElements, "elements")
	if err != nil {
		return err
	}
	if line[0] == '%' {
		n *= 2
	}
	if n <= 0 {
		return nil // an element like any other
	}
	if s.elements += n; s.elements > maxElements {
		return violation("a reply of more than %d elements", maxElements)
	}
	if s.depth == maxDepth {
		return violation("a reply deeper than %d", maxDepth)
	}
	s.left[s.depth] = n
	s.depth++
	return nil
}

// scalar checks the values of RESP3 that stand in their line.
func scalar(line []byte) error {
	text, ok := string(line[1:]), true
	switch line[0] {
	case '_':
		ok = text == ""
	case '#':
		ok = text == "t" || text == "f"
	case ',':
		_, err := strconv.ParseFloat(text, 64)
		ok = err == nil || errors.Is(err, strconv.ErrRange)
	case '(':
		digits := bytes.TrimLeft(line[1:], "+-")
		ok = len(digits) > 0 && len(line)-len(digits) <= 2 && len(digits) <= 1000 && len(bytes.Trim(digits, "0123456789")) == 0
	}
	if !ok {
		return violation("a value that is none: %.40q", line)
	}
	return nil
}

// count reads the number of a header. -1 is nothing, of texts and arrays;
// what is empty names no bound.
func count(line []byte, bound int, what string) (int, error) {
	text := string(line[1:])
	n, err := strconv.Atoi(text)
	nothing := n == -1 && (line[0] == '$' || line[0] == '*')
	switch {
	case err == nil && what == "" || nothing && text == "-1":
		return n, nil
	case err != nil && !errors.Is(err, strconv.ErrRange) || err == nil && (n < 0 || text[0] == '+'):
		return 0, violation("a number that is none: %.40q", line)
	case err != nil || n > bound:
		return 0, violation("%.20s %s announced, at most %d are read", text, what, bound)
	}
	return n, nil
}

// cutLine finds the line at b[at:], without its end; not ok: more has to come.
func cutLine(b []byte, at int) (line []byte, after int, ok bool, err error) {
	rest := b[at:]
	end := bytes.IndexByte(rest[:min(len(rest), maxLine+2)], '\n')
	switch {
	case end < 0 && len(rest) >= maxLine+2:
		return nil, 0, false, violation("a line of more than %d bytes", maxLine)
	case end < 0:
		return nil, 0, false, nil
	case end < 2 || rest[end-1] != '\r': // no line is empty, and none ends otherwise
		return nil, 0, false, violation("a line that is none: %.40q", rest[:end+1])
	}
	if after = at + end + 1; after > maxReply {
		return nil, 0, false, violation("a reply of more than %d bytes", maxReply)
	}
	return rest[:end-1], after, true, nil
}

// replyError is an ErrProtocol. It has no Unwrap: the library unwraps what ends
// a handshake, and its text would be lost.
type replyError struct{ text string }

func (e *replyError) Error() string { return ErrProtocol.Error() + ": " + e.text }

// Is makes it an ErrProtocol.
func (e *replyError) Is(target error) bool { return target == ErrProtocol }

func violation(format string, of ...any) error {
	return &replyError{fmt.Sprintf(format, of...)}
}
