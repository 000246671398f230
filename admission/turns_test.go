package admission

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// onePool is a policy whose requests all go to one pool, and wait there for up
// to a minute.
func onePool(seats int64, edits ...func(*policy.Policy)) *policy.Policy {
	return house(seats, append(edits, func(p *policy.Policy) {
		p.Pools, p.Models[0].Pools = p.Pools[:1], p.Models[0].Pools[:1]
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Minute
		}
	})...)
}

// turns takes all seats of a pool, lets requests come at their instants, then
// frees seats one by one and gives the order in which they are given again.
func turns(t *testing.T, p *policy.Policy, holder *Request, arrivals []*Request, at []time.Duration) (order []string) {
	t.Helper()
	core, e := newTestCore(p), effective(t, p)
	var running []*Plan
	for range p.Pools[0].Seats.Requests {
		h := *holder
		h.Policy = e
		plan := core.Plan(start, &h)
		if core.Enter(start, plan, allowed) != Entered {
			t.Fatal(plan.Decision.Reason)
		}
		running = append(running, plan)
	}
	last := start
	for i, r := range arrivals {
		r.Policy = e
		last = start.Add(at[i])
		plan := core.Plan(last, r)
		if core.Enter(last, plan, allowed) != InTheLine {
			t.Fatalf("%s: %s", r.ID, plan.Decision.Reason)
		}
	}
	for len(running) > 0 {
		last = last.Add(time.Millisecond)
		_, next := core.Done(last, running[0], &End{})
		running = append(running[1:], next...)
		for _, plan := range next {
			order = append(order, plan.Request.ID)
		}
	}
	return order
}

func inOrder(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: %v, want %v", what, got, want)
			return
		}
	}
}

// P4, P6: in one flow the quick go first, then those that stream, but nobody
// is overtaken by one that came more than the ageing (100 ms) later; in another
// tenant's flow nobody notices.
func TestTurnsInAFlow(t *testing.T) {
	p := onePool(1)
	e := effective(t, p)
	make := func(id, tenant string, edit func(*Request)) *Request {
		r := ask(e, id, tenant, policy.Standard)
		edit(r)
		return r
	}
	plain, streams, quick := func(*Request) {}, func(r *Request) { r.Stream = true }, func(r *Request) { r.MaxOut = 10 }
	holder := ask(e, "holder", "holder", policy.Standard)
	inOrder(t, "quick, streams, plain",
		turns(t, p, holder, []*Request{make("plain", "a", plain), make("streams", "a", streams), make("quick", "a", quick)},
			[]time.Duration{0, 10 * ms, 20 * ms}), "quick", "streams", "plain")
	inOrder(t, "too late to overtake",
		turns(t, p, holder, []*Request{make("plain", "a", plain), make("quick", "a", quick)},
			[]time.Duration{0, 101 * ms}), "plain", "quick")
	inOrder(t, "nobody overtakes another tenant",
		turns(t, p, holder, []*Request{make("plain", "a", plain), make("quick", "b", func(r *Request) { r.MaxOut = 10; r.Prompt = 4000 })},
			[]time.Duration{0, 10 * ms}), "plain", "quick")
}

// P9, P8: all seats are lent to a tier; what comes free goes to the lane and to
// those who hold less than they are guaranteed.
func TestTurnsByShare(t *testing.T) {
	p := onePool(10, withLane(0.1))
	e := effective(t, p)
	tier := func(id, tier string) *Request {
		r := ask(e, id, tier, policy.Standard)
		r.Identity.Tier = tier
		return r
	}
	holder := tier("holder", "bronze")
	var arrivals []*Request
	for i := range 3 {
		arrivals = append(arrivals, tier(name("bronze", i), "bronze"))
	}
	arrivals = append(arrivals, tier("gold", "gold"), tier("urgent", "bronze"))
	arrivals[4].Priority = true
	order := turns(t, p, holder, arrivals, make([]time.Duration, 5))
	inOrder(t, "the lane, gold, then bronze", order, "urgent", "gold", "bronze-0", "bronze-1", "bronze-2")
}

// O: critical saturates the pool for a minute; batch gets its weight's part of
// it all the same, and standard too.
func TestSaturationStarvesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := onePool(10, func(p *policy.Policy) {
			for i := range p.Pools {
				p.Pools[i].Variant = policy.FP16
			}
		})
		d := newTestDesk(t, p)
		e := effective(t, p)
		var wg sync.WaitGroup
		counts := [policy.NumClasses]*tally{}
		for class, rate := range []int{300, 100, 50} { // a second; the pool serves 100
			counts[class] = newTally()
			for tenant := range 5 {
				counts[class].load(t, &wg, d, e, name("t", tenant), policy.Class(class), rate*12, time.Second*5/time.Duration(rate), 100*time.Millisecond)
			}
		}
		wg.Wait()
		for class, weight := range []int{3, 2, 1} {
			got := 0
			for _, n := range counts[class].admitted {
				got += n
			}
			if want := 6000 * weight / 6; got < want*9/10 {
				t.Errorf("class %d got %d seats in 60 s, its weight's part is %d", class, got, want)
			}
		}
		quiet(t, d)
	})
}

// O: a place that expires is free at once: the line is full, one expires, and
// the next that comes has its place at that instant.
func TestExpiredPlaceIsUsedAtOnce(t *testing.T) {
	p := house(1, func(p *policy.Policy) {
		p.Queue.Length.Min, p.Queue.Length.Max, p.Queue.SoftLimit = 1, 1, 1
	})
	core, e := newTestCore(p), effective(t, p)
	at := func(i int, when time.Duration) (Outcome, *Plan) {
		now := start.Add(when)
		plan := core.Plan(now, ask(e, name("r", i), name("t", i), policy.Critical))
		return core.Enter(now, plan, allowed), plan
	}
	at(0, 0)
	if got, plan := at(1, 0); got != InTheLine {
		t.Fatal(plan.Decision.Reason)
	}
	if got, plan := at(2, 200*ms-1); got != Refused || plan.Decision.Reason != QueueFull {
		t.Errorf("before the expiry: %s", plan.Decision.Reason)
	}
	decided, _ := core.Advance(start.Add(200*ms), "chat-fp16")
	if len(decided) != 1 || decided[0].Decision.Reason != ExpiredDrop || decided[0].Decision.Waited != 200*ms {
		t.Fatalf("%d decided", len(decided))
	}
	if got, plan := at(3, 200*ms); got != InTheLine {
		t.Errorf("at the expiry: %s", plan.Decision.Reason)
	}
}
