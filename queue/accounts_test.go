package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// P2: real costs, settled afterwards, decide the shares: of one who is
// predicted too low, and of one who is predicted too high.
func TestSettleCorrects(t *testing.T) {
	for _, c := range []struct{ predicted, real int64 }{{100, 200}, {200, 100}, {1, 100}, {100, 100}} {
		l, held := full(t, standardConfig(1, 0))
		b := Bounds{Length: 10000}
		for range 2000 {
			w := long(waiter(policy.Standard, "a"))
			w.Cost = c.predicted
			mustWait(t, l, at(0), w, b)
			w = long(waiter(policy.Standard, "exact"))
			w.Cost = 100
			mustWait(t, l, at(0), w, b)
		}
		running := held[0]
		spent := map[string]int64{}
		for range 900 {
			cost := int64(100)
			if running.Tenant == "a" {
				cost = c.real
			}
			if running != held[0] {
				l.Settle(running, cost)
				l.Settle(running, cost) // once only
				spent[running.Tenant] += cost
			}
			running = granted(l.Release(at(0), running))[0]
		}
		if d := spent["a"] - spent["exact"]; d < -300 || d > 300 {
			t.Errorf("predicted %d, real %d: spent %v, want even", c.predicted, c.real, spent)
		}
	}
}

// P2: a tenant who never waits twice at a time is held to its real cost too,
// and so is a class. What it loses between two of its waiters is less than one
// request of the others.
func TestSettleReachesWhoDoesNotWait(t *testing.T) {
	for _, class := range []policy.Class{policy.Standard, policy.Critical} {
		l, held := full(t, standardConfig(1, 0))
		b := Bounds{Length: 20000}
		for range 12000 {
			w := long(waiter(policy.Standard, "exact"))
			w.Cost = 10
			mustWait(t, l, at(0), w, b)
		}
		next := func() { mustWait(t, l, at(0), long(waiter(class, "sly")), b) } // predicted 1, real 1000
		next()
		running := held[0]
		spent := map[string]int64{}
		for range 10000 {
			done := running
			running = granted(l.Release(at(0), done))[0]
			if done == held[0] {
				continue
			}
			cost := done.Cost
			if done.Tenant == "sly" {
				cost = 1000
				next()
			}
			l.Settle(done, cost)
			spent[done.Tenant] += cost
		}
		ratio, want := float64(spent["sly"])/float64(spent["exact"]), 1.0
		if class == policy.Critical {
			want = 1.5 // 3:2
		}
		if ratio < want*0.95 || ratio > want*1.05 {
			t.Errorf("%v: spent %v, want %v : 1", class, spent, want)
		}
	}
}

// A change of price or weights in mid queue starves nobody.
func TestRepricing(t *testing.T) {
	cfg := standardConfig(1, 0)
	l, held := full(t, cfg)
	b := Bounds{Length: 10000}
	for range 600 {
		for c := range policy.Class(3) {
			w := long(waiter(c, "t"))
			w.Cost = 5000
			mustWait(t, l, at(0), w, b)
		}
	}
	_, running := serve(t, l, held[0], 50, className)
	cfg.Price, cfg.Weights = policy.ByRequests, [3]int{1, 1, 1}
	l.Configure(at(0), cfg)
	got, _ := serve(t, l, running, 300, className)
	for name, n := range got {
		if n < 99 || n > 101 {
			t.Fatalf("%s: %v, want 100 each", name, got)
		}
	}
}

// Memory: 100,000 tenants come and go while the line is never empty; what is
// kept follows who waits, not who ever came.
func TestTenantsAreForgotten(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 1000, RetryLimit: time.Second, RetryLen: 10}
	running := held[0]
	most := 0
	for i := range 100_000 {
		w := long(waiter(policy.Class(i%3), fmt.Sprint("t", i)))
		w.Cost = int64(1 + i%100)
		mustWait(t, l, at(time.Duration(i)*ms), w, b)
		if i < 100 {
			continue
		}
		l.Settle(running, int64(1+i%250))
		running = granted(l.Release(at(time.Duration(i)*ms), running))[0]
		most = max(most, l.Stats(at(0)).Tenants)
	}
	if most > 1000 {
		t.Fatalf("%d flows for 100 waiters", most)
	}
	for range 100 {
		running = granted(l.Release(at(time.Hour), running))[0]
	}
	if s := l.Stats(at(time.Hour)); s.Tenants != 0 || s.Waiting != [3]int{} {
		t.Fatalf("left behind: %+v", s)
	}
}
