package admission

import (
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
	"github.com/weirproxy/weir/quota"
)

// Advance does what is due at now in the named pool. It hands back the
// waiting plans that are decided, and the running ones that have held their
// seat too long: their end is the caller's to call, by Done.
func (c *Core) Advance(now time.Time, name string) (decided, overdue []*Plan) {
	if l := c.floor.Load().pools[name]; l != nil {
		return c.advance(now, l)
	}
	return nil, nil
}

func (c *Core) advance(now time.Time, l *pool) (decided, overdue []*Plan) {
	decided, overdue = c.due(now, l)
	c.finish(now, decided)
	return decided, overdue
}

// due collects what is due.
func (c *Core) due(now time.Time, l *pool) (gone, overdue []*Plan) {
	now = l.lock(now)
	defer l.unlock()
	l.late(now)
	exits := append(l.settlePause(now), l.line.Advance(now)...)
	exits = append(exits, c.tune(now, l)...)
	for _, chain := range [2]*chain{&l.seated, &l.over} {
		for p := chain.head; p != nil && !p.since.Add(l.maxHold()).After(now); p = chain.head {
			p.remove()
			l.meter.overdue++
			overdue = append(overdue, p)
		}
	}
	gone = c.leave(now, l, exits)
	l.adopt(now)
	return gone, overdue
}

// Done ends a plan that has a seat, once: the seat is freed, the breaker and
// what is learnt hear of it (B6). It gives the final amount for the store, at
// the pool's rate (T8, V2), and the waiting plans that are decided by it.
func (c *Core) Done(now time.Time, p *Plan, e *End) (final quota.Amount, decided []*Plan) {
	final = e.charge(p.Input, p.Output)
	if c.echo == nil {
		e.Used = final.Input + final.Output
	}
	l := p.seat
	if l == nil {
		return final, nil
	}
	c.count(now, p, e)
	if e.Learn && e.Result == ResultOK && c.echo == nil {
		c.estimates.Learn(p.Request, &e.Usage)
		u := e.Usage
		u.Output = p.Request.perChoice(u.Output)
		l.speeds.learn(now, p.model, p.Request.Stream, e.FirstByte, now.Sub(p.since), &u)
	}
	decided = c.vacate(now, p, final.Input+final.Output)
	c.finish(now, decided)
	return l.bill(final), decided
}

// vacate frees the plan's seat and seats who follows.
func (c *Core) vacate(now time.Time, p *Plan, cost int64) []*Plan {
	l := p.seat
	now = l.lock(now)
	defer l.unlock()
	p.remove()
	p.leaveLane()
	l.tuned.begun(p)
	l.running.Add(-1)
	l.meter.end(now.Sub(p.since))
	exits := l.settlePause(now) // before the seat is free: this end may have opened the breaker
	if !p.over {
		if cost > 0 {
			l.line.Settle(p.held, cost)
		}
		exits = append(exits, l.line.Release(now, p.held)...)
	}
	gone := c.leave(now, l, exits)
	l.adopt(now)
	return gone
}

// count tells the pool's breaker how a run ended, and the tenant's, unless the
// pool itself is failing (B5); not of one that passed by the lane (B1, P8).
func (c *Core) count(now time.Time, p *Plan, e *End) {
	failed, counts := e.counted()
	late := p.seat.ended(now, p)
	if c.echo == nil {
		p.seat.note(now, p, e, late)
	}
	if c.echo == nil && counts {
		p.strike(now, failed)
	}
	if c.echo != nil || !counts || p.lane != nil {
		p.giveProbeBack(now)
		p.giveTrialBack(now)
		return
	}
	l := p.seat
	well := l.well(now) && !late
	if !late { // else it was counted when it was late
		l.breaker.Record(now, failed, p.probe)
	}
	p.probe = false
	c.countTenant(now, p, failed, well && l.well(now))
}

