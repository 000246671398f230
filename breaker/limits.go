package breaker

import "time"

// Limits are the thresholds that are in force at now, as shares of the ends,
// and how many ends are needed; they follow the load where the policy says so
// (B4). For /debug; it takes no lock.
func (b *Breaker) Limits(now time.Time) (soft, hard float64, least int) {
	s := b.profile.Load()
	soft, hard = float64(s.Soft), float64(s.Hard)
	if w := b.window.Load(); w != nil && s.DynamicThreshold {
		total, _ := w.sum(w.epoch(now))
		by := b.baseline.factor(w.rate(now, total), s.DynamicLiteral)
		soft, hard = moved(soft, by), moved(hard, by)
	}
	return soft, hard, s.MinRequests
}
