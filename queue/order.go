package queue

import (
	"cmp"
	"slices"
	"time"
)

// spot is a waiter's place in a flow: one in its leaf and, with priority, one
// in the priority lane.
type spot struct {
	waiter *Waiter
	flow   *tenant // nil = not taken
	pos    int     // in the flow's heap
	turn   uint64  // in a fifo: the arrival whose place in the class it has
}

func (s *spot) place(i int) { s.pos = i }

// standing is the order inside a flow: when w is taken to have come.
func (w *Waiter) standing() time.Duration { return plus(w.came, max(0, w.Handicap)) }

// claim is a leaf that asks for the next free seat, with its next in order.
type claim struct {
	w      *Waiter
	leaf   *leaf
	tokens int64
	group  urgency // of the group, by its first leaf
}

// turn is the index in l.claims of whose turn it is to have a free seat; false
// when nobody's is.
func (l *Line) turn() (int, bool) {
	l.claims = l.claims[:0]
	if l.total == 0 || l.used.Requests >= l.usable.Requests {
		return 0, false
	}
	if w := l.red.next(); w != nil {
		l.claims = append(l.claims, claim{w: w, leaf: &l.red})
		return 0, l.fits(w)
	}
	if l.priority.short() {
		if w := l.priority.next(); w != nil {
			l.claims = append(l.claims, claim{w: w, leaf: &l.priority, tokens: l.tokens(w), group: urgency{rank: -1}})
		}
	}
	for _, g := range l.groups {
		l.claim(g)
	}
	if len(l.claims) > 1 {
		slices.SortStableFunc(l.claims, func(a, b claim) int { return a.group.compare(b.group) })
	}
	for i := range l.claims {
		c := &l.claims[i]
		if i > 0 && c.group.rank > 0 {
			break // would go beyond its guarantee past one who does not fit
		}
		if l.free(c.tokens) {
			return i, true
		}
		if c.leaf.passed >= c.tokens {
			break
		}
	}
	return 0, false
}

// claim adds the claims of g's leaves, the more urgent one first.
func (l *Line) claim(g *group) {
	a, b := g.leaves[0].next(), g.leaves[1].next()
	first := 0
	switch {
	case a == nil && b == nil:
		return
	case a == nil:
		first = 1
	case b != nil && g.leaves[1].urge(l.usable, l.tokens(b)).compare(g.leaves[0].urge(l.usable, l.tokens(a))) < 0:
		first = 1
	}
	next := [2]*Waiter{a, b}
	u := urgency{} // alone, it is guaranteed all
	if len(l.groups) > 1 {
		u = g.urge(l.usable, l.tokens(next[first]))
	}
	for _, i := range [2]int{first, 1 - first} {
		if w := next[i]; w != nil {
			l.claims = append(l.claims, claim{w: w, leaf: &g.leaves[i], tokens: l.tokens(w), group: u})
		}
	}
}

// dispatch seats the waiter of claim i, whose turn it is.
func (l *Line) dispatch(i int) *Waiter {
	c := l.claims[i]
	for j := range l.claims[:i] {
		l.claims[j].leaf.passed += c.tokens
	}
	c.leaf.passed = 0
	w := c.w
	mine := &w.spots[0]
	if c.leaf == &l.priority {
		mine = &w.spots[1]
	}
	w.via, w.given = &c.leaf.lane, l.given
	w.via.charge(mine, l.cfg.Price)
	l.leave(w)
	l.forgo(w)
	l.seat(w, c.leaf == &l.priority)
	return w
}

// queue puts w into its lines.
func (l *Line) queue(w *Waiter) {
	w.spots[0].waiter, w.spots[1].waiter, w.given = w, w, l.given
	l.leafOf(w).push(&w.spots[0])
	if l.favoured(w) {
		l.priority.push(&w.spots[1])
	}
	l.count(w, 1)
}

// leave takes w out of its lines.
func (l *Line) leave(w *Waiter) {
	l.leafOf(w).remove(&w.spots[0])
	if w.spots[1].flow != nil {
		l.priority.remove(&w.spots[1])
	}
	l.count(w, -1)
}

// requeue lets change do its work while nobody stands in a line; all come
// back in the order of their arrival, and the accounts start anew.
func (l *Line) requeue(change func()) {
	var ws []*Waiter
	for _, s := range l.expiry.entries {
		if s.item.state == waiting {
			ws = append(ws, s.item)
		}
	}
	slices.SortFunc(ws, func(a, b *Waiter) int { return cmp.Compare(a.seq, b.seq) })
	for _, w := range ws {
		l.leave(w)
	}
	change()
	for _, w := range ws {
		l.queue(w)
	}
}
