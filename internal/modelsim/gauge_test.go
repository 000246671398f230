package modelsim_test

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/scrape"
	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

// watch makes a gauge of the simulator's two texts.
func watch(t *testing.T, r *rig, literal bool) *gpu.Gauge {
	t.Helper()
	var targets []gpu.Target
	var infos []gpu.SourceInfo
	for kind, path := range map[string]string{policy.KindVLLM: "/metrics", policy.KindDCGMExporter: "/dcgm/metrics"} {
		s, err := scrape.New(kind, policy.TelemetrySource{Kind: kind, URL: r.url + path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		target := gpu.Target{Source: s, Every: 60 * time.Millisecond, Timeout: 5 * time.Second}
		targets, infos = append(targets, target), append(infos, target.Info())
	}
	c := policy.Gauge{
		Smoothing: [3]float64{0.7, 0.2, 0.1}, Neutral: 0.5, StalePeriods: 100,
		WaitingTarget: 5, KVTarget: 0.8, ColdGap: time.Minute, Literal: literal,
	}
	g := gpu.NewGauge(c, infos, time.Now())
	p := gpu.StartPoller(g, targets, 1, slog.New(slog.DiscardHandler))
	t.Cleanup(p.Close)
	return g
}

// reach waits until the gauge's pressure satisfies ok.
func reach(t *testing.T, g *gpu.Gauge, what string, ok func(float64) bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		if ok(g.Reading().Pressure(time.Now())) {
			return
		}
	}
	t.Fatalf("pressure never was %s: %+v", what, g.Reading())
}

// Q8: the pressure that weir sees follows the load of the pool, by the
// engine's words and, literally, by the GPU's.
func TestPressureFollowsLoad(t *testing.T) {
	low := func(p float64) bool { return p < 0.1 }
	high := func(p float64) bool { return p > 0.9 }
	for _, literal := range []bool{false, true} {
		t.Run(fmt.Sprintf("literal=%v", literal), func(t *testing.T) {
			cfg := exact()
			cfg.Running = 2
			r := start(t, modelsim.Config{Engine: cfg, Speed: 1, GPUs: 4})
			g := watch(t, r, literal)
			reach(t, g, "low", low)
			var work sync.WaitGroup
			for range 12 {
				work.Go(func() { r.must(chatPath, `{`+hello+`,"max_tokens":25}`) })
			}
			reach(t, g, "high", high)
			work.Wait()
			reach(t, g, "low again", low)
		})
	}
}
