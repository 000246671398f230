package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// byCost turns V3 on and sets the bases of the pools in file order.
func byCost(bases ...float64) func(*policy.Policy) {
	return func(p *policy.Policy) {
		p.Variants.ByCost = true
		for i, b := range bases {
			p.Pools[i].Cost.Base = b
		}
	}
}

var three = []policy.Variant{policy.FP16, policy.FP16Dyn, policy.INT8}

// slow makes a pool's recent time to first token d.
func slow(core *Core, now time.Time, pool string, d time.Duration) {
	s := core.floor.Load().pools[pool].speeds
	s.latency.Store(int64(d))
	s.heard.Store(now.UnixNano())
}

func TestCostFormula(t *testing.T) {
	for _, c := range []struct {
		base float64
		sla  time.Duration
		lat  time.Duration
		want float64
	}{
		{2, 500 * ms, 0, 2},
		{2, 500 * ms, 500 * ms, 2},
		{2, 500 * ms, 750 * ms, 3},
		{2, 500 * ms, 1000 * ms, 4},
		{2, 500 * ms, time.Hour, 4},
		{1, 0, 0, 1},
		{1, 0, 1, 2},
	} {
		if got := costOf(&policy.Cost{Base: c.base, SLA: c.sla}, c.lat); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("base %v, SLA %v, latency %v: %v, want %v", c.base, c.sla, c.lat, got, c.want)
		}
	}
}

// V3: the cheapest of the pools at or below the class's variant.
func TestCheapest(t *testing.T) {
	for _, c := range []struct {
		name  string
		bases []float64
		class policy.Class
		do    func(core *Core, e *policy.Effective)
		pool  string
		why   Reason
	}{
		{"equal: the class's own", []float64{1, 1, 1}, policy.Critical, nil, "fp16-0", Admitted},
		{"cheaper below", []float64{3, 2, 1}, policy.Critical, nil, "int8-2", DegradedCost},
		{"cheapest in the middle", []float64{3, 1, 2}, policy.Critical, nil, "fp16-dyn-1", DegradedCost},
		{"cheaper above is not for it", []float64{1, 2, 3}, policy.Standard, nil, "fp16-dyn-1", Admitted},
		{"cheaper above is not for batch", []float64{1, 2, 3}, policy.Batch, nil, "int8-2", Admitted},
		{"within its SLA latency is nothing", []float64{1, 1.1, 1.1}, policy.Critical, func(core *Core, _ *policy.Effective) {
			slow(core, start, "fp16-0", 500*ms)
		}, "fp16-0", Admitted},
		{"late, and dearer for it", []float64{1, 1.1, 1.2}, policy.Critical, func(core *Core, _ *policy.Effective) {
			slow(core, start, "fp16-0", 600*ms) // 1.2
		}, "fp16-dyn-1", DegradedCost},
		{"late, and still cheaper", []float64{1, 2.1, 2.2}, policy.Critical, func(core *Core, _ *policy.Effective) {
			slow(core, start, "fp16-0", time.Minute) // 2
		}, "fp16-0", Admitted},
		{"a latency that is old counts no more", []float64{1, 1.1, 1.2}, policy.Critical, func(core *Core, _ *policy.Effective) {
			slow(core, start.Add(-time.Minute), "fp16-0", time.Minute)
		}, "fp16-0", Admitted},
		{"ties go to the less loaded", []float64{1, 1, 1}, policy.Critical, func(core *Core, e *policy.Effective) {
			enter(core, start, passing(e, "x", policy.Critical)) // the profile's own choice stands apart
		}, "fp16-dyn-1", DegradedCost},
		{"the wait counts", []float64{1, 1.1, 5}, policy.Critical, func(core *Core, e *policy.Effective) {
			for i := range 24 { // 4 run, 20 wait
				enter(core, start, passing(e, name("x", i), policy.Critical))
			}
		}, "fp16-dyn-1", DegradedCost},
		{"a breaker that does not admit", []float64{2, 1, 3}, policy.Critical, func(core *Core, _ *policy.Effective) {
			fail(core.Breaker("fp16-dyn-1"), start, 30)
		}, "fp16-0", Admitted},
		{"the own breaker", []float64{1, 3, 2}, policy.Critical, func(core *Core, _ *policy.Effective) {
			fail(core.Breaker("fp16-0"), start, 30)
		}, "int8-2", DegradedBreaker},
		{"no breaker admits", []float64{1, 1, 1}, policy.Critical, func(core *Core, _ *policy.Effective) {
			for _, pool := range []string{"fp16-0", "fp16-dyn-1", "int8-2"} {
				fail(core.Breaker(pool), start, 30)
			}
		}, "", BreakerOpen},
	} {
		p := laidOut(three, byCost(c.bases...))
		core, e := newTestCore(p), effective(t, p)
		if c.do != nil {
			c.do(core, e)
		}
		ranIn(t, c.name, enter(core, start, ask(e, "a", "acme", c.class)), c.pool, c.why)
	}
}

