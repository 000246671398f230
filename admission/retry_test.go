package admission

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// B9: base, times 1.5 for each further failure, up to 20 % more, 30 s at most.
func TestBackOff(t *testing.T) {
	c := policy.RetryControl{Base: 100 * ms, Factor: 1.5, Max: 30 * time.Second, Jitter: 0.2}
	for _, step := range []struct {
		n    int
		dice float64
		want time.Duration
	}{
		{1, 0, 100 * ms}, {2, 0, 150 * ms}, {3, 0, 225 * ms}, {1, 1, 120 * ms}, {2, 0.5, 165 * ms},
		{14, 0, 19462 * ms}, {14, 1, 23354 * ms}, {15, 0, 25 * time.Second}, // 29 s, but for the room that jitter needs
		{40, 1, 30 * time.Second}, {1 << 20, 0, 25 * time.Second},
	} {
		if got := backOff(&c, step.n, step.dice); got < step.want-ms || got > step.want+ms {
			t.Errorf("after %d failures, dice %g: %v, want %v", step.n, step.dice, got, step.want)
		}
	}
	c.Factor, c.Jitter = 1, 0
	if got := backOff(&c, 9, 0.7); got != 100*ms {
		t.Errorf("without growth or jitter: %v", got)
	}
}

// B9: for any setting a wait grows with the failures and ends at max.
func TestBackOffGrowsToItsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := policy.RetryControl{
			Base:   time.Duration(rapid.Int64Range(int64(ms), int64(time.Minute)).Draw(t, "base")),
			Factor: rapid.Float64Range(1, 10).Draw(t, "factor"),
			Jitter: policy.Ratio(rapid.Float64Range(0, 1).Draw(t, "jitter")),
		}
		c.Max = c.Base + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "more"))
		dice, last := rapid.Float64Range(0, 1).Draw(t, "dice"), time.Duration(0)
		for n := 1; n < 60; n++ {
			d := backOff(&c, n, dice)
			if d < last || d > c.Max || d <= 0 {
				t.Fatalf("after %d failures %v, before %v, at most %v", n, d, last, c.Max)
			}
			last = d
		}
		if c.Factor > 2 && last < time.Duration(float64(c.Max)/(1+float64(c.Jitter)))-1 {
			t.Fatalf("after 60 failures %v of %v", last, c.Max)
		}
	})
}

// withRetry changes retry control.
func withRetry(edit func(*policy.RetryControl)) func(*policy.Policy) {
	return func(p *policy.Policy) { edit(&p.Retry) }
}

// B9: refusals of an open breaker are failures in a row. The breaker's own
// hint stands while it is longer; at last the tenant is told to stop, alone;
// its next success ends it.
func TestRefusalsInARow(t *testing.T) {
	p := house(20, withRetry(func(c *policy.RetryControl) { c.Base, c.Storm = time.Second, 8 }))
	core, e := newTestCore(p), effective(t, p)
	fail(core.Breaker("chat-fp16"), start, 30)
	back := core.Breaker("chat-fp16").Peek(start, policy.Critical).RetryAfter
	for n := 1; n <= 9; n++ {
		d := core.Plan(start, ask(e, name("r", n), "acme", policy.Critical)).Decision
		least := max(back, backOff(&p.Retry, n, 0))
		if d.Reason != BreakerOpen || d.RetryAfter < least || d.RetryAfter > least*12/10 || d.NoRetry != (n >= 8) {
			t.Errorf("%d: %s, retry after %v (stop %v), want %v and up to 20 %% more", n, d.Reason, d.RetryAfter, d.NoRetry, least)
		}
	}
	if d := core.Plan(start, ask(e, "other", "other", policy.Critical)).Decision; d.NoRetry {
		t.Error("another tenant is told to stop")
	}
	if got := core.Stats(start)[0].Pushbacks; got != (Pushbacks{Waits: 8, Storms: 2}) {
		t.Errorf("%+v", got)
	}
	core.Breaker("chat-fp16").Reset(start, "hand")
	plan := core.Plan(start, ask(e, "good", "acme", policy.Critical))
	core.Enter(start, plan, allowed)
	core.Done(start, plan, &End{Result: ResultOK})
	fail(core.Breaker("chat-fp16"), start, 30)
	if d := core.Plan(start, ask(e, "again", "acme", policy.Critical)).Decision; d.NoRetry || d.RetryAfter > 7300*ms {
		t.Errorf("after a success: retry after %v, stop %v", d.RetryAfter, d.NoRetry)
	}
}

