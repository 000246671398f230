package gpu_test

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// duet plays a card's and an engine's samples each second, n times.
func duet(g *gpu.Gauge, from time.Time, n int, play func(i int) (card, engine gpu.Sample)) time.Time {
	for i := range n {
		from = from.Add(time.Second)
		c, e := play(i)
		c.Source, c.At, c.GPUs = "card", from, 1
		e.Source, e.At = "engine", from
		g.Observe(e)
		g.Observe(c)
	}
	return from
}

func suspects(g *gpu.Gauge) (card, engine string) {
	s := g.Reading().Sources
	return s[0].Suspect, s[1].Suspect
}

func wave(i int, low, high float64) gpu.Value {
	return gpu.Some(low + (high-low)*float64(i%7)/6)
}

// A value that stands still while the other source moves is an old picture;
// one that stands still at an end of its range, or while nothing moves, is not.
func TestFrozen(t *testing.T) {
	some := gpu.Some
	for _, tt := range []struct {
		name         string
		play         func(i int) (card, engine gpu.Sample)
		card, engine bool
	}{
		{"engine frozen in mid range", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: wave(i, 0.2, 0.9)}, gpu.Sample{KV: some(0.37), Waiting: some(0), Running: some(4)}
		}, false, true},
		{"card frozen in mid range", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: some(0.73)}, gpu.Sample{KV: wave(i, 0.1, 0.6), Running: wave(i, 1, 30), Waiting: some(0)}
		}, true, false},
		{"card saturated, power moves", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: some(1), Cards: []gpu.Card{{ID: "a", Util: some(1), Power: wave(i, 600, 700)}}}, gpu.Sample{KV: wave(i, 0.1, 0.6), Waiting: some(0)}
		}, false, false},
		{"card saturated, nothing else told", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: some(1)}, gpu.Sample{KV: wave(i, 0.1, 0.6), Waiting: some(0)}
		}, false, false},
		{"card saturated, power frozen too", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: some(1), Cards: []gpu.Card{{ID: "a", Util: some(1), Power: some(651.2)}}}, gpu.Sample{KV: wave(i, 0.1, 0.6), Waiting: some(0)}
		}, true, false},
		{"both idle", func(int) (c, e gpu.Sample) {
			return gpu.Sample{Util: some(0)}, gpu.Sample{KV: some(0), Waiting: some(0), Running: some(0)}
		}, false, false},
		{"engine idle, another's work on the card", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: wave(i, 0.2, 0.9)}, gpu.Sample{KV: some(0), Waiting: some(0), Running: some(0)}
		}, false, false},
		{"nothing moves", func(int) (c, e gpu.Sample) {
			return gpu.Sample{Util: some(0.5)}, gpu.Sample{KV: some(0.5), Waiting: some(1), Running: some(9)}
		}, false, false},
		{"a steady crowd: counts stand still", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: wave(i, 0.8, 1)}, gpu.Sample{Waiting: some(12), Running: some(64)}
		}, false, false},
		{"GPUs read every 30 s", func(i int) (c, e gpu.Sample) {
			return gpu.Sample{Util: wave(i/30, 0.3, 0.9)}, gpu.Sample{KV: wave(i, 0.1, 0.6), Waiting: some(0)}
		}, false, false},
	} {
		g := newGauge(defaults(), gpu.SourceInfo{Name: "card", Every: time.Second}, engine)
		duet(g, t0, 150, tt.play)
		if c, e := suspects(g); (c != "") != tt.card || (e != "") != tt.engine {
			t.Errorf("%s: card %q, engine %q; want flagged %v, %v", tt.name, c, e, tt.card, tt.engine)
		}
	}
}

// A frozen source is believed again as soon as it moves.
func TestThawed(t *testing.T) {
	g := newGauge(defaults(), gpu.SourceInfo{Name: "card", Every: time.Second}, engine)
	at := duet(g, t0, 60, func(i int) (c, e gpu.Sample) {
		return gpu.Sample{Util: wave(i, 0, 1)}, gpu.Sample{KV: gpu.Some(0.5), Waiting: gpu.Some(0)}
	})
	if _, e := suspects(g); e == "" {
		t.Fatal("the engine is not flagged")
	}
	duet(g, at, 1, func(i int) (c, e gpu.Sample) {
		return gpu.Sample{Util: gpu.Some(0.5)}, gpu.Sample{KV: gpu.Some(0.51), Waiting: gpu.Some(0)}
	})
	if _, e := suspects(g); e != "" {
		t.Errorf("engine flagged still: %q", e)
	}
}

