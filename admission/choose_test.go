package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// laidOut is a house whose one model is served by these pools of 4 seats,
// named by their variant and their place in the list.
func laidOut(variants []policy.Variant, edits ...func(*policy.Policy)) *policy.Policy {
	p := house(4)
	p.Pools, p.Models[0].Pools = nil, nil
	for i, v := range variants {
		pool := policy.Pool{Name: fmt.Sprintf("%s-%d", v, i), Variant: v, Seats: policy.Seats{Requests: 4}}
		pool.Cost = policy.Cost{Base: 1, SLA: 500 * time.Millisecond}
		p.Pools = append(p.Pools, pool)
		p.Models[0].Pools = append(p.Models[0].Pools, pool.Name)
	}
	for _, edit := range edits {
		edit(p)
	}
	return p.Finish()
}

// enter plans and enters a request; it may wait or be refused.
func enter(core *Core, now time.Time, r *Request) *Plan {
	p := core.Plan(now, r)
	if !p.Refused() {
		core.Enter(now, p, allowed)
	}
	return p
}

// ranIn checks where a request runs and why.
func ranIn(t *testing.T, what string, p *Plan, pool string, why Reason) {
	t.Helper()
	d := &p.Decision
	if d.Pool != pool || d.Reason != why {
		t.Errorf("%s: %q by %s, want %q by %s", what, d.Pool, d.Reason, pool, why)
	}
	if d.Degraded != (d.Action == Degrade) {
		t.Errorf("%s: degraded %v, action %s", what, d.Degraded, d.Action)
	}
}

// V1: the class's variant, else the next higher one, else the highest below.
func TestVariantOfClass(t *testing.T) {
	const fp16, dyn, int8 = policy.FP16, policy.FP16Dyn, policy.INT8
	type want struct {
		pool string
		why  Reason
	}
	for _, c := range []struct {
		pools []policy.Variant
		want  [policy.NumClasses]want
	}{
		{[]policy.Variant{int8, fp16, dyn}, [3]want{{"fp16-1", Admitted}, {"fp16-dyn-2", Admitted}, {"int8-0", Admitted}}},
		{[]policy.Variant{int8, fp16}, [3]want{{"fp16-1", Admitted}, {"fp16-1", Admitted}, {"int8-0", Admitted}}},
		{[]policy.Variant{dyn, fp16}, [3]want{{"fp16-1", Admitted}, {"fp16-dyn-0", Admitted}, {"fp16-dyn-0", Admitted}}},
		{[]policy.Variant{int8, dyn}, [3]want{{"fp16-dyn-1", DegradedVariant}, {"fp16-dyn-1", Admitted}, {"int8-0", Admitted}}},
		{[]policy.Variant{int8}, [3]want{{"int8-0", DegradedVariant}, {"int8-0", DegradedVariant}, {"int8-0", Admitted}}},
	} {
		p := laidOut(c.pools)
		e := effective(t, p)
		for class, w := range c.want {
			plan := enter(newTestCore(p), start, ask(e, "a", "acme", policy.Class(class)))
			ranIn(t, fmt.Sprint(c.pools, policy.Class(class)), plan, w.pool, w.why)
		}
	}
}

// A variant may have any number of pools: they are filled evenly, and the one
// whose breaker admits is found wherever it stands.
func TestManyPools(t *testing.T) {
	const n = 200
	variants := make([]policy.Variant, n)
	for i := range variants {
		variants[i] = policy.FP16
	}
	p := laidOut(variants)
	core, e := newTestCore(p), effective(t, p)
	used := map[string]int{}
	for i := range 2 * n {
		used[enter(core, start, ask(e, name("r", i), "acme", policy.Critical)).Decision.Pool]++
	}
	for i := range p.Pools {
		if got := used[p.Pools[i].Name]; got != 2 {
			t.Errorf("pool %d has %d of 400 requests, want 2", i, got)
		}
	}
	for i := range n - 1 {
		fail(core.Breaker(p.Pools[i].Name), start, 30)
	}
	ranIn(t, "one of 200 admits", enter(core, start, ask(e, "last", "acme", policy.Critical)), p.Pools[n-1].Name, Admitted)
	fail(core.Breaker(p.Pools[n-1].Name), start, 30)
	if d := enter(core, start, ask(e, "none", "acme", policy.Critical)).Decision; d.Reason != BreakerOpen || d.RetryAfter <= 0 {
		t.Errorf("%+v, want breaker_open with a hint", d)
	}
}

