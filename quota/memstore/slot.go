package memstore

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// keepSettled bounds how many settled ids a slot remembers, beside the time
// quota.KeepSettled.
const keepSettled = 128

// slot is all that is counted for one tenant. Its shard's lock guards it.
type slot struct {
	tenant   string
	families map[string]*family              // by claim key
	held     map[string]*reservation         // by id: open and settled
	open     list[reservation, *reservation] // by deadline
	settled  list[reservation, *reservation] // by deadline
	spare    *reservation                    // for reuse
	sweepAt  int                             // families at which idle ones are dropped
	usedAt   int64                           // tick of the last use
	link     links[slot]
}

// family is the counters of one claim key.
type family struct {
	rule, key string
	counters  []*counter
	usedAt    int64 // tick of the last use
}

// counter is one unit over one period, or concurrency (period 0).
type counter struct {
	limit  policy.Limit
	period int64 // ticks
	window quota.Window
	live   int64 // concurrency
	refs   int   // open reservations that hold a part of it

	heirs []*counter // have taken over what it counts; nil = none has
	moved int64      // tick of that
}

// hold is what a reservation took from one counter.
type hold struct {
	counter *counter
	cell    int64
	amount  int64
}

// reservation is what one id holds in one slot.
type reservation struct {
	id       string
	deadline int64 // open: ends unsettled then; settled: is forgotten then
	settled  bool
	verdict  quota.Verdict
	holds    []hold
	link     links[reservation]
}

func (r *reservation) links() *links[reservation] { return &r.link }
func (s *slot) links() *links[slot]               { return &s.link }

func (f *family) counter(l policy.Limit) *counter {
	period := periodOf(l)
	for _, c := range f.counters {
		if c.limit.Unit == l.Unit && c.period == period {
			c.limit = l
			return c
		}
	}
	return nil
}

func periodOf(l policy.Limit) int64 {
	if l.Unit == policy.Concurrency {
		return 0
	}
	return quota.Period(l.Per)
}

func (c *counter) used(tick int64) int64 {
	if c.period == 0 {
		return c.live
	}
	return c.window.Used(c.period, tick)
}

// wait is how long until the counter leaves room; 0 when nobody knows.
func (c *counter) wait(at time.Time, tick, room int64) time.Duration {
	if c.period == 0 || room < 0 {
		return 0
	}
	return time.UnixMilli(c.window.FitsAt(c.period, tick, room)).Sub(at)
}

func (c *counter) take(tick, amount int64) hold {
	c.refs++
	if c.period == 0 {
		c.live += amount
		return hold{c, 0, amount}
	}
	if amount == 0 {
		return hold{c, 0, 0}
	}
	return hold{c, c.window.Add(c.period, tick, amount), amount}
}

func (c *counter) settle(h hold, tick, final int64) {
	switch {
	case c.period == 0:
		c.live -= h.amount
	case final < h.amount:
		c.refund(h.cell, h.amount-final)
	case final > h.amount:
		c.add(tick, final-h.amount)
	}
	c.refs--
}

// refund takes n back from a cell, or from where its heirs have it.
func (c *counter) refund(cell, n int64) {
	for _, h := range c.heirs {
		h.refund(quota.Carried(h.period, cell, c.period, c.moved), n)
	}
	if c.heirs == nil {
		c.window.Refund(cell, n)
	}
}

// add counts n now, or lets its heirs count it.
func (c *counter) add(tick, n int64) {
	for _, h := range c.heirs {
		h.add(tick, n)
	}
	if c.heirs == nil {
		c.window.Add(c.period, tick, n)
	}
}

func (c *counter) idle(tick int64) bool {
	return c.refs == 0 && (c.period == 0 || c.used(tick) == 0)
}

// reserve notes a new reservation, in its place by deadline.
func (s *slot) reserve(id string, deadline int64, v quota.Verdict) *reservation {
	r := s.spare
	s.spare = nil
	if r == nil {
		r = &reservation{}
	}
	*r = reservation{id: id, deadline: deadline, verdict: v, holds: r.holds[:0]}
	s.held[id] = r
	s.open.insert(r, func(o *reservation) bool { return o.deadline <= deadline })
	return r
}

// settle ends an open reservation; its id is remembered for a while.
func (s *slot) settle(id string, tick int64, final quota.Amount) {
	r := s.held[id]
	if r == nil || r.settled {
		return
	}
	for _, h := range r.holds {
		h.counter.settle(h, tick, final.Of(h.counter.limit.Unit))
	}
	s.open.remove(r)
	clear(r.holds)
	r.holds = r.holds[:0]
	r.settled, r.deadline = true, tick+quota.KeepSettled.Milliseconds()
	s.settled.insert(r, func(o *reservation) bool { return o.deadline <= r.deadline })
	if s.settled.n > keepSettled {
		s.forget(s.settled.first)
	}
}

// expire ends what nobody settled in time and forgets ids settled long ago.
func (s *slot) expire(tick int64) {
	for r := s.open.first; r != nil && r.deadline <= tick; r = s.open.first {
		for _, h := range r.holds {
			h.counter.settle(h, tick, h.amount)
		}
		s.open.remove(r)
		s.drop(r)
	}
	for r := s.settled.first; r != nil && r.deadline <= tick; r = s.settled.first {
		s.forget(r)
	}
}

func (s *slot) forget(r *reservation) {
	s.settled.remove(r)
	s.drop(r)
}

func (s *slot) drop(r *reservation) {
	delete(s.held, r.id)
	clear(r.holds)
	s.spare = r
}

// idle reports whether forgetting the slot changes no verdict.
func (s *slot) idle(tick int64) bool {
	s.expire(tick)
	if s.open.first != nil {
		return false
	}
	for _, f := range s.families {
		if !f.idle(tick) {
			return false
		}
	}
	return true
}

func (f *family) idle(tick int64) bool {
	return !slices.ContainsFunc(f.counters, func(c *counter) bool { return !c.idle(tick) })
}

func (s *slot) countCounters() (n int64) {
	for _, f := range s.families {
		n += int64(len(f.counters))
	}
	return n
}
