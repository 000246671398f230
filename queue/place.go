package queue

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// waitingBy is how many of a tenant wait in a class.
func (l *Line) waitingBy(c policy.Class, tenant string) int {
	n := l.red.lane.waiting(c, tenant)
	for f := range l.leaves {
		n += f.lane.waiting(c, tenant)
	}
	return n
}

// tenantsOf is how many flows of a class have waiters.
func (l *Line) tenantsOf(c policy.Class) int {
	n := l.red.classes[c].level.ready.len()
	for f := range l.leaves {
		n += f.classes[c].level.ready.len()
	}
	return n
}

// place is where w, which does not wait yet, would stand in the fair order:
// behind all of its tenant and class in its leaf, and as many of the others as
// their weights and shares let go first. It takes the seats for shared as they
// ought to be, and all requests for equally large.
func (l *Line) place(w *Waiter) int {
	if w.Colour == policy.Red {
		return l.red.turnOf(w, l.cfg.Price)
	}
	mine, i := l.groupOf(w), side(w)
	own := l.leafOf(w).turnOf(w, l.cfg.Price)
	if l.split {
		other := &mine.leaves[1-i]
		own += ahead(own, other.len(), other.weight, mine.leaves[i].weight)
	}
	turn := own
	for _, g := range l.groups {
		if g != mine {
			turn += ahead(own, g.len(), g.weight, mine.weight)
		}
	}
	red := l.red.len()
	if l.favoured(w) && l.priority.whole > 0 {
		quick := l.priority.turnOf(w, l.cfg.Price)
		if !l.priority.short() {
			quick += ahead(quick, l.total-red-l.priority.len(), 1-l.priority.weight, l.priority.weight)
		}
		turn = min(turn, quick)
	}
	return red + turn
}

// Rights are what a waiter has beside its turn.
type Rights struct {
	Tiers  bool          // the seats are shared by tiers (P9)
	Tier   Part          // the share of its tier as it stands; the waiter itself may be among those who wait
	Credit time.Duration // it came back in its slot: so long ago it was refused first (Q5); 0 = no slot was claimed
}

// Rights are those of w, which the line took or refused.
func (l *Line) Rights(w *Waiter) Rights {
	g := l.groupOf(w)
	return Rights{Tiers: len(l.groups) > 1, Tier: g.picture(g.len()), Credit: max(0, w.since-w.came)}
}

// ahead is how many of those who wait go before the n-th of another, by the
// weights of both.
func ahead(n, waiting int, theirs, mine float64) int {
	switch {
	case mine == 0 && theirs > 0:
		return waiting
	case mine == 0:
		return min(waiting, n)
	}
	return int(min(float64(waiting), float64(n)*theirs/mine))
}

// turnOf is the turn in its line that w would have.
func (ln *lane) turnOf(w *Waiter, p policy.Price) int {
	mine := &ln.classes[w.Class]
	own := mine.turnOf(w, p)
	turn := own
	for i := range ln.classes {
		if o := &ln.classes[i]; o != mine {
			turn += ahead(own, o.waiting, o.weight, mine.weight)
		}
	}
	return turn
}

// turnOf is the turn in its class that w would have: tenants take turns by
// weight, but where requests are the price (P2 literal).
func (c *class) turnOf(w *Waiter, p policy.Price) int {
	if p == policy.ByRequests {
		return c.waiting + 1
	}
	n, mine, all := 1, weightOf(w), c.level.weight
	if t := c.level.tenants[w.Tenant]; t != nil {
		n += t.waiting.len()
		all -= t.weight
	}
	return n + ahead(n, c.waiting+1-n, all, mine)
}

// portion is the part of the seats that w's leaf gets as long as those who
// wait now, and w, do.
func (l *Line) portion(w *Waiter) float64 {
	mine := l.groupOf(w)
	weights, groups := 0.0, 0
	for _, g := range l.groups {
		if g == mine || g.len() > 0 {
			weights += g.weight
			groups++
		}
	}
	part := 1 / float64(groups)
	if weights > 0 {
		part = mine.weight / weights
	}
	if l.split && mine.leaves[1-side(w)].len() > 0 {
		part *= mine.leaves[side(w)].weight
	}
	return part
}
