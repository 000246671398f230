package redisstore

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

const (
	knownShards = 16
	knownMax    = 100_000 // claims remembered, over all shards
)

// known remembers what each claim's counters counted when Redis last said so.
// It is bounded: when full, any entry makes room; a claim without one starts
// its share from nothing.
type known struct {
	seed   maphash.Seed
	shards [knownShards]knownShard
}

type knownShard struct {
	mu      sync.Mutex
	entries map[knownKey]*knownUse
}

type knownKey struct{ tenant, key string }

type knownUse struct {
	at     time.Time
	limits []policy.Limit // the claim's then
	used   []int64        // by limits; concurrency 0
	new    bool           // not yet handed to the local store
}

func newKnown() *known {
	k := &known{seed: maphash.MakeSeed()}
	for i := range k.shards {
		k.shards[i].entries = make(map[knownKey]*knownUse)
	}
	return k
}

func (k *known) shard(tenant string) *knownShard {
	return &k.shards[maphash.String(k.seed, tenant)%knownShards]
}

// note remembers what Redis answered for a group, by the caller's clock or,
// for zero, ours: the local store will compare it with the same.
func (k *known) note(g *group, now time.Time, r reply) {
	if now.IsZero() {
		now = time.Now()
	}
	for i := 0; i < len(g.limits); {
		c := g.limits[i].claim
		sh := k.shard(c.Tenant)
		sh.mu.Lock()
		e := sh.entry(knownKey{c.Tenant, c.Key})
		e.at, e.new = now, true
		e.limits, e.used = c.Limits, e.used[:0]
		for ; i < len(g.limits) && g.limits[i].claim == c; i++ {
			n := int64(0)
			if at := g.limits[i].counter; g.counters[at].period > 0 {
				n = r.used[at]
				if r.state == taken {
					n = quota.Count(n + g.counters[at].amount)
				}
			}
			e.used = append(e.used, n)
		}
		sh.mu.Unlock()
	}
}

func (sh *knownShard) entry(key knownKey) *knownUse {
	e := sh.entries[key]
	if e == nil {
		if len(sh.entries) >= knownMax/knownShards {
			for other := range sh.entries {
				delete(sh.entries, other)
				break
			}
		}
		e = &knownUse{}
		sh.entries[key] = e
	}
	return e
}

// take hands out what is known of a claim's limits, once for each note; nil if
// nothing new is. Of a limit whose period is new, that of the longest period
// within it counts which it takes over from.
func (k *known) take(c *quota.Claim, moves quota.Moves) (at time.Time, used []int64) {
	sh := k.shard(c.Tenant)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[knownKey{c.Tenant, c.Key}]
	if e == nil || !e.new {
		return time.Time{}, nil
	}
	e.new = false
	used = make([]int64, len(c.Limits))
	for i, l := range c.Limits {
		used[i] = e.of(l, moves.From(c, l))
	}
	return e.at, used
}

// of is the use of a limit.
func (e *knownUse) of(l policy.Limit, from []int64) (used int64) {
	own, longest := quota.Period(l.Per), int64(0)
	for i, o := range e.limits {
		period := quota.Period(o.Per)
		switch {
		case o.Unit != l.Unit:
		case o.Per == l.Per:
			return e.used[i]
		case period < own && period > longest && slices.Contains(from, period):
			used, longest = e.used[i], period
		}
	}
	return used
}
