package xds

import "time"

// outage keeps a region that failed out of use until it has been well for a
// while (G2): coming back at its first good sign would move all load twice
// where it is ill in turns. The zero value has seen nothing. Not safe for
// concurrent use.
type outage struct {
	seen      bool // was well once; before that there is nothing to come back from
	failed    bool
	wellSince time.Time
}

// step takes whether the region has a healthy host and returns whether it is
// kept out: well again, but not for hold yet.
func (o *outage) step(now time.Time, well bool, hold time.Duration) (out bool) {
	switch {
	case !well:
		o.failed = o.seen
		o.wellSince = time.Time{}
		return false // its hosts speak for themselves
	case !o.failed:
		o.seen = true
		return false
	case o.wellSince.IsZero() || now.Before(o.wellSince):
		o.wellSince = now
	}
	if now.Sub(o.wellSince) < hold {
		return true
	}
	o.failed = false
	return false
}
