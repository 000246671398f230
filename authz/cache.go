package authz

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"sync/atomic"
	"time"
)

// ways is the number of places of a cache where one token may stand.
const ways = 8

// cache remembers what became of tokens for a short time. It is a table of
// fixed size without locks: a reader loads at most eight pointers and
// compares the SHA-256 of the whole token, a writer replaces one entry. A
// lost race costs a second verification, nothing else. The zero size keeps
// nothing.
type cache struct {
	seed  maphash.Seed // so that nobody can aim at one place of the table
	slots []atomic.Pointer[entry]
	mask  uint64 // of groups of ways
}

// entry is the outcome for one token; exactly one of who and denied is set.
// Entries are immutable.
type entry struct {
	sum    [sha256.Size]byte
	who    *verified
	denied *refusal
	under  *keys     // the key set it was found with
	set    *KeySet   // whose current set that must still be
	since  time.Time // with the monotonic reading, where the clock has one
	keep   time.Duration
	until  time.Time // the token's own end
}

// newCache makes a table of at least size entries, rounded up to a power of
// two.
func newCache(size int) *cache {
	c := &cache{seed: maphash.MakeSeed()}
	if size <= 0 {
		return c
	}
	groups := uint64(1)
	for groups*ways < uint64(size) {
		groups *= 2
	}
	c.slots = make([]atomic.Pointer[entry], groups*ways)
	c.mask = groups - 1
	return c
}

// group returns the places where a token of this sum may stand.
func (c *cache) group(sum *[sha256.Size]byte) []atomic.Pointer[entry] {
	if len(c.slots) == 0 {
		return nil
	}
	h := maphash.Comparable(c.seed, binary.LittleEndian.Uint64(sum[:8]))
	first := (h & c.mask) * ways
	return c.slots[first : first+ways]
}

// get finds the entry of a token that still counts at now: young enough, the
// token not at its end, its key set still the one in force.
func (c *cache) get(now time.Time, sum *[sha256.Size]byte) *entry {
	group := c.group(sum)
	for i := range group {
		e := group[i].Load()
		if e == nil || e.sum != *sum {
			continue
		}
		if e.counts(now) {
			return e
		}
		return nil
	}
	return nil
}

func (e *entry) counts(now time.Time) bool {
	age := now.Sub(e.since)
	return age >= 0 && age < e.keep && now.Before(e.until) && e.set.at(now) == e.under
}

// put stores an entry in the place of an older one of the same token, else of
// one that counts no more, else of the oldest of its group.
func (c *cache) put(now time.Time, e *entry) {
	group := c.group(&e.sum)
	if group == nil {
		return
	}
	victim := 0
	var oldest *entry
	for i := range group {
		old := group[i].Load()
		if old == nil || old.sum == e.sum || !old.counts(now) {
			victim = i
			break
		}
		if oldest == nil || old.since.Before(oldest.since) {
			victim, oldest = i, old
		}
	}
	group[victim].Store(e)
}
