// Package memstore keeps quota counters in the memory of one process. It is
// the default store of a single replica, and what a Redis store decides by
// while Redis is away.
//
// Tenants are spread over 64 locks by a keyed hash of the name; requests of
// different tenants do not meet, unless a rule counts them together (slot
// quota.Shared). A request that has claims in several slots holds all their
// locks, taken in a fixed order, so all or none is exact.
//
// Memory is bounded by Options.MaxTenants slots and 16 times as many
// counters. When it is full, slots that count nothing any more make room;
// when there is none, a newcomer gets quota.ErrFull: a tenant that is counted
// is never forgotten to let another one in.
package memstore

import (
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/quota"
)

const (
	shardCount        = 64 // one bit each in a lockSet
	countersPerTenant = 16
)

// Options are the bounds of a Store. The zero value has the defaults.
type Options struct {
	MaxTenants int           // slots kept; default 100000
	Hold       time.Duration // after this an unsettled reservation ends; default quota.DefaultHold
}

// Store is a quota.Store in memory. Use New.
type Store struct {
	maxSlots    int64
	maxCounters int64
	hold        int64 // ticks
	origin      time.Time
	seed        maphash.Seed
	slots       atomic.Int64
	counters    atomic.Int64
	moves       atomic.Pointer[quota.Moves] // nil = none
	shards      [shardCount]shard
}

// shard is a part of the tenants under one lock.
type shard struct {
	mu    sync.Mutex
	slots map[string]*slot
	byUse list[slot, *slot] // oldest use first
	_     [64]byte          // keeps neighbours' locks out of one cache line
}

// New makes an empty store.
func New(o Options) *Store {
	if o.MaxTenants <= 0 {
		o.MaxTenants = 100_000
	}
	if o.Hold <= 0 {
		o.Hold = quota.DefaultHold
	}
	s := &Store{
		maxSlots:    int64(o.MaxTenants),
		maxCounters: int64(o.MaxTenants) * countersPerTenant,
		hold:        quota.Period(o.Hold),
		origin:      time.Now(),
		seed:        maphash.MakeSeed(),
	}
	for i := range s.shards {
		s.shards[i].slots = make(map[string]*slot)
	}
	return s
}

// Close does nothing: a Store has no background work.
func (s *Store) Close() error { return nil }

// instant puts the caller's clock on the store's time line. A reading of the
// process' monotonic clock stays on it when the wall clock is set.
func (s *Store) instant(now time.Time) time.Time {
	if now.IsZero() {
		now = time.Now()
	}
	return s.origin.Add(now.Sub(s.origin))
}

// lockSet is a set of shards, one bit each.
type lockSet uint64

func (s *Store) shardOf(tenant string) int {
	return int(maphash.String(s.seed, tenant) % shardCount)
}

func (s *Store) lock(claims []quota.Claim) lockSet {
	var set lockSet
	for i := range claims {
		if i == 0 || claims[i].Tenant != claims[i-1].Tenant {
			set |= 1 << s.shardOf(claims[i].Tenant)
		}
	}
	for rest := set; rest != 0; rest &= rest - 1 {
		s.shards[bits.TrailingZeros64(uint64(rest))].mu.Lock()
	}
	return set
}

func (s *Store) unlock(set lockSet) {
	for ; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(uint64(set))].mu.Unlock()
	}
}

// pick is one limit of one claim, with the counter that it bounds.
type pick struct {
	slot    *slot
	counter *counter
	claim   *quota.Claim
	limit   int // index into claim.Limits
	amount  int64
}

// Reserve implements quota.Store. The context is not looked at: nothing here
// waits for anything but a lock.
func (s *Store) Reserve(_ context.Context, now time.Time, id string, claims []quota.Claim) (quota.Verdict, error) {
	at := s.instant(now)
	tick := quota.Ticks(at)
	set := s.lock(claims)
	defer s.unlock(set)

	var buf [12]pick
	picks, err := s.find(buf[:0], set, tick, claims)
	if err != nil {
		return quota.Verdict{}, err
	}
	for i := range picks {
		if r := picks[i].slot.held[id]; r != nil {
			return r.verdict, nil
		}
	}
	verdict := judge(picks, at, tick)
	if verdict.Allowed {
		s.take(picks, tick, id, verdict)
	}
	return verdict, nil
}

