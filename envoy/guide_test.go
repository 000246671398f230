package envoy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/envoy/lint"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// street is a policy with an HTTP cluster without endpoints (chat), one of two
// subsets (parts), and a gRPC one whose endpoints weir serves (infer).
func street(change func(*policy.Policy)) *policy.Policy {
	p := policy.Default()
	seats := policy.Seats{Requests: 100}
	p.Pools = []policy.Pool{
		{Name: "chat", Cluster: "chat", Seats: seats},
		{Name: "fp16", Cluster: "parts", Seats: seats, Subset: map[string]string{"variant": "fp16"}},
		{Name: "int8", Cluster: "parts", Seats: seats, Subset: map[string]string{"variant": "int8", "y": "no"}},
		{Name: "infer", Cluster: "infer", Protocol: policy.GRPCProtocol, Seats: seats},
	}
	p.Envoy.Clusters = []policy.Cluster{{
		Name: "infer", MaxConnections: 10, MaxPending: 20, MaxRequests: 300, MaxRetries: 4, Budget: 0.125, MinRetries: 5,
		Endpoints: &policy.Endpoints{Priorities: []policy.EndpointSet{{Static: []string{"10.0.0.1:80"}}}},
	}}
	p.Envoy.XDS = &policy.XDS{Layer: "weir"}
	if change != nil {
		change(p)
	}
	return p.Finish()
}

