package meter

import (
	"encoding/binary"
	"math/bits"
)

// Limits of what is looked at; deeper or longer values are passed over.
const (
	maxDepth = 64
	maxKey   = 40
	maxValue = 64
)

// walker reads one JSON document byte by byte, in any pieces, and tells the
// findings of the values on the way. It checks the structure, not the spelling
// of numbers and words. The zero value waits for a document.
type walker struct {
	doc   *document
	state state
	depth int
	stack [maxDepth]frame
	node  node // of the value that is read or comes next

	buf    [maxValue]byte // name, word or number being read
	n      int            // its length; above len(buf): cut
	text   *textCount     // counts the string being read; nil = it is no text
	inKey  bool
	hex    rune // of \uXXXX
	hexLen int
	off    int  // bytes of the document before the piece being fed
	once   bool // what follows the document is of no interest
}

type frame struct {
	node  node
	array bool
}

type state uint8

const (
	atValue state = iota
	atValueOrEnd
	atKeyOrEnd
	atKey
	atColon
	atComma
	inString
	inEscape
	inHex
	inWord // a number, true, false or null
	atEnd
	atFault
)

// reset makes the walker ready for another document.
func (w *walker) reset() {
	w.state, w.depth, w.node, w.n, w.off = atValue, 0, nodeRoot, 0, 0
	w.text, w.inKey = nil, false
}

// feed reads the next piece.
func (w *walker) feed(p []byte) {
	for i := 0; i < len(p); {
		switch w.state {
		case inString:
			i = w.str(p, i)
		case inEscape:
			w.escape(p[i])
			i++
		case inHex:
			w.hexDigit(p[i])
			i++
		case inWord:
			i = w.word(p, i)
		case atFault:
			i = len(p)
		case atEnd:
			if w.once {
				return
			}
			fallthrough
		default:
			w.structure(p[i], i)
			i++
		}
	}
	w.off += len(p)
}

// structure takes a byte between values.
func (w *walker) structure(c byte, at int) {
	switch c {
	case ' ', '\t', '\n', '\r':
		return
	case '}', ']':
		w.closeWith(c == ']')
		return
	}
	switch w.state {
	case atValue, atValueOrEnd:
		w.begin(c, at)
	case atKeyOrEnd, atKey:
		if c != '"' {
			w.state = atFault
			return
		}
		w.state, w.inKey, w.text, w.n = inString, true, nil, 0
	case atColon:
		if w.state = atValue; c != ':' {
			w.state = atFault
		}
	case atComma:
		if c != ',' {
			w.state = atFault
			return
		}
		f := &w.stack[w.depth-1]
		if w.state = atKey; f.array {
			w.state, w.node = atValue, elem(f.node)
		}
	default: // more after the document
		w.state = atFault
	}
}

// begin takes the first byte of a value.
func (w *walker) begin(c byte, at int) {
	w.n = 0
	switch {
	case c == '{' || c == '[':
		if w.depth == maxDepth {
			w.state = atFault
			return
		}
		array := c == '['
		w.stack[w.depth] = frame{w.node, array}
		w.depth++
		w.doc.open(w.node, array)
		if w.state = atKeyOrEnd; array {
			w.state, w.node = atValueOrEnd, elem(w.node)
		}
	case w.depth == 0: // an answer is an object or an array
		w.state = atFault
	case c == '"':
		w.state, w.inKey = inString, false
		w.text = w.doc.beginText(w.node, w.off+at+1)
	case c == '-', c-'0' < 10, c-'a' < 26:
		w.state = inWord
		w.keep(c)
	default:
		w.state = atFault
	}
}

// closeWith takes a closing bracket.
func (w *walker) closeWith(array bool) {
	if w.depth == 0 || w.stack[w.depth-1].array != array ||
		(w.state != atComma && w.state != atValueOrEnd && w.state != atKeyOrEnd) {
		w.state = atFault
		return
	}
	w.depth--
	w.doc.close(w.stack[w.depth].node)
	w.after()
}

// after follows a whole value.
func (w *walker) after() {
	if w.state = atComma; w.depth == 0 {
		w.state = atEnd
	}
}

// str reads on in a string from p[i] and returns where it stopped.
func (w *walker) str(p []byte, i int) int {
	end := i + indexTwo(p[i:], '"', '\\')
	if w.text != nil {
		w.text.add(p[i:end])
	} else {
		copy(w.buf[min(w.n, maxValue):], p[i:end])
		w.n = min(w.n+end-i, maxValue+1)
	}
	if end == len(p) {
		return end
	}
	if p[end] == '\\' {
		w.state = inEscape
		return end + 1
	}
	switch {
	case w.inKey:
		w.state, w.node = atColon, nodeNone
		if w.n <= maxKey {
			w.node = child(w.stack[w.depth-1].node, w.buf[:w.n])
		}
	case w.text != nil:
		w.doc.endText(w.off + end)
		w.after()
	default:
		if w.node != nodeNone {
			w.doc.str(w.node, w.buf[:min(w.n, maxValue)])
		}
		w.after()
	}
	return end + 1
}

// escape takes the byte after a backslash.
func (w *walker) escape(c byte) {
	w.state = inString
	if c == 'u' {
		w.state, w.hex, w.hexLen = inHex, 0, 0
		return
	}
	switch c {
	case 'n':
		c = '\n'
	case 't', 'r', 'b', 'f':
		c = ' '
	}
	w.char(rune(c))
}

func (w *walker) hexDigit(c byte) {
	switch {
	case c-'0' < 10:
		c -= '0'
	case c|0x20-'a' < 6:
		c = c | 0x20 - 'a' + 10
	default:
		w.state = atFault
		return
	}
	w.hex = w.hex<<4 | rune(c)
	if w.hexLen++; w.hexLen == 4 {
		w.state = inString
		w.char(w.hex)
	}
}

// char takes an escaped character (a UTF-16 unit).
func (w *walker) char(r rune) {
	if w.text != nil {
		w.text.addUnit(r)
		return
	}
	w.keep(byte(min(r, 0xFF)))
}

func (w *walker) keep(c byte) {
	if w.n < maxValue {
		w.buf[w.n] = c
	}
	w.n = min(w.n+1, maxValue+1)
}

// word reads on in a number, true, false or null.
func (w *walker) word(p []byte, i int) int {
	for i < len(p) {
		c := p[i]
		if c-'0' >= 10 && c|0x20-'a' >= 26 && c != '.' && c != '-' && c != '+' {
			break
		}
		w.keep(c)
		i++
	}
	if i == len(p) {
		return i
	}
	if w.node != nodeNone {
		w.doc.word(w.node, w.buf[:min(w.n, maxValue)])
	}
	w.after()
	return i
}

// indexTwo returns the first position of a or b in p, len(p) if there is
// none; eight bytes at a time.
func indexTwo(p []byte, a, b byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(p); i += 8 {
		v := binary.LittleEndian.Uint64(p[i:])
		x, y := v^(ones*uint64(a)), v^(ones*uint64(b))
		if m := ((x-ones)&^x | (y-ones)&^y) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3 // the lowest mark is exact
		}
	}
	for ; i < len(p); i++ {
		if p[i] == a || p[i] == b {
			return i
		}
	}
	return i
}
