package lint

import (
	"fmt"
	"math"
	"regexp/syntax"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	regexLimit = "re2.max_program_size.error_level"
	// defaultRegexLimit is Envoy's.
	defaultRegexLimit = 100
)

// checkRegex: Envoy refuses an expression whose program is larger than a
// limit, and RE2 before 1.39 makes larger programs of the same text.
func checkRegex(l *linter) {
	limit := defaultRegexLimit
	if v, ok := l.scene.runtime[regexLimit]; ok {
		limit = runtimeInt(v)
	}
	all(l.doc, func(m *matcherv3.RegexMatcher) {
		p := l.doc.field(m, "regex")
		if _, err := syntax.Parse(m.GetRegex(), syntax.Perl); err != nil {
			l.fail(p, "RE2 refuses the expression: "+clip(err.Error()), "correct it; RE2 has no look-ahead and no back-references")
			return
		}
		size, which, report := programSize(m.GetRegex(), l.Release != 0 && l.before(39)), "", l.fail
		if older := programSize(m.GetRegex(), true); l.Release == 0 && size <= limit {
			size, which, report = older, " before Envoy 1.39", l.warn
		}
		if size > limit {
			report(p, fmt.Sprintf("the expression compiles to %d instructions%s, the limit is %d: Envoy refuses to start", size, which, limit),
				fmt.Sprintf("shorten it, or set %s: 1000 in a static runtime layer", regexLimit))
		}
	})
}

// runtimeInt is a runtime value, which may be a number or its text.
func runtimeInt(v *structpb.Value) int {
	f := v.GetNumberValue()
	if s, ok := v.GetKind().(*structpb.Value_StringValue); ok {
		f, _ = number(s.StringValue)
	}
	return int(min(max(f, 0), math.MaxInt32))
}
