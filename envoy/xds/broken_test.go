package xds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/policy"
)

// Settings that cannot be, beside good ones: named, left as they were, and the
// good ones are told.
func TestContradictorySettings(t *testing.T) {
	host := func(change func(*discovery.Endpoint)) *Snapshot {
		v := view(2, "10.0.0.1:80", "10.0.0.2:80")
		change(&v.Endpoints[1])
		return &Snapshot{Settings: []protect.Settings{override("m", 6)}, Endpoints: map[string]discovery.View{"m": v}}
	}
	settings := func(s protect.Settings) *Snapshot {
		s.Cluster = "m"
		return &Snapshot{Settings: []protect.Settings{s}, Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80")}}
	}
	for _, c := range []struct {
		name string
		snap *Snapshot
		err  string
	}{
		{"no address", host(func(e *discovery.Endpoint) { e.Address = netip.AddrPort{} }), "cluster m: endpoint invalid AddrPort must be ip:port"},
		{"no port", host(func(e *discovery.Endpoint) { e.Address = netip.AddrPortFrom(e.Address.Addr(), 0) }), "must be ip:port"},
		{"priority below 0", host(func(e *discovery.Endpoint) { e.Priority = -1 }), "priority must be from 0 to 127 (got -1)"},
		{"priority beyond Envoy's", host(func(e *discovery.Endpoint) { e.Priority = 1 << 40 }), "priority must be from 0 to 127"},
		{"zone that is no text", host(func(e *discovery.Endpoint) { e.Zone = "\xff" }), "region and zone must be UTF-8"},
		{"region that is no text", host(func(e *discovery.Endpoint) { e.Region = "\xc0" }), "region and zone must be UTF-8"},
		{"health that is none", host(func(e *discovery.Endpoint) { e.Health = 9 }), "health must be from 0 to 3 (got 9)"},
		{"weir's health that is none", settings(protect.Settings{Health: map[string]protect.Health{"10.0.0.1:80": 77}}), "health of 10.0.0.1:80 must be from 0 to 3 (got 77)"},
		{"a drop below 0", settings(protect.Settings{Drop: -1}), "cluster m: drop must be from 0 to 100 percent (got -1)"},
		{"a number below 0", settings(protect.Settings{MaxRequests: n(-5)}), "circuit_breakers.m.default.max_requests must be from 0 to 4294967295 (got -5)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, known := range []bool{true, false} {
				b := newBook("i", nil)
				if known {
					set(t, b, t0, one(5, "10.0.0.1:80"))
				}
				c.snap.Endpoints["good"] = view(1, "10.9.0.1:80")
				got, err := b.set(t0, c.snap)
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("known %t: %v, want %s", known, err, c.err)
				}
				if !slices.Contains(got.endpoints, "good") {
					t.Errorf("known %t: the good ones are not told: %+v", known, got)
				}
				if r := b.records["m"]; known && (r == nil || len(r.resource.GetEndpoints()) != 1 || len(r.resource.GetEndpoints()[0].GetLbEndpoints()) != 1) {
					t.Errorf("what stood is lost: %v", r)
				}
			}
		})
	}
	b := newBook("i", nil)
	twice := one(6, "10.0.0.1:80")
	twice.Settings = append(twice.Settings, override("m", 7))
	if set(t, b, t0, twice); b.layer(everybody)[requests] != 7 {
		t.Errorf("of two words the last counts: %v", b.layer(everybody))
	}
	if _, err := b.set(t0, &Snapshot{Settings: []protect.Settings{override("\xff", 1)}}); err == nil || len(b.layer(everybody)) != 0 {
		t.Errorf("a name that is no text: %v, %v", err, b.layer(everybody))
	}
}

// The clock goes back a day, and forward two: no host is taken away, and an
// inherited override ends at the latest when time has come.
func TestClockSteps(t *testing.T) {
	_, s := saved(t)
	day := 24 * time.Hour
	snap := &Snapshot{Settings: []protect.Settings{{Cluster: "m"}, override("plain", 7)}, Endpoints: map[string]discovery.View{"m": view(3, "10.0.0.1:80", "10.9.0.1:80@1"), "calm": view(1, "10.1.0.1:80")}}
	ill := *snap
	ill.Settings = []protect.Settings{{Cluster: "m", Health: map[string]protect.Health{"10.0.0.1:80": protect.Unhealthy}}, override("plain", 7)}
	b := reborn(t, s)
	for i, at := range []time.Duration{0, -day, -day + time.Second, day, -day, 0, 2 * day} {
		for j, is := range []*Snapshot{snap, &ill, snap} {
			set(t, b, t0.Add(at), is)
			hosts := 0
			for _, group := range b.records["m"].resource.GetEndpoints() {
				hosts += len(group.GetLbEndpoints())
			}
			if hosts != 2 || b.layer(everybody)["circuit_breakers.plain.default.max_requests"] != 7 {
				t.Fatalf("step %d.%d: %d hosts, %v", i, j, hosts, b.layer(everybody))
			}
		}
		b.expire(t0.Add(at))
	}
	if b.layer(everybody)[requests] != 0 {
		t.Error("the inherited override never ends")
	}
	// A region that failed while the clock went back comes back after its hold.
	set(t, b, t0.Add(-day), snap)
	set(t, b, t0.Add(-day+31*time.Second), snap)
	if out := b.records["m"].out; !slices.Equal(out, []bool{false, false}) {
		t.Errorf("out %v", out)
	}
}

