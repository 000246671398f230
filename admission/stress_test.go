package admission

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Cancels race with grants, expiries and ends on real goroutines: every
// request is decided once, and no seat, byte, ticket or quota unit is lost.
func TestCancelRacesGrant(t *testing.T) {
	const n, workers = 10000, 32
	l := newLog()
	p := house(4, withQuotas(policy.Limit{Unit: policy.Concurrency, Max: 1000}), func(p *policy.Policy) {
		p.Queue.RetryQueue.Limit = 5 * time.Millisecond
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Duration(1+i) * time.Millisecond
		}
	})
	d := newTestDesk(t, p, l)
	e := effective(t, p)
	var next, left, ran atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for i := next.Add(1); i <= n; i = next.Add(1) {
				v := d.Submit(t.Context(), ask(e, name("r", int(i)), name("t", int(i%5)), policy.Class(rng.IntN(3))))
				switch rng.IntN(4) {
				case 0:
					v.Leave()
				case 1:
					wg.Go(v.Leave)
					<-v.Ready()
				default:
					<-v.Ready()
				}
				if ticket, dec := v.Result(); ticket != nil {
					ran.Add(1)
					ticket.Done(fine(1, 1))
				} else if dec.Reason == ClientGone {
					left.Add(1)
				}
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool { return d.Snapshot(time.Now()).Tickets == 0 })
	quiet(t, d)
	for i := 1; i <= n; i++ {
		if got := len(l.decisions(name("r", i))); got > 1 {
			t.Fatalf("request %d was decided %d times", i, got)
		}
	}
	for tenant := range 5 {
		for _, c := range usage(t, d, name("t", tenant)) {
			if c.Used != 0 {
				t.Errorf("tenant %d holds %d of its concurrency", tenant, c.Used)
			}
		}
	}
	if ran.Load() == 0 || left.Load() == 0 {
		t.Errorf("%d ran, %d left: the race did not take place", ran.Load(), left.Load())
	}
}

// waitFor polls without a sleep until what other goroutines do is done.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatal("not done within 10 s")
		case <-tick.C:
		}
	}
}

// Cancelled waiters leave no ghosts: the line is empty at once and the next
// request is served next.
func TestCancelStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1, func(p *policy.Policy) {
			p.Queue.Length.Intercept, p.Queue.Length.Slope, p.Queue.Length.Max = 10000, 0, 10000
			p.Queue.SoftLimit, p.Queue.PerTenant = 1, 1
		})
		d := newTestDesk(t, p)
		e := effective(t, p)
		running := occupy(t, d, e, policy.Critical, 1)
		var visits []*Visit
		for i := range 10000 {
			v := d.Submit(t.Context(), ask(e, name("r", i), name("t", i%100), policy.Critical))
			if !v.Waiting() {
				_, dec := v.Result()
				t.Fatalf("%d: %s", i, dec.Reason)
			}
			visits = append(visits, v)
		}
		for _, v := range visits {
			v.Leave()
		}
		if s := d.Snapshot(time.Now()).Pools[0]; s.Line.Waiting != [policy.NumClasses]int{} {
			t.Fatalf("waiting: %v", s.Line.Waiting)
		}
		v := d.Submit(t.Context(), ask(e, "next", "acme", policy.Critical))
		endAll(t, running)
		<-v.Ready()
		ticket, _ := v.Result()
		ticket.Done(fine(1, 1))
		quiet(t, d)
	})
}

// tally counts what a load got.
type tally struct {
	mu       sync.Mutex
	admitted map[string]int
	refused  map[Reason]int
	waited   map[policy.Class]time.Duration // longest
}

func newTally() *tally {
	return &tally{admitted: map[string]int{}, refused: map[Reason]int{}, waited: map[policy.Class]time.Duration{}}
}

func (c *tally) add(r *Request, ok bool, dec *Decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waited[r.Class] = max(c.waited[r.Class], dec.Waited)
	if ok {
		c.admitted[r.Identity.Tenant]++
	} else {
		c.refused[dec.Reason]++
	}
}

// load sends n requests of a tenant at equal distances, each served for the
// given time.
func (c *tally) load(t *testing.T, wg *sync.WaitGroup, d *Desk, e *policy.Effective, tenant string, class policy.Class, n int, every, service time.Duration) {
	for i := range n {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * every)
			r := ask(e, tenant+class.String()+name("", i), tenant, class)
			ticket, dec := d.Admit(t.Context(), r)
			c.add(r, ticket != nil, &dec)
			if ticket != nil {
				time.Sleep(service)
				ticket.Done(fine(100, 100))
			}
		})
	}
}

// A burst of four times the capacity (Q10): everybody gets a decision, no
// wait is longer than its class's, the seats stay busy, and nothing is left.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(10)
		d := newTestDesk(t, p)
		e := effective(t, p)
		counts := newTally()
		var wg sync.WaitGroup
		const each = 400 // of each class within 1 s; a pool of 10 seats serves 100/s
		for class := range policy.Class(policy.NumClasses) {
			for tenant := range 4 {
				counts.load(t, &wg, d, e, name("t", tenant), class, each/4, 10*time.Millisecond, 100*time.Millisecond)
			}
		}
		wg.Wait()
		admitted := 0
		for _, n := range counts.admitted {
			admitted += n
		}
		refused := 0
		for reason, n := range counts.refused {
			refused += n
			if a := reason.Row().Action; a != Reject && a != Shed {
				t.Errorf("%d were refused as %s", n, reason)
			}
		}
		if admitted+refused != 3*each {
			t.Errorf("%d admitted + %d refused, want %d", admitted, refused, 3*each)
		}
		// 1 s at 100/s in each of three pools, and what the waits add.
		if admitted < 300 || admitted > 900 {
			t.Errorf("%d admitted", admitted)
		}
		for class, longest := range map[policy.Class]time.Duration{
			policy.Critical: 200 * time.Millisecond, policy.Standard: 500 * time.Millisecond, policy.Batch: 6 * time.Second,
		} {
			if counts.waited[class] > longest {
				t.Errorf("%s waited %s, at most %s wanted", class, counts.waited[class], longest)
			}
		}
		quiet(t, d)
	})
}

// P2: one tenant that floods its class does not starve the 99 others: each of
// them gets what it asks for within its fair share.
func TestRogueTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(50, func(p *policy.Policy) { p.Pools = p.Pools[:1]; p.Models[0].Pools = p.Models[0].Pools[:1] })
		d := newTestDesk(t, p)
		e := effective(t, p)
		counts := newTally()
		var wg sync.WaitGroup
		// 500/s of capacity for 10 s: 99 tenants at 4/s each are 396/s, the rogue sends 1000/s.
		for tenant := range 99 {
			counts.load(t, &wg, d, e, name("good", tenant), policy.Standard, 40, 250*time.Millisecond, 100*time.Millisecond)
		}
		counts.load(t, &wg, d, e, "rogue", policy.Standard, 10000, time.Millisecond, 100*time.Millisecond)
		wg.Wait()
		total := 0
		for tenant := range 99 {
			got := counts.admitted[name("good", tenant)]
			total += got
			if got < 32 {
				t.Errorf("tenant %d got %d of 40", tenant, got)
			}
		}
		if total < 99*40*95/100 {
			t.Errorf("the good tenants got %d of %d, want 95 %%", total, 99*40)
		}
		if rogue := counts.admitted["rogue"]; rogue < 500 {
			t.Errorf("the rogue got %d: what is left over is its own", rogue)
		}
		quiet(t, d)
	})
}
