package gpu

import "time"

// Fresh says how far a card may be shown at now. Its health stands for as long
// as it counts in Capacity: until its source has been silent for faultFor. Its
// figures stand while a sample of its source would be fresh (Q3) and had it.
func (r *Reading) Fresh(c *CardState, now time.Time) (health, figures bool) {
	for i := range r.Sources {
		if s := &r.Sources[i]; s.Name == c.Source {
			health = now.Sub(s.At).Abs() <= r.policy.FaultFor
			return health, c.Health != Lost && !r.stale(&Part{At: c.Seen, every: s.Every}, now)
		}
	}
	return false, false
}
