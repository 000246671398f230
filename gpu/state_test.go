package gpu_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// Values that are none are dropped and counted, and move nothing.
func TestDropped(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.01, 1.01, 4294967295, 9223372036854775794} {
		g := newGauge(defaults(), card)
		at := feed(g, t0, 60, 60, 60, 60, 60, 60, 60, 60, 60, 60)
		before := g.Reading().Pressure(at)
		at = at.Add(every)
		g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(v), KV: gpu.Some(v), Waiting: gpu.Some(-1), GPUs: 1, Dropped: 2})
		near(t, "pressure after a reading that is none", g.Reading().Pressure(at), before)
		if s := g.Reading().Sources[0]; s.Dropped != 5 || !s.Blank {
			t.Errorf("%v: state = %+v, want 5 dropped and blank", v, s)
		}
	}
}

// A snapshot that is not newer is no news; a clock that was set back is.
func TestOrderOfSamples(t *testing.T) {
	g := newGauge(raw(), card)
	at := feed(g, t0, 90)
	g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(0), GPUs: 1})
	g.Observe(gpu.Sample{Source: "card", At: at.Add(-time.Second), Util: gpu.Some(0), GPUs: 1})
	near(t, "pressure after old samples", g.Reading().Pressure(at), 0.9)
	if s := g.Reading().Sources[0]; s.Repeated != 2 || s.Samples != 1 {
		t.Errorf("state = %+v", s)
	}
	back := at.Add(-time.Hour)
	g.Observe(gpu.Sample{Source: "card", At: back, Util: gpu.Some(0.2), GPUs: 1})
	near(t, "pressure after the clock was set back", g.Reading().Pressure(back), 0.2)
}

// A sample from the future does not count as fresh for ever.
func TestFutureSample(t *testing.T) {
	g := newGauge(raw(), card)
	g.Observe(gpu.Sample{Source: "card", At: t0.Add(24 * time.Hour), Util: gpu.Some(1), GPUs: 1})
	if p := g.Reading().Pressure(t0); math.Abs(p-0.5) > 0.01 {
		t.Errorf("pressure = %v, want neutral", p)
	}
}

func TestUnknownSource(t *testing.T) {
	g := newGauge(defaults(), card)
	g.Observe(gpu.Sample{Source: "stranger", At: t0, Util: gpu.Some(1)})
	g.Miss("stranger", t0, nil)
	if r := g.Reading(); r.Unknown != 2 || len(r.Parts) != 0 {
		t.Errorf("reading = %+v", r)
	}
}

// A GPU that is lost is seen as lost.
func TestGPULost(t *testing.T) {
	g := newGauge(defaults(), card)
	for i, n := range []int{4, 3} {
		g.Observe(gpu.Sample{Source: "card", At: t0.Add(time.Duration(i+1) * every), Util: gpu.Some(0.5), GPUs: n})
	}
	if s := g.Reading().Sources[0]; s.GPUs != 3 || s.MostGPUs != 4 {
		t.Errorf("state = %+v, want 3 of 4 GPUs", s)
	}
}

// Sources that contradict themselves or each other are flagged.
func TestSuspect(t *testing.T) {
	some := gpu.Some
	tests := []struct {
		name     string
		card     gpu.Sample
		engine   gpu.Sample
		suspects bool
	}{
		{"busy and active", gpu.Sample{Util: some(0.99), Active: some(0.8)}, gpu.Sample{}, false},
		{"busy, nothing active", gpu.Sample{Util: some(0.99), Active: some(0)}, gpu.Sample{}, true},
		{"idle, all active", gpu.Sample{Util: some(0), Active: some(1)}, gpu.Sample{}, true},
		{"idle", gpu.Sample{Util: some(0)}, gpu.Sample{Running: some(0)}, false},
		{"flat zero while engines run", gpu.Sample{Util: some(0)}, gpu.Sample{Running: some(8)}, true},
		{"unknown", gpu.Sample{}, gpu.Sample{Running: some(8)}, false},
	}
	for _, tt := range tests {
		g := newGauge(defaults(), card, engine)
		tt.card.Source, tt.engine.Source = "card", "engine"
		for i := range 3 {
			at := t0.Add(time.Duration(i+1) * every)
			tt.card.At, tt.engine.At = at, at
			g.Observe(tt.engine)
			g.Observe(tt.card)
		}
		if s := g.Reading().Sources[0]; (s.Suspect != "") != tt.suspects {
			t.Errorf("%s: suspect = %q, want flagged %v", tt.name, s.Suspect, tt.suspects)
		}
	}
}

