package lint

import (
	"slices"
	"strings"

	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/weirproxy/weir/policy"
)

// checkCEL judges the attributes that ext_proc asks for.
func checkCEL(l *linter) {
	all(l.doc, func(p *procv3.ExternalProcessor) {
		for _, field := range []string{"request_attributes", "response_attributes"} {
			list := p.GetRequestAttributes()
			if field == "response_attributes" {
				list = p.GetResponseAttributes()
			}
			for i, expression := range list {
				for _, problem := range judgeCEL(expression) {
					l.fail(l.doc.item(p, field, i), problem.message, problem.advice)
				}
				for _, key := range leaves(expression, l.scene.namespace) {
					if !slices.Contains(policy.OverrideKeys(), key) {
						l.add(Error, "override-key", l.doc.item(p, field, i), "weir knows no override "+quote(key), "the keys are "+strings.Join(policy.OverrideKeys(), ", "))
					}
				}
			}
		}
	})
	all(l.doc, func(f *celv3.ExpressionFilter) {
		for _, problem := range judgeCEL(f.GetExpression()) {
			l.fail(l.doc.field(f, "expression"), problem.message, problem.advice)
		}
	})
	for _, m := range l.scene.managers {
		if m.proc != nil && !slices.Contains(m.proc.GetResponseAttributes(), "response.code_details") {
			l.warn(l.doc.field(m.proc, "response_attributes"), "weir cannot tell an answer of the model from one of Envoy's own (1.37 and newer)",
				"set response_attributes: [response.code, response.code_details, response.flags]")
		}
	}
}

// leaves are the keys of a metadata namespace that an expression reads.
func leaves(expression, namespace string) []string {
	tokens, err := celTokens(expression)
	if err != nil {
		return nil
	}
	var keys []string
	for i := range tokens {
		if tokens[i].text != "route_metadata" || i+1 >= len(tokens) {
			continue
		}
		member, rest := celMember(tokens[i+1:])
		ns, rest := celMember(rest)
		if key, _ := celMember(rest); member == "filter_metadata" && ns == namespace && key != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
