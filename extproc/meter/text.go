package meter

// textCount estimates the tokens of delivered text without keeping it. It
// works on the bytes one by one, so that pieces may be cut anywhere. It
// follows how byte-pair vocabularies cut text: words (long ones in pieces of
// eight letters), digits by three, punctuation one by one, less in runs; 0.75
// a CJK character; 2 an emoji.
type textCount struct {
	bytes, chars int64
	quarters     int64 // tokens x 4
	class        class // of the last character
	run          uint8 // of characters of that class
}

type class uint8

const (
	classSpace class = iota
	classLine
	classLetter
	classDigit
	classMark
	classWide   // beyond ASCII
	classFollow // second and later bytes of a character
)

// byteClass tells the class of each byte, wideCost the quarters of a
// character beyond ASCII by its first byte.
var byteClass, wideCost = byteTables()

func byteTables() (classes [256]class, costs [256]uint8) {
	for i := range 256 {
		c := byte(i)
		switch {
		case c == '\n':
			classes[c] = classLine
		case c <= ' ' || c == 0x7F:
			classes[c] = classSpace
		case c|0x20-'a' < 26:
			classes[c] = classLetter
		case c-'0' < 10:
			classes[c] = classDigit
		case c < 0x80:
			classes[c] = classMark
		case c < 0xC0:
			classes[c] = classFollow
		default:
			classes[c], costs[c] = classWide, cost(c)
		}
	}
	return classes, costs
}

func cost(lead byte) uint8 {
	switch {
	case lead < 0xE0: // Latin, Greek, Cyrillic, Hebrew, Arabic
		return 2
	case lead < 0xE2: // scripts of South Asia
		return 4
	case lead == 0xE2: // symbols
		return 6
	case lead < 0xF0: // CJK
		return 3
	}
	return 8 // emoji, rare ideographs
}

// tokens is the estimate, at least 1 for any text.
func (t *textCount) tokens() int64 { return max((t.quarters+3)/4, min(t.bytes, 1)) }

// begin starts another text.
func (t *textCount) begin() { t.class, t.run = classSpace, 0 }

// add takes the next bytes of the text.
func (t *textCount) add(p []byte) {
	t.bytes += int64(len(p))
	for _, c := range p {
		t.byte(c)
	}
}

func (t *textCount) byte(c byte) {
	k := byteClass[c]
	if k == classFollow {
		return
	}
	t.chars++
	first := k != t.class
	t.class, t.run = k, t.run+1
	if first {
		t.run = 1
	}
	switch k {
	case classLetter:
		if t.run%8 == 1 {
			t.quarters += 4
		}
	case classDigit:
		if t.run%3 == 1 {
			t.quarters += 4
		}
	case classMark:
		if t.quarters += 2; first {
			t.quarters += 2
		}
	case classLine:
		if first {
			t.quarters += 4
		}
	case classWide:
		t.quarters += int64(wideCost[c])
	case classSpace:
		if t.run%16 == 2 { // an indent; a single space belongs to its word
			t.quarters += 4
		}
	}
}

// addUnit takes an escaped character, a UTF-16 unit.
func (t *textCount) addUnit(r rune) {
	switch {
	case r < 0x80:
		t.bytes++
		t.byte(byte(r))
	case r < 0x800:
		t.bytes += 2
		t.byte(0xC0 | byte(r>>6))
	case r >= 0xD800 && r < 0xDC00: // the first of a pair
		t.bytes += 4
		t.byte(0xF0)
	case r >= 0xDC00 && r < 0xE000:
	default:
		t.bytes += 3
		t.byte(0xE0 | byte(r>>12))
	}
}

// merge adds the text of a whole event: at least one token for any text.
func (t *textCount) merge(e *textCount) {
	t.bytes += e.bytes
	t.chars += e.chars
	t.quarters += 4 * e.tokens()
}