// passing is a request by class's variant of a policy with the same pools, so
// that it takes a seat without a word on what cost says.
func passing(e *policy.Effective, id string, class policy.Class) *Request {
	p := *e.Policy
	p.Variants.ByCost = false
	r := ask(&policy.Effective{Policy: &p, ProfileName: "by-class", MaxWait: e.MaxWait}, id, id, class)
	return r
}

// Who finds no free seat in the variant that stands takes one of the cheapest
// other pool, never of one above; once all are taken it waits where cost says.
func TestNoSeatIdleWhileAClassWaits(t *testing.T) {
	p := laidOut(three, byCost(5, 1, 2))
	core, e := newTestCore(p), effective(t, p)
	for i := range 8 { // of 4 seats each
		want, why := "fp16-dyn-1", Admitted
		if i >= 4 {
			want, why = "int8-2", DegradedCost
		}
		ranIn(t, name("standard", i), enter(core, start, ask(e, name("s", i), "acme", policy.Standard)), want, why)
	}
	if w := enter(core, start, ask(e, "w", "acme", policy.Standard)); w.pool.name != "fp16-dyn-1" || w.Refused() {
		t.Errorf("the ninth waits in %s, refused: %t", w.pool.name, w.Refused())
	}
	if n := core.floor.Load().pools["fp16-0"].load(); n != 0 {
		t.Errorf("load %v above the class's own variant", n)
	}
}

// A line that is full is not to be had while another pool is.
func TestFullLineIsNotChosen(t *testing.T) {
	p := laidOut(three, byCost(1, 5, 6), func(p *policy.Policy) {
		p.Queue.Length = policy.Length{Intercept: 2, Min: 2, Max: 2}
		p.Queue.PerTenant = 1
	})
	core, e := newTestCore(p), effective(t, p)
	for i := range 6 { // 4 run, 2 wait
		enter(core, start, passing(e, name("x", i), policy.Critical))
	}
	ranIn(t, "full", enter(core, start, ask(e, "a", "acme", policy.Critical)), "fp16-dyn-1", DegradedCost)
}

// Inside a variant each request goes to the cheapest pool, at equal costs to
// the least loaded; nothing stands there.
func TestCostInsideAVariant(t *testing.T) {
	p := laidOut([]policy.Variant{policy.FP16, policy.FP16, policy.FP16}, byCost(1, 1, 1.5))
	core, e := newTestCore(p), effective(t, p)
	for i, want := range []string{"fp16-0", "fp16-1", "fp16-0", "fp16-1"} {
		ranIn(t, "even", enter(core, start, ask(e, name("r", i), "acme", policy.Critical)), want, Admitted)
	}
	slow(core, start, "fp16-0", time.Second)
	slow(core, start, "fp16-1", time.Second)
	ranIn(t, "both late", enter(core, start, ask(e, "a", "acme", policy.Critical)), "fp16-2", Admitted)
}

