package breaker

import (
	"sync/atomic"
	"time"
)

const (
	buckets   = 10
	countBits = 20
	countMax  = 1<<countBits - 1 // per bucket; more is not counted
	epochMask = 1<<(64-2*countBits) - 1
)

// window counts ends in a ring of buckets, without locks. One word holds a
// bucket: which stretch of time it counts (epoch, 24 bits), its ends and its
// failures, so a bucket is taken over and counted in one exchange. The epoch
// wraps after 16 million bucket lengths, half a year at a second each.
type window struct {
	base  time.Time
	width time.Duration // of a bucket
	ring  [buckets]atomic.Uint64
}

func newWindow(base time.Time, length time.Duration) *window {
	return &window{base: base, width: max(length/buckets, 1)}
}

// epoch numbers the stretch of time that now lies in; 1 is the first.
func (w *window) epoch(now time.Time) uint64 {
	return uint64(max(0, now.Sub(w.base))/w.width) + 1
}

// add counts one end. fresh says that it opened a new bucket. A time that went
// back is counted in the bucket that took its place.
func (w *window) add(now time.Time, failed bool) (fresh bool) {
	e := w.epoch(now)
	b := &w.ring[e%buckets]
	for {
		old := b.Load()
		epoch, total, fails := unpack(old)
		fresh = old == 0 || later(e, epoch)
		if fresh {
			epoch, total, fails = e&epochMask, 0, 0
		}
		if total == countMax {
			return false
		}
		total++
		if failed {
			fails++
		}
		if b.CompareAndSwap(old, epoch<<(2*countBits)|total<<countBits|fails) {
			return fresh
		}
	}
}

// sum counts the ends and failures in the window that ends at now.
func (w *window) sum(now time.Time) (total, fails int) {
	e := w.epoch(now)
	for i := range w.ring {
		v := w.ring[i].Load()
		epoch, t, f := unpack(v)
		if v != 0 && (e-epoch)&epochMask < buckets {
			total += int(t)
			fails += int(f)
		}
	}
	return total, fails
}

// rate is ends per second over the time that sum covers.
func (w *window) rate(now time.Time) float64 {
	total, _ := w.sum(now)
	passed := max(0, now.Sub(w.base))
	covered := min(passed, passed%w.width+(buckets-1)*w.width)
	return float64(total) / max(covered, w.width).Seconds()
}

// whole reports whether a whole window has passed since the start.
func (w *window) whole(now time.Time) bool { return now.Sub(w.base) >= buckets*w.width }

func unpack(v uint64) (epoch, total, fails uint64) {
	return v >> (2 * countBits), v >> countBits & countMax, v & countMax
}

// later reports whether epoch a comes after b, in their ring of 24 bits.
func later(a, b uint64) bool {
	d := (a - b) & epochMask
	return d != 0 && d <= epochMask/2
}
