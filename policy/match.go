package policy

import "strings"

// Subject is what a Match looks at: the verified identity and what it asks
// for. Empty fields are unknown and are matched by an empty pattern only.
type Subject struct {
	Tenant, Tier, User, Key, Model, Function string
	Class                                    Class
}

// Matches reports whether every field that the match names fits the subject.
// The zero Match fits everything. It does not allocate.
func (m *Match) Matches(s *Subject) bool {
	return fits(m.Tenant, s.Tenant) &&
		fits(m.Tier, s.Tier) &&
		fits(m.User, s.User) &&
		fits(m.Key, s.Key) &&
		fits(m.Model, s.Model) &&
		fits(m.Function, s.Function) &&
		(m.Class == nil || *m.Class == s.Class)
}

// fits reports whether a value fits a pattern: "" fits everything, "*" every
// non-empty value, "abc*" every value with that prefix, else equality.
func fits(pattern, value string) bool {
	if pattern == "" {
		return true
	}
	if prefix, glob := strings.CutSuffix(pattern, "*"); glob {
		return value != "" && strings.HasPrefix(value, prefix)
	}
	return pattern == value
}

// covers reports whether every value that fits b also fits a.
func covers(a, b string) bool {
	if a == "" {
		return true
	}
	if b == "" {
		return false
	}
	prefix, glob := strings.CutSuffix(a, "*")
	if !glob {
		return a == b
	}
	return strings.HasPrefix(strings.TrimSuffix(b, "*"), prefix)
}
