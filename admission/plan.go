package admission

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
	"github.com/weirproxy/weir/quota"
)

// Outcome is what became of a request at the desk.
type Outcome uint8

// The outcomes.
const (
	Refused   Outcome = iota
	Entered           // has a seat
	InTheLine         // waits; a later call decides
)

// Plan is one request on its way through a core: what was found out so far,
// the claims to make and, in the end, the decision. A plan belongs to its
// caller, except while it waits in a line; then the core's methods hand it
// back when it is decided. Its address must not change after Enter.
type Plan struct {
	Request  *Request
	Decision Decision // stands once the plan is refused, has a seat, or was handed back
	Class    policy.Class
	Claims   []quota.Claim
	Amount   quota.Amount // what the claims ask for
	Input    int64        // predicted tokens
	Output   int64        // predicted tokens
	Owner    any          // the shell's; not looked at

	refused bool
	floor   *floor               // by which its pool was chosen
	longest time.Duration        // that its caller was told it may be held
	where   atomic.Pointer[pool] // in whose line it waits, or did last; set before the line may have it, nil while it is moved
	left    atomic.Bool          // its caller is gone
	want    int                  // rank of the variant that it wants
	rank    int                  // of the variant that was chosen: it never runs above
	session uint64               // 0 = none
	pool    *pool                // chosen: where it waits
	seat    *pool                // where it runs
	held    *queue.Waiter
	waiter  queue.Waiter
	probe   bool             // its breaker waits for this end (B2)
	lane    *pool            // whose breaker it passed by the priority lane (P8)
	trial   *breaker.Tenants // its tenant's breaker waits for this end (B5); nil = it does not
	below   bool             // its tenant's breaker is open at the soft level: a lower precision
	struck  atomic.Bool      // its failure is counted for its tenant at the pool (B9)
	model   string           // the policy's name of it
	lapse   lapse
	since   time.Time
	listed  *chain // the list of seat that it stands in
	over    bool   // runs without a seat (mode pass and shadow)
	silent  bool   // streams, has a seat, and its answer has not begun
	begins  begin  // when its answer is to begin
	inside  bool   // its claims are counted by presence
	quota   QuotaView

	prev, next *Plan // of a chain
}

// Refused reports whether the decision stands against the request: nothing
// is to be reserved, and what was reserved goes back.
func (p *Plan) Refused() bool { return p.refused }

// refuse makes the decision; hint is the adviser's word.
func (p *Plan) refuse(now time.Time, r Reason, hint time.Duration, detail string) Outcome {
	row := r.Row()
	d := &p.Decision
	d.Action, d.Reason, d.Detail = row.Action, r, detail
	d.RetryAfter = p.advice(row.Advice, hint)
	p.pushBack(now, row.Advice)
	p.refused = true
	p.leaveLane()
	p.giveTrialBack(now)
	return Refused
}

// advice is the hint that goes out, bounded by the policy except for the true
// waits of a quota and of a tenant's breaker. A line's is an instant of this caller alone and stands as it is;
// a breaker's is spread (Q5, Q7).
func (p *Plan) advice(by Advice, hint time.Duration) time.Duration {
	switch {
	case by == AdviceNone:
		return 0
	case by == AdviceFixed || hint <= 0:
		return fixedAdvice
	case by == AdviceQuota || by == AdviceTenant:
		return hint
	case by == AdviceBreaker:
		hint = p.spread(hint)
	}
	if most := p.Request.Policy.RetryAfter.Max; most > 0 {
		hint = min(hint, most)
	}
	return hint
}

// spread jitters upwards a hint that many callers get at once.
func (p *Plan) spread(hint time.Duration) time.Duration {
	if p.pool == nil {
		return hint
	}
	return p.pool.spread(p.Request.Policy, hint)
}

func (l *pool) spread(e *policy.Effective, hint time.Duration) time.Duration {
	jitter := float64(e.RetryAfter.Jitter)
	if jitter <= 0 {
		return hint
	}
	return hint + time.Duration(l.dice()*jitter*float64(hint))
}

// seeRights leaves in the trail that the request claimed a booking, with the
// seconds since it was first refused, of the longest hint and grace there are
// (Q5), and, where it has no seat yet, the seats that its tier holds, of those
// that it is guaranteed: below that, the next freed ones are the tier's (P9).
// The pool's lock is held.
func (p *Plan) seeRights(seated bool) {
	r, b := p.pool.line.Rights(&p.waiter), &p.Request.Policy.RetryAfter
	if r.Credit > 0 {
		p.step(RoomQueue, "booking", r.Credit.Seconds(), (b.Max + b.Grace).Seconds(), true)
	}
	if r.Tiers && !seated {
		p.step(RoomQueue, "tier_share", float64(r.Tier.Used.Requests), float64(r.Tier.Seats.Requests), r.Tier.Used.Requests < r.Tier.Seats.Requests)
	}
}

// step records what a room saw.
func (p *Plan) step(room Room, what string, observed, limit float64, ok bool) {
	t := &p.Decision.Trail
	i := int(t.N)
	if i == len(t.Steps) {
		i--
	} else {
		t.N++
	}
	t.Steps[i] = Step{Room: room, What: what, Observed: observed, Limit: limit, OK: ok}
}
