package policy

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// What needs a restart stays and is named; the rest of the same file comes
// into force, in profiles too.
func TestWithRunning(t *testing.T) {
	const redis = `store: {redis: {addresses: ["r:6379"]}}` + "\n"
	const profile = "profiles: {edge: {mode: shadow}}\n"
	old := load(t, "w.yaml", minimal+redis+`envoy: {xds: {layer: a}}`)
	for _, tt := range []struct {
		name, text string
		restart    []string
		ttl        time.Duration
	}{
		{"nothing", redis + "envoy: {xds: {layer: a}}", nil, 15 * time.Second},
		{"hot parts", redis + "envoy: {xds: {layer: a}, watch: {every: 1s}}\nbreaker: {cascade: {ttl: 20s, literal: true}}", nil, 20 * time.Second},
		{"bus", redis + "envoy: {xds: {layer: a}}\nbreaker: {cascade: {bus: redis, ttl: 20s}}", []string{"breaker.cascade"}, 20 * time.Second},
		{"etcd", redis + "envoy: {xds: {layer: a}}\nbreaker: {cascade: {bus: etcd, etcd: {endpoints: [\"e:1\"]}, ttl: 20s}}", []string{"breaker.cascade"}, 20 * time.Second},
		{"xds", redis + "envoy: {xds: {layer: b}}\nbreaker: {cascade: {ttl: 20s}}", []string{"envoy.xds"}, 20 * time.Second},
		{"no xds", redis + "breaker: {cascade: {ttl: 20s}}", []string{"envoy.xds"}, 20 * time.Second},
		{"all", "server: {workers: 1}\nbreaker: {cascade: {bus: \"off\", ttl: 20s}}", []string{"server", "store", "breaker.cascade", "envoy.xds"}, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := load(t, "w.yaml", minimal+profile+tt.text+"\n")
			got, restart, err := next.WithRunning(old)
			if err != nil || !reflect.DeepEqual(restart, tt.restart) {
				t.Fatalf("%v %v, want %v", restart, err, tt.restart)
			}
			for _, p := range []*Policy{got, got.profiles["edge"]} {
				c := p.Breaker.Cascade
				if c.Bus != BusAuto || c.Etcd != nil || p.Envoy.XDS == nil || p.Envoy.XDS.Layer != "a" || p.Store.Redis == nil || p.Server.Workers != 64 {
					t.Errorf("changed without a restart: %+v %+v", c, p.Envoy.XDS)
				}
				if c.TTL != tt.ttl {
					t.Errorf("ttl %s, want %s", c.TTL, tt.ttl)
				}
			}
			if len(tt.restart) > 0 && next.Hash == got.Hash {
				t.Error("another policy has the same hash")
			}
		})
	}
}

// A file that does not fit what runs is refused as a whole.
func TestWithRunningRefuses(t *testing.T) {
	old := load(t, "w.yaml", minimal+"envoy: {clusters: [{name: x}], xds: {nodes: [{name: n, clusters: [x]}]}}\n")
	next := load(t, "w.yaml", minimal+"envoy: {xds: {nodes: [{name: n, clusters: [p]}]}}\n")
	got, restart, err := next.WithRunning(old)
	if got != nil || err == nil || !strings.Contains(err.Error(), "envoy.xds.nodes[0].clusters[0]: no such cluster; the clusters are p (got \"x\")") {
		t.Errorf("%v %v", got, err)
	}
	if !reflect.DeepEqual(restart, []string{"envoy.xds"}) {
		t.Errorf("restart: %v", restart)
	}
}
