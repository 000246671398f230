package breaker

import (
	"sync/atomic"
	"time"
)

const (
	cells     = 10
	countBits = 20
	countMax  = 1<<countBits - 1 // per cell; more is not counted
	epochMask = 1<<(64-2*countBits) - 1
)

// window counts ends in a ring of cells, without locks. One word holds a cell:
// which stretch of time it counts (epoch, 24 bits), its ends and its failures,
// so a cell is taken over and counted in one exchange. The epoch wraps after
// 16 million cell lengths, half a year at a second each.
//
// The window is the present cell and the nine before it: nine to ten tenths of
// its length. Weighing the cell that is half out would make it exact on
// average, and the figures of a transition fractions that nobody can check;
// whole cells decide by the very counts that are shown.
type window struct {
	base   time.Time
	width  time.Duration // of a cell
	ring   [cells]atomic.Uint64
	failed atomic.Uint64 // epoch of the latest failure; 0 = none yet
	recent atomic.Uint64 // an epoch that was asked for lately
	older  atomic.Pointer[older]
}

// older is what the nine cells before one held when that one began; immutable.
type older struct {
	epoch        uint64
	total, fails int
}

func newWindow(base time.Time, length time.Duration) *window {
	return &window{base: base, width: max(length/cells, 1)}
}

// epoch numbers the stretch of time that now lies in; 1 is the first. Mostly
// it is that of the last call, which saves a division.
func (w *window) epoch(now time.Time) uint64 {
	d := max(0, now.Sub(w.base))
	e := w.recent.Load()
	if in := d - time.Duration(e-1)*w.width; in >= 0 && in < w.width {
		return e
	}
	e = uint64(d/w.width) + 1
	w.recent.Store(e)
	return e
}

// add counts one end and gives what its cell holds now. fresh says that it
// opened a new cell. A time that went back by up to two windows is counted in
// the cell that took its place; one that went back further counts anew.
func (w *window) add(e uint64, failed bool) (cell uint64, fresh bool) {
	one := uint64(1) << countBits
	if failed {
		one++
		if w.failed.Load() < e {
			w.failed.Store(e)
		}
	}
	c := &w.ring[e%cells]
	for {
		old := c.Load()
		next := old + one
		ahead := (old>>(2*countBits) - e) & epochMask // of now
		fresh = old == 0 || ahead > 2*cells
		if fresh {
			next = (e&epochMask)<<(2*countBits) | one
		} else if old>>countBits&countMax == countMax {
			return old, false
		}
		if c.CompareAndSwap(old, next) {
			return next, fresh
		}
	}
}

// with counts the ends and failures in the window that ends in epoch e, whose
// cell is given: add's answer. What is counted late into an older cell shows
// up when the next one begins.
func (w *window) with(e, cell uint64) (total, fails int) {
	o := w.older.Load()
	if o == nil || o.epoch != e {
		o = &older{epoch: e}
		for i := range w.ring {
			v := w.ring[i].Load()
			if age := (e - v>>(2*countBits)) & epochMask; v != 0 && age > 0 && age < cells {
				o.total += int(v >> countBits & countMax)
				o.fails += int(v & countMax)
			}
		}
		w.older.Store(o)
	}
	return o.total + int(cell>>countBits&countMax), o.fails + int(cell&countMax)
}

// clean reports whether no failure is in the window, at the price of one load.
func (w *window) clean(e uint64) bool {
	f := w.failed.Load()
	return f == 0 || f+cells <= e
}

// sum counts the ends and failures in the window that ends in epoch e.
func (w *window) sum(e uint64) (total, fails int) {
	for i := range w.ring {
		v := w.ring[i].Load()
		if v != 0 && (e-v>>(2*countBits))&epochMask < cells {
			total += int(v >> countBits & countMax)
			fails += int(v & countMax)
		}
	}
	return total, fails
}

// rate is ends per second, of total ends in the window that ends at now.
func (w *window) rate(now time.Time, total int) float64 {
	passed := max(0, now.Sub(w.base))
	covered := min(passed, passed%w.width+(cells-1)*w.width)
	return float64(total) / max(covered, w.width).Seconds()
}

// whole reports whether a whole window has passed since the start.
func (w *window) whole(now time.Time) bool { return now.Sub(w.base) >= cells*w.width }
