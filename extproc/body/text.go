package body

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// str reads the string at the current position, which is its opening quote,
// and leaves the position after its closing one. Its text is counted as
// prompt if asked.
func (s *scanner) str(count bool) (escaped, ok bool) {
	d, i := s.data, s.pos+1
	lo, shrink := i, 0 // shrink: bytes that escapes are longer than their characters
	for {
		if i = plain(d, i); i >= len(d) {
			s.pos = i
			return false, s.unexpected("the end of a string")
		}
		switch c := d[i]; {
		case c == '"':
			s.pos = i + 1
			if count {
				s.b.PromptBytes += int64(i - lo - shrink)
			}
			return escaped, true
		case c == '\\':
			r, n := resolve(d[i:])
			if n == 0 {
				s.pos = i
				return false, s.broken("an escape that is not valid")
			}
			escaped, shrink, i = true, shrink+n-utf8.RuneLen(r), i+n
		case c < 0x20:
			s.pos = i
			return false, s.broken("a control character in a string")
		default:
			n := wideRun(d[i:])
			if n == 0 {
				s.pos = i
				return false, s.broken("invalid UTF-8")
			}
			i += n
		}
	}
}

// wideRun is the length of the run of characters beyond ASCII at the start of
// d; 0 if d begins with invalid UTF-8.
func wideRun(d []byte) (n int) {
	for n < len(d) && d[n] >= utf8.RuneSelf {
		if c := d[n]; c > 0xE0 && c < 0xED && n+2 < len(d) && d[n+1]&0xC0 == 0x80 && d[n+2]&0xC0 == 0x80 {
			n += 3 // most of Chinese, Japanese and Korean
			continue
		}
		r, size := utf8.DecodeRune(d[n:])
		if r == utf8.RuneError && size == 1 {
			return n
		}
		n += size
	}
	return n
}

// plain returns the first position at or after i that holds a quote, a
// backslash, a control character or a byte of a longer character; eight bytes
// at a time.
func plain(d []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(d); i += 8 {
		x := binary.LittleEndian.Uint64(d[i:])
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		m := ((quote-ones)&^quote | (slash-ones)&^slash | (x-ones*0x20)&^x | x) & highs
		if m != 0 {
			return i + bits.TrailingZeros64(m)>>3 // the lowest mark is exact
		}
	}
	for i < len(d) && d[i] >= 0x20 && d[i] < 0x80 && d[i] != '"' && d[i] != '\\' {
		i++
	}
	return i
}

// resolve reads the escape at the start of d and returns its character and
// its length, 0 if it is not valid. A surrogate must be one of a pair.
func resolve(d []byte) (rune, int) {
	if len(d) < 2 {
		return 0, 0
	}
	switch c := d[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r, ok := hex4(d, 2)
		if !ok {
			return 0, 0
		}
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if len(d) < 12 || d[6] != '\\' || d[7] != 'u' {
			return 0, 0
		}
		low, ok := hex4(d, 8)
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return 0, 0
		}
		return r, 12
	}
	return 0, 0
}

func hex4(d []byte, i int) (r rune, ok bool) {
	if len(d) < i+4 {
		return 0, false
	}
	for _, c := range d[i : i+4] {
		switch {
		case c-'0' < 10:
			c -= '0'
		case c|0x20-'a' < 6:
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescape resolves a string's contents, already found valid.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		r, n := resolve(raw[i:])
		out = utf8.AppendRune(out, r)
		i += n
	}
	return out
}