// find looks up the counter of every limit, making those that are missing.
func (s *Store) find(picks []pick, set lockSet, tick int64, claims []quota.Claim) ([]pick, error) {
	var sl *slot
	tenant := ""
	for i := range claims {
		c := &claims[i]
		if len(c.Limits) == 0 {
			continue
		}
		if sl == nil || c.Tenant != tenant {
			tenant = c.Tenant
			if sl = s.slot(set, tick, c.Tenant); sl == nil {
				return nil, quota.ErrFull
			}
		}
		f, taken := sl.family(c, tick), false
		for j := range c.Limits {
			cn := f.counter(c.Limits[j])
			if cn == nil {
				if cn = s.newCounter(sl, f, c.Limits[j], tick); cn == nil {
					return nil, quota.ErrFull
				}
				taken = s.takeOver(f, cn, c, tick) || taken
			}
			picks = append(picks, pick{sl, cn, c, j, c.Amount.Of(c.Limits[j].Unit)})
		}
		if taken {
			s.retire(f, c)
		}
	}
	return picks, nil
}

func judge(picks []pick, at time.Time, tick int64) quota.Verdict {
	var t quota.Tally
	for i := range picks {
		p := &picks[i]
		limit := p.claim.Limits[p.limit]
		used := p.counter.used(tick)
		if !quota.Refuses(limit, p.amount, used) {
			t.Fit(p.claim.Rule, limit, p.amount, used)
			continue
		}
		t.Refuse(p.claim.Rule, limit, p.amount, used, p.counter.wait(at, tick, quota.Count(limit.Max)-p.amount))
	}
	return t.Verdict()
}

// take charges every counter once, also when two limits share it.
func (s *Store) take(picks []pick, tick int64, id string, v quota.Verdict) {
	for i := range picks {
		p := &picks[i]
		r := p.slot.held[id]
		if r == nil {
			r = p.slot.reserve(id, tick+s.hold, v)
		}
		if !slices.ContainsFunc(r.holds, func(h hold) bool { return h.counter == p.counter }) {
			r.holds = append(r.holds, p.counter.take(tick, p.amount))
		}
	}
}

// Settle implements quota.Store.
func (s *Store) Settle(_ context.Context, now time.Time, id string, claims []quota.Claim, final quota.Amount) error {
	tick := quota.Ticks(s.instant(now))
	set := s.lock(claims)
	defer s.unlock(set)
	for i := range claims {
		if i > 0 && claims[i].Tenant == claims[i-1].Tenant {
			continue
		}
		if sl := s.shards[s.shardOf(claims[i].Tenant)].slots[nameOf(claims[i].Tenant)]; sl != nil {
			sl.expire(tick)
			sl.settle(id, tick, final)
		}
	}
	return nil
}

// Usage implements quota.Store.
func (s *Store) Usage(_ context.Context, now time.Time, tenant string) ([]quota.Counter, error) {
	tick := quota.Ticks(s.instant(now))
	sh := &s.shards[s.shardOf(tenant)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sl := sh.slots[nameOf(tenant)]
	if sl == nil {
		return nil, nil
	}
	sl.expire(tick)
	var out []quota.Counter
	for _, f := range sl.families {
		for _, c := range f.counters {
			if used := c.used(tick); used > 0 {
				out = append(out, quota.Counter{Rule: f.rule, Key: f.key, Limit: c.limit, Used: used})
			}
		}
	}
	slices.SortFunc(out, quota.Counter.Compare)
	return out, nil
}

// Raise makes a claim's windows count at least what they count elsewhere:
// used[i] for its limit i, in the cell of now. Concurrency, and limits beyond
// len(used), are left as they are; so is everything when there is no room.
func (s *Store) Raise(now time.Time, claim quota.Claim, used []int64) {
	tick := quota.Ticks(s.instant(now))
	claims := [1]quota.Claim{claim}
	set := s.lock(claims[:])
	defer s.unlock(set)
	var buf [4]pick
	picks, err := s.find(buf[:0], set, tick, claims[:])
	if err != nil {
		return
	}
	for i, p := range picks[:min(len(picks), len(used))] {
		if more := quota.Count(used[i]) - p.counter.used(tick); more > 0 && p.counter.period > 0 {
			p.counter.window.Add(p.counter.period, tick, more)
		}
	}
}
