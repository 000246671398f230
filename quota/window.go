package quota

import (
	"math/bits"
	"time"
)

// Cells is the number of cells in a window (T1).
const Cells = 30

// MaxCount bounds every count, amount and limit: 2^53-1, the largest integer
// that Redis' scripts hold exactly. Counts saturate there, so a counter at
// its top stays closed instead of wrapping round.
const MaxCount = 1<<53 - 1

// The bounds of a window's period in ticks. Periods outside are moved to the
// nearer bound; policy refuses them at load.
const (
	minPeriod = 1
	maxPeriod = 1<<32 - 1 // 49 days
	maxTick   = 1 << 47   // the year 6429: 30 * maxTick fits 2^53
)

// Count returns n moved into 0..MaxCount.
func Count(n int64) int64 { return min(max(n, 0), MaxCount) }

// Ticks are whole milliseconds of Unix time: the granularity of every store.
// The instant is rounded down and bounded to 1..2^47.
func Ticks(t time.Time) int64 { return min(max(t.UnixMilli(), 1), maxTick) }

// Period is a limit's period in ticks, rounded up, at least 1, at most 2^32-1
// (49 days).
func Period(d time.Duration) int64 {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return min(max(int64(ms), minPeriod), maxPeriod)
}

// Window is one counter over a sliding period of 30 cells (T1). Cell k of a
// period is the half-open span [k, k+1) * period/30, counted from 1970. At an
// instant inside cell k the window holds cell k so far, the 29 cells before
// it whole, and cell k-30 by the part of it that is still younger than the
// period, rounded up.
//
// So what is admitted under a limit never exceeds it in any span of 29 cells,
// and in a whole period by no more than what the oldest cell held.
//
// Time that goes back does not move cells back: until the clock has caught
// up, the start of the newest cell counts as now. A window whose newest cell
// lies more than a whole period ahead was written by a broken clock and
// counts as empty.
//
// The zero value is an empty window. A Window belongs to one period and is
// not safe for concurrent use.
type Window struct {
	head  int64 // newest cell written; cells hold head-30..head
	cells [Cells + 1]int64
}

// place finds the cell of an instant and the time elapsed in it, in units of
// 1/30 tick. future reports a window that a broken clock wrote.
func (w *Window) place(period, now int64) (cell, elapsed int64, future bool) {
	at := now * Cells
	cell, elapsed = at/period, at%period
	if w.head > cell {
		if w.head-cell > Cells {
			return cell, elapsed, true
		}
		return w.head, 0, false
	}
	return cell, elapsed, false
}

func (w *Window) at(cell int64) int64 {
	if cell > w.head || cell < w.head-Cells || cell < 0 {
		return 0
	}
	return w.cells[cell%(Cells+1)]
}

// whole sums the 30 youngest cells of the window whose newest cell is given.
func (w *Window) whole(cell int64) int64 {
	var sum int64
	for c := max(cell-Cells+1, w.head-Cells, 0); c <= min(cell, w.head); c++ {
		sum += w.cells[c%(Cells+1)]
	}
	return sum
}

// Used is what the window counts at an instant (ticks), at most MaxCount.
func (w *Window) Used(period, now int64) int64 {
	cell, elapsed, future := w.place(period, now)
	if future {
		return 0
	}
	return min(w.whole(cell)+mulDivUp(w.at(cell-Cells), period-elapsed, period), MaxCount)
}

// Add counts n (0..MaxCount) at an instant and returns the cell it went to.
func (w *Window) Add(period, now, n int64) (cell int64) {
	cell, _, future := w.place(period, now)
	if future || cell-w.head > Cells {
		w.cells = [Cells + 1]int64{}
	} else {
		for c := w.head + 1; c <= cell; c++ {
			w.cells[c%(Cells+1)] = 0
		}
	}
	w.head = cell
	w.Set(cell, min(w.cells[cell%(Cells+1)]+n, MaxCount))
	return cell
}

// Refund takes n back from a cell, never below zero. A cell that the window
// no longer holds is left alone.
func (w *Window) Refund(cell, n int64) {
	if have := w.at(cell); have > 0 {
		w.cells[cell%(Cells+1)] = max(have-n, 0)
	}
}

// Set makes a cell hold n. Cells may be set in any order as long as they lie
// within 30 of each other; stores use it to rebuild a window.
func (w *Window) Set(cell, n int64) {
	if cell > w.head {
		w.head = cell
	}
	w.cells[cell%(Cells+1)] = n
}

// FitsAt is the first instant, now or later, at which the window counts at
// most room (>= 0) if nothing more is added.
func (w *Window) FitsAt(period, now, room int64) int64 {
	cell, elapsed, future := w.place(period, now)
	if future {
		return now
	}
	for ; cell <= w.head+Cells; cell, elapsed = cell+1, 0 {
		left := room - w.whole(cell)
		if left < 0 {
			continue
		}
		if oldest := w.at(cell - Cells); oldest > left {
			// The part that counts, ceil(oldest*part/period), must be <= left.
			elapsed = max(elapsed, period-mulDiv(left, period, oldest))
		}
		return max(now, divUp(cell*period+elapsed, Cells))
	}
	return max(now, divUp((w.head+Cells+1)*period, Cells))
}

// IdleAt is the first instant from which the window is empty for good.
func (w *Window) IdleAt(period int64) int64 {
	return divUp((w.head+Cells+1)*period, Cells)
}

func divUp(a, b int64) int64 { return (a + b - 1) / b }

// mulDiv is a*b/c rounded down, through 128 bits; a*b/c must fit 63 bits.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}

// mulDivUp is a*b/c rounded up.
func mulDivUp(a, b, c int64) int64 {
	if a == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	if r > 0 {
		q++
	}
	return int64(q)
}
