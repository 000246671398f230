package extproc

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Errors of messages that cannot be read.
var (
	errMalformed = errors.New("extproc: message is not protobuf")
	errRepeated  = errors.New("extproc: message carries a part twice")
	errNotUTF8   = errors.New("extproc: message carries text that is not UTF-8")
)

// Wire types as they stand in a tag, number<<3 | type. A field of another type
// than it should have is an unknown one, as protobuf reads it.
const (
	varint   = uint64(protowire.VarintType)
	fixed64  = uint64(protowire.Fixed64Type)
	lengthed = uint64(protowire.BytesType) // messages, texts, bytes
)

// span is a part of a buffer.
type span struct {
	from, to int
	set      bool
}

func (s span) of(buf []byte) []byte { return buf[s.from:s.to] }

// text is the part of a buffer whose copy is all.
func (s span) text(all string) string { return all[s.from:s.to] }

// cursor walks the fields of the message that stands there.
func (s span) cursor(buf []byte) cursor { return cursor{buf: buf, at: s.from, end: s.to} }

// cursor walks the fields of a protobuf message in buf. Positions are those of
// buf, also inside of a field.
type cursor struct {
	buf     []byte
	at, end int
	err     error

	tag     uint64 // of the field
	content span   // of a length-delimited one
	value   uint64 // of a numeric one
}

// next goes to the next field; false at the end and on an error.
func (c *cursor) next() bool {
	if c.at >= c.end || c.err != nil {
		return false
	}
	num, typ, n := protowire.ConsumeTag(c.buf[c.at:c.end])
	if n < 0 {
		return c.malformed()
	}
	c.at += n
	c.tag = uint64(num)<<3 | uint64(typ)
	rest := c.buf[c.at:c.end]
	switch typ {
	case protowire.BytesType:
		var b []byte
		b, n = protowire.ConsumeBytes(rest)
		c.content = span{c.at + n - len(b), c.at + n, true}
	case protowire.VarintType:
		c.value, n = protowire.ConsumeVarint(rest)
	case protowire.Fixed64Type:
		c.value, n = protowire.ConsumeFixed64(rest)
	default:
		n = protowire.ConsumeFieldValue(num, typ, rest)
	}
	if n < 0 {
		return c.malformed()
	}
	c.at += n
	return true
}

func (c *cursor) malformed() bool {
	c.err = errMalformed
	return false
}

// text is the field's content, cut out of all, which is buf as a string.
func (c *cursor) text(all string) string {
	c.mustBeText(c.content)
	return c.content.text(all)
}

func (c *cursor) mustBeText(s span) {
	if c.err == nil && !utf8.Valid(s.of(c.buf)) {
		c.err = errNotUTF8
	}
}

// once takes the field's content into s.
func (c *cursor) once(s *span) { c.take(s, c.content) }

// take sets s, which must not be set yet: protobuf would merge a message that
// comes twice, Envoy writes each once, and two readings of one are one too
// many.
func (c *cursor) take(s *span, part span) {
	if s.set {
		c.err = errRepeated
	}
	*s = part
	s.set = true
}

// entry reads the field as an entry of a map with texts for keys.
func (c *cursor) entry() (key, value span) {
	e := c.content.cursor(c.buf)
	for e.next() {
		switch e.tag {
		case 1<<3 | lengthed:
			key = e.content
		case 2<<3 | lengthed:
			e.once(&value)
		}
	}
	e.mustBeText(key)
	if c.err == nil {
		c.err = e.err
	}
	return key, value
}