// Groups that overlap: the first that matches serves, also of two without a
// name; and none refuses in the name of another, whose certificate it lacks.
func TestGroupsThatOverlap(t *testing.T) {
	s := New(t0, Options{Groups: []policy.XDSGroup{
		{ID: "edge-*", SANs: []string{"spiffe://a/*"}, Clusters: []string{"m"}},
		{ID: "edge-*", SANs: []string{"spiffe://*"}, Clusters: []string{"o"}},
		{ID: "*", Clusters: []string{"p"}},
	}})
	defer s.Close()
	serves := func(id string, sans ...string) *node {
		st := &stream{caller: caller{sans: sans}, types: map[string]*talk{}}
		if _, _, err := s.roster.meet(t0, st, edge(id, 40), s.groups); err != nil {
			t.Fatal(err)
		}
		return st.node
	}
	for _, c := range []struct {
		id      string
		sans    []string
		cluster string
	}{
		{"edge-1", []string{"spiffe://a/1"}, "m"}, {"edge-1", []string{"spiffe://b/1"}, "o"}, {"edge-1", nil, "p"}, {"x", []string{"spiffe://a/1"}, "p"},
	} {
		if got := serves(c.id, c.sans...).group.match.Clusters; !slices.Equal(got, []string{c.cluster}) {
			t.Errorf("%s %v gets %v, want %s", c.id, c.sans, got, c.cluster)
		}
	}
	first, again := serves("edge-1", "spiffe://a/1"), serves("edge-1", "spiffe://a/1")
	if first != again {
		t.Error("two streams of one are two")
	}
	if first == serves("edge-1", "spiffe://a/2") {
		t.Error("who claims another's id over its own certificate is taken for it")
	}
}

// 10,000 clusters at once, and 10,000 hosts in one: told within a moment, and
// a change of one of them as fast as ever.
func TestManyClustersAtOnce(t *testing.T) {
	s := New(t0, Options{Dir: t.TempDir()})
	conn := serveTest(t, s)
	snap := &Snapshot{Endpoints: map[string]discovery.View{}}
	var names []string
	for i := range 10_000 {
		name := fmt.Sprint("cluster-", i)
		names = append(names, name)
		snap.Endpoints[name] = view(1, fmt.Sprintf("10.1.%d.%d:80", i/250, i%250))
	}
	large := discovery.View{Version: 1}
	for i := range 10_000 {
		large.Endpoints = append(large.Endpoints, view(1, fmt.Sprintf("10.2.%d.%d:80", i/250, i%250)).Endpoints[0])
	}
	snap.Endpoints["large"] = large
	began := time.Now()
	put(t, s, snap)
	t.Logf("the first set took %v", time.Since(began))
	c := deltaADS(t, conn, edge("e", 40))
	c.ask(eds, append(names, "large")...)
	a := c.next()
	if len(a.got) != 10_001 || len(claOf(t, a, "large").GetEndpoints()[0].GetLbEndpoints()) != 10_000 {
		t.Fatalf("%d clusters", len(a.got))
	}
	c.ack(a)
	began = time.Now()
	snap.Endpoints["cluster-7"] = view(2, "10.3.0.1:80")
	put(t, s, snap)
	if a := c.next(); !slices.Equal(a.names(), []string{"cluster-7"}) {
		t.Errorf("a change of one brings %d", len(a.got))
	}
	t.Logf("a change of one took %v", time.Since(began))
	s.save(t0)
	if st, err := readState(s.o.Dir); err != nil || len(st.Clusters) != 10_001 {
		t.Errorf("%v", err)
	}
}

// Refusals without end by nodes without end: what is kept of them is bounded,
// and who has not refused is served.
func TestRefusalsAreBounded(t *testing.T) {
	sh := newShelf(eds, "v")
	b := newBook("i", nil)
	for v := uint64(1); v <= 2; v++ {
		set(t, b, t0, &Snapshot{Endpoints: map[string]discovery.View{"m": view(v, fmt.Sprintf("10.0.0.%d:80", v))}})
		if err := sh.put(map[string]types.Resource{"m": b.records["m"].resource}, nil); err != nil {
			t.Fatal(err)
		}
	}
	hash := sh.items["m"].version()
	sh.noted = maxPrivate - 1
	first, second := &node{id: "a"}, &node{id: "b"}
	if !sh.refuse(first, map[string]string{"m": hash}) || sh.cacheFor(first) == sh.common {
		t.Error("the first is not served what was good")
	}
	if sh.refuse(second, map[string]string{"m": hash}) || sh.cacheFor(second) != sh.common || len(sh.refused) != 1 {
		t.Error("there is no end of it")
	}
	sh.forget(first)
	if sh.noted != maxPrivate-1 || !sh.refuse(second, map[string]string{"m": hash}) {
		t.Errorf("%d are noted; who leaves makes room", sh.noted)
	}
}
