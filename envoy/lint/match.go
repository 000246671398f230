package lint

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
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

// takesPath is whether a route matches a path, as far as the path decides.
func takesPath(m *routev3.RouteMatch, path string) bool {
	fold := func(s string) string { return s }
	if c := m.GetCaseSensitive(); c != nil && !c.GetValue() {
		fold, path = strings.ToLower, strings.ToLower(path)
	}
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return strings.HasPrefix(path, fold(p.Prefix))
	case *routev3.RouteMatch_Path:
		return path == fold(p.Path)
	case *routev3.RouteMatch_SafeRegex:
		return wholly(p.SafeRegex.GetRegex(), path)
	case *routev3.RouteMatch_PathSeparatedPrefix:
		rest, ok := strings.CutPrefix(path, fold(p.PathSeparatedPrefix))
		return ok && (rest == "" || rest[0] == '/')
	}
	return false
}

// unconditional is whether nothing but the path decides.
func unconditional(m *routev3.RouteMatch) bool {
	return len(m.GetHeaders()) == 0 && len(m.GetQueryParameters()) == 0 && m.GetGrpc() == nil && m.GetRuntimeFraction() == nil &&
		m.GetTlsContext() == nil && len(m.GetDynamicMetadata()) == 0 && len(m.GetFilterState()) == 0 && len(m.GetCookies()) == 0
}
