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
//
// The formula counts samples; its memory is meant in time. A sample on time,
// within onTime of its period, is one step: the literal formula. A late one is
// as many steps with the same value as periods have passed, so that a history
// that is old weighs as little as if nothing had been missed; an early one,
// or the rest of a late one, is that part of a step.
type signal struct {
	weights [3]float64
	neutral float64
	raw     Value
	at      time.Time // of the last value; zero = none yet
	s1, s2  float64   // s[t] and s[t-1]
}

// onTime is how far from its period a sample may come and be on time, in
// parts of the period: the schedule's jitter and a slow answer.
const onTime = 0.25

func newSignal(c policy.Gauge) signal {
	n := unit(float64(c.Neutral))
	return signal{weights: c.Smoothing, neutral: n, s1: n, s2: n}
}

// observe takes the value of one sample; an absent one leaves the history as
// it is, and ageing. A value that comes when the history is stale meets the
// history as it was shown: decayed.
func (s *signal) observe(v Value, u float64, at time.Time, window, every time.Duration) {
	if !v.OK {
		return
	}
	periods := 1.0
	if !s.at.IsZero() {
		age := at.Sub(s.at)
		if stale := age.Abs() - window; stale > 0 {
			s.s1 = decay(s.s1, s.neutral, stale, every)
			s.s2 = s.s1
		}
		periods = float64(min(age, window)) / float64(every)
	}
	s.advance(unit(u), periods)
	s.raw, s.at = v, at
}

// advance makes the steps for so many periods; a clock that was set back
// makes one.
func (s *signal) advance(u, periods float64) {
	if periods < 0 {
		periods = 1
	}
	if whole := math.Round(periods); whole >= 1 && math.Abs(periods-whole) <= onTime {
		periods = whole
	}
	for ; periods >= 1; periods-- {
		s.s1, s.s2 = s.next(u), s.s1
	}
	if periods > 0 {
		s.s1, s.s2 = unit(s.s1+periods*(s.next(u)-s.s1)), unit(s.s2+periods*(s.s1-s.s2))
	}
}

// next is the formula.
func (s *signal) next(u float64) float64 {
	next := s.weights[0]*u + s.weights[1]*s.s1 + s.weights[2]*s.s2
	if math.IsNaN(next) {
		return s.neutral
	}
	return unit(next)
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
