package admission

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

var allowed = quota.Verdict{Allowed: true}

// V1: a class's pool, else the next higher precision, else the best below.
func TestPoolOfClass(t *testing.T) {
	for _, c := range []struct {
		name     string
		pools    []string
		want     [policy.NumClasses]string
		degraded [policy.NumClasses]bool
	}{
		{"all", []string{"chat-fp16", "chat-dyn", "chat-int8"}, [3]string{"chat-fp16", "chat-dyn", "chat-int8"}, [3]bool{}},
		{"no dyn: up", []string{"chat-int8", "chat-fp16"}, [3]string{"chat-fp16", "chat-fp16", "chat-int8"}, [3]bool{}},
		{"no int8: up by one", []string{"chat-fp16", "chat-dyn"}, [3]string{"chat-fp16", "chat-dyn", "chat-dyn"}, [3]bool{}},
		{"fp16 alone", []string{"chat-fp16"}, [3]string{"chat-fp16", "chat-fp16", "chat-fp16"}, [3]bool{}},
		{"int8 alone", []string{"chat-int8"}, [3]string{"chat-int8", "chat-int8", "chat-int8"}, [3]bool{true, true, false}},
		{"no fp16: best below", []string{"chat-int8", "chat-dyn"}, [3]string{"chat-dyn", "chat-dyn", "chat-int8"}, [3]bool{true, false, false}},
	} {
		p := house(4, func(p *policy.Policy) { p.Models[0].Pools = c.pools })
		core, e := newTestCore(p), effective(t, p)
		for class := range policy.Class(policy.NumClasses) {
			plan := core.Plan(start, ask(e, "a", "acme", class))
			if plan.Refused() || core.Enter(start, plan, allowed) != Entered {
				t.Fatalf("%s, %s: %s", c.name, class, plan.Decision.Reason)
			}
			reason := Admitted
			if c.degraded[class] {
				reason = DegradedVariant
			}
			if d := &plan.Decision; d.Pool != c.want[class] || d.Degraded != c.degraded[class] || d.Reason != reason {
				t.Errorf("%s, %s: %s in %s, want %s in %s", c.name, class, d.Reason, d.Pool, reason, c.want[class])
			}
		}
	}
}

// Refusals that need no store.
func TestPlanRefusals(t *testing.T) {
	blocked := func(p *policy.Policy) {
		p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "bad*"}, Block: true}}
	}
	small := func(p *policy.Policy) { p.Pools[0].Seats.Tokens = 20 }
	noPool := func(p *policy.Policy) { p.Models[0].Pools = nil }
	for _, c := range []struct {
		name string
		edit func(*policy.Policy)
		ask  func(*Request)
		want Reason
	}{
		{"nobody", nil, func(r *Request) { r.Identity = nil }, IdentityMissing},
		{"no tenant", nil, func(r *Request) { r.Identity.Tenant = "" }, IdentityMissing},
		{"blocked", blocked, func(r *Request) { r.Identity.Tenant = "bad-one" }, TenantBlocked},
		{"unknown model", nil, func(r *Request) { r.Model = "gpt-99" }, ModelUnknown},
		{"larger than the pool (Q9)", small, func(r *Request) { r.Class = policy.Critical }, TooLarge},
		{"no pool", noPool, func(*Request) {}, NoPool},
	} {
		p := house(4)
		if c.edit != nil {
			p = house(4, c.edit)
		}
		r := ask(effective(t, p), "a", "acme", policy.Standard)
		c.ask(r)
		plan := newTestCore(p).Plan(start, r)
		if !plan.Refused() || plan.Decision.Reason != c.want || plan.Decision.Action != c.want.Row().Action {
			t.Errorf("%s: %s, want %s", c.name, plan.Decision.Reason, c.want)
		}
	}
}

// The policy's word on a tenant wins over its token; a route's cap lowers.
func TestTenantRules(t *testing.T) {
	low := policy.Batch
	p := house(4, func(p *policy.Policy) {
		p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "acme"}, Class: &low, Tier: "gold"}}
		p.Tiers = append(p.Tiers, policy.Tier{Name: "gold", Weight: 4})
	})
	core := newTestCore(p)
	plan := core.Plan(start, ask(effective(t, p), "a", "acme", policy.Critical))
	if plan.Class != policy.Batch || plan.waiter.Weight != 4 || plan.pool.name != "chat-int8" {
		t.Errorf("class %s, weight %g, pool %s", plan.Class, plan.waiter.Weight, plan.pool.name)
	}
	route, err := p.For(policy.Overrides{Class: "standard"})
	if err != nil {
		t.Fatal(err)
	}
	if plan := core.Plan(start, ask(route, "b", "other", policy.Critical)); plan.Class != policy.Standard {
		t.Errorf("class %s on a route capped at standard", plan.Class)
	}
}

