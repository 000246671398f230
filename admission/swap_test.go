package admission

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// A pool that grows lets waiting requests in at once.
func TestSwapGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, running, v := fullHouse(t, 1)
		time.Sleep(50 * time.Millisecond)
		d.Swap(house(2))
		<-v.Ready()
		ticket, dec := v.Result()
		if ticket == nil || dec.Waited != 50*time.Millisecond {
			t.Fatalf("%+v", dec)
		}
		endAll(t, append(running, ticket))
		quiet(t, d)
	})
}

// A pool that shrinks revokes nothing; newcomers see the new size.
func TestSwapShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(3)
		d := newTestDesk(t, p)
		e := effective(t, p)
		running := occupy(t, d, e, policy.Critical, 3)
		d.Swap(house(1))
		running[0].Done(fine(1, 1))
		running[1].Done(fine(1, 1))
		v := d.Submit(t.Context(), ask(e, "w", "acme", policy.Critical))
		if !v.Waiting() {
			t.Fatal("a second request in a pool of one seat")
		}
		running[2].Done(fine(1, 1))
		<-v.Ready()
		ticket, _ := v.Result()
		ticket.Done(fine(1, 1))
		quiet(t, d)
	})
}

// Who waits in a pool that is gone goes to another one, who runs there runs on;
// a policy read before the change does not bring the pool back.
func TestSwapRemovesAPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, e, running, v := fullHouse(t, 1)
		time.Sleep(30 * time.Millisecond)
		d.Swap(house(1, without))
		<-v.Ready()
		ticket, dec := v.Result()
		if ticket == nil || dec.Pool != "chat-dyn" || dec.Waited != 30*time.Millisecond || !dec.Degraded {
			t.Errorf("%+v", dec)
		}
		endAll(t, append(running, ticket))
		if ticket, dec := d.Admit(t.Context(), ask(e, "old", "acme", policy.Critical)); ticket == nil || dec.Pool != "chat-dyn" {
			t.Errorf("by the old policy: %s in %q", dec.Reason, dec.Pool)
		} else {
			ticket.Done(fine(1, 1))
		}
		d.Swap(house(1)) // and back
		admit(t, d, ask(e, "back", "acme", policy.Critical)).Done(fine(1, 1))
		quiet(t, d)
	})
}

// without is the house without its first pool.
func without(p *policy.Policy) {
	p.Pools = p.Pools[1:]
	p.Models[0].Pools = p.Models[0].Pools[1:]
}

// A pool that comes back while requests of its earlier life run on finds
// their seats taken, in the core that decides and in the one that shadows.
func TestSwapBringsAPoolBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(2)
		d := newTestDesk(t, p)
		d.mirror.Store(true)
		e := effective(t, p)
		running := occupy(t, d, e, policy.Critical, 2)
		for range 3 { // a pool may go and come more than once
			d.Swap(house(2, without))
			d.Swap(house(2))
		}
		d.mirror.Store(true)
		v := d.Submit(t.Context(), ask(e, "w", "acme", policy.Critical))
		if !v.Waiting() {
			t.Fatal("a third request in a pool of two seats")
		}
		for _, core := range []*Core{d.core, d.shadow} {
			if s := core.Stats(time.Now()); s[0].Line.SeatsUsed.Requests != 2 {
				t.Errorf("%d seats are taken, want 2", s[0].Line.SeatsUsed.Requests)
			}
		}
		time.Sleep(50 * time.Millisecond)
		running[0].Done(fine(1, 1))
		<-v.Ready()
		ticket, dec := v.Result()
		if ticket == nil || dec.Waited != 50*time.Millisecond {
			t.Fatalf("%+v", dec)
		}
		endAll(t, append(running[1:], ticket))
		quiet(t, d)
	})
}

// The goroutine of a pool that is gone ends with the last request in it, not
// only when that one could have held its seat no longer.
func TestKeeperGoesWithItsPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(2)
		d := newTestDesk(t, p)
		running := occupy(t, d, effective(t, p), policy.Critical, 2)
		before := runtime.NumGoroutine()
		for range 10 {
			d.Swap(house(2, without))
			synctest.Wait() // the keeper has looked, and found somebody
			endAll(t, running)
			d.Swap(house(2))
			running = occupy(t, d, effective(t, p), policy.Critical, 2)
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before {
			t.Errorf("%d goroutines, %d before", after, before)
		}
		endAll(t, running)
		quiet(t, d)
	})
}

