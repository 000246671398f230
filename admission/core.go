package admission

import (
	"cmp"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
	"github.com/weirproxy/weir/quota"
)

// Gauges gives the present reading of a pool; nil, or a nil answer, is a pool
// without telemetry: its pressure is the policy's neutral value.
type Gauges func(pool string) *gpu.Reading

// Core decides. It has no clock, goroutine, timer or store of its own: now is
// given, waiting plans are handed back by the call that decides them, and
// NextAt says when a pool wants to be advanced. It is safe for concurrent
// use: each pool's line has a lock of its own, held for one operation.
type Core struct {
	floor     atomic.Pointer[floor]
	gauges    Gauges
	estimates *Estimator
	held      atomic.Int64 // bytes of bodies waiting, over all lines
	draining  atomic.Bool
	chosen    chosen   // by cost (V3)
	sessions  sessions // (V3)
	echo      *Core    // the core whose breakers judge here too: ends are counted there
	tenants   *breaker.Tenants
	journal   *breaker.Journal // nil = none
	council   *breaker.Council // nil = no peers

	mu       sync.Mutex       // of Swap
	rng      *rand.Rand       // seeds the pools' dice
	unseeded *rand.PCG        // of the tenants' dice, until they are first thrown; then nil
	leaving  map[string]*pool // gone from the policy, with requests that run on
}

// NewCore makes a core with the pools of a policy. rng seeds the dice of
// breakers and hints; the core owns it from now on.
func NewCore(now time.Time, p *policy.Policy, g Gauges, rng *rand.Rand) *Core {
	return newCore(now, p, g, rng, nil, nil)
}

// newCore makes a core whose breakers tell a journal, and heed a council.
func newCore(now time.Time, p *policy.Policy, g Gauges, rng *rand.Rand, j *breaker.Journal, co *breaker.Council) *Core {
	c := &Core{gauges: g, estimates: NewEstimator(), rng: rng, journal: j, council: co, leaving: map[string]*pool{}}
	c.sessions.open()
	c.unseeded = rand.NewPCG(1, 2)
	c.tenants = breaker.NewTenants(p.Breaker, j, rand.New(c.unseeded))
	c.Swap(now, p)
	return c
}

// newEcho makes a second core of the same shape for shadow decisions (O4).
// It looks at the same breakers and estimates and leaves counting to c.
func (c *Core) newEcho(now time.Time, p *policy.Policy, rng *rand.Rand) *Core {
	e := &Core{gauges: c.gauges, estimates: c.estimates, rng: rng, echo: c, tenants: c.tenants, leaving: map[string]*pool{}}
	e.sessions.open()
	e.Swap(now, p)
	return e
}

// Plan finds out what can be known before the store is asked: whether the
// tenant may, which pool, what the breaker says, what it costs, which claims
// to make. A plan that is Refused needs no store. A plan that is not must go
// on to Enter or Abandon.
//
// What is decided is decided by the policy whose pools these are: a request
// that was read under another is judged by this one.
func (c *Core) Plan(now time.Time, r *Request) *Plan {
	f := c.floor.Load()
	r = f.renew(r)
	p := &Plan{Request: r, Class: r.Class, floor: f}
	p.Decision.Policy = r.Policy.ID()
	if c.draining.Load() {
		p.refuse(now, Draining, 0, "")
		return p
	}
	if r.Identity == nil || r.Identity.Tenant == "" {
		p.refuse(now, IdentityMissing, 0, "")
		return p
	}
	m, tier, ok := p.find(now, f)
	if !ok {
		return p
	}
	p.longest = r.longest(p.Class)
	p.Input, p.Output = c.estimates.Predict(r, m.maxOutput)
	if c.askTenant(now, p, f, m) && c.choose(now, p, m) {
		p.claim(tier)
		p.prepare(tier)
		c.spareStore(now, p)
	}
	return p
}

// find finds the request's class, tier and model; false: refused.
func (p *Plan) find(now time.Time, f *floor) (m *modelPools, tier string, ok bool) {
	r := p.Request
	tier = p.applyTenant(now)
	if p.refused {
		return nil, tier, false
	}
	p.waiter.Tier = tier
	m = f.model(r)
	if !m.known || !r.Policy.Allows(m.name) {
		p.refuse(now, ModelUnknown, 0, "model "+quote(r.Model)+" does not exist")
		return m, tier, false
	}
	p.model = m.name
	return m, tier, true
}

