package memstore

import (
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

const (
	longName   = 256 // tenants' names above this are kept as a hash
	evictTries = 8   // slots looked at in a shard, oldest use first
	sweepAt    = 64  // families in a slot before idle ones are first dropped
	sweepFull  = 64  // families looked at for each newcomer when all is full
)

// nameOf is the key of a tenant's slot.
func nameOf(tenant string) string {
	if len(tenant) > longName {
		return quota.Encode(tenant)
	}
	return tenant
}

// slot finds or makes a tenant's slot and ends what is overdue in it; nil if
// there is no room. The caller holds the locks of set, the tenant's among
// them. The slot quota.Shared always finds room.
func (s *Store) slot(set lockSet, tick int64, tenant string) *slot {
	sh := &s.shards[s.shardOf(tenant)]
	name := nameOf(tenant)
	sl := sh.slots[name]
	if sl != nil {
		if sh.byUse.last != sl {
			sh.byUse.remove(sl)
			sh.byUse.push(sl)
		}
		sl.usedAt = tick
		sl.expire(tick)
		return sl
	}
	if s.slots.Add(1) > s.maxSlots && tenant != quota.Shared && !s.evict(set, sh, tick) {
		s.slots.Add(-1)
		return nil
	}
	sl = &slot{
		tenant:   name,
		families: make(map[string]*family, 1),
		held:     make(map[string]*reservation, 1),
		sweepAt:  sweepAt,
		usedAt:   tick,
	}
	sh.slots[name] = sl
	sh.byUse.push(sl)
	return sl
}

// evict drops one idle slot: of the caller's shard, or of another that is not
// locked just now. Slots used at this very tick stay: the caller may be about
// to charge them.
func (s *Store) evict(set lockSet, own *shard, tick int64) bool {
	if s.evictFrom(own, tick) {
		return true
	}
	for i := range s.shards {
		if set&(1<<i) != 0 || !s.shards[i].mu.TryLock() {
			continue
		}
		done := s.evictFrom(&s.shards[i], tick)
		s.shards[i].mu.Unlock()
		if done {
			return true
		}
	}
	return false
}

func (s *Store) evictFrom(sh *shard, tick int64) bool {
	sl := sh.byUse.first
	for range evictTries {
		if sl == nil {
			return false
		}
		next := sl.link.next
		if sl.usedAt < tick && sl.idle(tick) {
			sh.byUse.remove(sl)
			delete(sh.slots, sl.tenant)
			s.slots.Add(-1)
			s.counters.Add(-sl.countCounters())
			return true
		}
		sl = next
	}
	return false
}

// family finds or makes the counters of a claim's key.
func (s *slot) family(c *quota.Claim, tick int64) *family {
	f := s.families[c.Key]
	if f == nil {
		f = &family{rule: c.Rule, key: c.Key}
		s.families[c.Key] = f
	}
	f.rule, f.usedAt = c.Rule, tick
	return f
}

// newCounter adds a counter to a family; nil if there is no room. From time
// to time it drops the slot's idle families.
func (s *Store) newCounter(sl *slot, f *family, l policy.Limit, tick int64) *counter {
	if len(sl.families) > sl.sweepAt {
		s.counters.Add(-sl.sweep(len(sl.families), tick))
		sl.sweepAt = max(sweepAt, 2*len(sl.families))
	}
	if s.counters.Load() >= s.maxCounters {
		s.counters.Add(-sl.sweep(sweepFull, tick))
	}
	if s.counters.Load() >= s.maxCounters {
		if len(f.counters) == 0 {
			delete(sl.families, f.key)
		}
		return nil
	}
	s.counters.Add(1)
	c := &counter{limit: l, period: periodOf(l)}
	f.counters = append(f.counters, c)
	return c
}

// sweep drops idle families, looking at no more than most, and reports how
// many counters went. Families used at this very tick stay.
func (s *slot) sweep(most int, tick int64) (gone int64) {
	for key, f := range s.families {
		if most--; most < 0 {
			break
		}
		if f.usedAt < tick && f.idle(tick) {
			gone += int64(len(f.counters))
			delete(s.families, key)
		}
	}
	return gone
}
