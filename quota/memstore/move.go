package memstore

import (
	"slices"

	"github.com/weirproxy/weir/quota"
)

// Move implements quota.Mover.
func (s *Store) Move(m quota.Moves) { s.moves.Store(&m) }

// takeOver lets a new counter begin with what those count that a new policy
// replaced by it. They end, unless the policy still has them; what is settled
// of them later is settled in the new one.
func (s *Store) takeOver(f *family, c *counter, claim *quota.Claim, tick int64) {
	moves := s.moves.Load()
	if moves == nil || c.period == 0 {
		return
	}
	from := moves.From(claim, c.limit)
	if from == nil {
		return
	}
	var there []int64
	for _, o := range f.counters {
		if o != c && o.limit.Unit == c.limit.Unit && slices.Contains(from, o.period) {
			there = append(there, o.period)
		}
	}
	best := quota.Best(c.period, there)
	f.counters = slices.DeleteFunc(f.counters, func(o *counter) bool {
		if o == c || o.limit.Unit != c.limit.Unit || !slices.Contains(there, o.period) {
			return false
		}
		if o.period == best {
			c.window.Carry(c.period, &o.window, o.period, tick)
		}
		if moves.Live(claim, o.limit.Unit, o.period) {
			return false
		}
		if o.period == best {
			o.heir, o.moved = c, tick
		}
		s.counters.Add(-1)
		return true
	})
}
