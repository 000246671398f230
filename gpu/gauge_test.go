package gpu_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func defaults() policy.Gauge {
	return policy.Gauge{
		Smoothing:     [3]float64{0.7, 0.2, 0.1},
		Neutral:       0.5,
		StalePeriods:  3,
		WaitingTarget: 5,
		KVTarget:      0.8,
		ColdGap:       time.Minute,
	}
}

func line() policy.Queue {
	return policy.Queue{
		Length:       policy.Length{Intercept: 1000, Slope: 10, Min: 50, Max: 200},
		ColdStart:    []int{50, 75, 100},
		ColdStartFor: 30 * time.Second,
	}
}

const every = 5 * time.Second

var (
	card   = gpu.SourceInfo{Name: "card", Every: every}
	engine = gpu.SourceInfo{Name: "engine", Engine: true, Every: time.Second}
)

func newGauge(c policy.Gauge, sources ...gpu.SourceInfo) *gpu.Gauge {
	return gpu.NewGauge(c, sources, t0)
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// feed gives the gauge on-time utilisation samples in percent and returns the
// instant of the last one.
func feed(g *gpu.Gauge, from time.Time, utils ...float64) time.Time {
	for _, u := range utils {
		from = from.Add(every)
		g.Observe(gpu.Sample{Source: "card", At: from, Util: gpu.Some(u / 100), GPUs: 1})
	}
	return from
}

// Q2
func TestSmoothingIsTheFormula(t *testing.T) {
	zero := defaults()
	zero.Neutral = 0
	tests := []struct {
		name   string
		policy policy.Gauge
		utils  []float64
		want   float64 // percent
	}{
		{"first sample meets neutral history", defaults(), []float64{100}, 70 + 10 + 5},
		{"second", defaults(), []float64{100, 100}, 70 + 17 + 5},
		{"third", defaults(), []float64{100, 100, 100}, 70 + 18.4 + 8.5},
		{"zero is a value", defaults(), []float64{0}, 15},
		{"zeros then full", defaults(), []float64{0, 0, 100}, 70 + 0.2*8 + 0.1*15},
		{"zeros then full, history of zero", zero, []float64{0, 0, 100}, 70},
		{"steady", defaults(), []float64{50, 50, 50, 50}, 50},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGauge(tt.policy, card)
			at := feed(g, t0, tt.utils...)
			near(t, "pressure", g.Reading().Pressure(at)*100, tt.want)
			near(t, "smoothed", g.Reading().Parts[0].Smoothed*100, tt.want)
		})
	}
}

// Q2: the formula, computed beside the gauge, over a long curve.
func TestSmoothingAgainstModel(t *testing.T) {
	g := newGauge(defaults(), card)
	s1, s2, at := 50.0, 50.0, t0
	for i := range 500 {
		u := 50 + 50*math.Sin(float64(i)*0.37)
		s1, s2 = 0.7*u+0.2*s1+0.1*s2, s1
		at = feed(g, at, u)
		near(t, "pressure", g.Reading().Pressure(at)*100, s1)
	}
}

// Q2: one outlier is gone within three samples.
func TestOutlierIsForgotten(t *testing.T) {
	g := newGauge(defaults(), card)
	at := t0
	for range 30 {
		at = feed(g, at, 30)
	}
	at = feed(g, at, 100, 30, 30, 30)
	if p := g.Reading().Pressure(at); math.Abs(p-0.30) > 0.03 {
		t.Errorf("pressure three samples after an outlier = %v, want 0.30 within 0.03", p)
	}
}

