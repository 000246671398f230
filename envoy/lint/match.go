package lint

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// matches is whether Envoy's string matcher takes s.
func matches(m *matcherv3.StringMatcher, s string) bool {
	fold := func(a string) string { return a }
	if m.GetIgnoreCase() {
		fold, s = strings.ToLower, strings.ToLower(s)
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return s == fold(p.Exact)
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(s, fold(p.Prefix))
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(s, fold(p.Suffix))
	case *matcherv3.StringMatcher_Contains:
		return strings.Contains(s, fold(p.Contains))
	case *matcherv3.StringMatcher_SafeRegex:
		return wholly(p.SafeRegex.GetRegex(), s)
	}
	return false
}

// wholly is whether a regular expression takes all of s, as Envoy asks.
func wholly(expression, s string) bool {
	if expression == "" {
		return s == ""
	}
	r, err := regexp.Compile("^(?:" + expression + ")$")
	return err == nil && r.MatchString(s)
}
