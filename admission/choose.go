package admission

import (
	"fmt"
	"strconv"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
	"github.com/weirproxy/weir/quota"
)

// choose picks the pool: of the model's pools at the class's variant (V1) the
// least loaded one whose breaker admits; where a breaker says degrade (B1,
// soft level), the best pool below whose breaker admits (V2). False: refused.
func (c *Core) choose(now time.Time, p *Plan, m *modelPools) bool {
	if len(m.pools) == 0 {
		p.refuse(NoPool, 0, "")
		return false
	}
	want := p.Request.Policy.Classes[p.Class].Variant.Rank()
	from, to := m.level(want)
	l, v := pick(now, p.Class, m.pools[from:to])
	degraded := false
	if l == nil && v.Action == breaker.Degrade {
		var below breaker.Verdict
		for l == nil && to < len(m.pools) {
			from, to = to, sameRank(m.ranks, to)
			l, below = pick(now, p.Class, m.pools[from:to])
		}
		if degraded = l != nil; degraded {
			v = below
		}
	}
	p.step(RoomBreaker, "state", float64(v.State), float64(breaker.Closed), l != nil)
	if l == nil {
		p.pool = m.pools[from]
		p.refuse(openReason(v), v.RetryAfter, "")
		p.pool = nil
		return false
	}
	p.pool, p.probe = l, v.Probe
	if degraded {
		p.Decision.Degraded = true
		p.Decision.Reason = DegradedBreaker
	} else if m.ranks[from] < want {
		p.Decision.Degraded = true
		p.Decision.Reason = DegradedVariant
	}
	p.down = m.pools[to:]
	return p.fits(now)
}

// pick asks the pools' breakers by load; the verdict is that of the pool
// picked, else the mildest one.
func pick(now time.Time, class policy.Class, pools []*pool) (*pool, breaker.Verdict) {
	var tried uint64
	best := breaker.Verdict{Action: breaker.Shed}
	for n := 0; n < min(len(pools), 64); n++ {
		at := -1
		for i, l := range pools {
			if tried&(1<<i) == 0 && (at < 0 || l.load() < pools[at].load()) {
				at = i
			}
		}
		tried |= 1 << at
		v := pools[at].breaker.Allow(now, class)
		if v.Action == breaker.Admit {
			return pools[at], v
		}
		if n == 0 || milder(v, best) {
			best = v
		}
	}
	return nil, best
}

func milder(a, b breaker.Verdict) bool {
	if a.Action != b.Action {
		return a.Action < b.Action
	}
	return a.RetryAfter < b.RetryAfter
}

// openReason tells the two levels apart (B1).
func openReason(v breaker.Verdict) Reason {
	if v.State == breaker.Soft {
		return BreakerShed
	}
	return BreakerOpen
}

// fits refuses what no seat of the pool could ever hold (Q9).
func (p *Plan) fits(now time.Time) bool {
	limit := p.pool.spec.Load().Seats.Tokens
	if need := p.Input + p.Output; limit > 0 && need > limit {
		p.giveProbeBack(now)
		p.refuse(TooLarge, 0, fmt.Sprintf("needs about %d tokens, the model has room for %d", need, limit))
		return false
	}
	return true
}

// entry is the reason of a request that gets the seat it came for.
func (p *Plan) entry() Reason { return p.Decision.Reason }

// admit makes the decision of a plan that has its seat.
func (p *Plan) admit(r Reason, waited time.Duration) {
	d := &p.Decision
	d.Action, d.Reason, d.Waited = r.Row().Action, r, waited
	if p.seat == nil {
		return
	}
	spec := p.seat.spec.Load()
	d.Pool, d.Cluster, d.Variant = spec.Name, spec.Cluster, spec.Variant
	if d.Cluster == "" {
		d.Cluster = spec.Name
	}
}

// seeQuota keeps the tightest rule for headers and trail (Q7).
func (p *Plan) seeQuota(v quota.Verdict) {
	if v.Rule == "" {
		return
	}
	used := v.Used
	if v.Allowed {
		used += p.Amount.Of(v.Limit.Unit)
	}
	p.quota = QuotaView{Rule: v.Rule, Limit: v.Limit, Remaining: max(v.Limit.Max-used, 0), Reset: v.Limit.Per}
	if !v.Allowed && v.RetryAfter > 0 {
		p.quota.Reset = v.RetryAfter
	}
	p.Decision.Quota = &p.quota
	p.step(RoomQuota, v.Rule, float64(used), float64(v.Limit.Max), v.Allowed)
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

// refusalReason names a line's refusal in the table. A line that was removed
// by a new policy drains like one that shuts down.
func refusalReason(r queue.Refusal, gone bool) Reason {
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
		if gone {
			return NoPool
		}
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