// V1: what waits at a variant goes down at its expiry among the pools that
// there are then, and never up, whatever the policy became meanwhile.
func TestNeverUpAfterSwap(t *testing.T) {
	variants := func(of map[string]policy.Variant) func(*policy.Policy) {
		return func(p *policy.Policy) {
			for i := range p.Pools {
				if v, ok := of[p.Pools[i].Name]; ok {
					p.Pools[i].Variant = v
				}
			}
		}
	}
	added := func(v policy.Variant) func(*policy.Policy) {
		return func(p *policy.Policy) {
			p.Pools = append(p.Pools, policy.Pool{Name: "new", Variant: v, Seats: policy.Seats{Requests: 1}})
			p.Models[0].Pools = append(p.Models[0].Pools, "new")
		}
	}
	for _, c := range []struct {
		name string
		next func(*policy.Policy)
		pool string
		why  Reason
	}{
		{"unchanged", func(*policy.Policy) {}, "chat-int8", DegradedExpiry},
		{"the lower pool is a higher one now", variants(map[string]policy.Variant{"chat-int8": policy.FP16}), "", ExpiredDegrade},
		{"the lower pool is as high now", variants(map[string]policy.Variant{"chat-int8": policy.FP16Dyn}), "", ExpiredDegrade},
		{"the higher pool is a lower one now", variants(map[string]policy.Variant{"chat-int8": policy.FP16, "chat-fp16": policy.INT8}), "chat-fp16", DegradedExpiry},
		{"the lower pool is gone", func(p *policy.Policy) {
			p.Pools, p.Models[0].Pools = p.Pools[:2], p.Models[0].Pools[:2]
		}, "", ExpiredDegrade},
	} {
		p := house(1)
		core, e := newTestCore(p), effective(t, p)
		enter(core, start, ask(e, "runs", "acme", policy.Standard))
		waits := enter(core, start, ask(e, "waits", "other", policy.Standard))
		core.Swap(start.Add(100*time.Millisecond), house(1, c.next))
		core.Advance(start.Add(500*time.Millisecond), "chat-dyn")
		ranIn(t, c.name, waits, c.pool, c.why)
	}

	// Who waits is judged by the policy in force, with the pools that it has.
	p := house(1)
	core, e := newTestCore(p), effective(t, p)
	enter(core, start, ask(e, "runs", "acme", policy.Standard))
	waits := enter(core, start, ask(e, "waits", "other", policy.Standard))
	enter(core, start, ask(e, "below", "acme", policy.Batch))
	core.Swap(start.Add(100*time.Millisecond), house(1, added(policy.INT8)))
	core.Advance(start.Add(500*time.Millisecond), "chat-dyn")
	ranIn(t, "a new pool", waits, "new", DegradedExpiry)
}

// V2: what the breaker lowered goes lower at its expiry, never back.
func TestNeverUpAfterTheBreaker(t *testing.T) {
	p := laidOut([]policy.Variant{policy.FP16, policy.FP16Dyn, policy.INT8}, func(p *policy.Policy) {
		p.Classes[policy.Standard].Variant = policy.FP16
		for i := range p.Pools {
			p.Pools[i].Seats.Requests = 1
		}
	})
	core, e := newTestCore(p), effective(t, p)
	enter(core, start, ask(e, "middle", "acme", policy.Standard)) // takes fp16-0
	succeed(core.Breaker("fp16-0"), start, 65)
	fail(core.Breaker("fp16-0"), start, 35) // soft
	ranIn(t, "lowered", enter(core, start, ask(e, "a", "acme", policy.Standard)), "fp16-dyn-1", DegradedBreaker)
	waits := enter(core, start, ask(e, "b", "other", policy.Standard))
	core.Done(start, core.floor.Load().pools["fp16-0"].seated.head, &End{Result: ResultCaller}) // free again
	core.Advance(start.Add(500*time.Millisecond), "fp16-dyn-1")
	ranIn(t, "expired", waits, "int8-2", DegradedExpiry)
}

// P8: what the breaker refuses passes by the lane, as far as it goes, and its
// ends decide nothing.
func TestLanePastTheBreaker(t *testing.T) {
	p := house(20)
	core, e := newTestCore(p), effective(t, p)
	b := core.Breaker("chat-fp16")
	fail(b, start, 30)
	seen := b.View(start)
	with := func(id string, priority bool) *Request {
		r := ask(e, id, "acme", policy.Critical)
		r.Priority = priority
		return r
	}
	ranIn(t, "without priority", enter(core, start, with("a", false)), "", BreakerOpen)
	first := enter(core, start, with("b", true))
	ranIn(t, "10 % of 20 seats: the first", first, "chat-fp16", AdmittedLane)
	ranIn(t, "the second", enter(core, start, with("c", true)), "chat-fp16", AdmittedLane)
	ranIn(t, "the lane is full", enter(core, start, with("d", true)), "", BreakerOpen)
	core.Done(start, first, &End{Result: ResultFailed, Status: 500})
	if now := b.View(start); now != seen {
		t.Errorf("the breaker saw %+v, then %+v", seen, now)
	}
	ranIn(t, "free again", enter(core, start, with("e", true)), "chat-fp16", AdmittedLane)
}

// P7: what does not stream runs on the variant that P7 says, whatever costs
// less and wherever its session is.
func TestNonStreamingIsNotChosenByCost(t *testing.T) {
	p := laidOut(three, byCost(3, 2, 1), func(p *policy.Policy) {
		p.NonStreaming = &policy.NonStreaming{Variant: policy.FP16, MaxWait: 200 * ms}
	})
	core, e := newTestCore(p), effective(t, p)
	streams := said(e, "s", "acme", policy.Standard)
	streams.Stream = true
	ranIn(t, "streams", enter(core, start, streams), "int8-2", DegradedCost)
	ranIn(t, "does not", enter(core, start, said(e, "s", "acme", policy.Standard)), "fp16-0", Admitted)
	ranIn(t, "streams again", enter(core, start, streams), "int8-2", DegradedSession)
}
