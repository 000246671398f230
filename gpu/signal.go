package gpu

import (
	"math"
	"time"

	"github.com/weirproxy/weir/policy"
)

// signal is the smoothed history of one value of one source (Q2):
//
//	s[t] = 0.7*u[t] + 0.2*s[t-1] + 0.1*s[t-2]
//
// where u is the value as a share of its target, cut to 0..1, and s[-1] and
// s[-2] are neutral. Whether a value came is kept apart from the value, so a
// zero is a value like any other.
type signal struct {
	weights [3]float64
	neutral float64
	raw     Value
	at      time.Time // of the last value; zero = none yet
	s1, s2  float64   // s[t] and s[t-1]
}

func newSignal(c policy.Gauge) signal {
	n := unit(float64(c.Neutral))
	return signal{weights: c.Smoothing, neutral: n, s1: n, s2: n}
}

// observe takes the value of one sample; an absent one leaves the history as
// it is, and ageing. A value that comes when the history is stale meets the
// history as it was shown: decayed.
func (s *signal) observe(v Value, u float64, at time.Time, window, half time.Duration) {
	if !v.OK {
		return
	}
	if !s.at.IsZero() {
		age := at.Sub(s.at)
		if stale := age.Abs() - window; stale > 0 {
			s.s1 = decay(s.s1, s.neutral, stale, half)
			s.s2 = s.s1
		}
	}
	next := s.weights[0]*unit(u) + s.weights[1]*s.s1 + s.weights[2]*s.s2
	if math.IsNaN(next) {
		next = s.neutral
	}
	s.s1, s.s2 = unit(next), s.s1
	s.raw, s.at = v, at
}

// decay is Q3's law: beyond the stale time the distance to neutral halves
// with every period of the source. It is continuous at the border.
func decay(v, neutral float64, beyond, half time.Duration) float64 {
	return neutral + (v-neutral)*math.Exp2(-float64(beyond)/float64(half))
}

// share is v in parts of target, 0..1; a target that is no target makes
// anything above zero full.
func share(v, target float64) float64 {
	if v <= 0 {
		return 0
	}
	if !(target > 0) {
		return 1
	}
	return unit(v / target)
}

// unit cuts to 0..1; not-a-number becomes 0 (callers keep it out before).
func unit(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, 1)
}
