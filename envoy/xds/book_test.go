package xds

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/policy"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func n(v int64) *int64 { return &v }

// view makes a view of hosts "address" or "address@priority".
func view(version uint64, hosts ...string) discovery.View {
	v := discovery.View{Version: version}
	for _, h := range hosts {
		address, p, _ := strings.Cut(h, "@")
		e := discovery.Endpoint{Address: netip.MustParseAddrPort(address)}
		if p != "" {
			e.Priority = int(p[0] - '0')
		}
		v.Endpoints = append(v.Endpoints, e)
	}
	return v
}

func set(t *testing.T, b *book, now time.Time, s *Snapshot) changes {
	t.Helper()
	c, err := b.set(now, s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func everybody(string) bool { return true }

func TestRuntimeKeys(t *testing.T) {
	b := newBook("i", nil)
	set(t, b, t0, &Snapshot{Settings: []protect.Settings{
		{Cluster: "m", MaxConnections: n(1), MaxPending: n(2), MaxRequests: n(3), MaxRetries: n(0), BudgetPercent: n(0), MinRetries: n(0), Maintenance: 30},
		{Cluster: "calm"},
	}})
	got := b.layer(everybody)
	want := map[string]int64{
		"circuit_breakers.m.default.max_connections":                    1,
		"circuit_breakers.m.default.max_pending_requests":               2,
		"circuit_breakers.m.default.max_requests":                       3,
		"circuit_breakers.m.default.max_retries":                        0,
		"circuit_breakers.m.default.retry_budget.budget_percent":        0,
		"circuit_breakers.m.default.retry_budget.min_retry_concurrency": 0,
		"upstream.maintenance_mode.m":                                   30,
	}
	for k, v := range want {
		if is, ok := got[k]; !ok || is != v {
			t.Errorf("%s = %d, %t, want %d", k, is, ok, v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
}

func TestSetIsIdempotent(t *testing.T) {
	b := newBook("i", plainCluster)
	snap := func(v discovery.View) *Snapshot {
		return &Snapshot{
			Settings:  []protect.Settings{{Cluster: "m", MaxRequests: n(5), Drop: 20, Health: map[string]protect.Health{"10.0.0.1:80": protect.Draining}}},
			Endpoints: map[string]discovery.View{"m": v},
			Clusters:  []policy.Cluster{{Name: "m", Endpoints: &policy.Endpoints{}}},
		}
	}
	c := set(t, b, t0, snap(view(1, "10.0.0.1:80", "10.0.0.2:80")))
	if !c.runtime || !slices.Equal(c.endpoints, []string{"m"}) || !slices.Equal(c.clusters, []string{"m"}) {
		t.Errorf("first: %+v", c)
	}
	for i := range 3 { // an equal view under another version is no change either
		if c := set(t, b, t0.Add(time.Hour), snap(view(uint64(i)+1, "10.0.0.1:80", "10.0.0.2:80"))); c.any() {
			t.Errorf("equal content: %+v", c)
		}
	}
}

// A change of the share alone must come with a change of an endpoint (Envoy
// ignores it otherwise), one of the endpoints alone needs none.
func TestDropComesWithANewSeq(t *testing.T) {
	b := newBook("i", nil)
	seq := func(drop int64, hosts ...string) (string, *endpointv3.ClusterLoadAssignment) {
		set(t, b, t0, &Snapshot{Settings: []protect.Settings{{Cluster: "m", Drop: drop}}, Endpoints: map[string]discovery.View{"m": view(1, hosts...)}})
		r := b.records["m"].resource
		return r.GetEndpoints()[0].GetLbEndpoints()[0].GetMetadata().GetFilterMetadata()["weir"].GetFields()["seq"].GetStringValue(), r
	}
	if s, r := seq(0, "10.0.0.1:80"); s != "" || r.GetPolicy() != nil {
		t.Errorf("without a drop: seq %q, %v", s, r.GetPolicy())
	}
	one, r := seq(30, "10.0.0.1:80")
	d := r.GetPolicy().GetDropOverloads()
	if one == "" || len(d) != 1 || d[0].GetDropPercentage().GetNumerator() != 30 || d[0].GetDropPercentage().GetDenominator().String() != "HUNDRED" {
		t.Errorf("seq %q, %v", one, d)
	}
	if two, _ := seq(30, "10.0.0.1:80", "10.0.0.2:80"); two != one {
		t.Errorf("seq %q for hosts alone, want %q", two, one)
	}
	three, _ := seq(40, "10.0.0.1:80", "10.0.0.2:80")
	four, r := seq(0, "10.0.0.1:80", "10.0.0.2:80")
	if three == one || four == three || four == one || four == "" || r.GetPolicy() != nil {
		t.Errorf("seqs %q, %q, %q must differ; policy %v", one, three, four, r.GetPolicy())
	}
}

func TestEmptyIsNotGone(t *testing.T) {
	b := newBook("i", nil)
	set(t, b, t0, &Snapshot{Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80")}})
	c := set(t, b, t0, &Snapshot{Endpoints: map[string]discovery.View{"m": view(2)}})
	if r := b.records["m"].resource; !slices.Equal(c.endpoints, []string{"m"}) || r == nil || len(r.GetEndpoints()) != 0 {
		t.Errorf("no hosts: %+v, %v, want an empty resource", c, r)
	}
	c = set(t, b, t0, &Snapshot{})
	if b.records["m"] != nil || !slices.Equal(c.endpoints, []string{"m"}) {
		t.Errorf("no longer in the policy: %+v", c)
	}
}

// What no source has told yet is not told to Envoys as no hosts.
func TestUnknownIsNotEmpty(t *testing.T) {
	b := newBook("i", nil)
	unread := discovery.View{Unread: []int{0}}
	for _, v := range []discovery.View{{}, unread} {
		c := set(t, b, t0, &Snapshot{Settings: []protect.Settings{{Cluster: "m", Drop: 10}}, Endpoints: map[string]discovery.View{"m": v}})
		if c.any() || !slices.Equal(c.withheld, []string{"m"}) {
			t.Errorf("%+v: %+v, want it withheld", v, c)
		}
	}
	c := set(t, b, t0, &Snapshot{Settings: []protect.Settings{{Cluster: "m", Drop: 10}}, Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80")}})
	if !slices.Equal(c.endpoints, []string{"m"}) || c.withheld != nil || b.records["m"].resource.GetPolicy() == nil {
		t.Errorf("%+v, %v", c, b.records["m"].resource)
	}
	if c := set(t, b, t0, &Snapshot{Endpoints: map[string]discovery.View{"m": view(2)}}); !slices.Equal(c.endpoints, []string{"m"}) || len(b.records["m"].resource.GetEndpoints()) != 0 {
		t.Errorf("known to be empty: %+v", c)
	}
}

// A new policy has new sources: until they are read, what was told stays.
func TestNewSourcesTakeNothingAway(t *testing.T) {
	b := newBook("i", nil)
	place := func(v discovery.View) changes {
		return set(t, b, t0, &Snapshot{Endpoints: map[string]discovery.View{"m": v}})
	}
	place(view(7, "10.0.0.1:80", "10.9.0.1:80@1"))
	for range 2 {
		if c := place(discovery.View{Unread: []int{0, 1}}); c.any() {
			t.Errorf("not read: %+v", c)
		}
	}
	half := view(1, "10.0.0.2:80")
	half.Unread = []int{1}
	place(half)
	if h := healths(b.records["m"].resource); len(h) != 2 || h["10.0.0.2"] == "" || h["10.9.0.1"] == "" {
		t.Errorf("one was read: %v", h)
	}
	place(view(2, "10.0.0.2:80"))
	if h := healths(b.records["m"].resource); len(h) != 1 || h["10.0.0.2"] == "" {
		t.Errorf("both were read: %v", h)
	}
}

func TestUnlawfulSettingsKeepTheLast(t *testing.T) {
	for _, bad := range []protect.Settings{{MaxRequests: n(1 << 33)}, {MaxRequests: n(-1)}, {Drop: 101}, {Drop: -1}, {Maintenance: 101}, {Maintenance: -1}} {
		b := newBook("i", nil)
		set(t, b, t0, &Snapshot{Settings: []protect.Settings{{Cluster: "m", MaxRequests: n(5)}}})
		bad.Cluster = "m"
		c, err := b.set(t0, &Snapshot{Settings: []protect.Settings{bad, {Cluster: "o", MaxRequests: n(7)}}})
		if err == nil || !strings.Contains(err.Error(), "m") || b.layer(everybody)["circuit_breakers.m.default.max_requests"] != 5 {
			t.Errorf("%+v: %v, %v", bad, err, b.layer(everybody))
		}
		if !c.runtime || b.layer(everybody)["circuit_breakers.o.default.max_requests"] != 7 {
			t.Errorf("%+v: the other cluster suffers: %v", bad, b.layer(everybody))
		}
	}
}

// healths lists the health by address.
func healths(r *endpointv3.ClusterLoadAssignment) map[string]string {
	out := map[string]string{}
	for _, l := range r.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			out[e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()] = e.GetHealthStatus().String()
		}
	}
	return out
}

// G2: a region that failed is used again when it was well for so long; until
// then its hosts are degraded, so they serve when the other region dies too.
func TestReturnByHysteresis(t *testing.T) {
	b := newBook("i", nil)
	at := func(seconds int, a, second protect.Health) string {
		set(t, b, t0.Add(time.Duration(seconds)*time.Second), &Snapshot{
			Settings:  []protect.Settings{{Cluster: "m", Health: map[string]protect.Health{"10.0.0.1:80": a, "10.0.0.2:80": a, "10.9.0.1:80": second}}},
			Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80", "10.0.0.2:80", "10.9.0.1:80@1")},
			Clusters:  []policy.Cluster{{Name: "m", Endpoints: &policy.Endpoints{Return: 30 * time.Second}}},
		})
		h := healths(b.records["m"].resource)
		return h["10.0.0.1"] + " " + h["10.9.0.1"]
	}
	for _, c := range []struct {
		at        int
		a, second protect.Health
		want      string
	}{
		{0, protect.Unhealthy, protect.Healthy, "UNHEALTHY HEALTHY"},
		{1, protect.Healthy, protect.Healthy, "HEALTHY HEALTHY"}, // never well before: nothing to come back from
		{2, protect.Unhealthy, protect.Healthy, "UNHEALTHY HEALTHY"},
		{10, protect.Healthy, protect.Healthy, "DEGRADED HEALTHY"},
		{39, protect.Healthy, protect.Healthy, "DEGRADED HEALTHY"},
		{39, protect.Degraded, protect.Healthy, "DEGRADED HEALTHY"}, // ill once more: the time starts again
		{40, protect.Healthy, protect.Healthy, "DEGRADED HEALTHY"},
		{5, protect.Healthy, protect.Healthy, "DEGRADED HEALTHY"}, // a clock that steps back waits no longer than hold
		{34, protect.Healthy, protect.Healthy, "DEGRADED HEALTHY"},
		{35, protect.Healthy, protect.Healthy, "HEALTHY HEALTHY"},
		{36, protect.Healthy, protect.Unhealthy, "HEALTHY UNHEALTHY"},
		{37, protect.Healthy, protect.Healthy, "HEALTHY DEGRADED"},
		{38, protect.Draining, protect.Unhealthy, "DRAINING UNHEALTHY"},
	} {
		if got := at(c.at, c.a, c.second); got != c.want {
			t.Fatalf("at %d s with %v, %v: %s, want %s", c.at, c.a, c.second, got, c.want)
		}
	}
}

func TestOneRegionHasNowhereToFailTo(t *testing.T) {
	b := newBook("i", nil)
	for i, h := range []protect.Health{protect.Healthy, protect.Unhealthy, protect.Healthy} {
		set(t, b, t0.Add(time.Duration(i)*time.Second), &Snapshot{
			Settings:  []protect.Settings{{Cluster: "m", Health: map[string]protect.Health{"10.0.0.1:80": h}}},
			Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80")},
		})
	}
	if h := healths(b.records["m"].resource)["10.0.0.1"]; h != "HEALTHY" {
		t.Errorf("%s, want it back at once", h)
	}
}

// Localities: one group for each of region and zone in a priority; the worse
// word on health counts.
func TestAssignment(t *testing.T) {
	v := discovery.View{Version: 1, Endpoints: []discovery.Endpoint{
		{Address: netip.MustParseAddrPort("10.0.0.1:80"), Region: "a", Zone: "a1", Weight: 3, Health: discovery.Degraded},
		{Address: netip.MustParseAddrPort("10.0.0.2:80"), Region: "a", Zone: "a1"},
		{Address: netip.MustParseAddrPort("10.0.0.3:80"), Region: "a", Zone: "a2"},
		{Address: netip.MustParseAddrPort("[fd00::1]:81"), Region: "b", Priority: 1, Health: discovery.Draining},
	}}
	b := newBook("i", nil)
	set(t, b, t0, &Snapshot{
		Settings:  []protect.Settings{{Cluster: "m", Health: map[string]protect.Health{"10.0.0.1:80": protect.Unhealthy, "[fd00::1]:81": protect.Degraded}}},
		Endpoints: map[string]discovery.View{"m": v},
	})
	r := b.records["m"].resource
	if len(r.GetEndpoints()) != 3 {
		t.Fatalf("%v", r)
	}
	for i, want := range []struct {
		region, zone string
		priority     uint32
		hosts        int
	}{{"a", "a1", 0, 2}, {"a", "a2", 0, 1}, {"b", "", 1, 1}} {
		l := r.GetEndpoints()[i]
		if l.GetLocality().GetRegion() != want.region || l.GetLocality().GetZone() != want.zone || l.GetPriority() != want.priority || len(l.GetLbEndpoints()) != want.hosts {
			t.Errorf("%d: %v, want %+v", i, l, want)
		}
	}
	first, last := r.GetEndpoints()[0].GetLbEndpoints()[0], r.GetEndpoints()[2].GetLbEndpoints()[0]
	if first.GetHealthStatus() != corev3.HealthStatus_UNHEALTHY || first.GetLoadBalancingWeight().GetValue() != 3 {
		t.Errorf("%v", first)
	}
	if a := last.GetEndpoint().GetAddress().GetSocketAddress(); last.GetHealthStatus() != corev3.HealthStatus_DRAINING || a.GetAddress() != "fd00::1" || a.GetPortValue() != 81 {
		t.Errorf("%v", last)
	}
	if err := r.ValidateAll(); err != nil {
		t.Error(err)
	}
}
