package admission

import (
	"sync/atomic"
	"time"
)

// keeper is the goroutine that advances one line when it wants to: one timer
// per line, armed to the line's next instant.
type keeper struct {
	desk  *Desk
	core  *Core
	pool  *pool
	poke  chan struct{}
	armed atomic.Int64 // as pool.next; the instant it will wake up at the latest
}

// keepAll starts a keeper for each pool without one. The desk's lock is held,
// or nobody else knows the desk.
func (d *Desk) keepAll() {
	for _, c := range [2]*Core{d.core, d.shadow} {
		for _, l := range c.floor.Load().order {
			if l.keeper.Load() != nil {
				continue
			}
			k := &keeper{desk: d, core: c, pool: l, poke: make(chan struct{}, 1)}
			k.armed.Store(int64(never))
			l.keeper.Store(k)
			d.keepers.Add(1)
			go k.run()
		}
	}
}

// run advances until the desk closes, or the pool is gone and empty.
func (k *keeper) run() {
	defer k.desk.keepers.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.desk.stop:
			return
		case <-k.poke:
		case <-timer.C:
		}
		if !k.tend(timer) {
			return
		}
	}
}

// tend advances the line and arms the timer for its next instant. An
// operation publishes next before it looks at armed, and tend stores armed
// before it looks at next again: one of the two sees the other.
func (k *keeper) tend(timer *time.Timer) bool {
	for {
		now := time.Now()
		decided, overdue := k.core.advance(now, k.pool)
		k.desk.deliver(now, decided)
		for _, p := range overdue {
			k.desk.overdue(p)
		}
		if k.pool.deserted() {
			return false
		}
		next := k.pool.next.Load()
		k.armed.Store(next)
		if k.pool.next.Load() < next {
			continue
		}
		if next == int64(never) {
			timer.Stop()
			return true
		}
		wait := time.Until(k.pool.base.Add(time.Duration(next)))
		if wait > 0 {
			timer.Reset(wait)
			return true
		}
	}
}

// wake makes the pool's keeper look again where the pool wants to be advanced
// earlier than it would. A nil pool has none.
func (l *pool) wake() {
	if l == nil {
		return
	}
	if k := l.keeper.Load(); k != nil && l.next.Load() < k.armed.Load() {
		k.look()
	}
}

// wake wakes the pools of a plan that does not wait: one that waits may be
// getting its seat from another goroutine.
func (p *Plan) wake() {
	p.pool.wake()
	p.seat.wake()
}

func (k *keeper) look() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// overdue ends a request that has held its seat longer than maxHold.
func (d *Desk) overdue(p *Plan) {
	if v, ok := p.Owner.(*Visit); ok {
		v.ticket.Done(End{Result: ResultUnknown, GRPC: -1})
	}
}
