package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirproxy/weir/policy"
)

// procOf is weir's ext_proc configuration of a route: the most specific of
// route, virtual host and route table. nil where none says anything.
func (d *document) procOf(m *manager, r *route) *procv3.ExtProcPerRoute {
	name := m.filters[m.procAt].filter.GetName()
	for _, from := range []map[string]*procv3.ExtProcPerRoute{
		d.procs(r.Route), d.procs(r.host), d.procs(m.hcm.GetRouteConfig()),
	} {
		if p := from[name]; p != nil {
			return p
		}
	}
	return nil
}

func (d *document) procs(holder interface{ GetTypedPerFilterConfig() map[string]*anypb.Any }) map[string]*procv3.ExtProcPerRoute {
	found := map[string]*procv3.ExtProcPerRoute{}
	for name, a := range holder.GetTypedPerFilterConfig() {
		if p, ok := d.routeEntry(a).(*procv3.ExtProcPerRoute); ok {
			found[name] = p
		}
	}
	return found
}

func checkFailOpen(l *linter) {
	for _, m := range l.scene.managers {
		if m.authz.GetFailureModeAllow() {
			l.fail(l.doc.field(m.authz, "failure_mode_allow"), "ext_authz lets everybody in while weir is away", "set failure_mode_allow: false")
		}
		if m.proc.GetFailureModeAllow() {
			l.procOpens(l.doc.field(m.proc, "failure_mode_allow"))
		}
		for _, f := range []int{m.authzAt, m.procAt} {
			if f >= 0 && m.filters[f].filter.GetDisabled() {
				l.warn(l.doc.field(m.filters[f].filter, "disabled"), "the filter is off unless a route turns it on", "remove disabled: true")
			}
		}
	}
	all(l.doc, func(o *procv3.ExtProcOverrides) {
		if o.GetFailureModeAllow().GetValue() {
			l.procOpens(l.doc.field(o, "failure_mode_allow"))
		}
	})
	all(l.doc, func(c *routev3.FilterConfig) {
		if c.GetDisabled() {
			l.warn(l.doc.field(c, "disabled"), "a filter is off here", "remove it if it is one of weir's")
		}
	})
	all(l.doc, func(p *procv3.ExtProcPerRoute) {
		if p.GetDisabled() {
			l.warn(l.doc.field(p, "disabled"), "ext_proc is off here: nothing is admitted, queued or metered", "remove it unless the route reaches no model")
		}
	})
	all(l.doc, func(p *authzv3.ExtAuthzPerRoute) {
		if p.GetDisabled() {
			l.warn(l.doc.field(p, "disabled"), "ext_authz is off here: nobody is asked who calls", "remove it; weir refuses calls without an identity")
		}
	})
}

// procOpens: an operator may choose availability on ext_proc; a policy that
// enforces did not.
func (l *linter) procOpens(p at) {
	if l.Policy != nil && l.Policy.Mode == policy.Enforce {
		l.fail(p, "ext_proc lets calls through while weir is away or late, but the policy enforces", "set failure_mode_allow: false, or mode: shadow in the policy")
		return
	}
	l.warn(p, "ext_proc lets calls through while weir is away: nothing is queued, metered or charged then", "set failure_mode_allow: false, or keep max_requests of the model clusters near the seats")
}

func checkStatusOnError(l *linter) {
	for _, m := range l.scene.managers {
		if m.authz != nil && !m.authz.GetFailureModeAllow() && m.authz.GetStatusOnError() == nil {
			l.warn(l.doc.of(m.authz), "while weir is away callers get 403, as if they had no right", "set status_on_error: {code: ServiceUnavailable}")
		}
		if m.proc != nil && !m.proc.GetFailureModeAllow() && m.proc.GetStatusOnError() == nil {
			l.warn(l.doc.of(m.proc), "while weir is away callers get 500", "set status_on_error: {code: ServiceUnavailable}")
		}
	}
}

