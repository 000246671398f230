package memstore

import (
	"time"

	"github.com/weirproxy/weir/quota"
)

// Known implements quota.Store. Everything is known here; counters that do not
// exist count nothing, and none is made.
func (s *Store) Known(now time.Time, claims []quota.Claim) (quota.Verdict, bool) {
	if len(claims) == 0 {
		return quota.Verdict{}, false
	}
	at := s.instant(now)
	tick := quota.Ticks(at)
	set := s.lock(claims)
	defer s.unlock(set)
	var buf [12]pick
	picks := buf[:0]
	for i := range claims {
		c := &claims[i]
		sl := s.shards[s.shardOf(c.Tenant)].slots[nameOf(c.Tenant)]
		if sl == nil {
			continue
		}
		sl.expire(tick)
		f := sl.families[c.Key]
		if f == nil {
			continue
		}
		for j := range c.Limits {
			if cn := f.counter(c.Limits[j]); cn != nil {
				picks = append(picks, pick{sl, cn, c, j, c.Amount.Of(c.Limits[j].Unit)})
			}
		}
	}
	verdict := judge(picks, at, tick)
	return verdict, !verdict.Allowed
}
