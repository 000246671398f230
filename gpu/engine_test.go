package gpu

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// TestEngineWords: what engines say is summed, the fullest cache counts, and a
// silent engine, or a GPU, is left out.
func TestEngineWords(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	g := NewGauge(policy.Default().Gauge, []SourceInfo{
		{Name: "a", Engine: true, Every: time.Second},
		{Name: "b", Engine: true, Every: time.Second},
		{Name: "gpu", Every: time.Second},
	}, start)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	check := func(what string, now float64, want Engine) {
		t.Helper()
		if got := g.Reading().Engine(at(now)); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	check("before any sample", 0, Engine{})
	g.Observe(Sample{Source: "gpu", At: at(1), Util: Some(0.9), Waiting: Some(7)})
	check("a GPU only", 1, Engine{})
	g.Observe(Sample{Source: "a", At: at(1), Waiting: Some(3), Running: Some(20), KV: Some(0.5)})
	check("one engine", 1.5, Engine{At: at(1), Waiting: Some(3), Running: Some(20), KV: Some(0.5)})
	g.Observe(Sample{Source: "b", At: at(1.4), Waiting: Some(12), KV: Some(0.7)})
	check("two engines, not smoothed, not cut at the target", 1.5, Engine{At: at(1), Waiting: Some(15), Running: Some(20), KV: Some(0.7)})
	g.Observe(Sample{Source: "a", At: at(4), Waiting: Some(0), Running: Some(10)})
	check("one is silent, and a's cache unknown of late", 6, Engine{At: at(4), Waiting: Some(0), Running: Some(10)})
	check("both are silent", 60, Engine{})
}