// Readers and writers at once; for the race detector.
func TestConcurrent(t *testing.T) {
	g := newGauge(defaults(), card, engine)
	var work sync.WaitGroup
	for _, name := range []string{"card", "engine"} {
		work.Go(func() {
			for i := range 500 {
				at := t0.Add(time.Duration(i+1) * time.Second)
				g.Observe(gpu.Sample{Source: name, At: at, Util: gpu.Some(0.5), KV: gpu.Some(0.5), GPUs: 1})
				g.Miss(name, at, nil)
			}
		})
	}
	for range 2 {
		work.Go(func() {
			for i := range 2000 {
				now := t0.Add(time.Duration(i) * time.Second / 4)
				r := g.Reading()
				if p := r.Pressure(now); !(p >= 0 && p <= 1) {
					t.Errorf("pressure = %v", p)
				}
				r.PartsAt(now)
				r.Length(now, line())
			}
		})
	}
	work.Wait()
}

// FuzzGauge: whatever comes, pressure stays in 0..1 and the length in its bounds.
func FuzzGauge(f *testing.F) {
	f.Add(0.5, 0.5, 3.0, int64(5e9), int64(0), true)
	f.Add(math.NaN(), math.Inf(1), -1.0, int64(-5e9), int64(1e18), false)
	f.Add(1e-320, 1.0, 1e7, int64(1), int64(-1e18), true)
	f.Fuzz(func(t *testing.T, util, kv, waiting float64, step, ask int64, literal bool) {
		c := defaults()
		c.Literal = literal
		g := newGauge(c, card, engine)
		at := t0
		for range 4 {
			at = at.Add(time.Duration(step))
			g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(util), GPUs: 1})
			g.Observe(gpu.Sample{Source: "engine", At: at, KV: gpu.Some(kv), Waiting: gpu.Some(waiting)})
			for _, now := range []time.Time{at, at.Add(time.Duration(ask)), {}} {
				r := g.Reading()
				if p := r.Pressure(now); !(p >= 0 && p <= 1) {
					t.Fatalf("pressure = %v", p)
				}
				if n := r.Length(now, line()); n < 50 || n > 200 {
					t.Fatalf("length = %d", n)
				}
				if age, _ := r.Age(now); age < 0 {
					t.Fatalf("age = %v", age)
				}
			}
		}
	})
}

func BenchmarkReading(b *testing.B) {
	g := newGauge(defaults(), card, engine)
	feed(g, t0, 50)
	b.ReportAllocs()
	for b.Loop() {
		if g.Reading() == nil {
			b.Fatal("nil")
		}
	}
}

// BenchmarkPressure is the question that every request asks of a pool; as in a
// running weir the instants have a monotonic clock.
func BenchmarkPressure(b *testing.B) {
	g := newGauge(defaults(), card, engine)
	at := feed(g, time.Now(), 50)
	g.Observe(gpu.Sample{Source: "engine", At: at, KV: gpu.Some(0.5), Waiting: gpu.Some(1)})
	now := at.Add(time.Second)
	b.ReportAllocs()
	for b.Loop() {
		g.Reading().Pressure(now)
	}
}

// BenchmarkCapacity asks a pool of eight healthy GPUs.
func BenchmarkCapacity(b *testing.B) {
	g := newGauge(defaults(), card)
	s := gpu.Sample{Source: "card", At: t0, Util: gpu.Some(0.5), GPUs: 8}
	for i := range 8 {
		s.Cards = append(s.Cards, gpu.Card{ID: string(rune('a' + i)), Util: gpu.Some(0.5)})
	}
	g.Observe(s)
	b.ReportAllocs()
	for b.Loop() {
		g.Reading().Capacity(t0)
	}
}

func BenchmarkLength(b *testing.B) {
	g := newGauge(defaults(), card, engine)
	at := feed(g, t0, 50)
	g.Observe(gpu.Sample{Source: "engine", At: at, KV: gpu.Some(0.5), Waiting: gpu.Some(1)})
	q := line()
	b.ReportAllocs()
	for b.Loop() {
		g.Reading().Length(at, q)
	}
}

func BenchmarkObserve(b *testing.B) {
	g := newGauge(defaults(), card, engine)
	at := t0
	for b.Loop() {
		at = at.Add(time.Second)
		g.Observe(gpu.Sample{Source: "engine", At: at, KV: gpu.Some(0.5), Waiting: gpu.Some(1)})
	}
}
