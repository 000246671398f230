package admission

import (
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// Precheck makes the cheap refusals of request_headers: tenant blocked, all
// reachable breakers open and no lane applies. It takes nothing and changes
// nothing; the observers hear of a refusal. Pools are reachable that serve a
// model of the policy which the route leaves open; of a request that names its
// model already, those of the model.
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
	if v, open := d.core.allOpen(now, r); open {
		return d.precheckRefusal(r, openReason(v), v.RetryAfter), true
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
// (identity, body, path, calls that need no seat), so that every decision is
// counted in one place.
func (d *Desk) Refused(r *Request, dec *Decision) {
	d.tell(r, dec, time.Now())
}

// allOpen reports whether the breakers of all pools that the request can
// reach refuse it and the lanes there (P8) have no room for it, with the
// mildest state and the shortest wait.
func (c *Core) allOpen(now time.Time, r *Request) (first breaker.Verdict, open bool) {
	f := c.floor.Load()
	models := r.Policy.Policy.Models
	for i := range models {
		m := &models[i]
		if !r.Policy.Allows(m.Name) || r.Model != "" && r.Model != m.Name {
			continue
		}
		for _, name := range m.Pools {
			l := f.pools[name]
			if l == nil {
				continue
			}
			v := l.breaker.Peek(now, r.Class)
			if v.Action != breaker.Shed || r.Priority && l.laned.Load() < l.lane.Load() {
				return breaker.Verdict{}, false
			}
			if !open {
				first, open = v, true
			}
			first.RetryAfter = min(first.RetryAfter, v.RetryAfter)
			if v.State == breaker.Soft { // another class would be let in
				first.State = v.State
			}
		}
	}
	return first, open
}
