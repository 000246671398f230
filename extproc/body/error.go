package body

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Error is a body that is refused for the caller's mistake. Its text names
// the field, the value and the bound, and never quotes a prompt.
type Error struct {
	Status int    // 400, 403 or 415
	Code   string // one of the Code constants
	Field  string // the field at fault; "" = the body as a whole
	Msg    string // one sentence for the caller
}

// Error returns the sentence for the caller.
func (e *Error) Error() string { return e.Msg }

// Codes of errors, for the error body and the logs.
const (
	CodeInvalidJSON = "invalid_json"
	CodeDuplicate   = "duplicate_field"
	CodeInvalid     = "invalid_value"
	CodeMissing     = "missing_field"
	CodeScope       = "parameter_not_allowed"
	CodeMediaType   = "unsupported_media_type"
	CodeEncoding    = "unsupported_content_encoding"
)

func missing(field string) *Error {
	return &Error{400, CodeMissing, field, fmt.Sprintf("%q is missing", field)}
}

func invalid(field, msg string) *Error {
	return &Error{400, CodeInvalid, field, fmt.Sprintf("%q %s", field, msg)}
}

func forbidden(field, msg string) *Error {
	return &Error{403, CodeScope, field, fmt.Sprintf("%q %s", field, msg)}
}

// shortName shows a member's name, shortened.
func shortName(name []byte) string { return strconv.QuoteToGraphic(cut(name, 64)) }

// shortValue shows a value of the body: a number, word or string shortened,
// anything else by its type alone.
func shortValue(raw []byte) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{', '[':
		return typeName(raw[0])
	case '"':
		return "the string " + strconv.QuoteToGraphic(cut(raw[1:len(raw)-1], 16))
	}
	return cut(raw, 24)
}

// typeName names the type of a value by its first byte.
func typeName(c byte) string {
	switch c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// cut shortens b to at most n bytes, at a character's edge.
func cut(b []byte, n int) string {
	if len(b) <= n {
		return string(b)
	}
	for n > 0 && !utf8.RuneStart(b[n]) {
		n--
	}
	return string(b[:n]) + "..."
}
