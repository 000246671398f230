package lint

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/proto"
)

// harmless are the words after which a request cannot have run.
var harmless = []string{"connect-failure", "refused-stream", "reset-before-request", "http3-post-connect-failure"}

// repeating are the others, with what each does.
var repeating = map[string]string{
	"5xx":                    "repeats a call that the model answered or broke off",
	"gateway-error":          "repeats a call on 502, 503 and 504, also those of weir in the next stage",
	"reset":                  "repeats a call that was broken off in the middle",
	"retriable-4xx":          "repeats a call on 409",
	"retriable-status-codes": "repeats a call that the model answered",
	"retriable-headers":      "repeats a call that the model answered",
	"envoy-ratelimited":      "repeats what weir refused",
	"cancelled":              "repeats a call that the model broke off",
	"deadline-exceeded":      "repeats a call that ran to its deadline",
	"internal":               "repeats a call that the model broke off",
	"resource-exhausted":     "repeats what a full model or weir refused",
	"unavailable":            "repeats a call that may have run: a connection lost in the middle is UNAVAILABLE too",
}

func words(list string) []string {
	var out []string
	for w := range strings.SplitSeq(list, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// checkRetryWords: Envoy ignores a word it does not know.
func checkRetryWords(l *linter) {
	all(l.doc, func(p *routev3.RetryPolicy) {
		for _, w := range l.known(p, p.GetRetryOn()) {
			if why := repeating[w]; why != "" {
				l.add(Warning, "retry-repeats", l.doc.field(p, "retry_on"), "retry_on "+w+" "+why, "keep connect-failure, refused-stream and reset-before-request: after these it cannot have run")
			}
		}
	})
	all(l.doc, func(p *corev3.RetryPolicy) {
		of, _ := within[*procv3.ExternalProcessor](l.doc, p)
		for _, w := range l.known(p, p.GetRetryOn()) {
			if of != nil && (w == "unavailable" || w == "5xx") {
				l.add(Warning, "retry-repeats", l.doc.field(p, "retry_on"), "retry_on "+w+" asks weir again after each of its own refusals", "use connect-failure,refused-stream,reset")
			}
		}
	})
}

func (l *linter) known(p proto.Message, list string) []string {
	all := words(list)
	for _, w := range all {
		if slices.Contains(harmless, w) || repeating[w] != "" {
			continue
		}
		advice, best := "the words are "+strings.Join(slices.Concat(harmless, sortedKeys(repeating)), ", "), 4
		for _, k := range slices.Concat(harmless, sortedKeys(repeating)) {
			if d := distance(w, k); d < best {
				best, advice = d, "did you mean "+k+"?"
			}
		}
		l.add(Error, "retry-word", l.doc.field(p, "retry_on"), "Envoy ignores the unknown word "+quote(w), advice)
	}
	return all
}

// checkRetryPlaces: of the two places for a retry policy Envoy reads the inner
// one for xDS streams and the metrics sink, the outer one for all other calls.
func checkRetryPlaces(l *linter) {
	all(l.doc, func(g *corev3.GrpcService_EnvoyGrpc) {
		if g.GetRetryPolicy() == nil || l.reconnects(g) {
			return
		}
		l.warn(l.doc.field(g, "retry_policy"), "Envoy does not read a retry_policy inside envoy_grpc here: no call is tried again", "put it beside envoy_grpc, into grpc_service")
	})
}

// reconnects reports a stream that Envoy opens again and again by itself.
func (l *linter) reconnects(g *corev3.GrpcService_EnvoyGrpc) bool {
	_, xds := within[*corev3.ApiConfigSource](l.doc, g)
	_, metrics := within[*metricsv3.MetricsServiceConfig](l.doc, g)
	return xds || metrics
}

// checkBackOff: after a longer outage of weir Envoy's streams come back by
// chance within 30 s, unless the service says otherwise.
func checkBackOff(l *linter) {
	all(l.doc, func(g *corev3.GrpcService_EnvoyGrpc) {
		if !l.reconnects(g) || !l.scene.weir[g.GetClusterName()] {
			return
		}
		if b := g.GetRetryPolicy().GetRetryBackOff(); b == nil || b.GetMaxInterval() == nil {
			l.warn(l.doc.of(g), fmt.Sprintf("after an outage the stream to %s comes back after up to 30 s", quote(g.GetClusterName())),
				"add retry_policy: {retry_back_off: {base_interval: 0.2s, max_interval: 1s}}")
		}
	})
}
