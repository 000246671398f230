package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// exporter is a page of dcgm-exporter with four GPUs, the last of which shows
// an XID.
func exporter(t *testing.T, xid *atomic.Int64) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for i := range 4 {
			labels := fmt.Sprintf(`{gpu="%d",UUID="GPU-%d",Hostname="node"}`, i, i)
			fmt.Fprintf(w, "DCGM_FI_DEV_GPU_UTIL%s 50\n", labels)
			if i < 3 {
				fmt.Fprintf(w, "DCGM_FI_DEV_XID_ERRORS%s 0\n", labels)
			} else {
				fmt.Fprintf(w, "DCGM_FI_DEV_XID_ERRORS%s %d\n", labels, xid.Load())
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A reload that changes how, where or for which pool a faulty GPU is looked at
// gives no seats back: not at once, and not once it is looked at.
func TestReloadForgetsNoFault(t *testing.T) {
	var xid atomic.Int64
	url := exporter(t, &xid)
	with := func(pool int, change func(*policy.TelemetrySource)) *policy.Policy {
		p := policy.Default()
		s := policy.TelemetrySource{Kind: policy.KindDCGMExporter, URL: url + "/metrics", Every: 100 * time.Millisecond}
		change(&s)
		p.Pools[pool].Telemetry = []policy.TelemetrySource{s}
		return p.Finish()
	}
	g := newGauges(slog.New(slog.DiscardHandler))
	defer g.close()
	swap := func(pool int, change func(*policy.TelemetrySource)) (look func() *gpu.Reading) {
		t.Helper()
		p := with(pool, change)
		if err := g.swap(p); err != nil {
			t.Fatal(err)
		}
		return func() *gpu.Reading { return g.reading(p.Pools[pool].Name) }
	}
	capacity := func(r *gpu.Reading) float64 { return r.Capacity(time.Now()) }
	looked := func(r *gpu.Reading) bool { return r.Sources[0].Samples > 0 }

	look := swap(0, func(*policy.TelemetrySource) {})
	envoytest.Eventually(t, 30*time.Second, "a look", func() bool { return looked(look()) })
	xid.Store(79)
	envoytest.Eventually(t, 30*time.Second, "the fault", func() bool { return capacity(look()) == 0.75 })
	for _, next := range []struct {
		what   string
		pool   int
		change func(*policy.TelemetrySource)
	}{
		{"looked at less often", 0, func(s *policy.TelemetrySource) { s.Every = 150 * time.Millisecond }},
		{"another address", 0, func(s *policy.TelemetrySource) { s.URL = url + "/elsewhere" }},
		{"another match", 0, func(s *policy.TelemetrySource) { s.Match = map[string]string{"Hostname": "node"} }},
	} {
		look = swap(next.pool, next.change)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for done := false; !done; <-tick.C {
			r := look()
			if done = looked(r); capacity(r) != 0.75 {
				t.Errorf("%s: capacity %v, looked: %v; want 0.75", next.what, capacity(r), done)
				break
			}
		}
	}
	look = swap(1, func(*policy.TelemetrySource) {}) // the cards go to another pool
	envoytest.Eventually(t, 30*time.Second, "a look for another pool", func() bool { return looked(look()) })
	if got := capacity(look()); got != 0.75 {
		t.Errorf("in another pool: capacity %v, want 0.75", got)
	}
}

// What differs in the way of looking is the same look; what differs in the
// cards is another.
func TestSameCards(t *testing.T) {
	base := policy.TelemetrySource{Kind: policy.KindAgent, URL: "node:9411", Every: time.Second, Match: map[string]string{"gpu": "0"}}
	for name, tt := range map[string]struct {
		change func(*policy.TelemetrySource)
		want   bool
	}{
		"period":   {func(s *policy.TelemetrySource) { s.Every, s.Timeout = 5*time.Second, time.Second }, true},
		"proof":    {func(s *policy.TelemetrySource) { s.TLS, s.Token = &policy.ClientTLS{}, policy.NewSecret("", "x") }, true},
		"endpoint": {func(s *policy.TelemetrySource) { s.Endpoint = "chat" }, true},
		"match":    {func(s *policy.TelemetrySource) { s.Match = nil }, false},
		"address":  {func(s *policy.TelemetrySource) { s.URL = "other:9411" }, false},
		"kind":     {func(s *policy.TelemetrySource) { s.Kind = policy.KindDCGM }, false},
		"binary":   {func(s *policy.TelemetrySource) { s.Agent = "/opt/agent" }, false},
	} {
		other := base
		if tt.change(&other); sameCards(base, other) != tt.want || sameCards(other, base) != tt.want {
			t.Errorf("another %s: want %v", name, tt.want)
		}
	}
}
