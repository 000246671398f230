package body

import (
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Edit sets one field of a body. Edits are made by SetInt, SetNumber,
// SetBool, SetString and IncludeUsage; the zero value is of no use.
type Edit struct {
	field string
	sub   string // a member of field, which then is an object
	json  string // the new value

	cut span // what is taken out instead
	top bool // cut is a top-level member
}

// CutsTop reports whether the edit takes out a top-level field.
func (e Edit) CutsTop() bool { return e.top && !e.cut.none() }

// Field is the name of the field that is set.
func (e Edit) Field() string {
	if e.sub != "" {
		return e.field + "." + e.sub
	}
	return e.field
}

// Value is the new value as JSON.
func (e Edit) Value() string { return e.json }

// SetInt sets a top-level field to a whole number.
func SetInt(field string, v int64) Edit {
	return Edit{field: field, json: strconv.FormatInt(v, 10)}
}

// SetNumber sets a top-level field to a finite number; null if it is not
// finite, because JSON has no such number.
func SetNumber(field string, v float64) Edit {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return Edit{field: field, json: "null"}
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return SetInt(field, int64(v))
	}
	return Edit{field: field, json: strconv.FormatFloat(v, 'g', -1, 64)}
}

// SetBool sets a top-level field to true or false.
func SetBool(field string, v bool) Edit {
	return Edit{field: field, json: strconv.FormatBool(v)}
}

// SetString sets a top-level field to a string; invalid UTF-8 in it becomes
// U+FFFD.
func SetString(field, v string) Edit {
	return Edit{field: field, json: quote(v)}
}

// IncludeUsage sets stream_options.include_usage to true and keeps the other
// stream options.
func IncludeUsage() Edit {
	return Edit{field: "stream_options", sub: includeUsage, json: "true"}
}

func quote(v string) string {
	out, _ := jsontext.AppendQuote(nil, v) // its error says that U+FFFD was put in
	return string(out)
}

// splice replaces the bytes of at by text.
type splice struct {
	at   span
	text string
}

// Rewrite returns the body with the edits made; a later edit of the same
// field wins. All other bytes, white space and order included, are as they
// were; a new field comes last. Without edits it returns the bytes that were
// parsed, not a copy. Edits must not set a field and one of its members at
// once.
func (b *Body) Rewrite(edits ...Edit) []byte {
	splices := make([]splice, 0, len(edits))
	left := len(b.fields)
	for i := range edits {
		if edits[i].CutsTop() {
			left--
		}
	}
	fields, options := left > 0, b.optAny
	size := len(b.data)
	for i, e := range edits {
		if e.cut.none() && slices.ContainsFunc(edits[i+1:], func(l Edit) bool { return l.field == e.field && l.sub == e.sub && l.cut.none() }) {
			continue
		}
		sp, isNew := b.splice(e)
		if isNew {
			more := &fields
			if e.sub != "" && b.optTail != 0 {
				more = &options
			}
			if *more {
				sp.text = "," + sp.text
			}
			*more = true
		}
		splices = append(splices, sp)
		size += len(sp.text)
	}
	if len(splices) == 0 {
		return b.data
	}
	slices.SortStableFunc(splices, func(x, y splice) int { return x.at.lo - y.at.lo })
	out, done := make([]byte, 0, size), 0
	for _, sp := range splices {
		out = append(append(out, b.data[done:sp.at.lo]...), sp.text...)
		done = sp.at.hi
	}
	return append(out, b.data[done:]...)
}

// splice finds where an edit goes; isNew says that it inserts a member there.
func (b *Body) splice(e Edit) (sp splice, isNew bool) {
	at := b.lookup(e.field)
	value := e.json
	switch {
	case !e.cut.none():
		return splice{at: e.cut}, false
	case e.sub == "":
	case !b.include.none():
		return splice{b.include, e.json}, false
	case b.optTail != 0:
		return splice{span{b.optTail, b.optTail}, quote(e.sub) + ":" + e.json}, true
	default: // stream_options is null or not there
		value = "{" + quote(e.sub) + ":" + e.json + "}"
	}
	if at.none() {
		return splice{span{b.tail, b.tail}, quote(e.field) + ":" + value}, true
	}
	return splice{at, value}, false
}
