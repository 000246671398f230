package gpu_test

import (
	"math"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// raw makes smoothing the identity, so that a test can set the pressure.
func raw() policy.Gauge {
	c := defaults()
	c.Smoothing = [3]float64{1, 0, 0}
	return c
}

// Q1: clamp(1000 - 10*util%, 50, 200).
func TestLengthFollowsPressure(t *testing.T) {
	for _, tt := range []struct {
		util float64 // percent
		want int
	}{
		{0, 200}, {50, 200}, {79.99, 200}, {80, 200}, {80.1, 199}, {81, 190}, {83, 170},
		{85, 150}, {87.55, 124}, {90, 100}, {94.9, 51}, {95, 50}, {99, 50}, {100, 50},
	} {
		g := newGauge(raw(), card)
		at := feed(g, t0, tt.util)
		if got := g.Reading().Length(at, line()); got != tt.want {
			t.Errorf("length at %v %% = %d, want %d", tt.util, got, tt.want)
		}
	}
}

// Q1: the curve is policy; a queue of length 0 is one, in every state.
func TestLengthCurve(t *testing.T) {
	g := newGauge(raw(), card)
	at := feed(g, t0, 90)
	g.ColdStart(at)
	warm := at.Add(time.Hour)
	tests := []struct {
		name   string
		length policy.Length
		now    time.Time
		want   int
	}{
		{"other slope", policy.Length{Intercept: 100, Slope: 1, Min: 0, Max: 100}, at.Add(30 * time.Second), 45}, // three half-lives: 55 %
		{"no queue while cold", policy.Length{Intercept: 1000, Slope: 10, Min: 50, Max: 0}, at, 0},
		{"no queue while warm", policy.Length{Intercept: 1000, Slope: 10, Min: 50, Max: 0}, warm, 0},
		{"cold is cut by the longest", policy.Length{Intercept: 1000, Slope: 10, Min: 0, Max: 20}, at, 20},
		{"no number", policy.Length{Intercept: math.NaN(), Slope: 10, Min: 50, Max: 200}, warm, 50},
		{"endless", policy.Length{Intercept: math.Inf(1), Slope: 10, Min: 50, Max: 200}, warm, 200},
		{"never negative", policy.Length{Intercept: -1, Slope: 10, Min: -5, Max: 200}, warm, 0},
	}
	for _, tt := range tests {
		q := line()
		q.Length = tt.length
		if got := g.Reading().Length(tt.now, q); got != tt.want {
			t.Errorf("%s: length = %d, want %d", tt.name, got, tt.want)
		}
	}
}

// steps checks Q4: 50, 75, 100 for 10 s each from since on, then Q1.
func steps(t *testing.T, r *gpu.Reading, since time.Time, then int) {
	t.Helper()
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{
		{0, 50}, {9999 * time.Millisecond, 50}, {10 * time.Second, 75}, {19999 * time.Millisecond, 75},
		{20 * time.Second, 100}, {29999 * time.Millisecond, 100}, {30 * time.Second, then},
	} {
		if got := r.Length(since.Add(tt.after), line()); got != tt.want {
			t.Errorf("length %v after the cold start = %d, want %d", tt.after, got, tt.want)
		}
	}
}

// Q4
func TestColdStart(t *testing.T) {
	t.Run("new endpoints", func(t *testing.T) {
		g := newGauge(raw(), card)
		at := feed(g, t0, 10, 10)
		g.ColdStart(at)
		steps(t, g.Reading(), at, 200)
	})
	t.Run("gap in telemetry", func(t *testing.T) {
		g := newGauge(raw(), card)
		at := feed(g, t0, 10, 10).Add(55 * time.Second)
		if got := g.Reading().Length(at, line()); got != 200 {
			t.Errorf("length in the gap = %d, want that of neutral", got)
		}
		at = feed(g, at, 10)
		steps(t, g.Reading(), at, 200)
	})
	t.Run("a shorter gap is none", func(t *testing.T) {
		g := newGauge(raw(), card)
		at := feed(g, feed(g, t0, 10, 10).Add(54*time.Second), 10)
		if got := g.Reading().Length(at, line()); got != 200 {
			t.Errorf("length = %d, want 200", got)
		}
	})
	t.Run("a roll-out of weir is none", func(t *testing.T) {
		g := newGauge(raw(), card)
		if got := g.Reading().Length(t0, line()); got != 200 {
			t.Errorf("length before any sample = %d, want 200", got)
		}
		at := feed(g, t0, 10)
		if got := g.Reading().Length(at, line()); got != 200 {
			t.Errorf("length at the first sample = %d, want 200", got)
		}
	})
	t.Run("a gauge made later is none", func(t *testing.T) {
		g := newGauge(raw(), card)
		at := feed(g, t0.Add(time.Hour), 10)
		if got := g.Reading().Length(at, line()); got != 200 {
			t.Errorf("length at the first sample = %d, want 200", got)
		}
	})
	t.Run("a pool that came up after weir is new", func(t *testing.T) {
		g := newGauge(raw(), card)
		for i := range 12 {
			g.Miss("card", t0.Add(time.Duration(i)*every), nil)
		}
		at := feed(g, t0.Add(55*time.Second), 10)
		steps(t, g.Reading(), at, 200)
	})
	t.Run("samples without a value fill no gap", func(t *testing.T) {
		g := newGauge(raw(), card)
		at := feed(g, t0, 10)
		for range 12 {
			at = at.Add(every)
			g.Observe(gpu.Sample{Source: "card", At: at, GPUs: 1})
		}
		at = feed(g, at, 10)
		steps(t, g.Reading(), at, 200)
	})
	t.Run("literal: at the start of the process alone", func(t *testing.T) {
		c := raw()
		c.LiteralCold = true
		g := newGauge(c, card)
		steps(t, g.Reading(), t0, 200)
		at := feed(g, t0.Add(10*time.Minute), 10)
		g.ColdStart(at)
		if got := g.Reading().Length(at, line()); got != 200 {
			t.Errorf("length after a gap = %d, want 200", got)
		}
	})
}

// Q4: in a pool with engines their silence makes it cold, not that of the
// card's exporter, and not that of one of several engines.
func TestColdStartOfEngines(t *testing.T) {
	second := gpu.SourceInfo{Name: "second", Engine: true, Every: time.Second}
	run := func(t *testing.T, silent map[string]bool) *gpu.Reading {
		g := newGauge(raw(), card, engine, second)
		for i := range 200 {
			at := t0.Add(time.Duration(i) * time.Second)
			away := i >= 50 && i < 150
			for _, name := range []string{"engine", "second"} {
				if !(away && silent[name]) {
					g.Observe(gpu.Sample{Source: name, At: at, Waiting: gpu.Some(0)})
				}
			}
			if i%5 == 0 && !(away && silent["card"]) {
				g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(0.1), GPUs: 1})
			}
		}
		return g.Reading()
	}
	back := t0.Add(150 * time.Second)
	steps(t, run(t, map[string]bool{"engine": true, "second": true}), back, 200)
	for _, silent := range []string{"engine", "card"} {
		if got := run(t, map[string]bool{silent: true}).Length(back, line()); got != 200 {
			t.Errorf("length after the silence of %s alone = %d, want 200", silent, got)
		}
	}
}