// Q1, Q5 and Q6 at their places: 160 wait, the rest up to 200 is for the
// exempt, 200 is full. Pressure is neutral: 1000 - 10*50, cut to 200.
func TestSoftAndFull(t *testing.T) {
	p := house(1, func(p *policy.Policy) {
		for i := range p.Classes {
			p.Classes[i].Variant = policy.FP16
		}
	})
	core, e := newTestCore(p), effective(t, p)
	enter := func(i int, class policy.Class) (*Plan, Outcome) {
		plan := core.Plan(start, ask(e, name("r", i), name("tenant", i), class))
		return plan, core.Enter(start, plan, allowed)
	}
	enter(0, policy.Critical)
	for i := range 160 {
		if plan, got := enter(1+i, policy.Batch); got != InTheLine {
			t.Fatalf("batch %d: %s", i, plan.Decision.Reason)
		}
	}
	if plan, got := enter(500, policy.Batch); got != Refused || plan.Decision.Reason != QueueSoft || plan.Decision.RetryAfter <= 0 {
		t.Errorf("batch 161: %s, want queue_soft with a hint", plan.Decision.Reason)
	}
	for i := range 40 {
		if plan, got := enter(600+i, policy.Critical); got != InTheLine {
			t.Fatalf("critical %d: %s", i, plan.Decision.Reason)
		}
	}
	if plan, got := enter(700, policy.Critical); got != Refused || plan.Decision.Reason != QueueFull || plan.Decision.Action != Shed {
		t.Errorf("critical 41: %s, want queue_full", plan.Decision.Reason)
	}
}

// A full line is known before the store is asked.
func TestFullLineSparesTheStore(t *testing.T) {
	p := house(1, withQuotas(policy.Limit{Unit: policy.Requests, Max: 1000, Per: time.Minute}), func(p *policy.Policy) {
		p.Queue.Length.Min, p.Queue.Length.Max = 2, 2
		p.Queue.SoftLimit = 1
	})
	core, e := newTestCore(p), effective(t, p)
	for i := range 3 {
		plan := core.Plan(start, ask(e, name("r", i), name("tenant", i), policy.Critical))
		if plan.Refused() || len(plan.Claims) != 1 {
			t.Fatalf("%d: %s", i, plan.Decision.Reason)
		}
		core.Enter(start, plan, allowed)
	}
	if plan := core.Plan(start, ask(e, "full", "tenant", policy.Critical)); !plan.Refused() || plan.Decision.Reason != QueueFull {
		t.Errorf("want queue_full from Plan, got %s", plan.Decision.Reason)
	}
}

// Asking a full line before the store seats nobody: not who is owed a seat and
// would have to give it back, and nobody behind it.
func TestFullLineLosesNobody(t *testing.T) {
	p := house(10, withQuotas(policy.Limit{Unit: policy.Concurrency, Max: 1000}), func(p *policy.Policy) {
		for i := range p.Pools {
			p.Pools[i].Seats.Tokens = 1000
		}
		for i := range p.Classes {
			p.Classes[i].Variant = policy.FP16
		}
		p.Tiers = []policy.Tier{{Name: "gold", Weight: 1, Share: 0.5}, {Name: "silver", Weight: 1, Share: 0.5}}
		p.Queue.Length = policy.Length{Min: 2, Max: 2}
	})
	core, e := newTestCore(p), effective(t, p)
	plan := func(id, tier string, class policy.Class, prompt, output int64) *Plan {
		r := ask(e, id, "t", class)
		r.Identity.Tier, r.Prompt, r.MaxOut = tier, 4*prompt, output
		return core.Plan(start, r)
	}
	core.Enter(start, plan("held", "silver", policy.Standard, 600, 100), allowed)
	core.Enter(start, plan("large", "gold", policy.Critical, 300, 100), allowed) // does not fit
	small := plan("small", "gold", policy.Standard, 50, 60)                      // behind it
	if core.Enter(start, small, allowed) != InTheLine {
		t.Fatal(small.Decision.Reason)
	}
	owed := plan("owed", "gold", policy.Critical, 10, 10) // quick, and fits
	if owed.Refused() {
		t.Fatal(owed.Decision.Reason)
	}
	core.Abandon(start, owed, StoreUnavailable)
	decided, _ := core.Advance(start.Add(200*time.Millisecond), "chat-fp16")
	if len(decided) != 2 || decided[1] != small || small.Refused() {
		t.Errorf("%d decided, the small one as %s: want it seated when the large one goes", len(decided), small.Decision.Reason)
	}
}

// Two pools of one precision share by load.
func TestLeastLoadedPool(t *testing.T) {
	p := house(10, func(p *policy.Policy) {
		twin := p.Pools[0]
		twin.Name, twin.Cluster = "chat-fp16-b", ""
		p.Pools = append(p.Pools, twin)
		p.Models[0].Pools = append(p.Models[0].Pools, twin.Name)
	})
	core, e := newTestCore(p), effective(t, p)
	got := map[string]int{}
	for i := range 20 {
		plan := core.Plan(start, ask(e, name("r", i), "acme", policy.Critical))
		core.Enter(start, plan, allowed)
		got[plan.Decision.Pool]++
	}
	if got["chat-fp16"] != 10 || got["chat-fp16-b"] != 10 {
		t.Errorf("seats given: %v", got)
	}
}

