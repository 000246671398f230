package admission

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
	"github.com/weirproxy/weir/quota"
)

// Reload is what a new policy meant for those who waited when it came.
type Reload struct {
	Waited   int // so many did
	Moved    int // of these, had no place where they waited: their pool was gone, served their model no more or at another precision, or was not for their class or tier
	Admitted int // of those moved, at once
	Refused  int // of those moved: nothing serves them now
	Shrunk   []Shrunk
}

// Shrunk is a pool with fewer seats than before, in which requests wait.
type Shrunk struct {
	Pool                    string
	Before, Seats           int64 // this replica's
	Running, Waiting, Moved int
}

// renew is the request by the policy of the floor. One whose route's overrides
// that policy does not take is judged by the policy that it came with.
func (f *floor) renew(r *Request) *Request {
	e, err := r.Policy.In(f.policy)
	if err != nil || e == r.Policy {
		return r
	}
	renewed := *r
	renewed.Policy = e
	return &renewed
}

// rehouse brings the pools of the old floor into line with the next: the lines
// are reshaped, who stays is held by the new rules, and who has to move is
// taken out. The core's lock is held.
func (c *Core) rehouse(now time.Time, old, next *floor) (decided []*Plan, moves []queue.Recalled, done Reload) {
	visit := slices.Clone(next.order)
	if old != nil {
		for _, l := range old.order {
			if next.pools[l.name] != l {
				visit = append(visit, l)
				c.leaving[l.name] = l
			}
		}
	}
	for _, l := range visit {
		gone := next.pools[l.name] != l
		if c.echo == nil && !gone {
			protocol := l.spec.Load().Protocol
			l.breaker.Configure(now, breaker.KindOf(protocol), next.policy.BreakerOf(protocol))
		}
		out, recalled := c.reshape(now, l, next, gone, &done)
		c.finish(now, out)
		decided, moves = append(decided, out...), append(moves, recalled...)
	}
	slices.SortStableFunc(moves, func(a, b queue.Recalled) int { return cmp.Compare(b.Waited, a.Waited) })
	done.Moved = len(moves)
	return decided, moves, done
}

// reshape brings one pool into line: nobody gets a seat before all who have to
// move are out.
func (c *Core) reshape(now time.Time, l *pool, f *floor, gone bool, done *Reload) ([]*Plan, []queue.Recalled) {
	now = l.lock(now)
	defer l.unlock()
	l.swapped, l.gone = f.number, gone
	var moves []queue.Recalled
	waiters := l.line.Waiters()
	for _, w := range waiters {
		p := w.Owner.(*Plan)
		p.Request, p.floor = f.renew(p.Request), f
		p.Decision.Policy = p.Request.Policy.ID()
		if !gone && p.stays(l, f) {
			b := c.bounds(now, p)
			p.holdWithin(&b)
			l.line.Renew(now, w, b)
		} else if was, ok := l.line.Recall(now, w); ok {
			p.where.Store(nil)
			c.left(p)
			moves = append(moves, was)
		}
	}
	done.Waited += len(waiters)
	if gone {
		return c.leave(now, l, l.line.Drain(now)), moves
	}
	spec, before := l.spec.Load(), l.line.Stats(now).SeatsTotal.Requests
	config := l.tuned.configure(f.policy, spec, lineConfig(f.policy, spec))
	exits := l.line.Configure(now, config)
	if n := len(waiters); n > 0 && config.Seats.Requests < before {
		done.Shrunk = append(done.Shrunk, Shrunk{
			Pool: l.name, Before: before, Seats: config.Seats.Requests,
			Running: int(l.running.Load()), Waiting: n - len(moves), Moved: len(moves),
		})
	}
	l.shape(&config)
	out := c.leave(now, l, exits)
	l.adopt(now)
	return out, moves
}

// stays reports whether a plan that waits in the pool would be sent there also
// by the policy in force: as one of the same class and tier, and where the pool
// serves its model at the precision that was chosen for it.
func (p *Plan) stays(l *pool, f *floor) bool {
	r := p.Request
	class, tier, blocked := r.standing()
	if blocked || class != p.Class || tier != p.waiter.Tier || r.Policy.ModeOf(class) != policy.Enforce && !l.echo {
		return false
	}
	m := f.model(r)
	at := slices.Index(m.pools, l)
	return at >= 0 && r.Policy.Allows(m.name) && m.ranks[at] == p.rank
}

