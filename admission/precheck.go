package admission

import (
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// Precheck makes the cheap refusals of request_headers: tenant blocked, its
// breaker open, all reachable breakers open and no lane applies. It takes
// nothing; a refusal by the pools counts for the tenant's failures in a row
// (B9), and the observers hear of any. Pools are reachable that serve a
// model of the policy which the route leaves open; of a request that names its
// model already, those of the model.
func (d *Desk) Precheck(now time.Time, r *Request) (Decision, bool) {
	if d.draining.Load() {
		return d.precheckRefusal(now, r, nil, Draining, 0), true
	}
	if modeOf(r, false) != policy.Enforce {
		return Decision{}, false
	}
	if r.Identity == nil {
		return d.precheckRefusal(now, r, nil, IdentityMissing, 0), true
	}
	if rule := r.Policy.Tenant(r.Identity.Tenant); rule != nil && rule.Block {
		return d.precheckRefusal(now, r, nil, TenantBlocked, 0), true
	}
	if v := d.core.peekTenant(now, r); v.Action == breaker.Shed {
		hint := v.RetryAfter
		if f := d.core.floor.Load(); len(f.order) > 0 {
			hint = f.order[0].spread(r.Policy, hint)
		}
		return d.precheckRefusal(now, r, nil, TenantBreaker, hint), true
	}
	if v, l, open := d.core.allOpen(now, r); open {
		return d.precheckRefusal(now, r, l, openReason(v), v.RetryAfter), true
	}
	return Decision{}, false
}

func (d *Desk) precheckRefusal(now time.Time, r *Request, l *pool, reason Reason, hint time.Duration) Decision {
	p := Plan{Request: r, pool: l}
	p.Decision.Policy = r.Policy.ID()
	p.refuse(now, reason, hint, "")
	d.Refused(r, &p.Decision)
	return p.Decision
}

// Refused tells the observers of a decision that the hallway made by itself
// (identity, body, path, calls that need no seat), so that every decision is
// counted in one place.
func (d *Desk) Refused(r *Request, dec *Decision) {
	d.tell(r, dec, time.Now())
}

// peekTenant is what the breaker of the request's tenant says of its class.
func (c *Core) peekTenant(now time.Time, r *Request) breaker.Verdict {
	if !c.floor.Load().policy.Breaker.Tenant.On {
		return breaker.Verdict{}
	}
	return c.tenants.Peek(now, r.tenant(), r.Class, r.Priority)
}

// allOpen reports whether the breakers of all pools that the request can
// reach refuse it and the lanes there (P8) have no room for it, with the
// mildest state, the shortest wait and the pool that is asked first.
func (c *Core) allOpen(now time.Time, r *Request) (first breaker.Verdict, at *pool, open bool) {
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
			v := l.peek(now, r.Class)
			if v.Action != breaker.Shed || r.Priority && l.laned.Load() < l.lane.Load() {
				return breaker.Verdict{}, nil, false
			}
			if !open {
				first, at, open = v, l, true
			}
			first.RetryAfter = min(first.RetryAfter, v.RetryAfter)
			if v.State == breaker.Soft || elsewhere(v) { // another class would be let in
				first.State = v.State
			}
		}
	}
	return first, at, open
}
