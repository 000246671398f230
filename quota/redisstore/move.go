package redisstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/quota"
)

// moving is what a new policy moves. Each counter that may take over from
// others is asked about once by each replica, before its first claim, also
// where that is told to Redis later; the script does nothing for one that counts already. What another replica still counts
// by the old policy after that stays in the old window.
type moving struct {
	moves quota.Moves
	until time.Time // when what was counted before is in no window any more
	asked sync.Map  // by key of the counter
	n     atomic.Int64
}

// maxAsked bounds how many counters are remembered as asked about; beyond it
// they are asked about again.
const maxAsked = 1 << 17

// Move implements quota.Mover.
func (s *Store) Move(m quota.Moves) {
	s.local.Move(m)
	if m.Empty() {
		s.moving.Store(nil)
		return
	}
	s.moving.Store(&moving{moves: m, until: m.Until(time.Now()).Add(slack * time.Millisecond)})
}

// carry lets the counters of a request's claims take over what they are to. On
// an error, failed is the slot that did not answer.
func (s *Store) carry(ctx context.Context, c *conn, now time.Time, groups []group) (failed *group, err error) {
	m := s.moving.Load()
	if m == nil {
		return nil, nil
	}
	if time.Now().After(m.until) {
		s.moving.CompareAndSwap(m, nil)
		return nil, nil
	}
	for i := range groups {
		g := &groups[i]
		for j := range g.limits {
			l := &g.limits[j]
			n := &g.counters[l.counter]
			from := m.moves.From(l.claim, l.limit)
			if from == nil {
				continue
			}
			if _, asked := m.asked.Load(n.key); asked {
				continue
			}
			if err := s.carryOne(ctx, c, now, g, n, l, from); err != nil {
				return g, err
			}
			if m.n.Add(1) <= maxAsked {
				m.asked.Store(n.key, struct{}{})
			}
		}
	}
	return nil, nil
}

// takesOver reports whether a counter of the claims may have to take over from
// another, which is to be told first all that it counts.
func (s *Store) takesOver(claims []quota.Claim) bool {
	m := s.moving.Load()
	if m == nil {
		return false
	}
	for i := range claims {
		for _, l := range claims[i].Limits {
			if m.moves.From(&claims[i], l) != nil {
				return true
			}
		}
	}
	return false
}

// heir is a counter that took over from another, by its number, before the
// requests ended that the other counts.
type heir struct {
	counter
	of int
}

// heirs are the counters that took over from those of a group, or will.
func (s *Store) heirs(g *group) (out []heir) {
	m := s.moving.Load()
	if m == nil {
		return nil
	}
	for i := range g.limits {
		l := &g.limits[i]
		for _, period := range m.moves.To(l.claim, l.limit) {
			limit := l.limit
			limit.Per = time.Duration(period) * time.Millisecond
			out = append(out, heir{of: l.counter, counter: counter{
				key: s.counterKey(g.tag, l.limit.Unit, period, l.claim.Key), member: member(l.claim, limit), period: period,
			}})
		}
	}
	return out
}

func (s *Store) carryOne(ctx context.Context, c *conn, now time.Time, g *group, n *counter, l *limit, from []int64) error {
	keys := []string{n.key, s.logKey(g.tag), s.indexKey(g.tag)}
	args := []any{stamp(now), slack, n.period, n.member}
	for rest := slices.Clone(from); len(rest) > 0; {
		best := quota.Best(n.period, rest)
		keys, args = append(keys, s.counterKey(g.tag, l.limit.Unit, best, l.claim.Key)), append(args, best)
		rest = slices.DeleteFunc(rest, func(p int64) bool { return p == best })
	}
	return s.scripts.carry.Run(ctx, c, keys, args...).Err()
}
