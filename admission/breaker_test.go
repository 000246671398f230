package admission

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// fail records n failing ends of a pool.
func fail(b *breaker.Breaker, now time.Time, n int) {
	for range n {
		b.Record(now, true, false)
	}
}

func succeed(b *breaker.Breaker, now time.Time, n int) {
	for range n {
		b.Record(now, false, false)
	}
}

// B1 at the desk: soft sheds batch and degrades standard, hard refuses all.
func TestBreakerLevels(t *testing.T) {
	one := func(p *policy.Policy) {
		for i := range p.Classes {
			p.Classes[i].Variant = policy.FP16Dyn
		}
	}
	for _, c := range []struct {
		name  string
		fails int
		want  [policy.NumClasses]Reason
	}{
		{"closed at 29 %", 29, [3]Reason{Admitted, Admitted, Admitted}},
		{"soft at 30 %", 30, [3]Reason{Admitted, DegradedBreaker, BreakerShed}},
		{"hard at 100 %", 100, [3]Reason{BreakerOpen, BreakerOpen, BreakerOpen}},
	} {
		p := house(4, one)
		core, e := newTestCore(p), effective(t, p)
		succeed(core.Breaker("chat-dyn"), start, 100-c.fails)
		fail(core.Breaker("chat-dyn"), start, c.fails)
		for class := range policy.Class(policy.NumClasses) {
			plan := core.Plan(start, ask(e, "a", "acme", class))
			if !plan.Refused() {
				core.Enter(start, plan, allowed)
			}
			if got := plan.Decision.Reason; got != c.want[class] {
				t.Errorf("%s, %s: %s, want %s", c.name, class, got, c.want[class])
			}
			if plan.Refused() && plan.Decision.RetryAfter <= 0 {
				t.Errorf("%s, %s: no hint", c.name, class)
			}
			if plan.Decision.Reason == DegradedBreaker && plan.Decision.Pool != "chat-int8" {
				t.Errorf("%s: degraded to %s", c.name, plan.Decision.Pool)
			}
		}
	}
}

// A standard request whose pool and the pools below are all open is shed.
func TestBreakerNothingBelow(t *testing.T) {
	p := house(4)
	core, e := newTestCore(p), effective(t, p)
	for _, pool := range []string{"chat-dyn", "chat-int8"} {
		succeed(core.Breaker(pool), start, 65)
		fail(core.Breaker(pool), start, 35)
	}
	if plan := core.Plan(start, ask(e, "a", "acme", policy.Standard)); plan.Decision.Reason != BreakerShed {
		t.Errorf("%s, want breaker_shed", plan.Decision.Reason)
	}
}

// The breaker opens while a request waits: the seat it would have got is
// taken back, and the next waiter's too (B1).
func TestBreakerOpensUnderWaiters(t *testing.T) {
	p := house(1)
	core, e := newTestCore(p), effective(t, p)
	plans := make([]*Plan, 3)
	for i := range plans {
		plans[i] = core.Plan(start, ask(e, name("r", i), name("tenant", i), policy.Critical))
		core.Enter(start, plans[i], allowed)
	}
	at := start.Add(100 * time.Millisecond)
	fail(core.Breaker("chat-fp16"), at, 30)
	_, decided := core.Done(at, plans[0], &End{Result: ResultFailed})
	if len(decided) != 2 {
		t.Fatalf("%d decided, want 2", len(decided))
	}
	for _, plan := range decided {
		if d := &plan.Decision; d.Reason != BreakerOpen || d.Waited != 100*time.Millisecond || d.RetryAfter <= 0 {
			t.Errorf("%+v", d)
		}
	}
	if used := core.Stats(at)[0].Line.SeatsUsed; used != (policy.Seats{}) {
		t.Errorf("seats used: %+v", used)
	}
}

