package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Goal: at most 0.2 µs and no allocation for an offer with a free seat and
// its release.
func BenchmarkSeatAtOnce(b *testing.B) {
	l := New(standardConfig(64, 400000), nil)
	w := waiter(policy.Standard, "a")
	now := at(0)
	b.ReportAllocs()
	for b.Loop() {
		l.Offer(now, w, wide)
		l.Release(now, w)
	}
}

// Goal: at most 1 µs for a release that wakes one of 5,000, the offer that
// takes its place included.
func BenchmarkWakeOf5000(b *testing.B) {
	for _, tenants := range []int{1, 100, 5000} {
		b.Run(fmt.Sprint("tenants=", tenants), func(b *testing.B) {
			l := New(standardConfig(1, 0), nil)
			bounds := Bounds{Length: 6000, Soft: 5900, PerTenant: 0.5}
			running := waiter(policy.Standard, "a")
			l.Offer(at(0), running, bounds)
			names := make([]string, tenants)
			for i := range names {
				names[i] = fmt.Sprint("t", i)
			}
			next := 0
			offer := func(w *Waiter) {
				w.Class, w.Tenant = policy.Class(next%3), names[next%tenants]
				w.Cost, w.MaxWait = int64(100+next%900), time.Hour
				next++
				l.enqueue(prepared(l, w), bounds)
			}
			for range 5000 {
				offer(&Waiter{})
			}
			now := at(0)
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				now = now.Add(10 * time.Microsecond)
				done := running
				running = l.Release(now, done)[0].Waiter
				offer(done)
			}
		})
	}
}

func prepared(l *Line, w *Waiter) *Waiter {
	w.node = node{line: l, since: l.now, deadline: never}
	return w
}

// An offer that is refused while 4,000 wait.
func BenchmarkRefusal(b *testing.B) {
	l := New(standardConfig(1, 0), nil)
	bounds := Bounds{Length: 6000, Soft: 4000, PerTenant: 0.5}
	l.Offer(at(0), waiter(policy.Standard, "a"), bounds)
	for i := range 5000 {
		l.Offer(at(0), long(waiter(policy.Class(i%3), fmt.Sprint("t", i))), bounds)
	}
	w := waiter(policy.Standard, "new")
	b.ReportAllocs()
	for b.Loop() {
		if l.Offer(at(0), w, bounds).Refusal == Taken {
			b.Fatal("taken")
		}
	}
}