// Q3: beyond three periods the distance to neutral halves with every period.
func TestStaleDecaysToNeutral(t *testing.T) {
	for _, u := range []float64{100, 0} {
		g := newGauge(defaults(), card)
		at := t0
		for range 40 {
			at = feed(g, at, u)
		}
		full := u / 100
		for _, tt := range []struct {
			age   time.Duration
			want  float64
			stale bool
		}{
			{0, full, false},
			{15 * time.Second, full, false},
			{15*time.Second + 1, full, true},
			{20 * time.Second, 0.5 + (full-0.5)/2, true},
			{25 * time.Second, 0.5 + (full-0.5)/4, true},
			{40 * time.Second, 0.5 + (full-0.5)/32, true},
			{time.Hour, 0.5, true},
		} {
			now := at.Add(tt.age)
			if got := g.Reading().Pressure(now); math.Abs(got-tt.want) > 1e-6 {
				t.Errorf("util %v age %v: pressure = %v, want %v", u, tt.age, got, tt.want)
			}
			if age, stale := g.Reading().Age(now); age != tt.age || stale != tt.stale {
				t.Errorf("util %v age %v: Age = %v, %v, want stale %v", u, tt.age, age, stale, tt.stale)
			}
		}
	}
}

// Q3: misses do not refresh the picture.
func TestMissesAge(t *testing.T) {
	g := newGauge(defaults(), card)
	at := feed(g, t0, 100, 100, 100, 100)
	for i := range 20 {
		g.Miss("card", at.Add(time.Duration(i)*every), errors.New("connection refused"))
	}
	r := g.Reading()
	now := at.Add(20 * every)
	if p := r.Pressure(now); math.Abs(p-0.5) > 0.01 {
		t.Errorf("pressure after 20 misses = %v, want neutral", p)
	}
	s := r.Sources[0]
	if s.Misses != 20 || s.Missed != 20 || s.Error != "connection refused" || !s.At.Equal(at) {
		t.Errorf("source state = %+v", s)
	}
	feed(g, now, 80)
	if s := g.Reading().Sources[0]; s.Misses != 0 || s.Error != "" || s.Missed != 20 {
		t.Errorf("source state after recovery = %+v", s)
	}
}

// Q8
func TestBlend(t *testing.T) {
	all := func(v float64) gpu.Value { return gpu.Some(v) }
	tests := []struct {
		name    string
		literal bool
		card    *gpu.Sample
		engine  *gpu.Sample
		want    float64
	}{
		{"nothing is neutral", false, nil, nil, 0.5},
		{"card alone", false, &gpu.Sample{Util: all(0.98)}, nil, 0.98},
		{"engine wins over a busy card", false, &gpu.Sample{Util: all(0.98)}, &gpu.Sample{Waiting: all(0), KV: all(0.04)}, 0.05},
		{"waiting line with a low cache is saturated", false, &gpu.Sample{Util: all(0.2)}, &gpu.Sample{Waiting: all(240), KV: all(0.32)}, 1},
		{"cache at its target is full", false, nil, &gpu.Sample{Waiting: all(0), KV: all(0.8)}, 1},
		{"the larger of both", false, nil, &gpu.Sample{Waiting: all(2), KV: all(0.6)}, 0.75},
		{"one signal is enough", false, &gpu.Sample{Util: all(0.98)}, &gpu.Sample{Waiting: all(1)}, 0.2},
		{"engine without a word leaves it to the card", false, &gpu.Sample{Util: all(0.9)}, &gpu.Sample{}, 0.9},
		{"literal: utilisation alone", true, &gpu.Sample{Util: all(0.98)}, &gpu.Sample{Waiting: all(0), KV: all(0)}, 0.98},
		{"literal without a card", true, nil, &gpu.Sample{Waiting: all(99), KV: all(1)}, 0.5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := defaults()
			c.Literal = tt.literal
			c.Smoothing = [3]float64{1, 0, 0}
			g := newGauge(c, card, engine)
			at := t0.Add(time.Second)
			for name, s := range map[string]*gpu.Sample{"card": tt.card, "engine": tt.engine} {
				if s != nil {
					s.Source, s.At = name, at
					g.Observe(*s)
				}
			}
			near(t, "pressure", g.Reading().Pressure(at), tt.want)
		})
	}
}
