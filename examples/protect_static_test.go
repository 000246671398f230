package examples

import (
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"

	"github.com/weirproxy/weir/policy"
)

// TestStaticProtected: the protected example and its policy say the same: the
// names and numbers that protection starts from, the way back to weir, and
// statistics whole.
func TestStaticProtected(t *testing.T) {
	raw, err := Files.ReadFile("policies/protected.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Load("protected.yaml", raw)
	if err != nil {
		t.Fatal(err)
	}
	b := bootstrap(t, "protected.yaml")
	clusters := map[string]*clusterv3.Cluster{}
	for _, c := range b.GetStaticResources().GetClusters() {
		clusters[c.GetName()] = c
	}
	for _, want := range p.ProtectedClusters() {
		c := clusters[want.Name]
		if c.GetType() != clusterv3.Cluster_EDS || want.Endpoints == nil {
			t.Fatalf("%s: %v, endpoints of the policy %v: weir serves them by EDS", want.Name, c.GetType(), want.Endpoints)
		}
		n := c.GetCircuitBreakers().GetThresholds()[0]
		budget := n.GetRetryBudget()
		got := []int64{
			int64(n.GetMaxConnections().GetValue()), int64(n.GetMaxPendingRequests().GetValue()), int64(n.GetMaxRequests().GetValue()),
			int64(budget.GetBudgetPercent().GetValue()), int64(budget.GetMinRetryConcurrency().GetValue()),
		}
		if wants := []int64{want.MaxConnections, want.MaxPending, want.MaxRequests, int64(100 * want.Budget), want.MinRetries}; !slices.Equal(got, wants) {
			t.Errorf("%s: connections, pending, requests, budget, retries are %v, the policy has %v", want.Name, got, wants)
		}
		if len(c.GetHealthChecks()) != 1 || c.GetHealthChecks()[0].GetTimeout().AsDuration() != 500*time.Millisecond {
			t.Errorf("%s: hosts are not isolated by a check of more than 500 ms (B11)", want.Name)
		}
		if c.GetOutlierDetection().GetConsecutiveGatewayFailure().GetValue() != 3 || c.GetOutlierDetection().GetSplitExternalLocalOriginErrors() {
			t.Errorf("%s: three failures in a row do not isolate a host (B11)", want.Name)
		}
		if window := c.GetCommonLbConfig().GetUpdateMergeWindow(); window == nil || window.AsDuration() != 0 {
			t.Errorf("%s: update_merge_window %v holds changes of health back before 1.40", want.Name, window)
		}
	}

	layers := b.GetLayeredRuntime().GetLayers()
	last := layers[len(layers)-1]
	if last.GetRtdsLayer().GetName() != p.Envoy.XDS.Layer {
		t.Errorf("the last layer is %q, the policy pushes %q", last.GetRtdsLayer().GetName(), p.Envoy.XDS.Layer)
	}
	source := last.GetRtdsLayer().GetRtdsConfig().GetApiConfigSource().GetGrpcServices()[0]
	if d := source.GetEnvoyGrpc().GetRetryPolicy().GetRetryBackOff().GetMaxInterval().AsDuration(); d <= 0 || d > time.Second {
		t.Errorf("weir is found again after up to %v, want a second", d)
	}
	sink := new(metricsv3.MetricsServiceConfig)
	if err := b.GetStatsSinks()[0].GetTypedConfig().UnmarshalTo(sink); err != nil {
		t.Fatal(err)
	}
	if sink.GetEmitTagsAsLabels() || sink.GetReportCountersAsDeltas().GetValue() {
		t.Error("the sink cuts names at dots, or loses what happens while weir is away")
	}
	for _, r := range manager(t, b).GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
		if r.GetRoute() == nil || r.GetName() == "models" {
			continue
		}
		again := r.GetRoute().GetRetryPolicy()
		words := strings.Split(again.GetRetryOn(), ",")
		slices.Sort(words)
		if !slices.Equal(words, []string{"connect-failure", "refused-stream"}) || len(again.GetRetryHostPredicate()) == 0 {
			t.Errorf("route %s repeats %q, hosts %v: want what did not reach a model, at another host", r.GetName(), again.GetRetryOn(), again.GetRetryHostPredicate())
		}
	}
}