// One look that says 0 may have met a pause.
func TestOneZeroIsNoFlatZero(t *testing.T) {
	g := newGauge(defaults(), gpu.SourceInfo{Name: "card", Every: time.Second}, engine)
	zeros := func(n int) string {
		duet(g, g.Reading().At, n, func(int) (c, e gpu.Sample) {
			return gpu.Sample{Util: gpu.Some(0)}, gpu.Sample{Running: gpu.Some(3), Waiting: gpu.Some(0)}
		})
		c, _ := suspects(g)
		return c
	}
	if c := zeros(2); c != "" {
		t.Errorf("flagged after two looks: %q", c)
	}
	if c := zeros(1); c == "" {
		t.Error("not flagged after three looks")
	}
	// An engine that was last heard long ago runs nothing now.
	at := g.Reading().At
	for i := range 10 {
		g.Observe(gpu.Sample{Source: "card", At: at.Add(time.Duration(10+i) * time.Second), Util: gpu.Some(0), GPUs: 1})
	}
	if c, _ := suspects(g); c != "" {
		t.Errorf("flagged though the engine is silent: %q", c)
	}
}

// A doubted source moves the pressure only where nobody else's word is fresh.
func TestDoubtedWordsWait(t *testing.T) {
	other := gpu.SourceInfo{Name: "other", Every: every}
	some := gpu.Some
	lie := gpu.Sample{Source: "card", At: t0, Util: some(0.99), Active: some(0), GPUs: 1}

	alone := newGauge(raw(), card)
	alone.Observe(lie)
	near(t, "the doubted source alone", alone.Reading().Pressure(t0), 0.99)

	g := newGauge(raw(), card, other)
	g.Observe(lie)
	g.Observe(gpu.Sample{Source: "other", At: t0, Util: some(0.3), GPUs: 1})
	r := g.Reading()
	near(t, "beside another GPU", r.Pressure(t0), 0.3)
	for i, want := range []struct{ used, suspect bool }{{false, true}, {true, false}} {
		if p := r.Parts[i]; p.Used != want.used || p.Suspect != want.suspect {
			t.Errorf("%s: used %v, suspect %v; want %+v", p.Source, p.Used, p.Suspect, want)
		}
	}
	lie.At = t0.Add(4 * every)
	g.Observe(lie)
	near(t, "the other is silent", g.Reading().Pressure(lie.At), 0.99)

	g = newGauge(raw(), card, engine)
	g.Observe(lie)
	g.Observe(gpu.Sample{Source: "engine", At: t0, Waiting: some(1)})
	near(t, "beside an engine", g.Reading().Pressure(t0), 0.2)
}

// A frozen engine gives way to the card, and comes last of all.
func TestFrozenEngineGivesWay(t *testing.T) {
	g := newGauge(raw(), gpu.SourceInfo{Name: "card", Every: time.Second}, engine)
	at := duet(g, t0, 60, func(i int) (c, e gpu.Sample) {
		return gpu.Sample{Util: wave(i, 0.1, 0.7)}, gpu.Sample{KV: gpu.Some(0.76), Waiting: gpu.Some(0)}
	})
	near(t, "pressure", g.Reading().Pressure(at), wave(59, 0.1, 0.7).V)
	for range 10 {
		at = at.Add(time.Second)
		g.Observe(gpu.Sample{Source: "engine", At: at, KV: gpu.Some(0.76), Waiting: gpu.Some(0)})
	}
	near(t, "pressure with a silent card", g.Reading().Pressure(at), 0.95)
}

// The reading's shortcut and the sum it stands for agree at every instant.
func TestSteadyPressure(t *testing.T) {
	g := newGauge(defaults(), card, engine)
	at := feed(g, t0, 90)
	g.Observe(gpu.Sample{Source: "engine", At: at.Add(700 * time.Millisecond), KV: gpu.Some(0.3), Waiting: gpu.Some(2)})
	g.Observe(gpu.Sample{Source: "card", At: at.Add(200 * time.Millisecond), Util: gpu.Some(0.4), GPUs: 1})
	r := g.Reading()
	for step := -3 * time.Second; step < time.Minute; step += 100 * time.Millisecond {
		now := at.Add(step)
		top, mean := 0.0, 0.0
		for _, p := range r.PartsAt(now) {
			switch {
			case p.Used && p.Engine:
				top = max(top, p.Value)
			case p.Used:
				mean = p.Value
			}
		}
		near(t, "pressure at "+step.String(), r.Pressure(now), max(top, mean))
	}
}
