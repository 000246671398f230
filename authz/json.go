package authz

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a token's claims and of a key set.
const maxDepth = 16

// Errors of decodeObject. They say nothing of the content.
var (
	errNotJSON   = errors.New("is not a JSON object")
	errDuplicate = errors.New("has a key twice")
	errDepth     = errors.New("is nested too deeply")
	errNumber    = errors.New("holds a number that is too large")
)

// decodeObject reads one JSON object strictly (RFC 8259, UTF-8): nothing
// around it, no key twice in one object, not even in another case, because
// two readers would take different ones. Numbers become float64.
func decodeObject(data []byte) (map[string]any, error) {
	if !utf8.Valid(data) || !json.Valid(data) {
		return nil, errNotJSON
	}
	d := json.NewDecoder(bytes.NewReader(data))
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errNotJSON
	}
	return object, nil
}

// decodeValue reads the next value of a text that is valid JSON.
func decodeValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	t, err := d.Token()
	if err != nil {
		var notFloat *json.UnmarshalTypeError
		if errors.As(err, &notFloat) {
			return nil, errNumber
		}
		return nil, errNotJSON
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return decodeMembers(d, depth)
		}
		return decodeElements(d, depth)
	case float64:
		if math.IsInf(t, 0) {
			return nil, errNumber
		}
		return t, nil
	default:
		return t, nil
	}
}

func decodeMembers(d *json.Decoder, depth int) (map[string]any, error) {
	object := map[string]any{}
	var folded map[string]bool // folded forms of the keys that are not their own
	for d.More() {
		t, err := d.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return nil, errNotJSON
		}
		same := fold(key)
		if _, twice := object[same]; twice || folded[same] {
			return nil, errDuplicate
		}
		if same != key {
			if folded == nil {
				folded = map[string]bool{}
			}
			folded[same] = true
		}
		if object[key], err = decodeValue(d, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := d.Token() // the closing brace
	return object, err
}

func decodeElements(d *json.Decoder, depth int) ([]any, error) {
	list := []any{}
	for d.More() {
		v, err := decodeValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token() // the closing bracket
	return list, err
}

// fold maps names that differ in case alone to one name, which is in lower
// case where it is ASCII.
func fold(s string) string {
	plain := true
	for i := range len(s) {
		plain = plain && s[i] < utf8.RuneSelf && (s[i] < 'A' || s[i] > 'Z')
	}
	if plain {
		return s
	}
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return unicode.ToLower(least)
	}, s)
}