// B9: at the soft level too, for the classes that are shed there: a naive client
// of theirs would come again as long as the breaker is open.
func TestShedInARow(t *testing.T) {
	p := house(20, only, withRetry(func(c *policy.RetryControl) { c.Storm = 3 }))
	core, e := newTestCore(p), effective(t, p)
	succeed(core.Breaker("chat-fp16"), start, 13)
	fail(core.Breaker("chat-fp16"), start, 7)
	for n := 1; n <= 4; n++ {
		d := core.Plan(start, ask(e, name("r", n), "acme", policy.Batch)).Decision
		if d.Reason != BreakerShed || d.RetryAfter <= 0 || d.NoRetry != (n >= 3) {
			t.Errorf("%d: %s, retry after %v, stop %v", n, d.Reason, d.RetryAfter, d.NoRetry)
		}
	}
	if d := core.Plan(start, ask(e, "r", "other", policy.Batch)).Decision; d.Reason != BreakerShed || d.NoRetry {
		t.Errorf("another tenant: %s, stop %v", d.Reason, d.NoRetry)
	}
}

// failing runs requests of a tenant that fail, n in a row.
func failing(t *testing.T, core *Core, e *policy.Effective, now time.Time, tenant string, n int) {
	t.Helper()
	for i := range n {
		plan := core.Plan(now, ask(e, name("failing", i), tenant, policy.Critical))
		if plan.Refused() || core.Enter(now, plan, allowed) != Entered {
			t.Fatalf("%d: %s", i, plan.Decision.Reason)
		}
		core.Done(now, plan, &End{Result: ResultFailed})
	}
}

// B9, Q5: a booking's instant is true. It stands unless the failures in a row
// ask for more, and quota's word stands always.
func TestTrueHintsAreNeverShortened(t *testing.T) {
	full := func(p *policy.Policy) { p.Queue.Length.Min, p.Queue.Length.Max = 0, 0 }
	for _, c := range []struct {
		failed int
		base   time.Duration
		longer bool
	}{{0, time.Hour, false}, {1, ms, false}, {1, 20 * time.Second, true}} {
		hints := [2]time.Duration{}
		for i, off := range []bool{true, false} {
			p := house(2, full, withRetry(func(r *policy.RetryControl) { r.Base, r.Max, r.Jitter, r.Off = c.base, time.Hour, 0, off }))
			core, e := newTestCore(p), effective(t, p)
			failing(t, core, e, start, "acme", c.failed)
			for i := range 2 {
				core.Enter(start, core.Plan(start, ask(e, name("seat", i), "other", policy.Critical)), allowed)
			}
			plan := core.Plan(start, ask(e, "r", "acme", policy.Critical))
			core.Enter(start, plan, allowed)
			if plan.Decision.Reason != QueueFull || plan.Decision.NoRetry {
				t.Fatalf("%s, stop %v", plan.Decision.Reason, plan.Decision.NoRetry)
			}
			hints[i] = plan.Decision.RetryAfter
		}
		if c.longer && hints[1] != c.base || !c.longer && hints[1] != hints[0] {
			t.Errorf("%+v: the line says %v, the caller is told %v", c, hints[0], hints[1])
		}
	}
	p := house(2, withRetry(func(r *policy.RetryControl) { r.Base = 20 * time.Second }))
	core, e := newTestCore(p), effective(t, p)
	failing(t, core, e, start, "acme", 3)
	plan := core.Plan(start, ask(e, "r", "acme", policy.Critical))
	core.Enter(start, plan, quota.Verdict{Rule: "r", Limit: policy.Limit{Unit: policy.Requests}, RetryAfter: 1300 * ms})
	if d := plan.Decision; d.RetryAfter != 1300*ms || d.NoRetry {
		t.Errorf("quota: %v, stop %v", d.RetryAfter, d.NoRetry)
	}
}

