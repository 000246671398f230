package admission

import (
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// Precheck makes the cheap refusals of request_headers (design section 2.1):
// tenant blocked, all reachable breakers open. It takes nothing and changes
// nothing; the observers hear of a refusal. Pools are
// reachable that serve a model of the policy which the route leaves open; of
// a request that names its model already, those of the model.
func (d *Desk) Precheck(now time.Time, r *Request) (Decision, bool) {
	if d.draining.Load() {
		return d.precheckRefusal(r, Draining, 0), true
	}
	if modeOf(r, false) != policy.Enforce {
		return Decision{}, false
	}
	if r.Identity == nil {
		return d.precheckRefusal(r, IdentityMissing, 0), true
	}
	if rule := r.Policy.Tenant(r.Identity.Tenant); rule != nil && rule.Block {
		return d.precheckRefusal(r, TenantBlocked, 0), true
	}
	if wait, open := d.core.allOpen(now, r); open {
		return d.precheckRefusal(r, BreakerOpen, wait), true
	}
	return Decision{}, false
}

func (d *Desk) precheckRefusal(r *Request, reason Reason, hint time.Duration) Decision {
	p := Plan{Request: r}
	p.Decision.Policy = r.Policy.ID()
	p.refuse(reason, hint, "")
	d.Refused(r, &p.Decision)
	return p.Decision
}

// Refused tells the observers of a decision that the hallway made by itself
// (identity, body, path), so that every decision is counted in one place.
func (d *Desk) Refused(r *Request, dec *Decision) {
	now := time.Now()
	for _, o := range d.observers {
		o.Decided(r, dec, now)
	}
}

// allOpen reports whether every pool that the request can reach has its
// breaker open at the hard level, and the time until the first may admit.
func (c *Core) allOpen(now time.Time, r *Request) (wait time.Duration, open bool) {
	f := c.floor.Load()
	wait = never
	models := r.Policy.Policy.Models
	for i := range models {
		m := &models[i]
		if !r.Policy.Allows(m.Name) || r.Model != "" && r.Model != m.Name {
			continue
		}
		for _, name := range m.Pools {
			left, hard := f.pools[name].openFor(now, r.Policy.Breaker.Open)
			if !hard {
				return 0, false
			}
			wait = min(wait, left)
		}
	}
	return wait, wait != never
}

// openFor is the time for which the breaker surely stays open at the hard
// level. A pool that is not there admits nothing either, for no known time.
func (l *pool) openFor(now time.Time, open time.Duration) (left time.Duration, hard bool) {
	if l == nil {
		return never, true
	}
	view := l.breaker.View(now)
	left = view.Since.Add(open).Sub(now)
	return left, view.State == breaker.Hard && left > 0
}