// Q3, Q8: when the engine falls silent the card counts, then whoever fell
// silent last decays.
func TestSilencePassesOn(t *testing.T) {
	g := newGauge(raw(), card, engine)
	at := t0.Add(time.Second)
	g.Observe(gpu.Sample{Source: "engine", At: at, KV: gpu.Some(0.08), Waiting: gpu.Some(0)})
	g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(0.9), GPUs: 1})
	r := g.Reading()
	for _, tt := range []struct {
		age   time.Duration
		want  float64
		used  string
		stale bool
	}{
		{0, 0.1, "engine", false},
		{3 * time.Second, 0.1, "engine", false},
		{3*time.Second + 1, 0.9, "card", false},
		{15 * time.Second, 0.9, "card", false},
		{20 * time.Second, 0.7, "card", true},
		{25 * time.Second, 0.6, "card", true},
	} {
		now := at.Add(tt.age)
		near(t, "pressure", r.Pressure(now), tt.want)
		for _, p := range r.PartsAt(now) {
			if want := p.Source == tt.used; p.Used != want {
				t.Errorf("age %v: %s %s used = %v, want %v", tt.age, p.Source, p.Signal, p.Used, want)
			}
		}
		if age, stale := r.Age(now); age != tt.age || stale != tt.stale {
			t.Errorf("Age = %v, %v; want %v, %v", age, stale, tt.age, tt.stale)
		}
	}
}

// Q3: a signal that vanishes while its source lives on decays, too.
func TestVanishedSignalDecays(t *testing.T) {
	g := newGauge(raw(), engine)
	at := t0.Add(time.Second)
	g.Observe(gpu.Sample{Source: "engine", At: at, KV: gpu.Some(0.8), Waiting: gpu.Some(0)})
	for range 30 {
		at = at.Add(time.Second)
		g.Observe(gpu.Sample{Source: "engine", At: at, Waiting: gpu.Some(0)})
	}
	if p := g.Reading().Pressure(at); math.Abs(p-0.5) > 0.01 {
		t.Errorf("pressure = %v, want neutral: the cache is unknown", p)
	}
}

// Several nodes: the mean over their GPUs, of those that answer.
func TestMeanOverNodes(t *testing.T) {
	other := gpu.SourceInfo{Name: "other", Every: every}
	g := newGauge(raw(), card, other)
	at := t0.Add(every)
	g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(1), GPUs: 3})
	g.Observe(gpu.Sample{Source: "other", At: at, Util: gpu.Some(0.2), GPUs: 1})
	near(t, "pressure of both", g.Reading().Pressure(at), 0.8)
	for range 4 {
		at = at.Add(every)
		g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(1), GPUs: 3})
	}
	near(t, "pressure of the one that answers", g.Reading().Pressure(at), 1)
}

// Before any sample a gauge is neutral and its age counts from the start.
func TestBeforeAnySample(t *testing.T) {
	r := newGauge(defaults(), card, engine).Reading()
	near(t, "pressure", r.Pressure(t0.Add(time.Hour)), 0.5)
	for _, tt := range []struct {
		age   time.Duration
		stale bool
	}{{0, false}, {15 * time.Second, false}, {15*time.Second + 1, true}} {
		if age, stale := r.Age(t0.Add(tt.age)); age != tt.age || stale != tt.stale {
			t.Errorf("Age = %v, %v; want %v, %v", age, stale, tt.age, tt.stale)
		}
	}
	none := newGauge(defaults()).Reading()
	if age, stale := none.Age(t0.Add(time.Hour)); age != 0 || stale {
		t.Errorf("Age without sources = %v, %v; want 0, false", age, stale)
	}
	if got := none.Length(t0, line()); got != 200 {
		t.Errorf("length without sources = %d, want 200", got)
	}
}
