package admission

import (
	"container/heap"
	"time"
)

// begin is when the answer of a plan with a seat is to begin (B6): the pool's
// firstByte. The pool's lock guards it, but for by, which is set once.
type begin struct {
	by    time.Time // zero = there is no bound
	index int       // in the pool's heap; -1 = it is not there
	late  bool      // it was later, and is counted
}

// begins are the plans whose answers have not begun, the first to be late on
// top. They are part of what the pool's timer is armed for.
type begins []*Plan

// Len is part of heap.Interface.
func (b begins) Len() int { return len(b) }

// Less is part of heap.Interface.
func (b begins) Less(i, j int) bool { return b[i].begins.by.Before(b[j].begins.by) }

// Swap is part of heap.Interface.
func (b begins) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].begins.index, b[j].begins.index = i, j
}

// Push is part of heap.Interface.
func (b *begins) Push(x any) {
	p := x.(*Plan)
	p.begins.index = len(*b)
	*b = append(*b, p)
}

// Pop is part of heap.Interface.
func (b *begins) Pop() any {
	old := *b
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*b = old[:len(old)-1]
	p.begins.index = -1
	return p
}

// next is when the next is late.
func (b begins) next() (time.Time, bool) {
	if len(b) == 0 {
		return time.Time{}, false
	}
	return b[0].begins.by, true
}

// await notes when the answer of a plan that gets its seat is to begin. What
// passed by the lane decides nothing (B1), and neither does a shadow. The lock
// is held.
func (l *pool) await(now time.Time, p *Plan) {
	if l.echo || p.lane != nil || !p.Request.Timed {
		return
	}
	if bound := l.firstByte(p); bound > 0 {
		p.begins = begin{by: now.Add(bound)}
		heap.Push(&l.begins, p)
	}
}

// firstByte is how long the answer of a plan may take to begin; 0 = there is no
// bound. What the pool has learnt of the model counts once it is warm: for an
// answer that does not stream its whole run time, since it begins when it is
// complete.
func (l *pool) firstByte(p *Plan) time.Duration {
	spec := l.spec.Load()
	bound, learnt := spec.FirstByte, spec.Learnt
	if learnt == nil {
		return bound
	}
	output := p.Output
	if p.Request.Stream {
		output = 0
	}
	usual, known := l.speeds.predict(p.model, p.Input, output)
	if !known {
		return bound
	}
	late := max(learnt.Min, seconds(learnt.Factor*usual.Seconds()))
	if bound > 0 {
		late = min(late, bound)
	}
	return late
}

// begun notes that the answer of a plan began, or that its request ended, and
// tells whether it was late. The lock is held.
func (l *pool) begun(now time.Time, p *Plan) (late bool) {
	b := &p.begins
	if b.by.IsZero() || b.index < 0 {
		return b.late
	}
	heap.Remove(&l.begins, b.index)
	if !now.Before(b.by) { // the timer has not come to it yet
		l.countLate(now, p)
	}
	return b.late
}

// ended is begun for a plan whose request ends: who leaves before the bound
// says nothing, who waited for longer has seen the pool fail.
func (l *pool) ended(now time.Time, p *Plan) (late bool) {
	if p.begins.by.IsZero() {
		return false
	}
	now = l.lock(now)
	defer l.unlock()
	return l.begun(now, p)
}

// late counts the plans that are late at now. The lock is held.
func (l *pool) late(now time.Time) {
	for {
		if by, ok := l.begins.next(); !ok || by.After(now) {
			return
		}
		l.countLate(now, heap.Pop(&l.begins).(*Plan))
	}
}

// countLate counts a failure of the pool, once, while its request still waits
// for its answer. A new policy may have lifted the bound. The lock is held.
func (l *pool) countLate(now time.Time, p *Plan) {
	if spec := l.spec.Load(); spec.FirstByte == 0 && spec.Learnt == nil {
		return
	}
	p.begins.late = true
	l.meter.late++
	l.breaker.Record(now, true, p.probe)
	p.probe = false
}