// Reloads in the middle of a pulse: every request is decided, and no seat is
// lost.
func TestSwapUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		p := house(20)
		d := newTestDesk(t, p, l)
		e := effective(t, p)
		var wg sync.WaitGroup
		const n = 2000
		for i := range n {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				ticket, _ := d.Admit(t.Context(), ask(e, name("r", i), name("t", i%10), policy.Class(i%3)))
				if ticket != nil {
					time.Sleep(100 * time.Millisecond)
					ticket.Done(fine(10, 10))
				}
			})
		}
		for i := range 20 {
			time.Sleep(100 * time.Millisecond)
			d.Swap(house(int64(1+(i*7)%40), func(p *policy.Policy) {
				if i%4 == 3 {
					without(p)
				}
			}))
		}
		wg.Wait()
		for i := range n {
			if got := len(l.decisions(name("r", i))); got != 1 {
				t.Fatalf("request %d was decided %d times", i, got)
			}
		}
		quiet(t, d)
	})
}

// P9: who waits follows its tier by name when a reload reorders the tiers in
// the middle of a burst: the next freed seats go by the same shares.
func TestSwapReordersTiers(t *testing.T) {
	order := func(names ...string) *policy.Policy {
		return house(20, func(p *policy.Policy) {
			p.Shares.Priority, p.Tiers = 0, nil
			for _, name := range names {
				p.Tiers = append(p.Tiers, policy.Tier{Name: name, Weight: 1, Share: map[string]policy.Ratio{"gold": 0.5, "silver": 0.1, "bronze": 0.4}[name]})
			}
		})
	}
	p := order("gold", "silver", "bronze")
	core, e := newTestCore(p), effective(t, p)
	bring := func(tier string, n int) (plans []*Plan) {
		for i := range n {
			r := ask(e, fmt.Sprint(tier, i), tier, policy.Critical)
			r.Identity.Tier = tier
			plan := core.Plan(start, r)
			core.Enter(start, plan, allowed)
			plans = append(plans, plan)
		}
		return plans
	}
	running := bring("silver", 20)
	bring("gold", 20)
	bring("bronze", 20)
	core.Swap(start, order("bronze", "gold", "silver"))
	count := map[string]int{}
	for _, plan := range running {
		_, decided := core.Done(start, plan, &End{Usage: Usage{Known: true}})
		for _, d := range decided {
			count[d.Request.Identity.Tenant]++
		}
	}
	if n := count["gold"]; n < 10 || n > 12 || count["bronze"] != 20-n {
		t.Errorf("20 freed seats went to %v, want 11 to gold and 9 to bronze", count)
	}
}

// Q9: who waits with a request larger than a replica's share takes as many
// tokens as the share has grown to.
func TestSwapGrowsAShare(t *testing.T) {
	replicas := func(n int) *policy.Policy {
		return house(2, func(p *policy.Policy) {
			p.Server.Replicas = n
			for i := range p.Pools {
				p.Pools[i].Seats.Tokens = 320
			}
		})
	}
	p := replicas(2)
	core, e := newTestCore(p), effective(t, p)
	var plans []*Plan
	for i := range 2 { // 200 tokens each, of 160
		plan := core.Plan(start, ask(e, name("r", i), "acme", policy.Critical))
		core.Enter(start, plan, allowed)
		plans = append(plans, plan)
	}
	pool := plans[0].pool
	if held := pool.line.Stats(start).SeatsUsed; held != (policy.Seats{Requests: 1, Tokens: 160}) {
		t.Fatalf("held %+v", held)
	}
	core.Done(start, plans[0], &End{Usage: Usage{Known: true}})
	core.Done(start, plans[1], &End{Usage: Usage{Known: true}})

	plans[0] = core.Plan(start, ask(e, "first", "acme", policy.Critical))
	core.Enter(start, plans[0], allowed)
	plans[1] = core.Plan(start, ask(e, "second", "acme", policy.Critical))
	core.Enter(start, plans[1], allowed)
	core.Swap(start, replicas(1)) // 320 tokens, of which the first holds 160
	if n := pool.running.Load(); n != 1 {
		t.Fatalf("%d run: the second needs 200 of 160", n)
	}
	core.Done(start, plans[0], &End{Usage: Usage{Known: true}})
	if held := pool.line.Stats(start).SeatsUsed; held != (policy.Seats{Requests: 1, Tokens: 200}) {
		t.Fatalf("after the growth it holds %+v", held)
	}
}
