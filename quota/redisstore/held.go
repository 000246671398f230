package redisstore

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

const heldShards = 16

// held is what this replica holds of concurrency and has to renew: a unit for
// each counter of each request that was granted and not settled. It is bounded
// by the requests that run, and a unit ends with the store's hold time.
type held struct {
	seed   maphash.Seed
	shards [heldShards]heldShard
}

type heldShard struct {
	mu    sync.Mutex
	units map[unitKey]unit
}

type unitKey struct{ counter, id string }

// unit is one unit's request.
type unit struct {
	claims []quota.Claim
	made   time.Time // our clock
}

func newHeld() *held {
	h := &held{seed: maphash.MakeSeed()}
	for i := range h.shards {
		h.shards[i].units = make(map[unitKey]unit)
	}
	return h
}

func (h *held) shard(k unitKey) *heldShard {
	return &h.shards[maphash.String(h.seed, k.id)%heldShards]
}

// take notes the units that a request was granted.
func (h *held) take(id string, groups []group, claims []quota.Claim) {
	now := time.Now()
	h.each(id, groups, func(sh *heldShard, k unitKey) {
		if _, ok := sh.units[k]; !ok {
			sh.units[k] = unit{claims, now}
		}
	})
}

// end notes that a request needs its units no longer.
func (h *held) end(id string, groups []group) {
	h.each(id, groups, func(sh *heldShard, k unitKey) { delete(sh.units, k) })
}

func (h *held) each(id string, groups []group, do func(*heldShard, unitKey)) {
	for i := range groups {
		for j := range groups[i].counters {
			c := &groups[i].counters[j]
			if c.unit != policy.Concurrency || c.amount == 0 {
				continue
			}
			k := unitKey{c.key, id}
			sh := h.shard(k)
			sh.mu.Lock()
			do(sh, k)
			sh.mu.Unlock()
		}
	}
}

// find is a unit that is still held.
func (h *held) find(k unitKey) (unit, bool) {
	sh := h.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	u, ok := sh.units[k]
	return u, ok
}

// all lists the units, those of one counter together, and forgets those that
// were held for longer than hold.
func (h *held) all(hold time.Duration) []unitKey {
	now := time.Now()
	var out []unitKey
	for i := range h.shards {
		sh := &h.shards[i]
		sh.mu.Lock()
		for k, u := range sh.units {
			if now.Sub(u.made) >= hold {
				delete(sh.units, k)
				continue
			}
			out = append(out, k)
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b unitKey) int { return cmp.Compare(a.counter, b.counter) })
	return out
}

// count is how many units are held.
func (h *held) count() (n int) {
	for i := range h.shards {
		sh := &h.shards[i]
		sh.mu.Lock()
		n += len(sh.units)
		sh.mu.Unlock()
	}
	return n
}
