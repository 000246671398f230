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

// patterns finds the first of several patterns that fits a value or covers
// another pattern, without walking them. The zero value is empty.
type patterns struct {
	exact, globs map[string]int // the first with that text, or with that text before its *
	longest      int            // of the texts in globs
	all          int            // 1 + the first that is ""; 0 = none is
}

func (s *patterns) add(pattern string, i int) {
	if s.exact == nil {
		s.exact, s.globs = make(map[string]int), make(map[string]int)
	}
	to, text := s.exact, pattern
	if prefix, glob := strings.CutSuffix(pattern, "*"); glob {
		to, text = s.globs, prefix
		s.longest = max(s.longest, len(prefix))
	}
	switch _, known := to[text]; {
	case pattern == "" && s.all == 0:
		s.all = i + 1
	case pattern != "" && !known:
		to[text] = i
	}
}

// fit is the number of the first pattern that fits a value; -1 = none does.
func (s *patterns) fit(value string) int {
	best := s.all - 1
	if i, ok := s.exact[value]; ok && value != "" {
		best = s.sooner(best, i)
	}
	if value != "" {
		best = s.sooner(best, s.prefixed(value))
	}
	return best
}

// cover is the number of the first pattern that covers another; -1 = none does.
func (s *patterns) cover(pattern string) int {
	prefix, glob := strings.CutSuffix(pattern, "*")
	if !glob {
		return s.fit(pattern)
	}
	return s.sooner(s.all-1, s.prefixed(prefix))
}

// prefixed is the number of the first glob whose text begins the value.
func (s *patterns) prefixed(value string) int {
	best := -1
	if len(s.globs) == 0 {
		return best
	}
	for n := range min(len(value), s.longest) + 1 {
		if i, ok := s.globs[value[:n]]; ok {
			best = s.sooner(best, i)
		}
	}
	return best
}

func (*patterns) sooner(a, b int) int {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}
