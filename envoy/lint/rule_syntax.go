package lint

import (
	_ "embed"
	"regexp"
	"strings"
	"sync"

	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// headerName is what a name may be: a token, or one of HTTP/2's with a colon.
var headerName = regexp.MustCompile("^:?[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// checkHeaderNames: a name with a blank or a colon never matches, and Envoy
// does not tell.
func checkHeaderNames(l *linter) {
	judge := func(m proto.Message, field, name string) {
		if name != "" && !headerName.MatchString(name) {
			l.fail(l.doc.field(m, field), "no header is named "+quote(name), "write the name alone: letters, digits and -")
		}
	}
	all(l.doc, func(m *mutationrulesv3.HeaderMutation) { judge(m, "remove", m.GetRemove()) })
	all(l.doc, func(h *corev3.HeaderValue) { judge(h, "key", h.GetKey()) })
	all(l.doc, func(h *routev3.HeaderMatcher) { judge(h, "name", h.GetName()) })
	all(l.doc, func(m *mutationrulesv3.HeaderMutation) {
		// Names reach matchers in lower case.
		k := m.GetRemoveOnMatch().GetKeyMatcher()
		for _, s := range []string{k.GetExact(), k.GetPrefix(), k.GetSuffix(), k.GetContains()} {
			if s != strings.ToLower(s) && !k.GetIgnoreCase() {
				l.fail(l.doc.of(k), "no header matches "+quote(s)+": names are in lower case here", "write it in lower case")
			}
		}
	})
}

//go:embed logwords.txt
var logWordsText string

var logWords = sync.OnceValue(func() map[string]bool {
	m := map[string]bool{}
	for line := range strings.Lines(logWordsText) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			m[line] = true
		}
	}
	return m
})

var logCommand = regexp.MustCompile(`%%|%([A-Z0-9_]+)(\([^()]*(\([^()]*\)[^()]*)*\))?(:[0-9]+)?%`)

// checkLogFormats looks at the words between percent signs.
func checkLogFormats(l *linter) {
	all(l.doc, func(f *corev3.SubstitutionFormatString) {
		if len(f.GetFormatters()) > 0 {
			return // extensions bring words of their own
		}
		l.logText(f.GetTextFormatSource().GetInlineString(), l.doc.field(f, "text_format_source"))
		l.logText(f.GetTextFormat(), l.doc.field(f, "text_format")) //nolint:staticcheck // still read by Envoy
		l.logValue(structpb.NewStructValue(f.GetJsonFormat()), l.doc.field(f, "json_format"), f.GetJsonFormat() == nil)
	})
}

func (l *linter) logValue(v *structpb.Value, p at, none bool) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		l.logText(k.StringValue, p)
	case *structpb.Value_StructValue:
		if none {
			return
		}
		for _, key := range sortedKeys(k.StructValue.GetFields()) {
			inner := p
			inner.path = join(p.path, key)
			l.logValue(k.StructValue.GetFields()[key], inner, false)
		}
	case *structpb.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			l.logValue(e, p, false)
		}
	}
}

func (l *linter) logText(s string, p at) {
	for _, m := range logCommand.FindAllStringSubmatch(s, -1) {
		if m[1] == "" || logWords()[m[1]] {
			continue
		}
		advice := "Envoy refuses to start: look the word up in its access log manual"
		best := 3
		for _, w := range sortedKeys(logWords()) {
			if d := distance(w, m[1]); d < best {
				best, advice = d, "did you mean "+w+"?"
			}
		}
		l.fail(p, "Envoy's logs know no word "+quote(m[1]), advice)
	}
	if rest := logCommand.ReplaceAllString(s, ""); strings.Contains(rest, "%") {
		l.fail(p, "a % that begins no word: "+quote(s), "write %% for the sign itself")
	}
}
