package gpu

import (
	"math"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Cold says whether the pool is in its cold start at now (Q4).
func (r *Reading) Cold(now time.Time, q policy.Queue) bool {
	since := now.Sub(r.cold)
	return !r.cold.IsZero() && since >= 0 && since < q.ColdStartFor && len(q.ColdStart) > 0
}

// Length is the queue length at now: Q4 while cold, else Q1. It never exceeds
// q.Length.Max, so a profile without a queue has none while cold either. The
// queue's numbers come with every call, since profiles may differ in them.
func (r *Reading) Length(now time.Time, q policy.Queue) int {
	if r.Cold(now, q) {
		step := int(int64(now.Sub(r.cold)) * int64(len(q.ColdStart)) / int64(q.ColdStartFor))
		return max(min(q.ColdStart[step], q.Length.Max), 0)
	}
	return LengthFor(q.Length, r.Pressure(now))
}

// LengthFor is Q1: clamp(intercept - slope*pressure%, min, max), rounded down
// to whole places. Where min and max contradict, max wins.
func LengthFor(l policy.Length, pressure float64) int {
	v := l.Intercept - l.Slope*100*pressure
	if math.IsNaN(v) {
		return max(min(l.Min, l.Max), 0)
	}
	const ulps = 1e-6 // 0.83*100 may be a hair below 83
	v = math.Floor(v + ulps)
	return max(int(min(max(v, float64(l.Min)), float64(l.Max))), 0)
}