// B2: while half-open only probes enter; a probe that is refused elsewhere is
// given back, and good ends close the breaker again.
func TestProbesCloseTheBreaker(t *testing.T) {
	p := house(1000)
	core, e := newTestCore(p), effective(t, p)
	b := core.Breaker("chat-fp16")
	fail(b, start, 30)
	now := start.Add(7 * time.Second) // open 5 s and its jitter
	admitted, shed := 0, 0
	for i := range 1000 {
		plan := core.Plan(now, ask(e, name("r", i), "acme", policy.Critical))
		if plan.Refused() {
			shed++
			continue
		}
		admitted++
		if !plan.probe {
			t.Fatal("half-open admits without a probe")
		}
		core.Enter(now, plan, quota.Verdict{Rule: "r", Limit: policy.Limit{Unit: policy.Requests}})
		if plan.probe {
			t.Fatal("a probe refused by quota was not given back")
		}
	}
	if admitted < 60 || admitted > 140 {
		t.Errorf("half-open let %d of 1000 through, want about 10 %%", admitted)
	}
	for i := 0; i < 20000 && b.View(now).State != breaker.Closed; i++ {
		now = now.Add(10 * time.Millisecond)
		plan := core.Plan(now, ask(e, name("p", i), "acme", policy.Critical))
		if plan.Refused() {
			continue
		}
		core.Enter(now, plan, allowed)
		core.Done(now, plan, &End{Result: ResultOK})
	}
	if s := b.View(now).State; s != breaker.Closed {
		t.Errorf("state %v after good probes", s)
	}
}

// The retry queue is closed while the breaker is open (P3).
func TestRetryQueueClosedWhileOpen(t *testing.T) {
	p := house(1)
	core, e := newTestCore(p), effective(t, p)
	first := core.Plan(start, ask(e, "first", "acme", policy.Batch))
	core.Enter(start, first, allowed)
	held := core.Plan(start, ask(e, "held", "acme", policy.Batch))
	core.Enter(start, held, allowed)
	at := start.Add(time.Second)
	if decided, _ := core.Advance(at, "chat-int8"); len(decided) != 0 {
		t.Fatalf("expired batch was not moved to the retry queue: %s", decided[0].Decision.Reason)
	}
	succeed(core.Breaker("chat-int8"), at, 65)
	fail(core.Breaker("chat-int8"), at, 35) // soft
	if _, decided := core.Done(at, first, &End{Result: ResultOK}); len(decided) != 0 {
		t.Fatalf("served from a closed retry queue: %s", decided[0].Decision.Reason)
	}
	decided, _ := core.Advance(start.Add(6*time.Second), "chat-int8")
	if len(decided) != 1 || decided[0].Decision.Reason != ExpiredRetry {
		t.Errorf("want one expired_retry after 1 s + 5 s, got %d", len(decided))
	}
}

// B6: nothing of what weir refused, callers did or was merely slow is counted,
// however often.
func TestWhatSaysNothingOfThePool(t *testing.T) {
	p := house(1000)
	core, e := newTestCore(p), effective(t, p)
	b := core.Breaker("chat-fp16")
	for i := range 100 { // our own 429
		plan := core.Plan(start, ask(e, name("q", i), "acme", policy.Critical))
		core.Enter(start, plan, quota.Verdict{Rule: "r", Limit: policy.Limit{Unit: policy.Requests}})
	}
	for _, end := range []End{
		{Result: ResultCaller, Status: 400}, {Result: ResultCaller, Status: 404}, {Result: ResultCaller, Status: 413},
		{Result: ResultUnknown, Status: 200}, {Result: ResultCaller}, {Result: ResultNoAnswer, Status: 413},
	} {
		for i := range 50 {
			plan := core.Plan(start, ask(e, name("c", i), "acme", policy.Critical))
			core.Enter(start, plan, allowed)
			core.Done(start, plan, &end)
		}
	}
	if v := b.View(start); v.Requests != 0 || v.State != breaker.Closed {
		t.Errorf("%+v, want nothing counted", v)
	}
	late := start.Add(30 * time.Second)
	for i := range 50 { // 30 s to the first byte, then fine
		plan := core.Plan(start, ask(e, name("s", i), "acme", policy.Critical))
		core.Enter(start, plan, allowed)
		core.Done(late, plan, &End{Result: ResultOK, Status: 200, FirstByte: 30 * time.Second})
	}
	if v := b.View(late); v.Requests != 50 || v.Failures != 0 {
		t.Errorf("%+v, want 50 good ends", v)
	}
}
