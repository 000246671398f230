package admission

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// Choice by cost (V3). Going to a pool costs
//
//	base * (1 + min(1, max(0, (latency - SLA) / SLA)))
//
// where latency is the pool's recent time to first token and, where no seat is
// free, the wait that its line predicts; one of which nothing is known costs
// its base. A pool whose breaker does not admit or whose line is full is not
// to be had. Ties go to the less loaded pool, then to the higher precision.
//
// The variant that cost chose for a class stands: for Variants.Flip at least,
// and then until another is cheaper; one that is as cheap is no reason to
// change. What cannot be had is given up at once, and what takes its place
// stands as long. So while the variants can be had, two changes are at least
// Flip apart, however their costs cross. Inside the variant each request goes
// to the cheapest pool. A request that finds no free seat there takes one of
// the cheapest other pool that has one, for itself: otherwise a class would be
// refused by one pool while the seats of the others stand idle until Flip is
// over. That changes nothing for those behind it.

// offer is a pool as it is weighed.
type offer struct {
	pool *pool
	at   int     // in the model's list
	cost float64 // infinite: not to be had; 0 where cost does not count
	load float64
}

func (o offer) compare(other offer) int {
	return cmp.Or(cmp.Compare(o.cost, other.cost), cmp.Compare(o.load, other.load), cmp.Compare(o.at, other.at))
}

func (o offer) had() bool { return !math.IsInf(o.cost, 1) }

// free reports whether the pool can be had without a wait.
func (o offer) free() bool { return o.had() && o.load < 1 }

// offers weighs the pools from..to of a model.
func (c *Core) offers(now time.Time, p *Plan, m *modelPools, from, to int, out []offer) []offer {
	for at := from; at < to; at++ {
		l := m.pools[at]
		o := offer{pool: l, at: at, load: l.load()}
		if p.byCost() {
			o.cost = c.price(now, p, l)
		}
		out = append(out, o)
	}
	return out
}

// price is what going to a pool costs now.
func (c *Core) price(now time.Time, p *Plan, l *pool) float64 {
	if l.peek(now, p.Class).Action != breaker.Admit {
		return math.Inf(1)
	}
	latency := l.speeds.recent(now)
	if l.load() >= 1 || l.waiting.Load() > 0 {
		if l.waiting.Load() >= int64(c.length(now, l, &p.Request.Policy.Queue)) {
			return math.Inf(1)
		}
		latency += l.predict(now, p)
	}
	return costOf(&l.spec.Load().Cost, latency)
}

// predict is the wait that the line predicts for a plan that is not in a line
// yet.
func (l *pool) predict(now time.Time, p *Plan) time.Duration {
	w, r := &p.waiter, p.Request
	w.Class, w.Colour, w.Tenant = p.Class, r.Colour, r.Identity.Tenant
	w.Stream, w.Priority = r.Stream, r.Priority
	now = l.lock(now)
	defer l.unlock()
	return l.line.Predict(now, w)
}

func costOf(c *policy.Cost, latency time.Duration) float64 {
	over := 0.0
	if latency > c.SLA {
		over = min(1, float64(latency-c.SLA)/float64(max(c.SLA, 1)))
	}
	return c.Base * (1 + over)
}

// cheapest looks for a pool of the variant that stands, then among all others
// from a variant downwards.
func (c *Core) cheapest(now time.Time, p *Plan, m *modelPools, from int) sought {
	var room [8]offer
	offers := c.offers(now, p, m, from, len(m.pools), room[:0])
	at := m.stands(now, p, offers)
	end := sameRank(m.ranks, at)
	var mine, spare [8]offer
	standing := append(mine[:0], offers[at-from:end-from]...)
	others := append(offers[:at-from], offers[end-from:]...)
	s := sought{verdict: breaker.Verdict{Action: breaker.Shed}}
	if !slices.ContainsFunc(standing, offer.free) {
		s = askAll(now, p.Class, slices.DeleteFunc(append(spare[:0], others...), func(o offer) bool { return !o.free() }))
	}
	if s.pool == nil {
		s = askAll(now, p.Class, standing)
	}
	if s.pool == nil && len(others) > 0 {
		rest := askAll(now, p.Class, others)
		if rest.pool != nil || milder(rest.verdict, s.verdict) {
			s = rest
		}
	}
	s.fell = s.pool != nil && m.ranks[s.at] < m.ranks[from] && !admits(now, p.Class, m.pools[from:sameRank(m.ranks, from)])
	return s
}

// admits reports whether the breaker of one of the pools would admit.
func admits(now time.Time, class policy.Class, pools []*pool) bool {
	for _, l := range pools {
		if l.peek(now, class).Action == breaker.Admit {
			return true
		}
	}
	return false
}

// choice is a variant that stands for a class since an instant.
type choice struct {
	rank  int
	since time.Time
}

// stands gives the variant that the class goes to now, as the place where its
// pools begin. A request that may not go to all that its class may (its
// session is lower) changes nothing.
func (m *modelPools) stands(now time.Time, p *Plan, offers []offer) int {
	best := offers[0]
	for _, o := range offers[1:] {
		if o.compare(best) < 0 {
			best = o
		}
	}
	top, _ := m.level(p.want)
	slot := &m.chosen[p.Class]
	was := slot.Load()
	if was != nil {
		if kept, ok := cheapestOf(m, was.rank, offers); ok && kept.had() &&
			(best.cost >= kept.cost || now.Sub(was.since) < p.Request.Policy.Variants.Flip) {
			return m.begin(kept.at)
		}
	}
	if offers[0].at == top && best.had() && (was == nil || was.rank != m.ranks[best.at]) {
		slot.CompareAndSwap(was, &choice{m.ranks[best.at], now})
	}
	return m.begin(best.at)
}

func cheapestOf(m *modelPools, rank int, offers []offer) (best offer, ok bool) {
	for _, o := range offers {
		if m.ranks[o.at] == rank && (!ok || o.compare(best) < 0) {
			best, ok = o, true
		}
	}
	return best, ok
}

// begin is where the pools of the same variant as pool at begin.
func (m *modelPools) begin(at int) int {
	for at > 0 && m.ranks[at-1] == m.ranks[at] {
		at--
	}
	return at
}

// chosen keeps the choices by cost of each profile and model over changes of
// the policy. Safe for concurrent use; it is asked once for each model of a
// policy.
type chosen struct {
	mu     sync.Mutex
	models map[chosenKey]*[policy.NumClasses]atomic.Pointer[choice]
}

type chosenKey struct{ profile, model string }

// of gives a model's choices; beyond maxModels they are not kept.
func (c *chosen) of(profile, model string) *[policy.NumClasses]atomic.Pointer[choice] {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := chosenKey{profile, model}
	if m := c.models[key]; m != nil {
		return m
	}
	m := &[policy.NumClasses]atomic.Pointer[choice]{}
	if c.models == nil {
		c.models = make(map[chosenKey]*[policy.NumClasses]atomic.Pointer[choice])
	}
	if len(c.models) < maxModels {
		c.models[key] = m
	}
	return m
}