func checkAuthzSettings(l *linter) {
	for _, m := range l.scene.managers {
		if m.authz == nil {
			continue
		}
		if !m.authz.GetEncodeRawHeaders() {
			l.warn(l.doc.field(m.authz, "encode_raw_headers"), "repeated headers reach weir joined by commas", "set encode_raw_headers: true")
		}
		if c := m.authz.GetChargeClusterResponseStats(); c == nil || c.GetValue() {
			l.warn(l.doc.field(m.authz, "charge_cluster_response_stats"), "refusals count as failures of the model cluster", "set charge_cluster_response_stats: false")
		}
		if m.authz.GetWithRequestBody() != nil {
			l.warn(l.doc.field(m.authz, "with_request_body"), "ext_authz waits for the body, which it does not need", "remove with_request_body")
		}
	}
}

// bodyPaths are paths of calls that weir decides by their bodies; without a
// policy the usual ones.
func (l *linter) bodyPaths() []string {
	if l.Policy == nil {
		return []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}
	}
	var paths []string
	for i := range l.Policy.APIs {
		if a := &l.Policy.APIs[i]; a.Kind.ReadsBody() {
			paths = append(paths, pathParameter.ReplaceAllString(a.Path, "x"))
		}
	}
	return paths
}

// pathParameter is a part of an API's path that stands for any text.
var pathParameter = regexp.MustCompile(`\{[^/]*\}`)

// readsBody is a path that takes a route first and is decided by its body; ""
// where there is none. Routes of weir's own headers come later: they are looked
// up once weir has decided.
func (l *linter) readsBody(r *route, before []*routev3.Route) string {
	if l.decided(r.Route) || r.GetMatch().GetGrpc() != nil {
		return ""
	}
	for _, path := range l.bodyPaths() {
		if takesPath(r.GetMatch(), path) && !slices.ContainsFunc(before, func(b *routev3.Route) bool {
			return b != r.Route && unconditional(b.GetMatch()) && takesPath(b.GetMatch(), path)
		}) {
			return path
		}
	}
	return ""
}

// decided is whether a route is taken only once weir has decided.
func (l *linter) decided(r *routev3.Route) bool {
	return slices.ContainsFunc(r.GetMatch().GetHeaders(), func(h *routev3.HeaderMatcher) bool {
		return strings.HasPrefix(strings.ToLower(h.GetName()), policy.HeaderPrefix) && !h.GetInvertMatch()
	})
}

// earlier are the routes that stand before one in its virtual host.
func (r *route) earlier() []*routev3.Route {
	return r.host.GetRoutes()[:slices.Index(r.host.GetRoutes(), r.Route)]
}

func checkModes(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		rest := l.scene.otherModes(m)
		l.mode(m.proc.GetProcessingMode(), l.doc.field(m.proc, "processing_mode"), rest)
		for _, r := range m.routes {
			mode, p := m.proc.GetProcessingMode(), l.doc.of(r.Route)
			per := l.doc.procOf(m, r)
			if per.GetDisabled() || r.GetRoute() == nil {
				continue
			}
			if o := per.GetOverrides().GetProcessingMode(); o != nil {
				mode, p = o, l.doc.of(o)
				l.mode(o, p, rest)
			}
			if path := l.readsBody(r, r.earlier()); path != "" && mode.GetRequestBodyMode() == procv3.ProcessingMode_NONE {
				l.fail(p, fmt.Sprintf("weir decides calls of %s by their bodies, which route %s does not send it", path, quote(r.GetName())), "set request_body_mode: BUFFERED for the route")
			}
		}
	}
}

// otherModes sums up what other ext_proc filters of weir's in the chain are
// shown; nil where there are none.
func (s *scene) otherModes(m *manager) *procv3.ProcessingMode {
	var sum *procv3.ProcessingMode
	for i, f := range m.filters {
		c, ok := f.config.(*procv3.ExternalProcessor)
		if !ok || i == m.procAt || !s.weir[grpcCluster(c.GetGrpcService())] {
			continue
		}
		if sum == nil {
			sum = &procv3.ProcessingMode{}
		}
		mode := c.GetProcessingMode()
		headers := func(to *procv3.ProcessingMode_HeaderSendMode, m procv3.ProcessingMode_HeaderSendMode) {
			if m != procv3.ProcessingMode_SKIP {
				*to = procv3.ProcessingMode_SEND // the default
			}
		}
		headers(&sum.RequestHeaderMode, mode.GetRequestHeaderMode())
		headers(&sum.ResponseHeaderMode, mode.GetResponseHeaderMode())
		if mode.GetRequestTrailerMode() == procv3.ProcessingMode_SEND {
			sum.RequestTrailerMode = procv3.ProcessingMode_SEND
		}
		if mode.GetResponseTrailerMode() == procv3.ProcessingMode_SEND {
			sum.ResponseTrailerMode = procv3.ProcessingMode_SEND
		}
	}
	return sum
}