// Costs that cross every 100 ms change the choice at most once in 5 s; one
// that stays ahead gets the choice.
func TestFlip(t *testing.T) {
	p := laidOut(three[:2], byCost(1, 1.5))
	core, e := newTestCore(p), effective(t, p)
	at := func(now time.Time, late bool) string {
		slow(core, now, "fp16-0", map[bool]time.Duration{false: 0, true: time.Second}[late])
		plan := enter(core, now, ask(e, "r", "acme", policy.Critical))
		defer core.Done(now, plan, &End{Result: ResultOK})
		return plan.Decision.Pool
	}
	last, changed, changes := at(start, false), start, 0
	if last != "fp16-0" {
		t.Fatalf("begins at %s", last)
	}
	for i := range 600 {
		now := start.Add(time.Duration(i) * 100 * ms)
		if pool := at(now, i%2 == 0); pool != last {
			if since := now.Sub(changed); since < 5*time.Second {
				t.Fatalf("to %s after %v", pool, since)
			}
			last, changed, changes = pool, now, changes+1
		}
	}
	if changes < 6 || changes > 12 {
		t.Errorf("%d changes in a minute; want at most 12, and no choice for ever", changes)
	}
	now := start.Add(2 * time.Minute)
	if at(now, true); at(now.Add(6*time.Second), true) != "fp16-dyn-1" || at(now.Add(12*time.Second), true) != "fp16-dyn-1" {
		t.Error("late for long, and still chosen")
	}
	if at(now.Add(18*time.Second), false) != "fp16-0" {
		t.Error("cheaper again, and not chosen")
	}
}

// A choice outlives the policy that it was made under, and a clock that steps
// back.
func TestChoiceOutlivesSwap(t *testing.T) {
	p := laidOut(three[:2], byCost(1, 1.5))
	core, e := newTestCore(p), effective(t, p)
	ranIn(t, "first", enter(core, start, ask(e, "a", "acme", policy.Critical)), "fp16-0", Admitted)
	slow(core, start, "fp16-0", time.Second)
	next := laidOut(three[:2], byCost(1, 1.5))
	now := start.Add(time.Second)
	core.Swap(now, next)
	e = effective(t, next)
	ranIn(t, "stands", enter(core, now, ask(e, "b", "acme", policy.Critical)), "fp16-0", Admitted)
	ranIn(t, "a step back", enter(core, start.Add(-time.Hour), ask(e, "c", "acme", policy.Critical)), "fp16-0", Admitted)
	ranIn(t, "has stood", enter(core, start.Add(5*time.Second), ask(e, "d", "acme", policy.Critical)), "fp16-dyn-1", DegradedCost)
}

// What cannot be had is given up at once; what took its place stands too.
func TestChoiceGivenUp(t *testing.T) {
	p := laidOut(three, byCost(1, 2, 1.9), func(p *policy.Policy) { p.Breaker.Open = time.Second })
	core, e := newTestCore(p), effective(t, p)
	run := func(after time.Duration) *Plan {
		plan := enter(core, start.Add(after), ask(e, "r", "acme", policy.Critical))
		if !plan.Refused() {
			core.Done(start.Add(after), plan, &End{Result: ResultCaller})
		}
		return plan
	}
	ranIn(t, "first", run(0), "fp16-0", Admitted)
	fail(core.Breaker("fp16-0"), start.Add(time.Second), 30)
	ranIn(t, "open", run(time.Second), "int8-2", DegradedBreaker)
	slow(core, start.Add(1500*ms), "int8-2", time.Second)
	ranIn(t, "stands", run(1500*ms), "int8-2", DegradedBreaker)
	fail(core.Breaker("int8-2"), start.Add(1800*ms), 30)
	ranIn(t, "open too", run(1800*ms), "fp16-dyn-1", DegradedBreaker)
}

