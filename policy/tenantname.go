package policy

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// tenantPattern reads a match of tenants that some tenant's name can have.
func tenantPattern() codec[string] {
	c := checked(pattern(), "exact, or with * at the end", TenantPatternRule)
	return maybe(c, noValue)
}

// TenantPatternRule is "" where a tenant may have the name, or a name that
// begins so where the pattern ends in *; else why none can (identity.CheckTenant
// holds names).
func TenantPatternRule(pattern string) string {
	const never = "can never match: the name of a tenant "
	name, open := strings.CutSuffix(pattern, "*")
	switch {
	case pattern == "" || strings.Contains(name, "*"):
		return ""
	case name == "":
		return ""
	case name[0] == ' ' || !open && name[len(name)-1] == ' ':
		return never + "does not begin or end with a space"
	case !utf8.ValidString(name):
		return never + "is UTF-8"
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return never + "has printable characters only, and of spaces U+0020 alone"
		}
	}
	return ""
}
