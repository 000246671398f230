package admission

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// withTenants has tenants' breakers on, at 30 % and 50 % of 10 ends.
func withTenants(p *policy.Policy) {
	p.Breaker.Tenant.On, p.Breaker.Tenant.MinRequests = true, 10
}

// ends counts ends of a tenant's own at healthy pools.
func ends(core *Core, now time.Time, tenant string, good, bad int) {
	for range good {
		core.tenants.Record(now, tenant, false, false, true)
	}
	for range bad {
		core.tenants.Record(now, tenant, true, false, true)
	}
}

// B5, T2: hard, only what has priority passes; soft, batch is refused and
// standard degraded, as at a pool. The others do not notice.
func TestTenantBreaker(t *testing.T) {
	for _, c := range []struct {
		name      string
		edit      func(*policy.Policy)
		good, bad int
		want      [policy.NumClasses]Reason
		pool      string // of standard
	}{
		{"closed", withTenants, 90, 10, [3]Reason{Admitted, Admitted, Admitted}, "chat-dyn"},
		{"soft", withTenants, 65, 35, [3]Reason{Admitted, DegradedBreaker, TenantBreaker}, "chat-int8"},
		{"hard", withTenants, 0, 100, [3]Reason{TenantBreaker, TenantBreaker, TenantBreaker}, ""},
		{"off by default", func(*policy.Policy) {}, 0, 100, [3]Reason{Admitted, Admitted, Admitted}, "chat-dyn"},
	} {
		p := house(10, c.edit)
		core, e := newTestCore(p), effective(t, p)
		ends(core, start, "acme", c.good, c.bad)
		for class, want := range c.want {
			plan := core.Plan(start, ask(e, name("r", class), "acme", policy.Class(class)))
			if !plan.Refused() {
				core.Enter(start, plan, allowed)
			}
			d := &plan.Decision
			if d.Reason != want || class == int(policy.Standard) && d.Pool != c.pool {
				t.Errorf("%s, %s: %s at %q, want %s", c.name, policy.Class(class), d.Reason, d.Pool, want)
			}
			left := 5 * time.Minute // its first cool-down, up to 20 % more of the breaker's and of ours
			if plan.Refused() && (d.RetryAfter < left || d.RetryAfter > left*144/100 || !d.NoRetry || d.Action != Reject) {
				t.Errorf("%s, %s: retry after %v, stop %v, want 5 min and more", c.name, policy.Class(class), d.RetryAfter, d.NoRetry)
			}
			if other := core.Plan(start, ask(e, name("o", class), "other", policy.Class(class))); other.Refused() {
				t.Errorf("%s, %s: another tenant is refused: %s", c.name, policy.Class(class), other.Decision.Reason)
			}
		}
		if plan := core.Plan(start, urgent(e, "urgent")); plan.Refused() {
			t.Errorf("%s: priority is refused: %s", c.name, plan.Decision.Reason)
		}
	}
	p := house(10, withTenants, func(p *policy.Policy) { p.Models[0].Pools = []string{"chat-int8"} })
	core, e := newTestCore(p), effective(t, p)
	ends(core, start, "acme", 65, 35)
	if d := core.Plan(start, ask(e, "r", "acme", policy.Standard)).Decision; d.Reason != TenantBreaker || d.RetryAfter < 5*time.Minute {
		t.Errorf("nothing below: %s after %v", d.Reason, d.RetryAfter)
	}
}

// The front door knows it too, before a body is read.
func TestTenantBreakerAtTheFront(t *testing.T) {
	p := house(10, withTenants)
	d, e := newTestDesk(t, p), effective(t, p)
	now := time.Now()
	if !d.Tenants().Overrun(now, "acme", "60 % over") {
		t.Fatal("not opened")
	}
	dec, refused := d.Precheck(now, ask(e, "r", "acme", policy.Critical))
	if !refused || dec.Reason != TenantBreaker || dec.RetryAfter < 5*time.Minute || dec.RetryAfter > 8*time.Minute {
		t.Errorf("refused %v: %s after %v", refused, dec.Reason, dec.RetryAfter)
	}
	if _, refused := d.Precheck(now, urgent(e, "urgent")); refused {
		t.Error("priority is refused")
	}
	if _, refused := d.Precheck(now, ask(e, "o", "other", policy.Batch)); refused {
		t.Error("another tenant is refused")
	}
	d.Swap(house(10)) // switched off: forgotten
	if _, refused := d.Precheck(now, ask(e, "r2", "acme", policy.Critical)); refused {
		t.Error("refused though the policy has no tenants' breakers")
	}
}

// B5: what fails while its pool is open, recovers or is in a storm is not the
// tenant's fault; what fails at a pool that is well is.
func TestFailingPoolBlamesNoTenant(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(p *policy.Policy)
		setup func(core *Core)
		blame bool
	}{
		{"a pool that is well", nil, func(core *Core) { succeed(core.Breaker("chat-fp16"), start, 1000) }, true},
		{"a storm", nil, func(core *Core) {
			succeed(core.Breaker("chat-fp16"), start, 1000)
			core.floor.Load().pools["chat-fp16"].retries.storm.Store(true)
		}, false},
		{"an open pool", nil, func(core *Core) { core.Breaker("chat-fp16").Trip(start, breaker.Soft, 0, "hand") }, false},
		{"the pool opens by it", func(p *policy.Policy) { p.Breaker.Tenant.MinRequests = 20 }, func(*Core) {}, false},
	} {
		edits := []func(*policy.Policy){withTenants}
		if c.edit != nil {
			edits = append(edits, c.edit)
		}
		p := house(100, edits...)
		core, e := newTestCore(p), effective(t, p)
		c.setup(core)
		var runs []*Plan
		for i := range 30 {
			plan := core.Plan(start, ask(e, name("r", i), "acme", policy.Critical))
			core.Enter(start, plan, allowed)
			runs = append(runs, plan)
		}
		for _, plan := range runs {
			core.Done(start, plan, &End{Result: ResultFailed})
		}
		b := core.tenants.Get("acme")
		if open := b != nil && b.View(start).State != breaker.Closed; open != c.blame {
			t.Errorf("%s: the tenant's breaker is open %v, want %v", c.name, open, c.blame)
		}
	}
}