// holdWithin lets the waiter's time end by its policy, and within what its caller was
// told: Envoy waits no longer.
func (p *Plan) holdWithin(b *queue.Bounds) {
	w := &p.waiter
	w.MaxWait, w.OnExpiry = p.Request.wait(p.Class)
	w.MaxWait = min(w.MaxWait, p.longest)
	b.RetryLimit = min(b.RetryLimit, p.longest-w.MaxWait)
}

// settle finds a place for those who had to move, who came first first, as for
// one that arrives, and with their time waited. The core's lock is held.
func (c *Core) settle(now time.Time, moves []queue.Recalled, done *Reload) (decided []*Plan) {
	for _, was := range moves {
		p := was.Waiter.Owner.(*Plan)
		p.Decision.Waited = was.Waited
		switch c.resume(now, p, was) {
		case InTheLine:
			continue
		case Entered:
			done.Admitted++
		case Refused:
			done.Refused++
		}
		decided = append(decided, p)
	}
	return decided
}

// reconsider chooses the pool of a plan again, by the policy in force; false:
// refused.
func (c *Core) reconsider(now time.Time, p *Plan) bool {
	f := c.floor.Load()
	p.giveProbeBack(now)
	p.leaveLane()
	p.pool, p.floor, p.Decision.Reason = nil, f, Admitted
	p.Request = f.renew(p.Request)
	p.Decision.Policy = p.Request.Policy.ID()
	if c.draining.Load() {
		p.refuse(now, Draining, 0, "")
		return false
	}
	m, tier, ok := p.find(now, f)
	if !ok || !c.choose(now, p, m) {
		return false
	}
	p.prepare(tier)
	return true
}

// resume places one that was taken out of its line.
func (c *Core) resume(now time.Time, p *Plan, was queue.Recalled) Outcome {
	if !c.reconsider(now, p) {
		return Refused
	}
	if c.echo == nil && p.Request.Policy.ModeOf(p.Class) != policy.Enforce {
		p.sit(now, p.pool, p.waiter.Tier)
		c.admit(now, p, AdmittedPass, was.Waited)
		return Entered
	}
	b := c.bounds(now, p)
	p.holdWithin(&b)
	outcome, reason, hint := c.reoffer(now, p, b, was)
	switch outcome {
	case Refused:
		return c.turnAway(now, p, reason, hint, b.Length)
	case Entered:
		c.admit(now, p, p.entry(), was.Waited)
	case InTheLine:
		return c.attend(now, p)
	}
	return outcome
}

// reoffer brings the plan before its new line.
func (c *Core) reoffer(now time.Time, p *Plan, b queue.Bounds, was queue.Recalled) (Outcome, Reason, time.Duration) {
	l := p.pool
	p.where.Store(l)
	now = l.lock(now)
	defer l.unlock()
	offered := l.line.Resume(now, &p.waiter, b, was)
	switch {
	case offered.Refusal != queue.Taken:
		return Refused, l.turnedAway(now, p, offered.Refusal), offered.Hint
	case offered.Granted:
		l.take(now, p, &p.waiter)
		return Entered, p.entry(), 0
	}
	c.held.Add(max(p.waiter.Bytes, 0)) // it was held before: no reason to refuse it
	l.waiting.Add(1)
	p.step(RoomQueue, "moved", was.Waited.Seconds(), p.waiter.MaxWait.Seconds(), true)
	return InTheLine, Queued, 0
}

// attend takes a plan that was moved out again where its caller left while it
// stood in no line.
func (c *Core) attend(now time.Time, p *Plan) Outcome {
	if !p.left.Load() {
		return InTheLine
	}
	waited, ok := c.takeOut(now, p.where.Load(), p)
	if !ok {
		return InTheLine // its caller took it out, or it has been decided
	}
	p.Decision.Waited = waited
	c.Abandon(now, p, ClientGone)
	return Refused
}

// unused is what stays charged of a plan that was refused: of one whose caller
// left, the request.
func (p *Plan) unused() quota.Amount {
	if p.Decision.Reason == ClientGone {
		return quota.Amount{Requests: 1}
	}
	return quota.Amount{}
}
