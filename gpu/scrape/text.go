package scrape

import (
	"bytes"
	"fmt"
	"strconv"
)

// label is one name and value; the value is unescaped.
type label struct {
	name, value []byte
}

// series is one line of the text format. It is valid until the next line.
type series struct {
	name   []byte
	labels []label
	value  float64
	stamp  int64 // milliseconds since 1970; 0 = none
}

// label is the value of a label; nil when it is not there.
func (s *series) label(name string) []byte {
	for i := range s.labels {
		if string(s.labels[i].name) == name {
			return s.labels[i].value
		}
	}
	return nil
}

// scanner reads Prometheus' text format 0.0.4 line by line and parses only
// the lines whose metric is wanted. Nothing is allocated once its buffers
// have grown. It refuses what is no such text: a line that does not begin
// like a series or a comment, a wanted line that is not well formed, and an
// end without a newline, where a number may have lost digits.
//
// A page of an engine is mostly histograms, whose lines repeat a name that
// nobody wants: such a line costs a search for its end and one comparison.
type scanner struct {
	labels  []label
	scratch []byte // unescaped values
	skip    []byte // the last name that was not wanted
	current series
}

// errorAt is a scan error with its line.
func errorAt(line int, format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{line}, args...)...)
}

// taker says which metrics it wants and takes their series, and the types
// stated for them, in order. want depends on the name alone.
type taker interface {
	want(name []byte) bool
	typed(name, kind []byte)
	take(s *series)
}

// scan hands every series that is wanted to t.
func (sc *scanner) scan(text []byte, t taker) error {
	sc.skip = nil
	for line := 1; len(text) > 0; line++ {
		end := bytes.IndexByte(text, '\n')
		if end < 0 && len(trim(text)) == 0 {
			return nil
		}
		if end < 0 {
			return errorAt(line, "text ends in the middle of a line")
		}
		row := text[:end]
		text = text[end+1:]
		if n := len(sc.skip); n > 0 && n < end && row[n] == '{' && bytes.Equal(row[:n], sc.skip) {
			continue
		}
		if row = trim(row); len(row) == 0 {
			continue
		}
		if row[0] == '#' {
			comment(row[1:], t)
			continue
		}
		if err := sc.row(row, line, t); err != nil {
			return err
		}
	}
	return nil
}

// comment hands on the type that a comment states for a metric.
func comment(row []byte, t taker) {
	row = trim(row)
	if len(row) < 5 || string(row[:4]) != "TYPE" || (row[4] != ' ' && row[4] != '\t') {
		return
	}
	row = trim(row[4:])
	if n := nameLength(row); n > 0 && t.want(row[:n]) {
		t.typed(row[:n], trim(row[n:]))
	}
}

// row reads one line that is neither empty nor a comment.
func (sc *scanner) row(row []byte, line int, t taker) error {
	s := &sc.current
	n := nameLength(row)
	s.name = row[:n]
	if n == 0 && row[0] != '{' {
		return errorAt(line, "not a metric: %.40q", row)
	}
	if n > 0 && !t.want(s.name) {
		sc.skip = s.name
		return nil
	}
	rest := trim(row[n:])
	sc.labels, sc.scratch = sc.labels[:0], sc.scratch[:0]
	if len(rest) > 0 && rest[0] == '{' {
		var quoted []byte
		var ok bool
		if quoted, rest, ok = sc.braces(rest[1:]); !ok {
			return errorAt(line, "labels are not well formed: %.80q", row)
		}
		if quoted != nil {
			if n > 0 {
				return errorAt(line, "two metric names: %.80q", row)
			}
			s.name = quoted
		}
	}
	if len(s.name) == 0 {
		return errorAt(line, "no metric name: %.80q", row)
	}
	if !t.want(s.name) {
		return nil
	}
	var ok bool
	if s.value, s.stamp, ok = number(rest); !ok {
		return errorAt(line, "value is not well formed: %.80q", row)
	}
	s.labels = sc.labels
	t.take(s)
	return nil
}

// braces reads labels up to the closing brace. A quoted string without a
// value is the metric's name.
func (sc *scanner) braces(b []byte) (name, rest []byte, ok bool) {
	for {
		if b = trim(b); len(b) == 0 {
			return nil, nil, false
		}
		if b[0] == '}' {
			return name, b[1:], true
		}
		var key []byte
		quoted := b[0] == '"'
		if quoted {
			key, b, ok = sc.quoted(b[1:])
		} else {
			n := labelLength(b)
			key, b, ok = b[:n], b[n:], n > 0
		}
		if b = trim(b); !ok || len(b) == 0 {
			return nil, nil, false
		}
		if b[0] == '=' {
			if b = trim(b[1:]); len(b) == 0 || b[0] != '"' {
				return nil, nil, false
			}
			var value []byte
			if value, b, ok = sc.quoted(b[1:]); !ok {
				return nil, nil, false
			}
			sc.labels = append(sc.labels, label{key, value})
		} else if !quoted || name != nil || len(key) == 0 {
			return nil, nil, false
		} else {
			name = key
		}
		if b = trim(b); len(b) > 0 && b[0] == ',' {
			b = b[1:]
		} else if len(b) == 0 || b[0] != '}' {
			return nil, nil, false
		}
	}
}

// quoted reads a string after its opening quote. Without escapes it is a part
// of the text, else a part of the scratch buffer.
func (sc *scanner) quoted(b []byte) (s, rest []byte, ok bool) {
	end := bytes.IndexAny(b, `"\`)
	if end < 0 {
		return nil, nil, false
	}
	if b[end] == '"' {
		return b[:end], b[end+1:], true
	}
	from := len(sc.scratch)
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c == '"' {
			return sc.scratch[from:len(sc.scratch):len(sc.scratch)], b[i+1:], true
		}
		if c == '\\' {
			if i++; i == len(b) {
				return nil, nil, false
			}
			switch b[i] {
			case '\\', '"':
				c = b[i]
			case 'n':
				c = '\n'
			default:
				return nil, nil, false
			}
		}
		sc.scratch = append(sc.scratch, c)
	}
	return nil, nil, false
}

// number reads the value and an optional timestamp in milliseconds.
func number(b []byte) (v float64, stamp int64, ok bool) {
	b = trim(b)
	var after []byte
	if n := bytes.IndexAny(b, " \t"); n >= 0 {
		b, after = b[:n], trim(b[n:])
	}
	// Go's hexadecimal floats and digit separators are not in the format.
	if len(b) == 0 || bytes.ContainsAny(b, "pP_xX") {
		return 0, 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err == nil && len(after) > 0 {
		stamp, err = strconv.ParseInt(string(after), 10, 64)
	}
	return v, stamp, err == nil
}

// trim cuts blanks at both ends, and the carriage return of a CRLF.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t' || b[len(b)-1] == '\r') {
		b = b[:len(b)-1]
	}
	return b
}

// nameLength is the length of the metric name that b begins with.
func nameLength(b []byte) int {
	for i, c := range b {
		if !letter(c) && c != ':' && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(b)
}

// labelLength is nameLength for label names, which have no colon.
func labelLength(b []byte) int {
	for i, c := range b {
		if !letter(c) && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(b)
}

func letter(c byte) bool { return c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z' }
