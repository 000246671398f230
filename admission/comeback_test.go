package admission

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// comeback is what 500 callers of one instant meet who obey their hints until
// they are served.
type comeback struct {
	mu     sync.Mutex
	hints  []time.Duration
	tries  int
	served int
	last   time.Duration // until the last one was served
}

// obey sends one request, and again after its hint as the caller reads it.
func (c *comeback) obey(t *testing.T, d *Desk, e *policy.Effective, caller int, read func(time.Duration) time.Duration) {
	began := time.Now()
	for try := range 50 {
		r := ask(e, name(name("c", caller), try), name("t", caller%50), policy.Standard)
		ticket, dec := d.Admit(t.Context(), r)
		if ticket != nil {
			time.Sleep(100 * time.Millisecond)
			ticket.Done(fine(100, 100))
		}
		c.mu.Lock()
		c.tries++
		if ticket != nil {
			c.served++
			c.last = max(c.last, time.Since(began))
			c.mu.Unlock()
			return
		}
		c.hints = append(c.hints, dec.RetryAfter)
		c.mu.Unlock()
		time.Sleep(read(dec.RetryAfter))
	}
	t.Errorf("caller %d was refused 50 times", caller)
}

// K, Q5: 500 callers at once, for a pool of 100 a second. Those refused do not
// get one hint for all; who obeys is served, by exact and by whole seconds, and
// the pool is not left idle meanwhile: all are through in at most three times
// what it needs.
func TestCallersWhoObeyTheirHints(t *testing.T) {
	for _, tt := range []struct {
		name string
		read func(time.Duration) time.Duration
	}{
		{"retry-after-ms", func(d time.Duration) time.Duration { return d }},
		{"retry-after", func(d time.Duration) time.Duration { return max((d+time.Second-1)/time.Second, 1) * time.Second }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := house(10, func(p *policy.Policy) {
					p.Pools, p.Models[0].Pools = p.Pools[:1], p.Models[0].Pools[:1]
				})
				d := newTestDesk(t, p)
				e := effective(t, p)
				var wg sync.WaitGroup
				for i := range 10 { // until the pool's rate is measured
					newTally().load(t, &wg, d, e, name("warm", i), policy.Standard, 100, 100*time.Millisecond, 100*time.Millisecond)
				}
				wg.Wait()
				var c comeback
				for i := range 500 {
					wg.Go(func() { c.obey(t, d, e, i, tt.read) })
				}
				wg.Wait()
				c.judge(t, p.RetryAfter.Max)
				quiet(t, d)
			})
		})
	}
}

func (c *comeback) judge(t *testing.T, most time.Duration) {
	t.Helper()
	if c.served != 500 || len(c.hints) == 0 {
		t.Fatalf("%d of 500 served, %d refusals", c.served, len(c.hints))
	}
	if c.last > 15*time.Second {
		t.Errorf("the last was served after %v, the pool needs 5 s", c.last)
	}
	same := map[time.Duration]int{}
	for _, h := range c.hints {
		same[h]++
	}
	if lowest, highest := slices.Min(c.hints), slices.Max(c.hints); lowest <= 0 || highest > most {
		t.Errorf("hints of %v to %v", lowest, highest)
	}
	if len(same) < len(c.hints)*9/10 {
		t.Errorf("%d different hints of %d: callers come back together", len(same), len(c.hints))
	}
	t.Logf("%d tries, the last served after %v", c.tries, c.last)
}

// O: 10,000 requests whose ends are lost: after maxHold every seat, ticket and
// unit of concurrency is free again, and the next in line has run meanwhile.
func TestLostEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lost = 10_000
		p := house(lost, withQuotas(policy.Limit{Unit: policy.Concurrency, Max: lost + 1}), func(p *policy.Policy) { p.Pools[0].MaxHold = time.Minute })
		d := newTestDesk(t, p)
		e := effective(t, p)
		for i := range lost {
			admit(t, d, ask(e, name("lost", i), "acme", policy.Critical))
		}
		time.Sleep(time.Minute - 100*time.Millisecond)
		ticket, dec := d.Admit(t.Context(), ask(e, "next", "acme", policy.Critical))
		if ticket == nil || dec.Waited != 100*time.Millisecond {
			t.Fatalf("next: %s after %v, want a seat after 100 ms", dec.Reason, dec.Waited)
		}
		ticket.Done(fine(1, 1))
		synctest.Wait()
		quiet(t, d)
		for _, c := range usage(t, d, "acme") {
			if c.Limit.Unit == policy.Concurrency {
				t.Errorf("%d of the concurrency is held", c.Used)
			}
		}
	})
}
