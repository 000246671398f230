package redisstore

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

const (
	// fullFor is how long a counter that Redis said is full counts as full here
	// without being asked again: other replicas may give back meanwhile.
	fullFor    = 250 * time.Millisecond
	fullShards = 16
	fullMax    = 65_536 // limits remembered, over all shards
)

// full remembers which limits Redis said have no room at all, for a moment, so
// that what is sure to be refused costs no round trip. It is bounded: when
// full, any entry makes room.
type full struct {
	seed   maphash.Seed
	shards [fullShards]fullShard
}

type fullShard struct {
	mu      sync.Mutex
	entries map[fullKey]fullUse
}

type fullKey struct {
	tenant, key string
	unit        policy.Unit
	per         time.Duration
}

type fullUse struct {
	used  int64
	until time.Time // forgotten then
	free  time.Time // when Redis said that the least claim fits; zero = unknown
}

func newFull() *full {
	f := &full{seed: maphash.MakeSeed()}
	for i := range f.shards {
		f.shards[i].entries = make(map[fullKey]fullUse)
	}
	return f
}

func (f *full) shard(tenant string) *fullShard {
	return &f.shards[maphash.String(f.seed, tenant)%fullShards]
}

// note remembers a limit that has no room for the least claim. now is this
// process' clock, wait what Redis said of the least claim.
func (f *full) note(now time.Time, c *quota.Claim, l policy.Limit, used int64, wait time.Duration) {
	u := fullUse{used: used, until: now.Add(fullFor)}
	if wait > 0 {
		u.free = now.Add(wait)
		u.until = now.Add(min(wait, fullFor))
	}
	sh := f.shard(c.Tenant)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if len(sh.entries) >= fullMax/fullShards {
		for other := range sh.entries {
			delete(sh.entries, other)
			break
		}
	}
	sh.entries[fullKey{c.Tenant, c.Key, l.Unit, l.Per}] = u
}

// known is the verdict on claims of which one is for a limit that is full.
func (f *full) known(now time.Time, claims []quota.Claim) (quota.Verdict, bool) {
	var t quota.Tally
	for i := range claims {
		c := &claims[i]
		sh := f.shard(c.Tenant)
		sh.mu.Lock()
		for _, l := range c.Limits {
			amount := c.Amount.Of(l.Unit)
			u, ok := sh.entries[fullKey{c.Tenant, c.Key, l.Unit, l.Per}]
			if !ok || !now.Before(u.until) || !quota.Refuses(l, amount, u.used) {
				continue
			}
			var wait time.Duration
			if !u.free.IsZero() {
				wait = u.free.Sub(now)
			}
			t.Refuse(c.Rule, l, amount, u.used, wait)
		}
		sh.mu.Unlock()
	}
	v := t.Verdict()
	return v, !v.Allowed
}

// forget is for claims that this replica gives back.
func (f *full) forget(claims []quota.Claim) {
	for i := range claims {
		c := &claims[i]
		sh := f.shard(c.Tenant)
		sh.mu.Lock()
		if len(sh.entries) > 0 {
			for _, l := range c.Limits {
				delete(sh.entries, fullKey{c.Tenant, c.Key, l.Unit, l.Per})
			}
		}
		sh.mu.Unlock()
	}
}

// Known implements quota.Store: limits that Redis lately said are full, and
// while Redis is away this replica's share.
func (s *Store) Known(now time.Time, claims []quota.Claim) (quota.Verdict, bool) {
	if len(claims) == 0 {
		return quota.Verdict{}, false
	}
	if s.outage.Load() != nil {
		v, known := s.local.Known(now, s.share(claims))
		v.Local, v.Never = true, false
		return v, known
	}
	if now.IsZero() {
		now = time.Now()
	}
	return s.full.known(now, claims)
}
