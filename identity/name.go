package identity

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName bounds the names in an identity (tenant, key, user, tier, jti) in
// bytes. Names end up in counters, keys of a store and labels.
const MaxName = 256

// CheckName reports why s cannot be a name: empty, longer than MaxName, not
// UTF-8, or with a character that does not print (control and format
// characters, line separators, every space but U+0020) or U+FFFD, the sign
// that bytes were lost on the way. what names the field in the error; the
// value itself is not repeated.
func CheckName(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%s: is empty", what)
	case len(s) > MaxName:
		return fmt.Errorf("%s: %d bytes, at most %d allowed", what, len(s), MaxName)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s: is not UTF-8", what)
	}
	for i, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return fmt.Errorf("%s: character %U at byte %d is not allowed", what, r, i)
		}
	}
	return nil
}

// CheckTenant is CheckName for a tenant, which in addition must not contain
// "*" (patterns of the policy match with it) nor begin or end with a space.
func CheckTenant(s string) error {
	if err := CheckName("tenant", s); err != nil {
		return err
	}
	if strings.Contains(s, "*") {
		return fmt.Errorf("tenant: %q is not allowed", "*")
	}
	if s[0] == ' ' || s[len(s)-1] == ' ' {
		return fmt.Errorf("tenant: a space at its begin or end is not allowed")
	}
	return nil
}

// checkOptional is CheckName for a name that may be empty.
func checkOptional(what, s string) error {
	if s == "" {
		return nil
	}
	return CheckName(what, s)
}