// take notes a seat that the line gave. The lock is held.
func (l *pool) take(now time.Time, p *Plan, w *queue.Waiter) {
	p.seat, p.held, p.since = l, w, now
	l.tuned.enter(p)
	l.await(now, p)
	l.running.Add(1)
	l.seated.push(p)
}

// adopt gives free seats to those who run without one, so that a line that
// begins to be enforced knows what runs. The lock is held.
func (l *pool) adopt(now time.Time) {
	for p := l.over.head; p != nil; p = l.over.head {
		if !l.line.TryTake(now, p.held) {
			return
		}
		p.remove()
		p.over = false
		l.seated.push(p)
	}
}

// leave takes the waiters that left the line: seats are noted, grants of a
// pool whose breaker has opened meanwhile are taken back (B1), unless the lane
// has room (P8). The lock is held.
func (c *Core) leave(now time.Time, l *pool, exits []queue.Exit) []*Plan {
	if len(exits) == 0 {
		return nil
	}
	out := make([]*Plan, 0, len(exits))
	for i := 0; i < len(exits); i++ {
		x := &exits[i]
		p := x.Waiter.Owner.(*Plan)
		c.left(p)
		out = append(out, p)
		p.Decision.Waited = x.Waited
		if !x.Granted {
			p.expire(now, l, x)
			continue
		}
		if v := l.breaker.Peek(now, p.Class); v.State == breaker.Hard && p.lane == nil && !l.enterLane(p) {
			p.lapse = lapse{reason: openReason(v), hint: v.RetryAfter}
			exits = append(exits, l.line.Release(now, x.Waiter)...)
			continue
		}
		l.take(now, p, x.Waiter)
	}
	return out
}

// lapse is why a plan left the line without a seat.
type lapse struct {
	reason  Reason
	hint    time.Duration
	degrade bool // try the pools below first
}

// expire notes what an exit without a seat means (P3); of a pool that is down
// the breaker says when it may be back (Q5). The lock is held.
func (p *Plan) expire(now time.Time, l *pool, x *queue.Exit) {
	p.lapse = lapse{hint: x.Hint}
	if x.Action == policy.ExpireDegrade {
		p.lapse.hint = 0 // see noteRefusal
	}
	if v := l.breaker.Peek(now, p.Class); v.Action == breaker.Shed {
		p.lapse.hint = p.spread(v.RetryAfter)
	}
	switch {
	case x.Drained:
		p.lapse.reason = Draining
		return
	case x.Late:
		p.lapse.reason = Deadline
	case x.Action == policy.ExpireDegrade:
		p.lapse.reason, p.lapse.degrade = ExpiredDegrade, true
	case x.Action == policy.ExpireRetry && x.Retried:
		p.lapse.reason = ExpiredRetry
	case x.Action == policy.ExpireRetry:
		p.lapse.reason = RetryFull
	case x.Action == policy.ExpireReject:
		p.lapse.reason = NonStreamingFull
	default:
		p.lapse.reason = ExpiredDrop
	}
	l.meter.expired[p.Class]++
}

// finish makes the decisions of plans that left a line; no lock is held.
func (c *Core) finish(now time.Time, plans []*Plan) {
	for _, p := range plans {
		if p.seat != nil {
			c.admit(now, p, p.entry(), p.Decision.Waited)
			continue
		}
		if p.lapse.degrade && c.goDown(now, p) {
			continue
		}
		p.giveProbeBack(now)
		p.step(RoomQueue, p.lapse.reason.String(), p.Decision.Waited.Seconds(), p.waiter.MaxWait.Seconds(), false)
		if p.lapse.reason.Row().Advice == AdviceQueue {
			p.pool.noteRefusal(now, p)
		}
		p.refuse(now, p.lapse.reason, p.lapse.hint, "")
	}
}

