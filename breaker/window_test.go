package breaker

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// The ring of cells counts what a list of ends counts, through quiet times
// of any length.
func TestWindowIsItsModel(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newWindow(at(0), 10*sec)
		var ends []time.Duration
		var now time.Duration
		for range 2000 {
			if r.IntN(3) == 0 {
				now += time.Duration(r.Int64N(int64(sec) << r.IntN(6)))
			}
			w.add(w.epoch(at(now)), r.IntN(2) == 0)
			ends = append(ends, now)
			want := 0
			for _, e := range ends {
				if now/sec-e/sec < cells {
					want++
				}
			}
			if got, fails := w.sum(w.epoch(at(now))); got != want || fails > got {
				t.Fatalf("seed %d at %v: %d ends (%d failed), want %d", seed, now, got, fails, want)
			}
		}
	}
}

// The epoch of a bucket wraps; what it counted long ago never comes back in
// the window after.
func TestWindowWraps(t *testing.T) {
	w := newWindow(at(0), 10*sec)
	around := time.Duration(epochMask) * sec
	w.add(w.epoch(at(around-2*sec)), true)
	w.add(w.epoch(at(around+2*sec)), true)
	if total, _ := w.sum(w.epoch(at(around + 3*sec))); total != 2 {
		t.Fatalf("%d ends around the wrap, want 2", total)
	}
	if total, _ := w.sum(w.epoch(at(around + 20*sec))); total != 0 {
		t.Fatalf("%d ends after it, want 0", total)
	}
}

// A bucket that is full stays full and keeps its neighbours.
func TestWindowSaturates(t *testing.T) {
	w := newWindow(at(0), 10*sec)
	w.add(w.epoch(at(0)), true)
	b := &w.ring[w.epoch(at(0))%cells]
	epoch := b.Load() >> (2 * countBits)
	b.Store(epoch<<(2*countBits) | countMax<<countBits | countMax)
	w.add(w.epoch(at(0)), true)
	if total, fails := w.sum(w.epoch(at(0))); total != countMax || fails != countMax {
		t.Fatalf("%d of %d", fails, total)
	}
}

// Every end is counted once, whoever counts at the same time; and the whole
// breaker stands concurrent use in every state.
func TestConcurrentUse(t *testing.T) {
	w := newWindow(at(0), 10*sec)
	c := defaults()
	c.Open, c.ReleaseStep = 10*ms, ms
	b := newHTTP(c, dice(1))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 5000 {
				w.add(w.epoch(at(time.Duration(i)*ms)), i%2 == 0)
				now := at(time.Duration(i) * ms)
				v := b.Allow(now, policy.Class(i%3))
				switch {
				case v.Action == Shed:
				case v.Probe && r.IntN(3) == 0:
					b.Forget(now)
				default:
					b.Record(now, r.IntN(3) == 0, v.Probe)
				}
				b.Peek(now, policy.Batch)
				if view := b.View(now); view.Failures > view.Requests {
					t.Errorf("%+v", view)
				}
			}
		})
	}
	wg.Wait()
	if total, fails := w.sum(w.epoch(at(5 * sec))); total != 40000 || fails != 20000 {
		t.Fatalf("%d of %d, want 20000 of 40000", fails, total)
	}
	if b.out != 0 {
		t.Fatalf("%d probes lost", b.out)
	}
}
