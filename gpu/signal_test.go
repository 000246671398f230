package gpu_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// after is the smoothed utilisation in percent after samples of these values
// at these instants, in periods since t0.
func after(utils, at []float64) float64 {
	g := newGauge(defaults(), card)
	var now time.Time
	for i, u := range utils {
		now = t0.Add(time.Duration(at[i] * float64(every)))
		g.Observe(gpu.Sample{Source: "card", At: now, Util: gpu.Some(u / 100), GPUs: 1})
	}
	return g.Reading().Pressure(now) * 100
}

// Q2 in time-true form: by hand, from a history of 50.
func TestSmoothingInTime(t *testing.T) {
	for _, tt := range []struct {
		name  string
		utils []float64
		at    []float64 // periods
		want  float64
	}{
		{"on time", []float64{100, 0}, []float64{1, 2}, 0.2*85 + 0.1*50},
		{"a little late is on time", []float64{100, 0}, []float64{1, 2.25}, 22},
		{"a little early is on time", []float64{100, 0}, []float64{1, 1.75}, 22},
		{"one missed: two steps", []float64{100, 0}, []float64{1, 3}, 0.2*22 + 0.1*85},
		{"two missed, a little early: three steps", []float64{100, 0}, []float64{1, 3.9}, 0.2*(0.2*22+0.1*85) + 0.1*22},
		{"half a period late: a step and half a step", []float64{100, 0}, []float64{1, 2.5}, 22 + 0.5*(12.9-22)},
		{"early: half a step", []float64{100, 0}, []float64{1, 1.5}, 85 + 0.5*(22-85)},
		{"at once: nothing yet", []float64{100, 0}, []float64{1, 1.000001}, 85},
	} {
		if got := after(tt.utils, tt.at); got < tt.want-1e-3 || got > tt.want+1e-3 {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// With the schedule's jitter and slow answers the formula is met exactly.
func TestJitterIsOnTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	g := newGauge(defaults(), card)
	s1, s2 := 50.0, 50.0
	for i := range 500 {
		u := 100 * rng.Float64()
		at := t0.Add(time.Duration((float64(i+1) + 0.12*(2*rng.Float64()-1)) * float64(every)))
		g.Observe(gpu.Sample{Source: "card", At: at, Util: gpu.Some(u / 100), GPUs: 1})
		s1, s2 = 0.7*u+0.2*s1+0.1*s2, s1
		near(t, "pressure", g.Reading().Pressure(at)*100, s1)
	}
}

// However often a source tells the same, its history is gone after the same
// time: a source that tells each answer is no faster than one that is asked.
func TestOftenIsNotFaster(t *testing.T) {
	seldom := after([]float64{100, 0, 0}, []float64{1, 2, 3})
	var utils, at []float64
	for i := range 201 {
		utils, at = append(utils, 0), append(at, 1+float64(i)/100)
	}
	utils[0] = 100
	if often := after(utils, at); often > seldom+10 || often < seldom-10 {
		t.Errorf("%v after many samples, %v after two in the same time", often, seldom)
	}
}

// A clock that is set back or far on makes no more than the steps of a stale
// history.
func TestClockJumps(t *testing.T) {
	for _, jump := range []float64{-1e6, -5, 5, 1e6, 1e9} {
		got := after([]float64{100, 100, 0}, []float64{1, 2, 2 + jump})
		if got < 0 || got > 30 {
			t.Errorf("after a jump of %v periods: %v, want at most what one step leaves", jump, got)
		}
	}
}
