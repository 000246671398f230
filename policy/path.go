package policy

import (
	"strings"
	"unicode/utf8"
)

// maxPath bounds a request path in bytes, query excluded.
const maxPath = 8192

// CleanPath takes the query off a request target and reports whether what is
// left can be read in one way only. It changes nothing else: a target that
// some server on the way may read as another path is refused, not repaired
// (RFC 3986 section 6; a rule for /info must not be reached as /x/../info).
//
// Refused are: anything that does not begin with "/" or is longer than
// 8192 bytes; empty, "." and ".." segments (one trailing "/" is a path of
// its own); backslash, ";" and "#"; control bytes and bytes that RFC 3986 has
// percent-encoded; a percent sign without two hexadecimal digits; an encoding
// in lower case, of a character that needs none, or of "/", "\", ".", ";",
// "%", "?", "#" and control bytes; encoded bytes that are not UTF-8.
func CleanPath(raw string) (path string, ok bool) {
	path, _, _ = strings.Cut(raw, "?")
	if path == "" || path[0] != '/' || len(path) > maxPath {
		return "", false
	}
	start := 1 // of the segment
	encoded := false
	for i := 1; i < len(path); i++ {
		switch c := path[i]; {
		case c == '/':
			if !cleanSegment(path[start:i]) || i == start {
				return "", false
			}
			start = i + 1
		case c == '%':
			if !cleanEscape(path[i:]) {
				return "", false
			}
			encoded = true
			i += 2
		case !isPathChar(c):
			return "", false
		}
	}
	if !cleanSegment(path[start:]) || encoded && !decodesToUTF8(path) {
		return "", false
	}
	return path, true
}

func cleanSegment(s string) bool { return s != "." && s != ".." }

// isPathChar says whether a byte stands for itself in a path: RFC 3986's
// pchar without ";" and percent.
func isPathChar(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("-._~!$&'()*+,=:@", c) >= 0
}

// cleanEscape judges the %XX at the start of s.
func cleanEscape(s string) bool {
	if len(s) < 3 {
		return false
	}
	hi, lo := upperHex(s[1]), upperHex(s[2])
	if hi < 0 || lo < 0 {
		return false
	}
	c := byte(hi<<4 | lo)
	return c > 0x1f && c != 0x7f && !isPathChar(c) && strings.IndexByte(`/\;%?#`, c) < 0
}

func upperHex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// decodesToUTF8 takes a path whose escapes are well formed.
func decodesToUTF8(path string) bool {
	b := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		if path[i] != '%' {
			b = append(b, path[i])
			continue
		}
		b = append(b, byte(upperHex(path[i+1])<<4|upperHex(path[i+2])))
		i += 2
	}
	return utf8.Valid(b)
}
