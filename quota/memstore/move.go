package memstore

import (
	"slices"

	"github.com/weirproxy/weir/quota"
)

// Move implements quota.Mover.
func (s *Store) Move(m quota.Moves) { s.moves.Store(&m) }

// takeOver lets a new counter begin with what the best of those counts that a
// new policy names for it; false = there is none.
func (s *Store) takeOver(f *family, c *counter, claim *quota.Claim, tick int64) bool {
	moves := s.moves.Load()
	if moves == nil || c.period == 0 {
		return false
	}
	from := moves.From(claim, c.limit)
	there := make([]int64, 0, len(f.counters))
	for _, o := range f.counters {
		if o.limit.Unit == c.limit.Unit && slices.Contains(from, o.period) {
			there = append(there, o.period)
		}
	}
	best := quota.Best(c.period, there)
	for _, o := range f.counters {
		if best > 0 && o.limit.Unit == c.limit.Unit && o.period == best {
			c.window.Carry(c.period, &o.window, o.period, tick)
			o.heirs, o.moved = append(o.heirs, c), tick
		}
	}
	return best > 0
}

// retire ends the counters of the family that the policy has no more. What is
// settled of them later is settled in those that took over from them.
func (s *Store) retire(f *family, claim *quota.Claim) {
	moves := s.moves.Load()
	f.counters = slices.DeleteFunc(f.counters, func(o *counter) bool {
		switch {
		case o.period == 0:
			return false
		case moves.Live(claim, o.limit.Unit, o.period):
			o.heirs = nil
			return false
		}
		s.counters.Add(-1)
		return true
	})
}