// spareStore refuses at a full line before the store is asked for a claim
// that would only go back.
func (c *Core) spareStore(now time.Time, p *Plan) {
	if len(p.Claims) == 0 || p.pool.waiting.Load() == 0 {
		return
	}
	bounds := c.bounds(now, p)
	if p.pool.waiting.Load() < int64(bounds.Length) {
		return
	}
	if reason, hint, full := p.pool.full(now, p, bounds); full {
		c.turnAway(now, p, reason, hint, bounds.Length)
	}
}

// full offers a plan to a line that has no room, so that the line hears that
// its class asked.
func (l *pool) full(now time.Time, p *Plan, b queue.Bounds) (r Reason, hint time.Duration, full bool) {
	now = l.lock(now)
	defer l.unlock()
	offered, full := l.line.Knock(now, &p.waiter, b)
	if !full {
		return 0, 0, false
	}
	p.seeRights(false)
	return l.turnedAway(now, p, offered.Refusal), offered.Hint, true
}

// Enter takes the store's verdict on the plan's claims (allowed where there
// were none) and gives the request a seat, a place in the line, or its
// refusal. After Refused the claims go back to the store.
func (c *Core) Enter(now time.Time, p *Plan, v quota.Verdict) Outcome {
	p.seeQuota(v)
	if !v.Allowed {
		p.giveProbeBack(now)
		return p.refuse(now, quotaReason(v), v.RetryAfter, quotaDetail(v))
	}
	bounds := c.bounds(now, p)
	outcome, reason, hint := c.offer(now, p, bounds)
	for outcome == astray {
		if !c.reconsider(now, p) {
			return Refused
		}
		p.longest = p.Request.longest(p.Class)
		bounds = c.bounds(now, p)
		outcome, reason, hint = c.offer(now, p, bounds)
	}
	switch outcome {
	case Refused:
		return c.turnAway(now, p, reason, hint, bounds.Length)
	case Entered:
		c.admit(now, p, reason, 0)
	}
	return outcome
}

// astray is what becomes of a plan whose pool was chosen by a policy that has
// been replaced meanwhile: the pool is to be chosen again.
const astray Outcome = 255

// offer brings the plan before its line. A plan that is InTheLine is not to
// be touched any more.
func (c *Core) offer(now time.Time, p *Plan, b queue.Bounds) (Outcome, Reason, time.Duration) {
	l := p.pool
	p.where.Store(l)
	now = l.lock(now)
	defer l.unlock()
	if p.floor.number < l.swapped {
		return astray, 0, 0
	}
	offered := l.line.Offer(now, &p.waiter, b)
	switch {
	case offered.Refusal != queue.Taken:
		p.seeRights(false)
		return Refused, l.turnedAway(now, p, offered.Refusal), offered.Hint
	case offered.Granted:
		p.seeRights(true)
		l.take(now, p, &p.waiter)
		return Entered, p.entry(), 0
	case !c.hold(p):
		l.line.Cancel(now, &p.waiter)
		hint := l.line.Book(now, &p.waiter)
		l.meter.refuse(now.Sub(l.base))
		return Refused, HeldBytes, hint
	}
	l.waiting.Add(1)
	c.seeGauge(now, p)
	p.seeRights(false)
	p.step(RoomQueue, "position", float64(offered.Position), float64(b.Length), true)
	return InTheLine, Queued, 0
}

// turnedAway names a refusal of the line and counts it for demand; in P7 no
// room to wait is no seat in time. The lock is held.
func (l *pool) turnedAway(now time.Time, p *Plan, refusal queue.Refusal) Reason {
	r := refusalReason(refusal)
	if r == QueueFull && p.waiter.OnExpiry == policy.ExpireReject {
		r = NonStreamingFull
	}
	if r.Row().Advice == AdviceQueue {
		l.meter.refuse(now.Sub(l.base))
	}
	return r
}

// Abandon gives up a plan that was not refused and will not Enter: the store
// had no answer, or the caller left meanwhile.
func (c *Core) Abandon(now time.Time, p *Plan, r Reason) {
	p.giveProbeBack(now)
	p.refuse(now, r, 0, "")
}

// turnAway refuses at the line.
func (c *Core) turnAway(now time.Time, p *Plan, r Reason, hint time.Duration, length int) Outcome {
	p.giveProbeBack(now)
	c.seeGauge(now, p)
	p.step(RoomQueue, r.String(), float64(p.pool.waiting.Load()), float64(length), false)
	return p.refuse(now, r, hint, "")
}

