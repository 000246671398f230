package queue

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Bounds of what enters the arithmetic, so that it stays finite.
const (
	maxCost   = 1 << 40
	minWeight = 1.0 / 1024
	maxWeight = 1 << 20
)

// tenant is a flow: one tenant's waiters of one class, by arrival and
// handicap. It exists while it has waiters or a debt.
type tenant struct {
	flow
	name    string
	waiting heap[time.Duration, *spot]
	turns   []*spot // by turn; only in a fifo
}

// class is one of the three flows of a lane, and a level of tenants.
type class struct {
	flow
	level   level
	waiting int
}

// lane is a hierarchy of its own: classes by weight, tenants inside.
type lane struct {
	root    level
	classes [policy.NumClasses]class
	fifo    bool  // the price is policy.ByRequests
	twin    *lane // the other leaf of the group, where tenants have the same account; nil = none
}

func (ln *lane) configure(weights [policy.NumClasses]int, p policy.Price) {
	ln.fifo = p == policy.ByRequests
	for i := range ln.classes {
		c := &ln.classes[i]
		c.tie = uint64(i)
		ln.root.reweigh(&c.flow, float64(max(1, weights[i])))
		if c.level.tenants == nil {
			c.level.tenants = make(map[string]*tenant)
		}
	}
}

// waiting is how many of a tenant wait in a class.
func (ln *lane) waiting(c policy.Class, name string) int {
	if t := ln.classes[c].level.tenants[name]; t != nil {
		return t.waiting.len()
	}
	return 0
}

// push puts a waiter into its flow.
func (ln *lane) push(s *spot) {
	w := s.waiter
	c := &ln.classes[w.Class]
	t := c.level.tenants[w.Tenant]
	if t == nil {
		t = &tenant{name: w.Tenant}
		t.flow.tenant = t
		c.level.tenants[w.Tenant] = t
	}
	s.flow = t
	t.waiting.push(w.standing(), w.seq, s)
	c.waiting++
	if s.pos == 0 {
		c.level.reweigh(&t.flow, weightOf(w))
	}
	if ln.fifo {
		s.turn = w.seq
		t.turns = append(t.turns, s)
	}
	if t.state != ready {
		c.level.join(&t.flow, t.head(), w.given)
	} else if s.pos == 0 {
		c.level.retie(&t.flow, t.head())
	}
	ln.root.join(&c.flow, c.tie, w.given)
}

// head is the arrival by which a flow with waiters stands among those of equal
// tags: of its next in order, or its first turn.
func (t *tenant) head() uint64 {
	if len(t.turns) > 0 {
		return t.turns[0].turn
	}
	return t.waiting.min().tie
}

// turnAt is where in turns a spot stands.
func (t *tenant) turnAt(s *spot) int {
	i, _ := slices.BinarySearchFunc(t.turns, s.turn, func(o *spot, turn uint64) int { return cmp.Compare(o.turn, turn) })
	return i
}

// next is whose turn it is; nil when nobody waits.
func (ln *lane) next() *Waiter {
	if ln.root.ready.len() == 0 {
		return nil
	}
	c := &ln.classes[ln.root.ready.min().tie]
	return c.level.ready.min().item.tenant.waiting.min().item.waiter
}

// charge counts to the flows of a waiter, the next of its flow, what its seat
// costs.
func (ln *lane) charge(s *spot, p policy.Price) {
	w := s.waiter
	c := &ln.classes[w.Class]
	w.charged = 1
	if t := s.flow; ln.fifo { // the first turn is its flow's: whose it was has that of s
		i, first := t.turnAt(s), t.turns[0]
		t.turns[0], t.turns[i] = s, first
		s.turn, first.turn = first.turn, s.turn
	}
	if p == policy.ByTokens {
		w.charged = costOf(w.Cost)
		c.level.charge(&s.flow.flow, w.charged)
		w.borne = ln.twin.bear(w, w.charged)
	}
	ln.root.charge(&c.flow, w.charged)
}

// remove takes a waiter out of its flow, wherever it stands.
func (ln *lane) remove(s *spot) {
	t, c := s.flow, &ln.classes[s.waiter.Class]
	first := s.pos == 0
	t.waiting.remove(s.pos)
	if ln.fifo {
		i := t.turnAt(s)
		t.turns = slices.Delete(t.turns, i, i+1)
		first = first || i == 0
	}
	s.flow = nil
	c.waiting--
	if t.waiting.len() == 0 {
		c.level.leave(&t.flow)
	} else if first {
		c.level.reweigh(&t.flow, weightOf(t.waiting.min().item.waiter))
		c.level.retie(&t.flow, t.head())
	}
	if c.waiting == 0 {
		ln.root.leave(&c.flow)
	}
}

// settle corrects what was charged for w to its real cost.
func (ln *lane) settle(w *Waiter, cost int64) {
	real := costOf(cost)
	work := real - w.charged
	ln.root.correct(&ln.classes[w.Class].flow, work, w.given)
	if level, f := ln.account(w, work); f != nil {
		level.correct(f, work*f.weight/weightOf(w), w.given)
	}
	if work < 0 {
		work = min(0, real-w.borne) // what was not counted there is not given back
	}
	ln.twin.bear(w, work)
}

// bear counts to the account of w's tenant, or takes off it, what w was given
// in the other leaf. It returns what it has counted.
func (ln *lane) bear(w *Waiter, work float64) float64 {
	if ln == nil {
		return 0
	}
	level, f := ln.account(w, work)
	if f == nil {
		return 0
	}
	scale := f.weight / weightOf(w)
	return level.bear(f, work*scale, w.given) / scale
}

// account is where work for w is counted in its class; nil = nowhere, as nobody
// competes here, or there is nothing to take it off.
func (ln *lane) account(w *Waiter, work float64) (*level, *flow) {
	c := &ln.classes[w.Class]
	t := c.level.tenants[w.Tenant]
	switch {
	case c.waiting == 0 || t == nil && work <= 0:
		return nil, nil
	case t == nil:
		t = &tenant{name: w.Tenant}
		t.flow.tenant, t.weight = t, weightOf(w)
		c.level.tenants[w.Tenant] = t
	}
	return &c.level, &t.flow
}

// rebase starts anew after a change of price.
func (ln *lane) rebase(given uint64) {
	ln.root.rebase(given)
	for i := range ln.classes {
		level := &ln.classes[i].level
		level.rebase(given)
		for _, t := range level.tenants {
			t.turns = nil
			if ln.fifo {
				for _, e := range t.waiting.entries {
					e.item.turn = e.tie
					t.turns = append(t.turns, e.item)
				}
				slices.SortFunc(t.turns, func(a, b *spot) int { return cmp.Compare(a.turn, b.turn) })
			}
			level.retie(&t.flow, t.head())
		}
	}
}

// len is how many wait.
func (ln *lane) len() (n int) {
	for i := range ln.classes {
		n += ln.classes[i].waiting
	}
	return n
}

func (ln *lane) tenants() (n int) {
	for i := range ln.classes {
		n += len(ln.classes[i].level.tenants)
	}
	return n
}

// costOf bounds a price: never free, never so large that sums lose precision.
func costOf(cost int64) float64 { return float64(min(max(cost, 1), maxCost)) }

// weightOf bounds a tenant's weight; what is no weight is 1.
func weightOf(w *Waiter) float64 {
	if !(w.Weight > 0) || math.IsInf(w.Weight, 0) {
		return 1
	}
	return min(max(w.Weight, minWeight), maxWeight)
}
