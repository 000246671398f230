package admission

import (
	"sync"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// lossKept is how long an end waits for the word of Envoy, which comes with its
// next flush of statistics.
const lossKept = 15 * time.Second

// losses are a pool's ends that Envoy's count of broken calls is held against
// (B6). An answer that ends in the middle without a word was left by its caller
// or broken off by its host: weir is not told which, but Envoy counts the
// latter. Safe for concurrent use.
type losses struct {
	mu      sync.Mutex
	unknown waiting // ends in the middle
	probes  waiting // those of them that a half-open breaker waited for
	told    waiting // what counts already, or never: Envoy's count may be of it too
}

// waiting counts ends by second.
type waiting struct {
	n    [int(lossKept/time.Second) + 1]int64
	last int64 // second
}

// at brings the count to a second; one that went back is the last.
func (w *waiting) at(second int64) *int64 {
	for w.last < second {
		if second-w.last > int64(len(w.n)) {
			w.last = second - int64(len(w.n))
		}
		w.last++
		w.n[w.last%int64(len(w.n))] = 0
	}
	return &w.n[w.last%int64(len(w.n))]
}

func (w *waiting) sum(second int64) (n int64) {
	w.at(second)
	for _, v := range w.n {
		n += v
	}
	return n
}

// take takes up to most, the oldest first.
func (w *waiting) take(second, most int64) (taken int64) {
	w.at(second)
	for i := w.last + 1; i <= w.last+int64(len(w.n)) && taken < most; i++ {
		v := &w.n[i%int64(len(w.n))]
		n := min(*v, most-taken)
		*v -= n
		taken += n
	}
	return taken
}

// note keeps an end that Envoy's count may be of.
func (l *pool) note(now time.Time, p *Plan, e *End, late bool) {
	second := int64(now.Sub(l.base) / time.Second)
	s := &l.losses
	switch {
	case second < 0:
	case e.Result == ResultUnknown && p.lane == nil && !late:
		s.mu.Lock()
		defer s.mu.Unlock()
		*s.unknown.at(second)++
		if p.probe {
			*s.probes.at(second)++
		}
	case e.Result == ResultUnknown, e.Result == ResultNoAnswer && e.Failed:
		s.mu.Lock()
		defer s.mu.Unlock()
		*s.told.at(second)++
	}
}

// explain takes up to n ends that are no news.
func (l *pool) explain(now time.Time, n int64) int64 {
	l.losses.mu.Lock()
	defer l.losses.mu.Unlock()
	return l.losses.told.take(int64(now.Sub(l.base)/time.Second), n)
}

// unexplained is how many ends in the middle wait for Envoy's word.
func (l *pool) unexplained(now time.Time) int64 {
	l.losses.mu.Lock()
	defer l.losses.mu.Unlock()
	return l.losses.unknown.sum(int64(now.Sub(l.base) / time.Second))
}

// lose counts n ends in the middle as failures of the pool.
func (l *pool) lose(now time.Time, n int64) {
	second := int64(now.Sub(l.base) / time.Second)
	l.losses.mu.Lock()
	n = l.losses.unknown.take(second, n)
	probes := l.losses.probes.take(second, n)
	l.losses.mu.Unlock()
	for range n {
		l.breaker.Lost(now, probes > 0)
		probes--
	}
	l.mu.Lock()
	l.meter.lost += uint64(n)
	l.mu.Unlock()
	if n > 0 && l.breaker.Peek(now, 0).State != breaker.Closed {
		if k := l.keeper.Load(); k != nil {
			k.look()
		}
	}
}

// Lost says that Envoys counted n calls of a cluster as broken, by their hosts,
// and did not try them again (B6). As many of the ends in the middle that this
// desk knows nothing else of are failures of their pool. What Envoy reported
// itself is a failure already and comes off first. Where pools share the
// cluster and more ends wait than calls were broken, each pool has its part. It
// gives how many of the n are of no end that is known yet.
func (d *Desk) Lost(now time.Time, cluster string, n int64) (rest int64) {
	var pools []*pool
	var open []int64
	var all int64
	for _, l := range d.core.floor.Load().order {
		if l.cluster() != cluster {
			continue
		}
		n -= l.explain(now, n)
		waits := l.unexplained(now)
		pools, open, all = append(pools, l), append(open, waits), all+waits
	}
	rest = max(n-all, 0)
	n -= rest
	for i, l := range pools {
		if n <= 0 {
			break
		}
		part := (n*open[i] + all - 1) / all // of what is left, rounded up
		l.lose(now, part)
		n, all = n-part, all-open[i]
	}
	return rest
}
