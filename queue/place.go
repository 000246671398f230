package queue

import "github.com/weirproxy/weir/policy"

// waitingOf is how many of a class wait.
func (l *Line) waitingOf(c policy.Class) int { return l.waiting[c] }

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
// behind all of its class in its leaf, and as many of the others as their
// weights and shares let go first.
func (l *Line) place(w *Waiter) int {
	if w.Colour == policy.Red {
		return l.red.turnOf(w.Class)
	}
	ahead := l.red.lane.len()
	others := l.total - ahead + 1
	turn := min(others, stretch(l.leafOf(w).turnOf(w.Class), l.portion(w), others))
	if l.favoured(w) && l.priority.whole > 0 {
		quick := l.priority.turnOf(w.Class)
		if !l.priority.short() {
			quick = stretch(quick, l.priority.weight, others)
		}
		turn = min(turn, quick)
	}
	return ahead + turn
}

// stretch is which turn of all the n-th of one is that gets a portion of them.
func stretch(n int, portion float64, most int) int {
	if portion*float64(most) <= float64(n) {
		return most
	}
	return int(float64(n)/portion + 1e-9)
}

// portion is the part of the seats that w's leaf gets as long as those who
// wait now, and w, do.
func (l *Line) portion(w *Waiter) float64 {
	mine := l.groupOf(w)
	var weights float64
	zeros := 0
	for _, g := range l.groups {
		if g != mine && g.leaves[0].root.ready.len() == 0 && g.leaves[1].root.ready.len() == 0 {
			continue
		}
		if weights += g.weight; g.weight == 0 {
			zeros++
		}
	}
	part := 1.0
	switch {
	case mine.weight > 0:
		part = mine.weight / weights
	case weights > 0:
		return 0
	default:
		part = 1 / float64(zeros)
	}
	if l.split && mine.leaves[1-side(w)].root.ready.len() > 0 {
		part *= mine.leaves[side(w)].weight
	}
	return part
}

// turnOf is the turn in its line that one more of this class would have.
func (ln *lane) turnOf(c policy.Class) int {
	own, all := 0, 0
	var weights, weight float64
	for i := range ln.classes {
		cl := &ln.classes[i]
		all += cl.waiting
		if policy.Class(i) == c {
			own, weight = cl.waiting+1, cl.weight
			weights += cl.weight
		} else if cl.waiting > 0 {
			weights += cl.weight
		}
	}
	return min(all+1, int(float64(own)*weights/weight))
}
