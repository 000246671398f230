package telemetry

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

// everything makes a registry in which every series exists.
func everything(t *testing.T) *Metrics {
	t.Helper()
	m := New(10, "test")
	m.Pools(func(now time.Time) admission.Snapshot {
		return admission.Snapshot{At: now, Pools: []admission.PoolStats{{
			Name: "chat", Telemetry: true, Least: 1, Most: 8, Latency: time.Second,
			Tiers: []admission.Tier{{Name: "gold"}}, Speeds: []admission.Speed{{Model: "m"}},
		}}}
	})
	m.House(func() HouseStats {
		return HouseStats{
			Tokens: authz.Stats{KeySets: []authz.KeySetStats{{Issuer: "i"}}},
			Store:  &redisstore.Stats{Local: map[string]uint64{"timeout": 1}},
		}
	})
	m.Gauges(func() []PoolGauge { return []PoolGauge{gauged("chat", time.Now())} })
	r := &admission.Request{Identity: &identity.Identity{Tenant: "acme"}}
	m.Decided(r, &admission.Decision{Shadow: true}, time.Now())
	m.Ended(r, &admission.Decision{}, &admission.End{}, 5, time.Second, time.Now())
	m.Street(func() StreetStats {
		return StreetStats{
			Pools: []admission.PoolBreaker{{Pool: "chat"}}, Bus: &BusStats{}, Watch: WatchStats{Garbage: map[string]uint64{"form": 1}},
			Clusters: []ClusterStats{{Cluster: "chat", Normal: 1}},
			XDS:      &XDSStats{Sent: map[string]uint64{"rtds": 1}, Acked: map[string]uint64{"rtds": 1}, Nacked: map[string]uint64{"rtds": 1}, Rejected: map[string]uint64{"group": 1}},
		}
	})
	m.Transition(&breaker.Transition{Breaker: "chat"})
	m.ProtectionChanged("drop_overloads")
	m.Check("ok", 0)
	m.Panic("authz")
	m.Fault("config")
	m.OverrideRejected("ext_authz")
	m.Reloaded(policy.Default(), true)
	return m
}

// TestMetricsAreDocumented holds docs/metrics.md against the registry, both
// ways.
func TestMetricsAreDocumented(t *testing.T) {
	families, err := everything(t).Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		if strings.HasPrefix(line, "| `") {
			cells := strings.SplitN(line, "|", 3)
			for _, name := range regexp.MustCompile("`(weir_[a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				documented[name[1]] = true
			}
		}
	}
	for _, f := range families {
		name := f.GetName()
		if strings.HasPrefix(name, "weir_") && !documented[name] {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/metrics.md names %s, which does not exist", name)
	}
}