// Whatever latencies, loads and breakers do: never above the class's variant,
// never refused while a breaker admits, and while all admit changes of a class
// are 5 s apart.
func TestChoiceInvariants(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for round := range 30 {
		variants := make([]policy.Variant, 1+rng.IntN(12))
		bases := make([]float64, len(variants))
		for i := range variants {
			variants[i], bases[i] = three[rng.IntN(3)], 1+rng.Float64()
		}
		p := laidOut(variants, byCost(bases...), func(p *policy.Policy) {
			for i := range p.Pools {
				p.Pools[i].Seats.Requests = 1000
			}
		})
		core, e := newTestCore(p), effective(t, p)
		type seen struct {
			variant policy.Variant
			since   time.Time
		}
		var last [policy.NumClasses]seen
		now := start
		for i := range 2000 {
			now = now.Add(time.Duration(rng.IntN(200)) * ms)
			slow(core, now, p.Pools[rng.IntN(len(p.Pools))].Name, time.Duration(rng.IntN(2000))*ms)
			class := policy.Class(rng.IntN(policy.NumClasses))
			plan := enter(core, now, ask(e, name("r", i), "acme", class))
			if plan.Refused() {
				t.Fatalf("round %d: refused: %s", round, plan.Decision.Reason)
			}
			d := &plan.Decision
			best := p.PoolsFor(&p.Models[0], p.Classes[class].Variant)[0].Variant
			if d.Variant.Rank() > best.Rank() {
				t.Fatalf("round %d: %s got %s, its best is %s", round, class, d.Variant, best)
			}
			if d.Degraded != (d.Variant.Rank() < p.Classes[class].Variant.Rank()) {
				t.Fatalf("round %d: %s on %s, degraded %v", round, class, d.Variant, d.Degraded)
			}
			if s := &last[class]; s.variant != d.Variant {
				if s.variant != "" && now.Sub(s.since) < 5*time.Second {
					t.Fatalf("round %d: %s from %s to %s after %v", round, class, s.variant, d.Variant, now.Sub(s.since))
				}
				*s = seen{d.Variant, now}
			}
			core.Done(now, plan, &End{Result: ResultCaller})
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	for _, c := range []struct {
		pools int
		edit  func(*policy.Policy)
	}{{3, byCost()}, {3, func(*policy.Policy) {}}, {64, func(*policy.Policy) {}}} {
		variants := make([]policy.Variant, c.pools)
		for i := range variants {
			variants[i] = three[i%3]
		}
		p := laidOut(variants, c.edit)
		b.Run(fmt.Sprintf("pools=%d/cost=%v", c.pools, p.Variants.ByCost), func(b *testing.B) {
			core := newTestCore(p)
			r := ask(effective(b, p), "a", "acme", policy.Critical)
			m := core.floor.Load().model(r)
			b.ReportAllocs()
			for b.Loop() {
				plan := Plan{Request: r, Class: r.Class}
				core.choose(start, &plan, m)
			}
		})
	}
}

// A tie is no reason to change, whatever the loads are; and a session that may
// not go where its class may says nothing for the class.
func TestChoiceStandsInATie(t *testing.T) {
	p := laidOut(three, byCost(1, 1, 1))
	core, e := newTestCore(p), effective(t, p)
	for i := range 3 { // nothing ends: the load grows
		now := start.Add(time.Duration(i) * 6 * time.Second)
		ranIn(t, "tie", enter(core, now, ask(e, name("r", i), "acme", policy.Critical)), "fp16-0", Admitted)
	}
	now := start.Add(20 * time.Second)
	low := said(e, "s", "acme", policy.Critical)
	core.sessions.keep(now, core.sessions.key(&Plan{Request: low, Class: low.Class, model: "deepseek-v4"}), policy.FP16Dyn.Rank(), time.Hour)
	fail(core.Breaker("fp16-dyn-1"), now, 30)
	ranIn(t, "session", enter(core, now, low), "int8-2", DegradedBreaker)
	ranIn(t, "class", enter(core, now, ask(e, "a", "acme", policy.Critical)), "fp16-0", Admitted)
}
