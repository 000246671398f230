package queue

// flow is one of several that share a level: a class among classes, or a
// tenant among the tenants of its class.
type flow struct {
	weight float64
	tag    float64 // ready: start tag of its head; in debt: its finish tag
	tie    uint64  // between equal tags: class number, or arrival of the head
	since  uint64  // seats given when it got its first waiter
	slack  float64 // of its tag, then: how far it was ahead of v, less what has been given back of it
	pos    int     // in the heap it lies in
	state  flowState
	tenant *tenant // nil for a class
}

func (f *flow) place(i int) { f.pos = i }

type flowState uint8

const (
	gone   flowState = iota // unknown to its level
	ready                   // has waiters
	indebt                  // has none, but the fluid server still works at what it got
)

// level is one storey of hierarchical fair queuing by start tags, see the
// package comment. Its clock v is the virtual time of the fluid server (GPS)
// that does the same work: it moves by work / weight of the flows that this
// server still serves, which are those ready and those in debt.
//
// Invariant while a busy period lasts: the sum of weight*(tag-v) over all
// flows is -credit but for the bounded effects of cancels and weight changes, so
// the flow of the least tag is never ahead of the fluid server.
type level struct {
	v       float64
	weight  float64 // of all flows ready or in debt
	credit  float64 // work given back that v has already counted
	ready   heap[float64, *flow]
	debt    heap[float64, *flow]
	tenants map[string]*tenant // of a class; forgotten flows leave it
}

// join makes f ready: it has got its first waiter, after so many seats were
// given. Having been idle brings no credit: the start tag is at least v.
func (l *level) join(f *flow, tie, given uint64) {
	switch f.state {
	case ready:
		return
	case indebt:
		l.debt.remove(f.pos)
	case gone:
		f.tag = l.v
		l.weight += f.weight
	}
	f.tag = max(f.tag, l.v)
	f.tie, f.state, f.since, f.slack = tie, ready, given, f.tag-l.v
	l.ready.push(f.tag, tie, f)
}

// reweigh changes the weight of f from now on.
func (l *level) reweigh(f *flow, weight float64) {
	if f.state != gone {
		l.weight += weight - f.weight
	}
	f.weight = weight
}

// charge counts work that f, which is ready, has been given.
func (l *level) charge(f *flow, work float64) {
	f.tag += work / f.weight
	l.ready.fix(f.pos, f.tag, f.tie)
	l.advance(work)
}

// retie says that f has another head.
func (l *level) retie(f *flow, tie uint64) {
	f.tie = tie
	l.ready.fix(f.pos, f.tag, tie)
}

// leave says that f has no waiters any more. Its debt is kept until the fluid
// server has caught up, and no longer than anybody is ready here. What it lies
// before v is lost.
func (l *level) leave(f *flow) {
	l.ready.remove(f.pos)
	if l.ready.len() == 0 {
		l.forget(f)
		l.reset()
		return
	}
	if f.tag > l.v {
		f.state = indebt
		l.debt.push(f.tag, 0, f)
	} else {
		l.credit = max(0, l.credit-(l.v-f.tag)*f.weight)
		l.forget(f)
	}
	l.v = max(l.v, l.ready.min().key)
}

// correct changes the account of f by work: what it was given as one of the
// seats, after so many, turned out to cost more, or less, than what was charged.
func (l *level) correct(f *flow, work float64, given uint64) {
	switch {
	case l.ready.len() == 0: // nobody competes
		return
	case work < 0:
		l.refund(f, -work, given)
		return
	case f.state == gone:
		f.tag, f.state, f.since, f.slack = l.v, indebt, given, 0
		l.weight += f.weight
		l.debt.push(f.tag, 0, f)
	}
	if given < f.since {
		f.slack += work / f.weight
	}
	f.tag += work / f.weight
	l.moved(f)
	l.advance(work)
}

// refund takes work off the account of f. That brings f before v as long as it
// has waiters, and only for what it was charged since they began to wait: what
// it was charged before makes it start then as if it had been charged less, but
// not before v.
func (l *level) refund(f *flow, work float64, given uint64) {
	if f.state == gone {
		return
	}
	if given < f.since {
		work = min(work, f.slack*f.weight)
		f.slack -= work / f.weight
	}
	if f.state == indebt {
		work = min(work, max(0, f.tag-l.v)*f.weight)
	}
	l.credit += work
	f.tag -= work / f.weight
	l.moved(f)
	l.advance(0)
}

// moved says that f, which is known, has another tag.
func (l *level) moved(f *flow) {
	if f.state == ready {
		l.ready.fix(f.pos, f.tag, f.tie)
	} else {
		l.debt.fix(f.pos, f.tag, 0)
	}
}

// leeway is how many requests of its size an account may be ahead of the least
// here for what it was given elsewhere.
const leeway = 16

// bear counts work that f was given elsewhere, as correct does, but never
// brings f more than leeway times the work before the least of those ready: who
// is served faster elsewhere than anybody is here has no claim here now, and
// does not pay for that when it has one again. It returns what it has counted.
func (l *level) bear(f *flow, work float64, given uint64) float64 {
	if work > 0 && l.ready.len() > 0 {
		tag := l.v
		if f.state != gone {
			tag = f.tag
		}
		work = min(work, max(0, (l.ready.min().key-tag)*f.weight+leeway*work))
	}
	l.correct(f, work, given)
	return work
}

// advance moves v as the fluid server does that amount of work, and forgets
// the flows whose debt it has worked off.
func (l *level) advance(work float64) {
	back := min(l.credit, work)
	l.credit -= back
	work -= back
	for l.debt.len() > 0 {
		f := l.debt.min().item
		need := max(0, f.tag-l.v) * l.weight
		if need > work {
			break
		}
		work -= need
		l.v = max(l.v, f.tag)
		l.debt.remove(0)
		l.forget(f)
	}
	if l.weight > 0 {
		l.v += work / l.weight
	}
	if l.ready.len() > 0 {
		l.v = max(l.v, l.ready.min().key)
	}
}

// forget drops f, which lies in no heap any more.
func (l *level) forget(f *flow) {
	f.state = gone
	l.weight -= f.weight
	if f.tenant != nil {
		delete(l.tenants, f.tenant.name)
	}
}

// reset ends a busy period: nobody is ready, so nobody is owed anything.
func (l *level) reset() {
	for i := range l.debt.entries {
		l.forget(l.debt.entries[i].item)
	}
	l.debt.clear()
	l.v, l.weight, l.credit = 0, 0, 0
}

// rebase lets all ready flows start anew from v, after so many seats were given:
// the price has changed, and tags of two prices cannot be compared.
func (l *level) rebase(given uint64) {
	for i := range l.debt.entries {
		l.forget(l.debt.entries[i].item)
	}
	l.debt.clear()
	l.credit = 0
	flows := append([]keyed[float64, *flow](nil), l.ready.entries...)
	l.ready.clear()
	for _, s := range flows {
		s.item.tag, s.item.since, s.item.slack = l.v, given, 0
		l.ready.push(l.v, s.item.tie, s.item)
	}
}