// mode judges one processing mode; unset values are those of the proto: header
// messages are sent, bodies and trailers not.
// What another ext_proc of weir's in the chain is shown (rest) is no loss.
func (l *linter) mode(mode *procv3.ProcessingMode, p at, rest *procv3.ProcessingMode) {
	seen := func(own, other procv3.ProcessingMode_HeaderSendMode) bool {
		return own == procv3.ProcessingMode_SEND || other == procv3.ProcessingMode_SEND
	}
	where := func(field string) at {
		if l.doc.has(mode, field) {
			return l.doc.field(mode, field)
		}
		return p
	}
	if mode.GetRequestHeaderMode() == procv3.ProcessingMode_SKIP && !seen(0, rest.GetRequestHeaderMode()) {
		l.fail(where("request_header_mode"), "weir is not shown the request", "set request_header_mode: SEND")
	}
	if mode.GetResponseHeaderMode() == procv3.ProcessingMode_SKIP && !seen(0, rest.GetResponseHeaderMode()) {
		report := l.fail
		if mode.GetResponseTrailerMode() == procv3.ProcessingMode_SEND {
			report = l.warn // the form in which trailers tell all
		}
		report(where("response_header_mode"), "weir does not see how the model answers", "set response_header_mode: SEND")
	}
	if !seen(mode.GetResponseTrailerMode(), rest.GetResponseTrailerMode()) {
		l.fail(where("response_trailer_mode"), "without the trailers weir may learn of an answer's end before its body, and frees the seat too early", "set response_trailer_mode: SEND")
	}
	if !seen(mode.GetRequestTrailerMode(), rest.GetRequestTrailerMode()) {
		l.warn(where("request_trailer_mode"), "a request of headers and trailers alone reaches the model before it is judged", "set request_trailer_mode: SEND")
	}
	switch b := mode.GetRequestBodyMode(); b {
	case procv3.ProcessingMode_NONE, procv3.ProcessingMode_BUFFERED:
	default:
		l.fail(where("request_body_mode"), fmt.Sprintf("weir does not read bodies %v", b), "set request_body_mode: BUFFERED, or NONE where headers decide")
	}
	switch b := mode.GetResponseBodyMode(); b {
	case procv3.ProcessingMode_NONE, procv3.ProcessingMode_STREAMED:
	case procv3.ProcessingMode_BUFFERED, procv3.ProcessingMode_BUFFERED_PARTIAL:
		l.fail(where("response_body_mode"), "the answer is held until it is complete: nothing streams", "set response_body_mode: STREAMED")
	default:
		l.fail(where("response_body_mode"), fmt.Sprintf("weir does not serve %v", b), "set response_body_mode: STREAMED")
	}
}

func checkReplies(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		if m.proc.GetObservabilityMode() {
			l.fail(l.doc.field(m.proc, "observability_mode"), "what weir answers is ignored", "remove observability_mode")
		}
		if m.proc.GetDisableImmediateResponse() {
			l.fail(l.doc.field(m.proc, "disable_immediate_response"), "weir cannot refuse: each refusal becomes an error", "remove disable_immediate_response")
		}
		if retains := m.proc.GetRouteCacheAction() == procv3.ExternalProcessor_RETAIN; (m.proc.GetDisableClearRouteCache() || retains) && m.routesByPool() {
			field := "disable_clear_route_cache"
			if retains {
				field = "route_cache_action"
			}
			l.fail(l.doc.field(m.proc, field), "routes by x-weir-pool are never chosen: the route is not looked up again", "set route_cache_action: DEFAULT")
		}
	}
}

