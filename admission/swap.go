package admission

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// Swap takes a new policy. Pools that stay are resized with everybody in
// them. Who runs in a pool that is gone runs on, and still has a seat there when
// the pool comes back. Who waits is held by the new policy's waits, where it is
// or, where it has no place there any more, in another pool. It hands back the
// plans that are decided by it.
func (c *Core) Swap(now time.Time, p *policy.Policy) []*Plan {
	decided, _ := c.swap(now, p)
	return decided
}

func (c *Core) swap(now time.Time, p *policy.Policy) ([]*Plan, Reload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.floor.Load()
	next := &floor{policy: p, pools: make(map[string]*pool, len(p.Pools)), chosen: &c.chosen}
	next.models.Store(&map[modelKey]*modelPools{})
	if old != nil {
		next.number = old.number + 1
	}
	for i := range p.Pools {
		spec := &p.Pools[i]
		var l *pool
		if old != nil {
			l = cmp.Or(old.pools[spec.Name], c.returning(now, spec.Name))
		}
		if l == nil {
			l = c.newPool(now, p, spec)
		} else {
			l.spec.Store(spec)
		}
		next.pools[spec.Name] = l
		next.order = append(next.order, l)
	}
	c.configureFuses(now, p)
	c.floor.Store(next)
	decided, moves, done := c.rehouse(now, old, next)
	decided = append(decided, c.settle(now, moves, &done)...)
	maps.DeleteFunc(c.leaving, func(_ string, l *pool) bool { return l.deserted() })
	return decided, done
}

// returning opens a pool again that an earlier policy had and in which
// requests run on: their seats count. nil = there is none.
func (c *Core) returning(now time.Time, name string) *pool {
	l := c.leaving[name]
	if l == nil || c.echo != nil && c.echo.Breaker(name) != l.breaker {
		return nil
	}
	delete(c.leaving, name)
	if !l.reopen(now) {
		return nil
	}
	return l
}

func (c *Core) newPool(now time.Time, p *policy.Policy, spec *policy.Pool) *pool {
	l := &pool{name: spec.Name, base: now, last: now, echo: c.echo != nil}
	l.rng = rand.New(rand.NewPCG(c.rng.Uint64(), c.rng.Uint64()))
	l.spec.Store(spec)
	config := l.tuned.configure(p, spec, lineConfig(p, spec))
	l.line = queue.New(config, rand.New(rand.NewPCG(c.rng.Uint64(), c.rng.Uint64())))
	l.shape(&config)
	if c.echo != nil {
		if real := c.echo.floor.Load().pools[spec.Name]; real != nil {
			l.breaker, l.speeds, l.ballot, l.retries = real.breaker, real.speeds, real.ballot, real.retries
		}
	}
	if l.breaker == nil {
		l.speeds, l.retries = newSpeeds(), newRetries(now)
		kind := breaker.KindOf(spec.Protocol)
		l.breaker = breaker.New(spec.Name, kind, p.BreakerOf(spec.Protocol), c.journal,
			rand.New(rand.NewPCG(c.rng.Uint64(), c.rng.Uint64())))
		if c.council != nil {
			l.ballot = c.council.Ballot(now, spec.Name, kind)
		}
	}
	l.next.Store(int64(never))
	return l
}

// configureFuses hands a policy to what the pools do not have of their own. The
// tenants' dice are seeded when a policy first has them, so that all else
// draws the same with and without. The caller holds the lock.
func (c *Core) configureFuses(now time.Time, p *policy.Policy) {
	if c.echo != nil {
		return
	}
	if c.unseeded != nil && p.Breaker.Tenant.On {
		c.unseeded.Seed(c.rng.Uint64(), c.rng.Uint64())
		c.unseeded = nil
	}
	c.tenants.Configure(now, p.Breaker)
	if c.council != nil {
		c.council.Configure(now, p.Breaker)
	}
}

// shape publishes what others read of the line's shape without its lock. Past
// an open breaker the lane has a seat also where there is only one (P8).
func (l *pool) shape(config *queue.Config) {
	l.seats.Store(&config.Seats)
	lane := l.line.Lane()
	if config.Shares.Priority > 0 {
		lane = max(lane, 1)
	}
	l.lane.Store(lane)
}

// lineConfig is a pool's line; its seats are this replica's share, rounded
// down, at least one; who fits the pool but not that share takes all of it. Its
// groups are the tiers in their order (P9); there are
// none where no tier has a share.
func lineConfig(p *policy.Policy, spec *policy.Pool) queue.Config {
	n := int64(max(p.Server.Replicas, 1))
	c := queue.Config{Price: p.Queue.Price}
	c.Seats.Requests = max(spec.Seats.Requests/n, 1)
	if c.Largest = spec.Seats.Tokens; c.Largest > 0 {
		c.Seats.Tokens = max(spec.Seats.Tokens/n, 1)
	}
	c.Shares = queue.Shares{Headroom: p.Queue.Headroom, Priority: p.Shares.Priority, Streaming: p.Shares.Streaming}
	if slices.ContainsFunc(p.Tiers, func(t policy.Tier) bool { return t.Share > 0 }) {
		for i := range p.Tiers {
			t := &p.Tiers[i]
			c.Shares.Groups = append(c.Shares.Groups, queue.Group{Share: t.Share, Name: t.Name, Home: t.Name == policy.DefaultTier})
		}
	}
	c.Booking = queue.Booking{Share: p.RetryAfter.Share, Grace: p.RetryAfter.Grace, Max: p.RetryAfter.Max}
	for i := range p.Classes {
		c.Weights[i] = p.Classes[i].Weight
		c.MaxWaits[i] = p.Classes[i].MaxWait
	}
	return c
}

// Drain refuses newcomers from now on and hands back everybody who waits.
func (c *Core) Drain(now time.Time) []*Plan {
	c.draining.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	var decided []*Plan
	for _, l := range c.floor.Load().order {
		gone := c.empty(now, l)
		c.finish(now, gone)
		decided = append(decided, gone...)
	}
	return decided
}

func (c *Core) empty(now time.Time, l *pool) []*Plan {
	now = l.lock(now)
	defer l.unlock()
	return c.leave(now, l, l.line.Drain(now))
}
