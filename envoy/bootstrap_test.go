package envoy

import (
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/policy"
)

// bootstrapOf reads layered_runtime and statistics of a snippet.
func bootstrapOf(t *testing.T, text string) *bootstrapv3.Bootstrap {
	t.Helper()
	doc := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	delete(doc, "http_filters")
	delete(doc, "clusters")
	raw, _ := yaml.Marshal(doc)
	raw, _ = yaml.YAMLToJSON(raw)
	b := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(raw, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// quick fails unless Envoy comes back to weir within a second or so.
func quick(t *testing.T, s *corev3.GrpcService) {
	t.Helper()
	b := s.GetEnvoyGrpc().GetRetryPolicy().GetRetryBackOff()
	if s.GetEnvoyGrpc().GetClusterName() != "weir" || b.GetMaxInterval().AsDuration() != time.Second || b.GetBaseInterval().AsDuration() != 200*time.Millisecond {
		t.Errorf("a stream to weir is %v", s)
	}
}

func TestSnippetForWatchAndSteering(t *testing.T) {
	text, _ := snippetOf(t, func(p *policy.Policy) { p.Envoy.XDS = &policy.XDS{Layer: "numbers"} })
	b := bootstrapOf(t, text)
	layers := b.GetLayeredRuntime().GetLayers()
	if len(layers) != 2 || layers[0].GetStaticLayer() == nil || layers[1].GetName() != "numbers" || layers[1].GetRtdsLayer().GetName() != "numbers" {
		t.Fatalf("layers are %v, want the static one below that of weir", layers)
	}
	config := layers[1].GetRtdsLayer().GetRtdsConfig()
	if d := config.GetInitialFetchTimeout(); d.AsDuration() != time.Second {
		t.Errorf("Envoy waits %v for weir at its start, want 1s; 0 would be for ever", d.AsDuration())
	}
	if config.GetApiConfigSource().GetApiType() != corev3.ApiConfigSource_DELTA_GRPC {
		t.Errorf("api_type is %v", config.GetApiConfigSource().GetApiType())
	}
	quick(t, config.GetApiConfigSource().GetGrpcServices()[0])

	sink := new(metricsv3.MetricsServiceConfig)
	if err := b.GetStatsSinks()[0].GetTypedConfig().UnmarshalTo(sink); err != nil {
		t.Fatal(err)
	}
	if sink.GetReportCountersAsDeltas().GetValue() || sink.GetEmitTagsAsLabels() || b.GetStatsFlushInterval().AsDuration() != time.Second {
		t.Errorf("the sink is %v each %v", sink, b.GetStatsFlushInterval())
	}
	quick(t, sink.GetGrpcService())
}

func TestSnippetWithoutWatchAndSteering(t *testing.T) {
	text, _ := snippetOf(t, func(p *policy.Policy) { p.Envoy.XDS, p.Envoy.Watch.Metrics = nil, false })
	if b := bootstrapOf(t, text); len(b.GetLayeredRuntime().GetLayers()) != 1 || len(b.GetStatsSinks()) != 0 || strings.Contains(text, "stats_sinks") {
		t.Errorf("the bootstrap has %v", b)
	}
}

// TestLayersHaveNamesOfTheirOwn: Envoy takes a name once.
func TestLayersHaveNamesOfTheirOwn(t *testing.T) {
	text, _ := snippetOf(t, func(p *policy.Policy) { p.Envoy.XDS = &policy.XDS{Layer: "base"} })
	if l := bootstrapOf(t, text).GetLayeredRuntime().GetLayers(); l[0].GetName() == l[1].GetName() {
		t.Errorf("both layers are %q", l[0].GetName())
	}
}
