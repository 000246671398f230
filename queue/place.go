package queue

import "github.com/weirproxy/weir/policy"

// waitingOf is how many of a class wait.
func (l *Line) waitingOf(c policy.Class) int {
	return l.lanes[0].classes[c].waiting + l.lanes[1].classes[c].waiting
}

// waitingBy is how many of a tenant wait in a class.
func (l *Line) waitingBy(c policy.Class, tenant string) int {
	return l.lanes[0].waiting(c, tenant) + l.lanes[1].waiting(c, tenant)
}

// tenantsOf is how many flows of a class have waiters.
func (l *Line) tenantsOf(c policy.Class) int {
	return l.lanes[0].classes[c].level.ready.len() + l.lanes[1].classes[c].level.ready.len()
}

// place is where w, which does not wait yet, would stand in the fair order:
// behind all of its class and as many of the others as their weights let go
// first.
func (l *Line) place(w *Waiter) int {
	red := w.Colour == policy.Red
	ahead, ln := l.red, &l.lanes[0]
	if !red {
		ln = &l.lanes[1]
	}
	own, same := 0, 0
	var weights, weight float64
	for i := range ln.classes {
		cl := &ln.classes[i]
		same += cl.waiting
		if policy.Class(i) == w.Class {
			own, weight = cl.waiting+1, cl.weight
			weights += cl.weight
		} else if cl.waiting > 0 {
			weights += cl.weight
		}
	}
	turn := min(same+1, int(float64(own)*weights/weight))
	if red {
		return turn
	}
	return ahead + turn
}