// Replicas divide the seats: rounded down, at least one; a request that fits
// the pool fits the share.
func TestReplicasShareSeats(t *testing.T) {
	p := house(8, func(p *policy.Policy) {
		p.Server.Replicas = 3
		p.Pools[0].Seats = policy.Seats{Requests: 8, Tokens: 300}
		p.Pools[1].Seats.Requests = 2
	})
	core, e := newTestCore(p), effective(t, p)
	stats := core.Stats(start)
	if got := stats[0].Line.SeatsTotal; got != (policy.Seats{Requests: 2, Tokens: 100}) {
		t.Errorf("share of 8 seats and 300 tokens by 3: %+v", got)
	}
	if got := stats[1].Line.SeatsTotal.Requests; got != 1 {
		t.Errorf("share of 2 seats by 3: %d", got)
	}
	plan := core.Plan(start, ask(e, "a", "acme", policy.Critical)) // 200 tokens
	if core.Enter(start, plan, allowed) != Entered {
		t.Errorf("200 tokens in a pool of 300: %s", plan.Decision.Reason)
	}
}

// NextAt is the earliest thing due: an expiry, else maxHold of the oldest.
func TestNextAt(t *testing.T) {
	p := house(1)
	core, e := newTestCore(p), effective(t, p)
	if at, ok := core.NextAt("chat-fp16"); ok {
		t.Errorf("an empty pool wants to be advanced at %s", at)
	}
	first := core.Plan(start, ask(e, "a", "acme", policy.Critical))
	core.Enter(start, first, allowed)
	if at, ok := core.NextAt("chat-fp16"); !ok || !at.Equal(start.Add(10*time.Minute)) {
		t.Errorf("with one running: %s, want maxHold", at)
	}
	second := core.Plan(start, ask(e, "b", "acme", policy.Critical))
	core.Enter(start, second, allowed)
	if at, ok := core.NextAt("chat-fp16"); !ok || !at.Equal(start.Add(200*time.Millisecond)) {
		t.Errorf("with one waiting: %s, want its expiry", at)
	}
	if !core.Cancel(start, second) || core.Cancel(start, second) {
		t.Error("Cancel takes a waiter out once")
	}
	core.Done(start, first, &End{})
	if at, ok := core.NextAt("chat-fp16"); ok {
		t.Errorf("an empty pool wants to be advanced at %s", at)
	}
}

// Demand counts seats: running + waiting + refused per second times seat time.
func TestDemand(t *testing.T) {
	p := house(1, func(p *policy.Policy) {
		p.Queue.Length.Min, p.Queue.Length.Max = 1, 1
		p.Queue.SoftLimit = 1
	})
	core, e := newTestCore(p), effective(t, p)
	plan := func(i int) *Plan { return core.Plan(start, ask(e, name("r", i), name("t", i), policy.Critical)) }
	first := plan(0)
	core.Enter(start, first, allowed)
	now := start.Add(2 * time.Second)
	core.Done(now, first, &End{}) // a seat takes 2 s
	for i := range 22 {
		p := core.Plan(now, ask(e, name("q", i), name("t", i), policy.Critical))
		core.Enter(now, p, allowed) // 1 runs, 1 waits, 20 are refused
	}
	if got := core.Stats(now)[0].Demand; got != 1+1+20.0/10*2 {
		t.Errorf("demand %g, want 6", got)
	}
	if got := core.Stats(now.Add(10 * time.Second))[0].RefusedPerSecond; got != 0 {
		t.Errorf("%g refused per second after ten quiet ones", got)
	}
}

// Q5, Q7: a breaker's hint is jittered upwards by at most 20 % and ends at the
// policy's maximum; a line's is not jittered, a quota's stands as it is.
func TestHints(t *testing.T) {
	e := effective(t, house(1))
	core := newTestCore(e.Policy)
	p := &Plan{Request: ask(e, "a", "acme", policy.Standard), pool: core.floor.Load().order[0]}
	lowest, highest := time.Hour, time.Duration(0)
	for range 1000 {
		d := p.advice(AdviceBreaker, 10*time.Second)
		lowest, highest = min(lowest, d), max(highest, d)
	}
	if lowest < 10*time.Second || lowest > 10100*time.Millisecond || highest > 12*time.Second || highest < 11900*time.Millisecond {
		t.Errorf("hints from %s to %s, want 10s to 12s", lowest, highest)
	}
	for _, c := range []struct {
		by   Advice
		hint time.Duration
		want time.Duration
	}{
		{AdviceBreaker, time.Hour, time.Minute},
		{AdviceQueue, 10 * time.Second, 10 * time.Second},
		{AdviceQueue, time.Hour, time.Minute},
		{AdviceQueue, 0, time.Second},
		{AdviceQuota, time.Hour, time.Hour}, // the true wait
		{AdviceTenant, time.Hour, time.Hour},
		{AdviceNone, time.Hour, 0},
		{AdviceFixed, 0, time.Second},
	} {
		if got := p.advice(c.by, c.hint); got != c.want {
			t.Errorf("adviser %d says %s: %s goes out, want %s", c.by, c.hint, got, c.want)
		}
	}
}
