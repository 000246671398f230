package admission

import (
	"context"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Drain refuses newcomers and everybody who waits (503 draining) and then
// waits until running tickets are gone or ctx ends; it returns how many are
// left.
func (d *Desk) Drain(ctx context.Context) int {
	d.draining.Store(true)
	now := time.Now()
	d.deliver(now, d.core.Drain(now))
	d.deliver(now, d.shadow.Drain(now))
	if d.tickets.count.Load() == 0 {
		return 0
	}
	select {
	case <-d.tickets.empty:
	case <-ctx.Done():
	}
	return int(d.tickets.count.Load())
}

// Swap takes a new policy: pools, seats and rules change at once. It says what
// became of those who waited.
func (d *Desk) Swap(p *policy.Policy) Reload {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return Reload{}
	}
	now := time.Now()
	before := [2]*floor{d.core.floor.Load(), d.shadow.floor.Load()}
	d.mirror.Store(hasShadow(p))
	decided, done := d.core.swap(now, p)
	ghosts := d.shadow.Swap(now, p)
	d.keepAll()
	d.deliver(now, decided)
	d.deliver(now, ghosts)
	for _, f := range append(before[:], d.core.floor.Load(), d.shadow.floor.Load()) { // keepers of pools that are gone, and of new shapes
		for _, l := range f.order {
			l.keeper.Load().look()
		}
	}
	return done
}