// goDown takes a free seat of a pool of lower precision, best first, where
// the breaker admits and nobody is ahead (P3, V2). It never queues. The pools
// are those of now: the policy may have changed meanwhile.
func (c *Core) goDown(now time.Time, p *Plan) bool {
	for _, l := range c.floor.Load().model(p.Request).pools {
		if l.spec.Load().Variant.Rank() >= p.rank {
			continue
		}
		v := l.allow(now, p.Class)
		if v.Action != breaker.Admit {
			continue
		}
		if l.takeIn(now, p) {
			p.giveProbeBackTo(p.pool, now)
			p.leaveLane()
			p.probe = v.Probe
			c.admit(now, p, DegradedExpiry, p.Decision.Waited)
			return true
		}
		if v.Probe {
			l.breaker.Untried(now)
		}
	}
	return false
}

// takeIn seats a plan that comes down, if nobody here is ahead of it.
func (l *pool) takeIn(now time.Time, p *Plan) bool {
	w := p.again()
	w.Tokens = p.tokens(l)
	now = l.lock(now)
	defer l.unlock()
	if !l.line.TryTake(now, w) {
		return false
	}
	l.take(now, p, w)
	l.meter.degraded++
	return true
}

// again is a fresh waiter of the same request: the old one belongs to the
// line where it waited.
func (p *Plan) again() *queue.Waiter {
	old := &p.waiter
	return &queue.Waiter{
		Class: old.Class, Colour: old.Colour, Tenant: old.Tenant, Weight: old.Weight,
		Cost: old.Cost, Bytes: old.Bytes, Deadline: old.Deadline, Owner: p,
		Tier: old.Tier, Stream: old.Stream, Priority: old.Priority,
	}
}

// noteRefusal counts one that left the line without a seat for demand. Who
// might have gone down is booked only now, when it is to come back here.
func (l *pool) noteRefusal(now time.Time, p *Plan) {
	now = l.lock(now)
	defer l.unlock()
	l.meter.refuse(now.Sub(l.base))
	if p.lapse.hint == 0 {
		p.lapse.hint = l.line.Book(now, &p.waiter)
	}
}

// Pass admits without asking any room (O4): the pool is the class's, a free
// seat is taken where there is one, and where there is none the request runs
// over and takes the next seat that nobody waits for. No claims.
func (c *Core) Pass(now time.Time, r *Request, reason Reason) *Plan {
	f := c.floor.Load()
	r = f.renew(r)
	p := &Plan{Request: r, Class: r.Class, floor: f}
	p.Decision.Policy = r.Policy.ID()
	tier := ""
	if r.Identity != nil {
		tier = p.applyTenant(now)
		p.refused = false
	}
	m := f.model(r)
	p.model = m.name
	p.Input, p.Output = c.estimates.Predict(r, m.maxOutput)
	if len(m.pools) > 0 {
		p.want = p.wants().Rank()
		from, to := m.level(p.want)
		l := m.pools[from]
		for _, other := range m.pools[from+1 : to] {
			if other.load() < l.load() {
				l = other
			}
		}
		p.sit(now, l, tier)
	}
	p.Decision.RetryAfter, p.Decision.NoRetry, p.Decision.Detail = 0, false, ""
	c.admit(now, p, reason, 0)
	return p
}

// sit takes a seat of the pool for a tier, or runs over.
func (p *Plan) sit(now time.Time, l *pool, tier string) {
	p.pool = l
	w := &p.waiter
	w.Class, w.Cost, w.Weight = p.Class, max(p.Input+p.Output, 1), 1
	w.Tier, w.Stream, w.Priority = tier, p.Request.Stream, p.Request.Priority
	w.Tokens = p.tokens(l)
	if p.Request.Identity != nil {
		w.Tenant = p.Request.Identity.Tenant
	}
	w.Owner = p
	now = l.lock(now)
	defer l.unlock()
	if l.line.TryTake(now, w) {
		l.take(now, p, w)
		return
	}
	p.seat, p.held, p.since, p.over = l, w, now, true
	l.tuned.enter(p)
	l.await(now, p)
	l.running.Add(1)
	l.over.push(p)
}
