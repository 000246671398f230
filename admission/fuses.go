package admission

import (
	"cmp"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// PoolBreaker is the breaker of a pool for who watches, speaks of it to other
// replicas, or protects its cluster.
type PoolBreaker struct {
	Pool, Cluster string // the cluster is the pool's name where the policy names none
	View          breaker.View
	Ruling        breaker.Ruling // what peers say (B3); zero without a council
	Sheds         bool           // batch is shed now because of what they say
}

// Breakers looks at the breakers of all pools in the policy's order, whose
// clusters several may share. It takes no lock.
func (d *Desk) Breakers(now time.Time) []PoolBreaker {
	f := d.core.floor.Load()
	out := make([]PoolBreaker, 0, len(f.order))
	for _, l := range f.order {
		b := PoolBreaker{Pool: l.name, Cluster: l.cluster(), View: l.breaker.View(now)}
		if l.ballot != nil {
			b.Ruling = l.ballot.Ruling(now)
			b.Sheds = b.Ruling.Sheds(policy.Batch, b.View.State)
		}
		out = append(out, b)
	}
	return out
}

// Breaker is a pool's breaker, for an operator's hand and for storms (B7); nil
// for a pool that the policy does not have.
func (d *Desk) Breaker(pool string) *breaker.Breaker { return d.core.Breaker(pool) }

// Tenants are the breakers of tenants (B5, T2); never nil, empty while the
// policy has them off.
func (d *Desk) Tenants() *breaker.Tenants { return d.core.tenants }

// Storm says that a storm of closed or failing connections was seen at a
// cluster, or that it is over: while it lasts nobody is told to try again there
// (B9), and no tenant is blamed for what fails there. It gives how many pools
// that concerns. A pool that a new policy moves to another cluster keeps what
// was said last, until it is said anew.
func (d *Desk) Storm(cluster string, on bool) (pools int) {
	for _, l := range d.core.floor.Load().order {
		if l.cluster() == cluster {
			l.retries.storm.Store(on)
			pools++
		}
	}
	return pools
}

// cluster is the name of the pool's cluster in Envoy.
func (l *pool) cluster() string {
	spec := l.spec.Load()
	return cmp.Or(spec.Cluster, spec.Name)
}

// allow asks the pool's breaker and, where that is closed, what peers say of
// theirs (B3). What is shed for their sake has the verdict Shed with the state
// Closed.
func (l *pool) allow(now time.Time, class policy.Class) breaker.Verdict {
	return l.heed(now, class, l.breaker.Allow(now, class))
}

// peek is allow without taking a probe.
func (l *pool) peek(now time.Time, class policy.Class) breaker.Verdict {
	return l.heed(now, class, l.breaker.Peek(now, class))
}

func (l *pool) heed(now time.Time, class policy.Class, v breaker.Verdict) breaker.Verdict {
	if l.ballot == nil || class < policy.Batch || v.State != breaker.Closed {
		return v
	}
	if r := l.ballot.Ruling(now); r.Sheds(class, v.State) {
		v.Action, v.RetryAfter = breaker.Shed, max(l.ballot.OpenUntil(now).Sub(now), 0)
	}
	return v
}

// elsewhere reports a verdict that peers gave.
func elsewhere(v breaker.Verdict) bool {
	return v.Action == breaker.Shed && v.State == breaker.Closed
}

// seeElsewhere leaves in the trail how many of the peers that have evidence say
// that the pool is open; in the literal form it may be another pool.
func (p *Plan) seeElsewhere(now time.Time, l *pool) {
	r := l.ballot.Ruling(now)
	p.step(RoomBreaker, "elsewhere", float64(r.Open), float64(r.Votes), false)
}

// openReason tells the two levels apart (B1), and what is shed for peers' sake
// (B3) from what the own breaker refuses.
func openReason(v breaker.Verdict) Reason {
	if v.State == breaker.Soft || elsewhere(v) {
		return BreakerShed
	}
	return BreakerOpen
}

// well reports whether the pool can be trusted to blame a tenant: its breaker
// is closed and its connections are calm.
func (l *pool) well(now time.Time) bool {
	return l.breaker.Peek(now, policy.Critical).State == breaker.Closed && !l.retries.storm.Load()
}

// askTenant asks the breaker of the request's tenant (B5, T2). Open hard, only
// what has priority passes; at the soft level batch is refused and standard
// goes to a lower precision, as at a pool (B1). False: refused.
func (c *Core) askTenant(now time.Time, p *Plan, f *floor, m *modelPools) bool {
	r := p.Request
	if !f.policy.Breaker.Tenant.On {
		return true
	}
	v := c.tenants.Allow(now, r.Identity.Tenant, p.Class, r.Priority)
	if v.State == breaker.Closed {
		return true
	}
	if v.Probe {
		p.trial = c.tenants
	}
	p.below = v.Action == breaker.Degrade
	p.step(RoomBreaker, "tenant", float64(v.State), float64(breaker.Closed), v.Action != breaker.Shed)
	if v.Action == breaker.Shed {
		p.refuseTenant(now, m, v.RetryAfter)
	}
	return !p.refused
}

// refuseTenant refuses by the tenant's breaker. Its callers all come by the
// same clock, so the hint is spread by the dice of the pool they would go to.
func (p *Plan) refuseTenant(now time.Time, m *modelPools, hint time.Duration) {
	if len(m.pools) > 0 {
		hint = m.pools[0].spread(p.Request.Policy, hint)
	}
	p.refuse(now, TenantBreaker, hint, "")
}

// tenantLeft is how long the breaker of the plan's tenant refuses batch.
func (c *Core) tenantLeft(now time.Time, p *Plan) time.Duration {
	return c.tenants.Peek(now, p.Request.Identity.Tenant, policy.Batch, false).RetryAfter
}

// countTenant tells the tenant's breaker how a run ended.
func (c *Core) countTenant(now time.Time, p *Plan, failed, well bool) {
	probe := p.trial != nil
	p.trial = nil
	if name := p.Request.tenant(); name != "" {
		c.tenants.Record(now, name, failed, probe, well)
	}
}

// giveTrialBack tells the tenant's breaker that this probe brings no verdict.
func (p *Plan) giveTrialBack(now time.Time) {
	switch name := p.Request.tenant(); {
	case p.trial == nil:
	case p.seat != nil:
		p.trial.Forget(now, name)
	default:
		p.trial.Untried(now, name)
	}
	p.trial = nil
}
