package admission

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
	"github.com/weirproxy/weir/quota"
)

// choose picks the pool (V1-V3). A request begins at the variant that it
// wants, else at the next higher one that the model has (V1), or at that of
// its session where that is lower; from there it goes down by cost (V3) or
// where the breaker says degrade (B1, V2), never up. Where its tenant's breaker
// says so it begins below. Of a variant's pools the
// cheapest that admits is taken, where cost does not count the least loaded.
// Where nothing at or below its session's variant admits, the session does
// not count. What all breakers refuse may pass by the priority lane (P8).
// False: refused.
func (c *Core) choose(now time.Time, p *Plan, m *modelPools) bool {
	if len(m.pools) == 0 {
		p.refuse(now, NoPool, 0, "")
		return false
	}
	p.want = p.wants().Rank()
	top, below := m.level(p.want)
	if p.below {
		if below == len(m.pools) {
			p.refuseTenant(now, m, c.tenantLeft(now, p))
			return false
		}
		top = below
	}
	from, kept := top, false
	p.session = c.sessions.key(p)
	if rank, ok := c.sessions.find(now, p.session); ok {
		from, kept = m.notAbove(rank, top), true
	}
	s := c.seek(now, p, m, from, kept)
	if s.pool == nil && from > top {
		from, kept = top, false
		s = c.seek(now, p, m, from, kept)
	}
	p.step(RoomBreaker, "state", float64(s.verdict.State), float64(breaker.Closed), s.pool != nil)
	if s.pool == nil && elsewhere(s.verdict) {
		p.seeElsewhere(now, s.asked)
	}
	if s.pool == nil && !m.byLane(p, from, &s) {
		p.pool = m.pools[from]
		p.refuse(now, openReason(s.verdict), s.verdict.RetryAfter, "")
		p.pool = nil
		return false
	}
	p.pool, p.probe, p.rank = s.pool, s.verdict.Probe, m.ranks[s.at]
	if p.lane == nil && p.rank < p.want {
		p.Decision.Reason = p.lowered(m, &s, top, kept)
	}
	return p.fits(now)
}

// byCost reports whether cost chooses the variant (V3): of what does not
// stream P7 says it.
func (p *Plan) byCost() bool {
	return p.Request.Policy.Variants.ByCost && p.Request.nonStreaming() == nil
}

// sought is what a search came to: a pool whose breaker admits, else the
// mildest verdict.
type sought struct {
	pool    *pool
	at      int // of the pool in the model's list
	verdict breaker.Verdict
	asked   *pool // whose verdict it is, where none admits
	fell    bool  // the variant where the search began does not admit
}

// lowered is why a request runs below the variant that it wants.
func (p *Plan) lowered(m *modelPools, s *sought, top int, kept bool) Reason {
	switch {
	case s.fell || p.below:
		return DegradedBreaker
	case m.ranks[s.at] == m.ranks[top]:
		return DegradedVariant
	case kept:
		return DegradedSession
	}
	return DegradedCost
}

// byLane takes the first pool of a variant whose lane lets the request past
// its breaker.
func (m *modelPools) byLane(p *Plan, from int, s *sought) bool {
	for at := from; at < sameRank(m.ranks, from); at++ {
		if m.pools[at].enterLane(p) {
			*s = sought{pool: m.pools[at], at: at}
			return true
		}
	}
	return false
}

// seek looks for a pool from a variant downwards. By cost it looks at all of
// them, unless the session keeps the first: then, and by class, the others
// count only where the first does not admit.
func (c *Core) seek(now time.Time, p *Plan, m *modelPools, from int, kept bool) sought {
	byCost := p.byCost()
	if byCost && !kept {
		return c.cheapest(now, p, m, from)
	}
	var room [8]offer
	to := sameRank(m.ranks, from)
	first := askAll(now, p.Class, c.offers(now, p, m, from, to, room[:0]))
	if first.pool != nil {
		return first
	}
	below := sought{}
	switch {
	case byCost && to < len(m.pools):
		below = c.cheapest(now, p, m, to)
	case first.verdict.Action == breaker.Degrade:
		for below.pool == nil && to < len(m.pools) {
			from, to = to, sameRank(m.ranks, to)
			below = askAll(now, p.Class, c.offers(now, p, m, from, to, room[:0]))
		}
	}
	if below.pool == nil {
		return first
	}
	below.fell = true
	return below
}