// routesByPool is whether a route asks for a header that weir sets.
func (m *manager) routesByPool() bool {
	return slices.ContainsFunc(m.routes, func(r *route) bool {
		return slices.ContainsFunc(r.GetMatch().GetHeaders(), func(h *routev3.HeaderMatcher) bool { return strings.EqualFold(h.GetName(), "x-weir-pool") })
	})
}

// written are headers that weir writes in answers and requests, by what goes
// wrong without them.
var written = []string{
	"x-weir-pool", "x-weir-tenant", "x-weir-reason", "x-weir-request-id", "retry-after", "retry-after-ms",
	"x-ratelimit-reset", "x-ratelimit-limit-requests", "x-ratelimit-remaining-tokens", "x-should-retry",
	"grpc-retry-pushback-ms", "x-envoy-ratelimited", "content-type", "www-authenticate",
}

func checkHeaderList(l *linter) {
	for _, m := range l.scene.managers {
		rules := m.proc.GetMutationRules()
		if m.proc == nil {
			continue
		}
		var dropped []string
		cause := ""
		drop := func(h, by string) {
			if dropped = append(dropped, h); cause == "" {
				cause = by
			}
		}
		for _, h := range written {
			deny := rules.GetDisallowExpression()
			system := strings.HasPrefix(h, "x-envoy-") && !rules.GetAllowEnvoy().GetValue()
			switch allow := rules.GetAllowExpression(); {
			case deny != nil && wholly(deny.GetRegex(), h):
				drop(h, "disallow_expression")
			case allow != nil && wholly(allow.GetRegex(), h):
			case (rules.GetDisallowAll().GetValue() || system) && allow != nil:
				drop(h, "allow_expression")
			case rules.GetDisallowAll().GetValue() || system:
				drop(h, "disallow_all")
			}
		}
		if len(dropped) == 0 {
			continue
		}
		p := l.doc.field(m.proc, "mutation_rules")
		if l.doc.has(rules, cause) {
			p = l.doc.field(rules, cause)
		}
		message := "Envoy drops headers of weir's: " + strings.Join(dropped, ", ")
		advice := "take mutation_rules from weir envoy snippet"
		if len(dropped) == 1 && dropped[0] == "x-envoy-ratelimited" {
			l.warn(p, message+"; an Envoy in front may try refused calls again", advice)
			continue
		}
		l.fail(p, message, advice)
	}
}

func checkNamespaces(l *linter) {
	for _, m := range l.scene.managers {
		if m.proc == nil {
			continue
		}
		o := m.proc.GetMetadataOptions()
		need := "envoy.filters.http.ext_authz"
		from := m.authz != nil
		if l.Policy != nil {
			from = l.Policy.Identity.From == policy.FromAuthz || l.Policy.Identity.From == policy.FromMetadata
			need = l.Policy.Envoy.AuthzNamespace
			if l.Policy.Identity.From == policy.FromMetadata {
				need = l.Policy.Identity.Metadata.Namespace
			}
			if l.Policy.Identity.From == policy.FromAuthz && m.authz == nil {
				l.fail(l.doc.field(m.hcm, "http_filters"), "the policy takes identity from ext_authz, and the chain has none of weir's: every call is refused", "add ext_authz before ext_proc, or set identity.from: extproc")
			}
		}
		if from && !slices.Contains(o.GetForwardingNamespaces().GetUntyped(), need) {
			l.fail(l.doc.field(m.proc, "metadata_options"), "ext_proc is not handed the identity: every call is refused", "add "+need+" to metadata_options.forwarding_namespaces.untyped")
		}
		receives := o.GetReceivingNamespaces().GetUntyped()
		if !slices.Contains(receives, "weir.decision") {
			l.warn(l.doc.field(m.proc, "metadata_options"), "the access log cannot show what weir decided", "add weir.decision to metadata_options.receiving_namespaces.untyped")
		}
		if l.Policy != nil && !slices.Contains(receives, "envoy.lb") && slices.ContainsFunc(l.Policy.Pools, func(p policy.Pool) bool { return len(p.Subset) > 0 }) {
			l.fail(l.doc.field(m.proc, "metadata_options"), "pools of the policy share a cluster by subset, but Envoy does not take weir's choice", "add envoy.lb to metadata_options.receiving_namespaces.untyped")
		}
	}
}