// whole is a bootstrap of what is generated and of the least that it needs.
func whole(t *testing.T, snippet, guide string) string {
	t.Helper()
	parts, clusters := map[string]any{}, map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(snippet), &parts); err != nil {
		t.Fatalf("%v in\n%s", err, snippet)
	}
	if err := yaml.UnmarshalStrict([]byte(guide), &clusters); err != nil {
		t.Fatalf("%v in\n%s", err, guide)
	}
	type tree = map[string]any
	route := tree{"cluster": "weir", "timeout": "0s", "retry_policy": retryPolicy(t, guide)}
	hcm := tree{
		"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "in", "http_filters": parts["http_filters"],
		"early_header_mutation_extensions": []any{tree{"name": "strip", "typed_config": tree{
			"@type":     "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
			"mutations": []any{tree{"remove_on_match": tree{"key_matcher": tree{"prefix": "x-weir-"}}}},
		}}},
		"route_config": tree{"name": "r", "virtual_hosts": []any{tree{"name": "all", "domains": []any{"*"}, "routes": []any{tree{"match": tree{"prefix": "/"}, "route": route}}}}},
	}
	raw, err := yaml.Marshal(tree{
		"node":            tree{"id": "edge-1", "cluster": "edge"},
		"layered_runtime": parts["layered_runtime"], "stats_flush_interval": parts["stats_flush_interval"], "stats_sinks": parts["stats_sinks"],
		"grpc_async_client_manager_config": tree{"max_cached_entry_idle_duration": "86400s"},
		"static_resources": tree{
			"clusters": append(parts["clusters"].([]any), clusters["clusters"].([]any)...),
			"listeners": []any{tree{
				"name": "in", "address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}},
				"per_connection_buffer_limit_bytes": 4 << 20,
				"filter_chains":                     []any{tree{"filters": []any{tree{"name": "envoy.filters.network.http_connection_manager", "typed_config": hcm}}}},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// retryPolicy is the one that the guide's comment recommends.
func retryPolicy(t *testing.T, guide string) any {
	t.Helper()
	_, rest, ok := strings.Cut(guide, "#   retry_policy: ")
	line, _, _ := strings.Cut(rest, "\n")
	var v any
	if err := yaml.UnmarshalStrict([]byte(line), &v); err != nil || !ok {
		t.Fatalf("no retry policy in the comments: %v", err)
	}
	return v
}

func generate(t *testing.T, p *policy.Policy, o envoy.ClusterOptions) (snippet, guide string) {
	t.Helper()
	snippet, err := envoy.Snippet(p)
	if err != nil {
		t.Fatal(err)
	}
	guide, err = envoy.ClusterGuide(p, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return snippet, guide
}

// forms are the options that the guide is printed with.
func forms() map[string]envoy.ClusterOptions {
	return map[string]envoy.ClusterOptions{
		"plain":         {},
		"with a peak":   {PeakQPS: 500, Mean: 2 * time.Second, Permits: 30 * time.Second},
		"slow pings":    {Permits: time.Minute, Health: "-"},
		"hosts by name": {Hosts: []string{"model-a.example:8000", "10.0.0.8:8000"}, Health: "/v1/health"},
	}
}

func TestGeneratedIsSound(t *testing.T) {
	for name, o := range forms() {
		for release := lint.Oldest; release <= lint.Newest; release++ {
			t.Run(fmt.Sprintf("%s/%v", name, release), func(t *testing.T) {
				o.Release = int(release)
				p := street(nil)
				text := whole(t, first(generate(t, p, o)), second(generate(t, p, o)))
				raw, err := yaml.YAMLToJSON([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				b := new(bootstrapv3.Bootstrap)
				if err := protojson.Unmarshal(raw, b); err != nil {
					t.Fatal(err)
				}
				if err := b.ValidateAll(); err != nil {
					t.Error(err)
				}
				for _, c := range b.GetStaticResources().GetClusters()[1:] { // but for weir's own
					checkOptions(t, c)
				}
				// Our own linter has nothing against it either.
				for _, f := range lint.Check("generated", []byte(text), lint.Options{Release: release, Policy: p}).Findings {
					if f.Severity == lint.Error && f.Rule != "local-reply" { // one text for all releases; it says what 1.36 wants
						t.Error(f)
					}
				}
			})
		}
	}
}

func first(a, _ string) string  { return a }
func second(_, b string) string { return b }

func checkOptions(t *testing.T, c *clusterv3.Cluster) *upstreamsv3.HttpProtocolOptions {
	t.Helper()
	m, err := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"].UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	o := m.(*upstreamsv3.HttpProtocolOptions)
	if err := o.ValidateAll(); err != nil {
		t.Error(err)
	}
	return o
}

// TestEnvoyTakesWhatIsGenerated: each release starts with it.
func TestEnvoyTakesWhatIsGenerated(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for name, o := range forms() {
			if o.Release = b.Minor(); o.Release > 40 {
				o.Release = 0
			}
			for layer, change := range map[string]func(*policy.Policy){
				"weir": nil, "base": func(p *policy.Policy) { p.Envoy.XDS.Layer = "base" }, "none": func(p *policy.Policy) { p.Envoy.XDS, p.Envoy.Watch.Metrics = nil, false },
			} {
				if layer != "weir" && name != "plain" {
					continue
				}
				snippet, guide := generate(t, street(change), o)
				file := filepath.Join(t.TempDir(), "envoy.yaml")
				if err := os.WriteFile(file, []byte(whole(t, snippet, guide)), 0o600); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				out, err := exec.CommandContext(ctx, b.Path, "--mode", "validate", "-l", "warning", "-c", file).CombinedOutput()
				cancel()
				if err != nil || strings.Contains(string(out), "eprecated") {
					t.Errorf("%s, layer %s: %v\n%s", name, layer, err, out)
				}
			}
		}
	})
}

// TestGuideIsTheClusterForCDS: the YAML says what the message says.
func TestGuideIsTheClusterForCDS(t *testing.T) {
	p := street(nil)
	o := envoy.ClusterOptions{PeakQPS: 500, Mean: 2 * time.Second}
	_, guide := generate(t, p, o)
	c, _ := p.ClusterOf("infer")
	want := envoy.Cluster(c, o)
	var doc struct{ Clusters []any }
	if err := yaml.Unmarshal([]byte(guide), &doc); err != nil {
		t.Fatal(err)
	}
	raw, _ := yaml.Marshal(doc.Clusters[1])
	raw, _ = yaml.YAMLToJSON(raw)
	got := new(clusterv3.Cluster)
	if err := protojson.Unmarshal(raw, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v\ngot  %v\nwant %v", err, got, want)
	}
}

func TestClusterNumbers(t *testing.T) {
	p := street(nil)
	infer, _ := p.ClusterOf("infer")
	chat, _ := p.ClusterOf("chat")
	for _, c := range []struct {
		name        string
		cluster     policy.Cluster
		o           envoy.ClusterOptions
		connections uint32
		ping, idle  time.Duration
	}{
		{"grpc, nothing known", infer, envoy.ClusterOptions{}, 10, 300 * time.Second, 600 * time.Second},
		{"grpc, 500/s x 2 s x 2 = 2000 streams", infer, envoy.ClusterOptions{PeakQPS: 500, Mean: 2 * time.Second}, 20, 300 * time.Second, 600 * time.Second},
		{"grpc, less than the policy's", infer, envoy.ClusterOptions{PeakQPS: 5, Mean: time.Second}, 10, 300 * time.Second, 600 * time.Second},
		{"grpc, pings permitted each 30 s", infer, envoy.ClusterOptions{Permits: 30 * time.Second}, 10, 30 * time.Second, 0},
		{"grpc, each 5 s: 30 do", infer, envoy.ClusterOptions{Permits: 5 * time.Second}, 10, 30 * time.Second, 0},
		{"grpc, each 2 min", infer, envoy.ClusterOptions{Permits: 2 * time.Minute}, 10, 2 * time.Minute, 0},
		{"http, nothing known", chat, envoy.ClusterOptions{}, 1024, 0, 4 * time.Second},
		{"http, 500/s x 2 s x 2", chat, envoy.ClusterOptions{PeakQPS: 500, Mean: 2 * time.Second}, 2000, 0, 4 * time.Second},
		{"http, 0.3/s x 1.5 s x 2 = 0.9", chat, envoy.ClusterOptions{PeakQPS: 0.3, Mean: 1500 * time.Millisecond}, 1, 0, 4 * time.Second},
		{"http, no end", chat, envoy.ClusterOptions{PeakQPS: 1e300, Mean: time.Hour}, 1<<32 - 1, 0, 4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := envoy.Cluster(c.cluster, c.o)
			limits := out.GetCircuitBreakers().GetThresholds()[0]
			if n := limits.GetMaxConnections().GetValue(); n != c.connections {
				t.Errorf("max_connections is %d, want %d", n, c.connections)
			}
			o := checkOptions(t, out)
			if d := o.GetCommonHttpProtocolOptions().GetIdleTimeout().AsDuration(); d != c.idle {
				t.Errorf("idle_timeout is %v, want %v", d, c.idle)
			}
			if d := o.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive().GetInterval().AsDuration(); d != c.ping {
				t.Errorf("a ping each %v, want %v", d, c.ping)
			}
			if uint32(c.cluster.MaxRequests) != limits.GetMaxRequests().GetValue() || limits.GetRetryBudget().GetBudgetPercent().GetValue() != 100*float64(c.cluster.Budget) {
				t.Errorf("limits are %v for %+v", limits, c.cluster)
			}
			if check := out.GetHealthChecks()[0]; check.GetTimeout().AsDuration() != 500*time.Millisecond || (check.GetGrpcHealthCheck() != nil) != (c.cluster.Protocol == policy.GRPCProtocol) {
				t.Errorf("health check is %v", check)
			}
			if out.GetOutlierDetection().GetConsecutiveGatewayFailure().GetValue() != 3 {
				t.Errorf("outlier detection is %v", out.GetOutlierDetection())
			}
		})
	}
	chat.Budget, chat.MaxRetries = 0, 7
	if l := envoy.Cluster(chat, envoy.ClusterOptions{}).GetCircuitBreakers().GetThresholds()[0]; l.GetRetryBudget() != nil || l.GetMaxRetries().GetValue() != 7 {
		t.Errorf("without a budget the limits are %v", l)
	}
}

func TestMergeWindowBefore40(t *testing.T) {
	infer, _ := street(nil).ClusterOf("infer")
	for release, want := range map[int]bool{0: true, 36: true, 39: true, 40: false} {
		config := envoy.Cluster(infer, envoy.ClusterOptions{Release: release}).GetCommonLbConfig()
		if got := config.GetUpdateMergeWindow() != nil; got != want || config.GetHealthyPanicThreshold().GetValue() != 0 || config.GetHealthyPanicThreshold() == nil {
			t.Errorf("release %d: %v", release, config)
		}
	}
}

func TestGuideSaysTheArithmetic(t *testing.T) {
	_, guide := generate(t, street(nil), envoy.ClusterOptions{PeakQPS: 500, Mean: 2 * time.Second})
	for _, line := range []string{
		"# pool: max idle = 500 peak QPS x 2 s x 2 = 2000 connections\n",
		"# the policy's envoy.clusters has maxConnections: 1024 for it; write 2000 there\n",
		"# pool: 500 peak QPS x 2 s x 2 = 2000 streams; at 100 on a connection 20 connections, at least one for each worker and host\n",
		`retry_on: "connect-failure,refused-stream"`,
		`variant: int8, "y": "no"`, // Envoy reads a bare y or no as a truth
	} {
		if !strings.Contains(guide, line) {
			t.Errorf("the guide does not say %q:\n%s", line, guide)
		}
	}
}

func TestGuideOfNamedClusters(t *testing.T) {
	p := street(nil)
	guide, err := envoy.ClusterGuide(p, []string{"infer", "chat"}, envoy.ClusterOptions{})
	if err != nil || strings.Count(guide, "\n- name: ") != 2 || strings.Contains(guide, "name: parts") {
		t.Errorf("%v\n%s", err, guide)
	}
	_, err = envoy.ClusterGuide(p, []string{"chat", "chit"}, envoy.ClusterOptions{})
	var unknown *envoy.ErrCluster
	if !errors.As(err, &unknown) || err.Error() != `cluster "chit": no such cluster in the policy; it has chat, infer, parts` {
		t.Errorf("error is %v", err)
	}
}

// Pools that share a cluster choose by subset, whoever serves its endpoints.
func TestSubsetsOfClusters(t *testing.T) {
	for _, served := range []bool{false, true} {
		p := street(func(p *policy.Policy) {
			if served {
				parts := p.Envoy.Clusters[0]
				parts.Name = "parts"
				p.Envoy.Clusters = append(p.Envoy.Clusters, parts)
			}
		})
		c, _ := p.ClusterOf("parts")
		out := envoy.Cluster(c, envoy.ClusterOptions{})
		config := out.GetLbSubsetConfig()
		var keys [][]string
		for _, s := range config.GetSubsetSelectors() {
			keys = append(keys, s.GetKeys())
		}
		if want := [][]string{{"variant"}, {"variant", "y"}}; !reflect.DeepEqual(keys, want) || config.GetFallbackPolicy() != clusterv3.Cluster_LbSubsetConfig_NO_FALLBACK {
			t.Errorf("served %t: %v, want the keys %v and no fallback", served, config, want)
		}
		if (out.GetType() == clusterv3.Cluster_EDS) != served {
			t.Errorf("served %t: %v", served, out.GetType())
		}
		infer, _ := p.ClusterOf("infer")
		if config := envoy.Cluster(infer, envoy.ClusterOptions{}).GetLbSubsetConfig(); config != nil {
			t.Errorf("a cluster of one pool has %v", config)
		}
	}
}