// B9: no push-back reaches the caller's deadline. gRPC's holds for all tries;
// of HTTP only failing pools look at it.
func TestPushbackBeforeTheDeadline(t *testing.T) {
	p := house(4, withRetry(func(c *policy.RetryControl) { c.Storm = 1 << 20 }))
	e := effective(t, p)
	rapid.Check(t, func(t *rapid.T) {
		core := newTestCore(p)
		failed := rapid.IntRange(0, 18).Draw(t, "failed")
		r := ask(e, "r", "acme", policy.Critical)
		r.GRPC = rapid.Bool().Draw(t, "grpc")
		left := time.Duration(rapid.Int64Range(1, int64(40*time.Second)).Draw(t, "left"))
		r.Deadline = start.Add(left)
		plan := core.Plan(start, r)
		if core.Enter(start, plan, allowed) != Entered {
			t.Fatal(plan.Decision.Reason)
		}
		s := &core.floor.Load().pools["chat-fp16"].retries.streaks
		for range failed {
			s.strike(start, "acme", time.Minute)
		}
		b := core.Failing(start, plan, true)
		if b.Stop != (b.After >= left) || b.After < backOff(&p.Retry, failed+1, 0) {
			t.Fatalf("failure %d, %v left: %+v", failed+1, left, b)
		}
		fail(core.Breaker("chat-fp16"), start, 30)
		if d := core.Plan(start, r).Decision; d.NoRetry != (d.RetryAfter >= left) || d.RetryAfter < backOff(&p.Retry, failed+2, 0) {
			t.Fatalf("refused after %d failures, %v left: retry after %v, stop %v", failed+1, left, d.RetryAfter, d.NoRetry)
		}
	})
	full := house(1, func(p *policy.Policy) { p.Queue.Length.Min, p.Queue.Length.Max = 0, 0 })
	for _, grpc := range []bool{false, true} {
		core, e := newTestCore(full), effective(t, full)
		core.Enter(start, core.Plan(start, ask(e, "seat", "other", policy.Critical)), allowed)
		r := ask(e, "r", "acme", policy.Critical)
		r.GRPC, r.Deadline = grpc, start.Add(ms)
		plan := core.Plan(start, r)
		core.Enter(start, plan, allowed)
		if d := plan.Decision; d.RetryAfter < ms || d.NoRetry != grpc {
			t.Errorf("gRPC %v: %s after %v, stop %v", grpc, d.Reason, d.RetryAfter, d.NoRetry)
		}
	}
}

// B9: a failure that passes through counts once, whether its head or its end
// is seen first; what Envoy shed counts as nobody's.
func TestFailingCountsOnce(t *testing.T) {
	p := house(4)
	core, e := newTestCore(p), effective(t, p)
	run := func(i int) *Plan {
		plan := core.Plan(start, ask(e, name("r", i), "acme", policy.Critical))
		core.Enter(start, plan, allowed)
		return plan
	}
	streak := func() int {
		return core.floor.Load().pools["chat-fp16"].retries.streaks.find(start, "acme", time.Minute)
	}
	for i := range 3 {
		plan := run(i)
		if i == 1 {
			core.Done(start, plan, &End{Result: ResultFailed})
		}
		b := core.Failing(start, plan, true)
		if least := backOff(&p.Retry, i+1, 0); b.Stop || b.After < least || b.After > least*12/10 {
			t.Errorf("failure %d: %+v, want about %v", i+1, b, least)
		}
		if i != 1 {
			core.Done(start, plan, &End{Result: ResultFailed})
		}
		core.Failing(start, plan, true)
		if n := streak(); n != i+1 {
			t.Fatalf("%d in a row after failure %d", n, i+1)
		}
	}
	plan := run(3)
	if b := core.Failing(start, plan, false); b.After < backOff(&p.Retry, 4, 0) {
		t.Errorf("shed by Envoy: %+v", b)
	}
	core.Done(start, plan, &End{Result: ResultNoAnswer})
	if n := streak(); n != 3 {
		t.Errorf("shed by Envoy: %d in a row", n)
	}
	for _, neither := range []Result{ResultCaller, ResultUnknown, ResultStage} {
		core.Done(start, run(4), &End{Result: neither})
	}
	if n := streak(); n != 3 {
		t.Errorf("what says nothing: %d in a row", n)
	}
	core.Done(start, run(5), &End{Result: ResultOK})
	if n := streak(); n != 0 {
		t.Errorf("after a success: %d in a row", n)
	}
}