// hold counts the body against maxHeldBytes; false is over it.
func (c *Core) hold(p *Plan) bool {
	n := max(p.waiter.Bytes, 0)
	limit := p.Request.Policy.Queue.MaxHeldBytes
	if c.held.Add(n) > limit && limit > 0 {
		c.held.Add(-n)
		return false
	}
	return true
}

// left forgets a waiter that is out of the line.
func (c *Core) left(p *Plan) {
	c.held.Add(-max(p.waiter.Bytes, 0))
	p.pool.waiting.Add(-1)
}

// Cancel takes a waiting plan out of its line: true, and the decision is
// ClientGone. False means that another call has decided it, or is about to
// hand it back.
func (c *Core) Cancel(now time.Time, p *Plan) bool {
	p.left.Store(true) // Swap, which may be moving it, looks when it has
	for l := p.where.Load(); l != nil; {
		if waited, ok := c.takeOut(now, l, p); ok {
			p.Decision.Waited = waited
			c.Abandon(now, p, ClientGone)
			return true
		}
		was := l
		if l = p.where.Load(); l == was {
			break
		}
	}
	return false
}

func (c *Core) takeOut(now time.Time, l *pool, p *Plan) (waited time.Duration, ok bool) {
	now = l.lock(now)
	defer l.unlock()
	if p.where.Load() != l {
		return 0, false // it is being moved: the waiter is not this line's any more
	}
	if waited, ok = l.line.Cancel(now, &p.waiter); ok {
		c.left(p)
	}
	return waited, ok
}

// bounds are the limits of one Offer (Q1, Q4, Q5).
func (c *Core) bounds(now time.Time, p *Plan) queue.Bounds {
	q := &p.Request.Policy.Queue
	length := c.length(now, p.pool, q)
	b := queue.Bounds{
		Length:     length,
		Soft:       int(float64(length)*float64(q.SoftLimit) + 0.5),
		PerTenant:  q.PerTenant,
		RetryLimit: q.RetryQueue.Limit,
		RetryLen:   q.RetryQueue.Length,
	}
	for _, class := range q.SoftExempt {
		b.Exempt = b.Exempt || class == p.Class
	}
	return b
}

// length is Q1's line; without telemetry the neutral pressure counts (Q3).
func (c *Core) length(now time.Time, l *pool, q *policy.Queue) int {
	if reading := c.reading(l.name); reading != nil {
		return reading.Length(now, *q)
	}
	return gpu.LengthFor(q.Length, float64(c.floor.Load().policy.Gauge.Neutral))
}

// seeGauge leaves in the trail what the pressure that made the line's length
// is made of (Q8).
func (c *Core) seeGauge(now time.Time, p *Plan) {
	reading := c.reading(p.pool.name)
	if reading == nil {
		return
	}
	b := reading.Blend(now)
	see := func(signal string, v gpu.Value) {
		if v.OK {
			p.step(RoomGauge, signal, v.V, 1, v.V < 1)
		}
	}
	see(gpu.SignalWaiting, b.Waiting)
	see(gpu.SignalKV, b.KV)
	see(gpu.SignalUtil, b.Util)
}

func (c *Core) reading(pool string) *gpu.Reading {
	if c.gauges == nil {
		return nil
	}
	return c.gauges(pool)
}

// NextAt is when the named pool wants Advance; false = not before the next
// call for it.
func (c *Core) NextAt(name string) (time.Time, bool) {
	if l := c.floor.Load().pools[name]; l != nil {
		return l.nextAt()
	}
	return time.Time{}, false
}

// giveProbeBack tells the breaker that this probe brings no verdict.
func (p *Plan) giveProbeBack(now time.Time) { p.giveProbeBackTo(cmp.Or(p.seat, p.pool), now) }

func (p *Plan) giveProbeBackTo(l *pool, now time.Time) {
	switch {
	case !p.probe || l == nil:
	case l == p.seat:
		l.breaker.Forget(now)
	default:
		l.breaker.Untried(now)
	}
	p.probe = false
}

// Breaker is a pool's breaker, nil for an unknown pool.
func (c *Core) Breaker(name string) *breaker.Breaker {
	if l := c.floor.Load().pools[name]; l != nil {
		return l.breaker
	}
	return nil
}
