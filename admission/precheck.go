package admission

import (
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// Precheck makes the cheap refusals of request_headers: tenant blocked, its
// breaker open, all reachable breakers open and no lane applies, a quota that
// is known to have no room left. It asks no store and takes
// nothing; a refusal by the pools counts for the tenant's failures in a row
// (B9), and the observers hear of any. Pools are reachable that serve a
// model of the policy which the route leaves open; of a request that names its
// model already, those of the model.
func (d *Desk) Precheck(now time.Time, r *Request) (Decision, bool) {
	dec, _, refused := d.precheck(now, r)
	return dec, refused
}

// precheck gives also what the request claims at the least, where the policy
// enforces.
func (d *Desk) precheck(now time.Time, r *Request) (Decision, []quota.Claim, bool) {
	if d.draining.Load() {
		return d.precheckRefusal(now, r, nil, Draining, 0), nil, true
	}
	if modeOf(r, false) != policy.Enforce {
		return Decision{}, nil, false
	}
	if r.Identity == nil {
		return d.precheckRefusal(now, r, nil, IdentityMissing, 0), nil, true
	}
	if rule := r.Policy.Tenant(r.Identity.Tenant); rule != nil && rule.Block {
		return d.precheckRefusal(now, r, nil, TenantBlocked, 0), nil, true
	}
	if v := d.core.peekTenant(now, r); v.Action == breaker.Shed {
		hint := v.RetryAfter
		if f := d.core.floor.Load(); len(f.order) > 0 {
			hint = f.order[0].spread(r.Policy, hint)
		}
		return d.precheckRefusal(now, r, nil, TenantBreaker, hint), nil, true
	}
	if v, l, open := d.core.allOpen(now, r); open {
		return d.precheckRefusal(now, r, l, openReason(v), v.RetryAfter), nil, true
	}
	claims := early(r)
	if v, full := d.knownFull(claims); full {
		return d.quotaRefusal(now, r, v), nil, true
	}
	return Decision{}, claims, false
}

func (d *Desk) precheckRefusal(now time.Time, r *Request, l *pool, reason Reason, hint time.Duration) Decision {
	p := Plan{Request: r, pool: l}
	p.Decision.Policy = r.Policy.ID()
	p.refuse(now, reason, hint, "")
	d.Refused(r, &p.Decision)
	return p.Decision
}

// least is what any request asks for: what it says in its body is more.
var least = quota.Amount{Requests: 1, Input: 1, Concurrency: 1}

// early is what a request claims at the least, of the rules that can be told
// before its body is there.
func early(r *Request) []quota.Claim {
	if len(r.Policy.Quotas) == 0 {
		return nil
	}
	p := Plan{Request: r}
	var tier string
	p.Class, tier, _ = r.standing()
	return quota.Early(r.Policy.Quotas, p.subject(tier), least)
}

// knownFull reports that a quota has no room for any request now: by what the
// store knows without being asked, or because as many requests as a limit of
// concurrency allows are in this replica, those included whose bodies are
// still to come.
func (d *Desk) knownFull(claims []quota.Claim) (quota.Verdict, bool) {
	if len(claims) == 0 {
		return quota.Verdict{}, false
	}
	if v, known := d.store.Known(time.Time{}, claims); known {
		return v, true
	}
	return d.presence.full(claims)
}

func (d *Desk) quotaRefusal(now time.Time, r *Request, v quota.Verdict) Decision {
	p := &Plan{Request: r}
	p.Decision.Policy = r.Policy.ID()
	p.seeQuota(v)
	p.refuse(now, quotaReason(v), v.RetryAfter, quotaDetail(v))
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
