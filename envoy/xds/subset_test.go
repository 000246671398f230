package xds

import (
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// parts is a view whose hosts have the variants, in turn.
func parts(version uint64, hosts []string, variants ...string) discovery.View {
	v := view(version, hosts...)
	for i := range v.Endpoints {
		v.Endpoints[i].Subset = discovery.SubsetOf(map[string]string{"variant": variants[i]})
	}
	return v
}

// labelsOf is what the subset load balancer reads of a host, and what weir
// writes beside it.
func labelsOf(m *corev3.Metadata) (variant, seq string) {
	return m.GetFilterMetadata()["envoy.lb"].GetFields()["variant"].GetStringValue(), m.GetFilterMetadata()["weir"].GetFields()["seq"].GetStringValue()
}

func TestSubsetsAreTold(t *testing.T) {
	b := newBook("new", nil)
	snap := func(drop int64, variants ...string) *Snapshot {
		return &Snapshot{Settings: []protect.Settings{{Cluster: "m", Drop: drop}},
			Endpoints: map[string]discovery.View{"m": parts(1, []string{"10.0.0.1:80", "10.0.0.2:80"}, variants...)}}
	}
	set(t, b, t0, snap(0, "a", "b"))
	if c := set(t, b, t0, snap(0, "a", "b")); c.any() {
		t.Errorf("equal content: %+v", c)
	}
	if c := set(t, b, t0, snap(30, "a", "b")); len(c.endpoints) != 1 {
		t.Errorf("a drop: %+v", c)
	}
	hosts := b.records["m"].resource.GetEndpoints()[0].GetLbEndpoints()
	for i, want := range []string{"a", "b"} {
		if variant, seq := labelsOf(hosts[i].GetMetadata()); variant != want || (seq != "") != (i == 0) {
			t.Errorf("host %d: %q, seq %q, want %q", i, variant, seq, want)
		}
	}
	dir := t.TempDir()
	if err := b.save(t0).write(dir); err != nil {
		t.Fatal(err)
	}
	s, err := readState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if is := reborn(t, s).records["m"].resource; !sameProto(is, b.records["m"].resource) {
		t.Errorf("from disk %v, want %v", is, b.records["m"].resource)
	}
	if c := set(t, b, t0, snap(30, "b", "b")); len(c.endpoints) != 1 {
		t.Errorf("a host of another variant: %+v", c)
	}
	s.Clusters[0].Endpoints[0].Subset = "nonsense"
	if err := newBook("x", nil).inherit(s, t0); err == nil || !strings.Contains(err.Error(), `cluster "m": endpoint 10.0.0.1:80: subset must be`) {
		t.Errorf("%v", err)
	}
}

// split is a cluster whose hosts are chosen by variant, and by nothing else.
func split(k *policy.Cluster) *clusterv3.Cluster {
	c := checked(k)
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{UpdateMergeWindow: durationpb.New(0)}
	c.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{
		FallbackPolicy:  clusterv3.Cluster_LbSubsetConfig_NO_FALLBACK,
		SubsetSelectors: []*clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector{{Keys: []string{"variant"}}},
	}
	return c
}

// Two pools on one cluster, by subset: each is served by its own hosts, also
// when a host changes its variant, while drops come and go, when weir dies, and
// where the second variant stands under a priority of its own.
func TestEnvoyChoosesBySubset(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		t.Parallel()
		for _, api := range []string{"ads DELTA_GRPC", "ads GRPC"} {
			t.Run(api, func(t *testing.T) {
				t.Parallel()
				hosts := []string{upstream(t, "one"), upstream(t, "two")}
				snap := func(version uint64, drop int64, variants ...string) *Snapshot {
					s := owned(1, hosts[0])
					s.Settings[0].Drop = drop
					v := parts(version, hosts, variants...)
					s.Endpoints["m"] = v
					return s
				}
				w := newStreet(t, b, api, Options{Cluster: split}, snap(1, 0, "fp16", "int8"))
				w.within(5*time.Second, "served", func() bool { c, _ := w.part("fp16"); return c == 200 })
				served := func(what string, want map[string]string) {
					t.Helper()
					w.within(2*time.Second, what, func() bool {
						for variant, body := range want {
							if _, got := w.part(variant); !strings.Contains(got, body) {
								return false
							}
						}
						return true
					})
					for range 10 {
						for variant, body := range want {
							if c, got := w.part(variant); !strings.Contains(got, body) {
								t.Errorf("%s: %s is answered %d %q, want %q", what, variant, c, got, body)
							}
						}
					}
				}
				served("each its own", map[string]string{"fp16": "one", "int8": "two", "fp8": "no healthy upstream", "": "no healthy upstream"})
				put(t, w.server, snap(2, 100, "fp16", "int8"))
				served("all dropped", map[string]string{"fp16": "drop overload", "int8": "drop overload"})
				put(t, w.server, snap(2, 0, "fp16", "int8"))
				served("no more drops", map[string]string{"fp16": "one", "int8": "two"})
				put(t, w.server, snap(3, 0, "fp16", "fp8"))
				served("one is another now", map[string]string{"fp16": "one", "fp8": "two", "int8": "no healthy upstream"})
				w.down()
				w.up()
				w.within(5*time.Second, "Envoy is back", func() bool { return w.server.Stats().Streams == 1 })
				served("from disk", map[string]string{"fp16": "one", "fp8": "two"})
				put(t, w.server, snap(1, 0, "int8", "fp16"))
				served("they change places", map[string]string{"int8": "one", "fp16": "two", "fp8": "no healthy upstream"})
				apart := snap(4, 0, "int8", "fp16")
				apart.Endpoints["m"] = parts(4, []string{hosts[0], hosts[1] + "@1"}, "int8", "fp16")
				put(t, w.server, apart)
				served("two priorities", map[string]string{"int8": "one", "fp16": "two", "fp8": "no healthy upstream"})
			})
		}
	})
}
