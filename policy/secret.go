package policy

import (
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
)

// Secret is a value read from a file at load; it never appears in dumps. Its
// printed, logged and marshalled forms name the file alone. The zero value is
// "none". The value is kept behind a pointer, so that not even %+v of the
// structure around it prints it.
type Secret struct {
	File  string
	value *string
}

// NewSecret makes a secret from a value; file may be empty.
func NewSecret(file, value string) Secret { return Secret{File: file, value: &value} }

// Set reports whether there is a secret.
func (s Secret) Set() bool { return s.value != nil }

// Reveal is the value itself, "" for none. Keep it out of errors and logs.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// Equal compares in constant time. No value equals an absent secret.
func (s Secret) Equal(given string) bool {
	if s.value == nil {
		return false
	}
	a, b := sha256.Sum256([]byte(*s.value)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String masks the value.
func (s Secret) String() string {
	switch {
	case s.value == nil && s.File == "":
		return "(none)"
	case s.File == "":
		return "(secret)"
	}
	return "(secret from " + s.File + ")"
}

// GoString masks the value in %#v.
func (s Secret) GoString() string { return "policy.Secret{" + s.String() + "}" }

// MarshalText masks the value in JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue masks the value in logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
