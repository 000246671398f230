package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Sample is a request that Explain judges: what a verified token would say,
// and what is asked. Empty strings are absent; Method is POST and Class is
// standard then.
type Sample struct {
	Tenant, Class, Tier, User, Key string
	Method, Path, Model            string
	Overrides                      map[string]string // of the route (E2)
}

// sampleKeys are the keys of a sample file.
func (s *Sample) fields() map[string]*string {
	return map[string]*string{
		"tenant": &s.Tenant, "class": &s.Class, "tier": &s.Tier, "user": &s.User, "key": &s.Key,
		"method": &s.Method, "path": &s.Path, "model": &s.Model,
	}
}

// maxSample bounds a sample file in bytes.
const maxSample = 64 << 10

// ParseSample reads a sample: one JSON object of strings with the keys
// tenant, class, tier, user, key, method, path, model and overrides (an object
// of strings). Any other key, a key written twice, and other types are
// refused; tenant and path are needed. The error is Errors.
func ParseSample(name string, data []byte) (Sample, error) {
	r := sampleReader{name: name, data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	switch {
	case len(data) > maxSample:
		r.fail("", "", fmt.Sprintf("is %d bytes long, at most %d are read", len(data), maxSample))
	case !utf8.Valid(data):
		r.fail("", "", "is not UTF-8")
	default:
		r.read()
	}
	if r.errs != nil {
		return Sample{}, r.errs
	}
	return r.sample, nil
}

// sampleReader walks the tokens, because encoding/json takes a key written
// twice and keys of another case.
type sampleReader struct {
	name   string
	data   []byte
	dec    *json.Decoder
	sample Sample
	errs   Errors
}

var errSample = errors.New("sample refused")

func (r *sampleReader) fail(field, value, message string) {
	line, column := lineOf(r.data, min(int(r.dec.InputOffset()), len(r.data)))
	r.errs = append(r.errs, Violation{File: r.name, Line: line, Column: column, Field: field, Value: shown(value), Message: message})
}

func (r *sampleReader) read() {
	fields := r.sample.fields()
	err := r.object("", func(key string) error {
		if key == "overrides" {
			r.sample.Overrides = make(map[string]string)
			return r.object("overrides.", func(key string) error {
				var value string
				err := r.text("overrides."+key, &value)
				r.sample.Overrides[key] = value
				return err
			})
		}
		to, ok := fields[key]
		if !ok {
			known := append(slices.Sorted(maps.Keys(fields)), "overrides")
			r.fail(shown(key), "", "unknown key; the keys are "+strings.Join(known, ", "))
			return r.skip()
		}
		return r.text(key, to)
	})
	if err != nil {
		return
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		r.fail("", "", "holds more than one JSON value")
	}
	for _, key := range []string{"tenant", "path"} {
		if *fields[key] == "" {
			r.fail(key, "", "is missing")
		}
	}
}

// object calls member for each key, with the decoder before its value.
func (r *sampleReader) object(prefix string, member func(key string) error) error {
	if t, err := r.dec.Token(); err != nil || t != json.Delim('{') {
		return r.broken(strings.TrimSuffix(prefix, "."), "must be a JSON object", err)
	}
	seen := make(map[string]bool)
	for r.dec.More() {
		t, err := r.dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return r.broken(prefix, "must be a JSON object", err)
		}
		if seen[key] {
			r.fail(prefix+shown(key), "", "is written twice")
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	if _, err := r.dec.Token(); err != nil {
		return r.broken(prefix, "", err)
	}
	return nil
}

func (r *sampleReader) broken(field, message string, err error) error {
	if err != nil {
		message = "is not JSON: " + err.Error()
	}
	r.fail(strings.TrimSuffix(field, "."), "", message)
	return errSample
}

func (r *sampleReader) text(field string, to *string) error {
	var raw json.RawMessage
	if err := r.dec.Decode(&raw); err != nil {
		return r.broken(field, "", err)
	}
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, to) != nil {
		r.fail(field, string(raw), "must be a string")
	}
	return nil
}

func (r *sampleReader) skip() error {
	var raw json.RawMessage
	if err := r.dec.Decode(&raw); err != nil {
		return r.broken("", "", err)
	}
	return nil
}
