package examples_test

import (
	"net/http"
	"testing"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// TestWhatCallersSayGoesNoFurther: a caller's trace context, count of attempts
// and words for Envoy's router reach no model; with the policy's trust, and an
// Envoy that does not strip them, the first two do.
func TestWhatCallersSayGoesNoFurther(t *testing.T) {
	says := []string{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate", "v=1", "baggage", "a=b", "b3", "1",
		"x-b3-sampled", "1", "x-envoy-attempt-count", "7", "x-envoy-retry-on", "5xx", "x-envoy-max-retries", "3", "x-client-trace-id", "forced"}
	unstripped := func(tree envoytest.Tree) {
		delete(examples.Get(tree, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config").(envoytest.Tree), "early_header_mutation_extensions")
	}
	byWeir := []string{"Traceparent", "Tracestate", "Baggage", "B3", "X-B3-Sampled", "X-Envoy-Attempt-Count"}
	byEnvoy := append([]string{"X-Envoy-Retry-On", "X-Envoy-Max-Retries", "X-Client-Trace-Id"}, byWeir...)
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for _, tt := range []struct {
			name, example, policy string
			envoy                 func(envoytest.Tree)
			gone, kept            []string
		}{
			{"as it stands", "two-filters.yaml", "", nil, byEnvoy, nil},
			{"one filter", "one-filter.yaml", "", nil, byEnvoy, nil},
			{"weir alone strips", "one-filter.yaml", "", unstripped, byWeir, nil},
			{"trusted", "one-filter.yaml", "envoy: {trustCallers: true}\n", unstripped, nil, byWeir},
		} {
			t.Run(tt.name, func(t *testing.T) {
				model := newEcho(t)
				w := newWorld(t, b, setup{example: tt.example, policy: tt.policy + defaultPools, pools: []string{}, envoy: func(tree envoytest.Tree) {
					if tt.envoy != nil {
						tt.envoy(tree)
					}
					for _, cluster := range []string{"chat-fp16", "chat-dyn", "chat-int8"} {
						pointAt(tree, cluster, model.addr)
					}
				}})
				if a := w.chat(w.token(nil), 4, false, says...); a.code != http.StatusOK {
					t.Fatalf("%d %v %s", a.code, a.err, a.body)
				}
				got := model.last(t)
				for _, name := range tt.gone {
					if v := got.Get(name); v != "" {
						t.Errorf("%s: %q reached the model", name, v)
					}
				}
				for _, name := range tt.kept {
					if got.Get(name) == "" {
						t.Errorf("%s did not reach the model", name)
					}
				}
			})
		}
	})
}