// Whatever becomes of a tenant's probe, its breaker hears of it: no probe is
// lost, and good ends close it again.
func TestTenantProbesComeBack(t *testing.T) {
	full := func(p *policy.Policy) { p.Queue.Length.Min, p.Queue.Length.Max = 0, 0 }
	now := start.Add(7 * time.Minute) // the open time and its jitter are over
	for _, c := range []struct {
		name  string
		edit  func(*policy.Policy)
		taken int
		then  func(core *Core, plan *Plan)
	}{
		{"refused by quota", func(*policy.Policy) {}, 0, func(core *Core, plan *Plan) { core.Enter(now, plan, quota.Verdict{}) }},
		{"abandoned", func(*policy.Policy) {}, 0, func(core *Core, plan *Plan) { core.Abandon(now, plan, StoreUnavailable) }},
		{"refused by the line", full, 10, func(core *Core, plan *Plan) { core.Enter(now, plan, allowed) }},
		{"cancelled", func(*policy.Policy) {}, 10, func(core *Core, plan *Plan) { core.Enter(now, plan, allowed); core.Cancel(now, plan) }},
		{"expired", func(*policy.Policy) {}, 10, func(core *Core, plan *Plan) {
			core.Enter(now, plan, allowed)
			core.Advance(now.Add(time.Second), "chat-fp16")
		}},
		{"refused by the pool's breaker", func(*policy.Policy) {}, -1, func(*Core, *Plan) {}},
		{"too large", func(p *policy.Policy) { p.Pools[0].Seats.Tokens = 20 }, 0, func(*Core, *Plan) {}},
		{"ended without a verdict", func(*policy.Policy) {}, 0, func(core *Core, plan *Plan) {
			core.Enter(now, plan, allowed)
			core.Done(now, plan, &End{Result: ResultUnknown})
		}},
		{"ended well", func(*policy.Policy) {}, 0, func(core *Core, plan *Plan) {
			core.Enter(now, plan, allowed)
			core.Done(now, plan, &End{Result: ResultOK})
		}},
	} {
		p := house(10, withTenants, func(p *policy.Policy) { p.Breaker.Probes = 1 }, c.edit)
		core, e := newTestCore(p), effective(t, p)
		for i := range max(c.taken, 0) {
			core.Enter(now, core.Plan(now, ask(e, name("taken", i), "other", policy.Critical)), allowed)
		}
		if c.taken < 0 {
			fail(core.Breaker("chat-fp16"), now, 30)
		}
		ends(core, start, "acme", 0, 30)
		plan := core.Plan(now, ask(e, "r", "acme", policy.Critical))
		if plan.trial == nil && !plan.Refused() {
			t.Fatalf("%s: not a probe", c.name)
		}
		c.then(core, plan)
		if plan.trial != nil {
			t.Errorf("%s: the probe is still out", c.name)
		}
	}
}

// B2 for a tenant: three good probes and the ladder close its breaker.
func TestTenantRecovers(t *testing.T) {
	p := house(1000, withTenants)
	core, e := newTestCore(p), effective(t, p)
	ends(core, start, "acme", 0, 30)
	now, ran := start.Add(7*time.Minute), 0
	for i := 0; i < 20_000 && core.tenants.Get("acme").View(now).State != breaker.Closed; i++ {
		now = now.Add(10 * time.Millisecond)
		plan := core.Plan(now, ask(e, name("r", i), "acme", policy.Critical))
		if plan.Refused() {
			if plan.Decision.Reason != TenantBreaker {
				t.Fatal(plan.Decision.Reason)
			}
			continue
		}
		ran++
		core.Enter(now, plan, allowed)
		core.Done(now, plan, &End{Result: ResultOK})
	}
	if v := core.tenants.Get("acme").View(now); v.State != breaker.Closed || v.Kind != breaker.Tenant || ran < 100 {
		t.Errorf("after %v and %d runs: %+v", now.Sub(start), ran, v)
	}
}

// O4: in shadow a tenant's breaker refuses nobody, and the probe that it asks
// for is judged by the real end.
func TestTenantBreakerInShadow(t *testing.T) {
	p := house(4, withTenants, inMode(policy.Shadow), func(p *policy.Policy) { p.Breaker.Probes = 1 })
	d, e := newTestDesk(t, p), effective(t, p)
	now := time.Now()
	d.Tenants().Trip(now, "acme", breaker.Hard, time.Hour, "hand")
	ticket, dec := d.Admit(t.Context(), ask(e, "r", "acme", policy.Critical))
	if ticket == nil || dec.Intended != TenantBreaker {
		t.Fatalf("%s, intended %s", dec.Reason, dec.Intended)
	}
	ticket.Done(fine(1, 1))
	d.Tenants().Trip(now, "acme", breaker.Hard, 1, "hand") // over at once
	ticket, _ = d.Admit(t.Context(), ask(e, "probe", "acme", policy.Critical))
	ticket.Done(End{Result: ResultFailed})
	if v := d.Tenants().Get("acme").View(time.Now()); v.State != breaker.Hard || v.Cause != breaker.ByProbe {
		t.Errorf("%+v, want to be open again by its probe", v)
	}
	quiet(t, d)
}