// A storm at the cluster stops all retries there, and only there; where all
// pools are open nobody is to come back before they may admit.
func TestPushbackInAStorm(t *testing.T) {
	p := house(4, func(p *policy.Policy) { p.Pools[0].Cluster, p.Pools[1].Cluster = "gpu", "gpu" })
	d, e := newTestDesk(t, p), effective(t, p)
	if n := d.Storm("gpu", true); n != 2 {
		t.Errorf("%d pools at the cluster", n)
	}
	now := time.Now()
	for class, want := range []bool{true, true, false} {
		ticket := admit(t, d, ask(e, name("r", class), "acme", policy.Class(class)))
		if b := ticket.Failing(now, true); b.Stop != want || b.After <= 0 {
			t.Errorf("%s: %+v", policy.Class(class), b)
		}
		ticket.Done(End{Result: ResultFailed})
	}
	d.Storm("gpu", false)
	ticket := admit(t, d, ask(e, "calm", "acme", policy.Critical))
	for _, pool := range p.Pools {
		fail(d.Breaker(pool.Name), now, 30)
	}
	if b := ticket.Failing(now, true); b.Stop || b.After < 5*time.Second || b.After > 6*time.Second {
		t.Errorf("all open: %+v, want the breakers' 5 s and their jitter", b)
	}
	ticket.Done(End{Result: ResultFailed})
	if s := d.Snapshot(now).Pools; s[0].Storm || s[0].Pushbacks != (Pushbacks{Storms: 1, Waits: 1}) || s[2].Pushbacks != (Pushbacks{Waits: 1}) {
		t.Errorf("%+v, %+v", s[0].Pushbacks, s[2].Pushbacks)
	}
	quiet(t, d)
}

// O4: where nothing is enforced nothing is said, and with retry control off
// nothing beyond the refusal's own hint.
func TestPushbackIsSilent(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*policy.Policy)
	}{
		{"pass", func(p *policy.Policy) { p.Mode = policy.Pass }},
		{"shadow", inMode(policy.Shadow)},
		{"off", withRetry(func(r *policy.RetryControl) { r.Off = true })},
	} {
		p := house(4, c.edit, withRetry(func(r *policy.RetryControl) { r.Storm = 1 }))
		d, e := newTestDesk(t, p), effective(t, p)
		ticket := admit(t, d, ask(e, "r", "acme", policy.Critical))
		if b := ticket.Failing(time.Now(), true); b != (Pushback{}) {
			t.Errorf("%s: %+v", c.name, b)
		}
		ticket.Done(End{Result: ResultFailed})
		if c.name == "off" {
			fail(d.Breaker("chat-fp16"), time.Now(), 30)
			if _, dec := d.Admit(t.Context(), ask(e, "refused", "acme", policy.Critical)); dec.Reason != BreakerOpen || dec.NoRetry || dec.RetryAfter < 4*time.Second {
				t.Errorf("off: %s, %v, stop %v", dec.Reason, dec.RetryAfter, dec.NoRetry)
			}
		}
		for _, s := range d.Snapshot(time.Now()).Pools {
			if s.Pushbacks != (Pushbacks{}) {
				t.Errorf("%s: %+v were told", c.name, s.Pushbacks)
			}
		}
		quiet(t, d)
	}
}

// Shadow refusals count for nobody.
func TestShadowStrikesNobody(t *testing.T) {
	p := house(4, inMode(policy.Shadow))
	d, e := newTestDesk(t, p), effective(t, p)
	fail(d.Breaker("chat-fp16"), time.Now(), 30)
	ticket, dec := d.Admit(t.Context(), ask(e, "r", "acme", policy.Critical))
	if dec.Intended != BreakerOpen || dec.NoRetry {
		t.Fatalf("%+v", dec)
	}
	if n := d.core.floor.Load().pools["chat-fp16"].retries.streaks.known.Load(); n != 0 {
		t.Errorf("%d streaks", n)
	}
	ticket.Done(fine(1, 1))
	quiet(t, d)
}