// askAll asks the breakers of pools, which it reorders, the best offer first.
func askAll(now time.Time, class policy.Class, offers []offer) (s sought) {
	s.verdict.Action = breaker.Shed
	for n := range offers {
		switch n {
		case 0: // in most cases the only one to be asked
			for i := range offers {
				if offers[i].compare(offers[0]) < 0 {
					offers[0], offers[i] = offers[i], offers[0]
				}
			}
		case 1:
			slices.SortFunc(offers[1:], offer.compare)
		}
		o := &offers[n]
		v := o.pool.allow(now, class)
		if v.Action == breaker.Admit {
			return sought{pool: o.pool, at: o.at, verdict: v}
		}
		if n == 0 || milder(v, s.verdict) {
			s.verdict, s.asked = v, o.pool
		}
	}
	return s
}

func milder(a, b breaker.Verdict) bool {
	if a.Action != b.Action {
		return a.Action < b.Action
	}
	return a.RetryAfter < b.RetryAfter
}

// entry is the reason of a request that gets the seat it came for.
func (p *Plan) entry() Reason { return p.Decision.Reason }

// admit makes the decision of a plan that has its seat. What is said of the
// variant is that of the pool as it is now.
func (c *Core) admit(now time.Time, p *Plan, r Reason, waited time.Duration) {
	d := &p.Decision
	d.Action, d.Reason, d.Waited = r.Row().Action, r, waited
	if p.seat == nil {
		return
	}
	spec := p.seat.spec.Load()
	d.Pool, d.Cluster, d.Variant = spec.Name, cmp.Or(spec.Cluster, spec.Name), spec.Variant
	d.Degraded = spec.Variant.Rank() < p.want
	c.sessions.keep(now, p.session, spec.Variant.Rank(), p.Request.Policy.Variants.SessionFor)
}

// seeQuota keeps the tightest rule for headers and trail (Q7).
func (p *Plan) seeQuota(v quota.Verdict) {
	if v.Rule == "" {
		return
	}
	used := v.Used
	if v.Allowed {
		used += p.claimed(v.Rule).Of(v.Limit.Unit)
	}
	p.quota = QuotaView{Rule: v.Rule, Limit: v.Limit, Remaining: max(v.Limit.Max-used, 0), Reset: v.Limit.Per}
	if !v.Allowed && v.RetryAfter > 0 {
		p.quota.Reset = v.RetryAfter
	}
	p.Decision.Quota = &p.quota
	p.step(RoomQuota, v.Rule, float64(used), float64(v.Limit.Max), v.Allowed)
}

// claimed is what the plan asks of a rule.
func (p *Plan) claimed(rule string) quota.Amount {
	for i := range p.Claims {
		if p.Claims[i].Rule == rule {
			return p.Claims[i].Amount
		}
	}
	return p.Amount
}

func quotaReason(v quota.Verdict) Reason {
	switch {
	case v.Never:
		return QuotaNever
	case v.Limit.Unit == policy.Requests:
		return QuotaRequests
	case v.Limit.Unit == policy.Concurrency:
		return QuotaConcurrency
	}
	return QuotaTokens
}

func quotaDetail(v quota.Verdict) string {
	s := v.Rule + ": " + unitName(v.Limit.Unit) + ", used " + strconv.FormatInt(v.Used, 10) + " of " + strconv.FormatInt(v.Limit.Max, 10)
	if v.Limit.Per > 0 {
		s += " per " + v.Limit.Per.String()
	}
	return s
}

func unitName(u policy.Unit) string {
	switch u {
	case policy.Requests:
		return "requests"
	case policy.Tokens:
		return "tokens"
	case policy.InputTokens:
		return "input tokens"
	case policy.OutputTokens:
		return "output tokens"
	case policy.Concurrency:
		return "requests at a time"
	}
	return "unknown unit"
}

// refusalReason names a line's refusal in the table.
func refusalReason(r queue.Refusal) Reason {
	switch r {
	case queue.SoftFull:
		return QueueSoft
	case queue.Full:
		return QueueFull
	case queue.ClassFull:
		return ClassFull
	case queue.TenantFull:
		return TenantQueueFull
	case queue.CannotMeet:
		return Deadline
	case queue.TooLarge:
		return TooLarge
	case queue.Draining:
		return Draining
	}
	return Internal
}

// quote makes a caller's name safe and short for a message.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	return strconv.QuoteToASCII(s)
}
