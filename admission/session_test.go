package admission

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// said is a request of a session.
func said(e *policy.Effective, session, tenant string, class policy.Class) *Request {
	r := ask(e, "r", tenant, class)
	r.Session = session
	return r
}

// soft opens a pool's breaker at the soft level.
func soft(core *Core, now time.Time, pool string) {
	succeed(core.Breaker(pool), now, 65)
	fail(core.Breaker(pool), now, 35)
}

// V3: a session keeps its variant while costs cross; a new one goes with them.
func TestSessionKeepsItsVariant(t *testing.T) {
	p := laidOut(three, byCost(1, 1.5, 3))
	core, e := newTestCore(p), effective(t, p)
	run := func(after time.Duration, session string) *Plan {
		now := start.Add(after)
		slow(core, now, "fp16-0", map[bool]time.Duration{true: time.Second}[after > 0])
		plan := enter(core, now, said(e, session, "acme", policy.Critical))
		core.Done(now, plan, &End{Result: ResultCaller})
		return plan
	}
	ranIn(t, "first", run(0, "s"), "fp16-0", Admitted)
	for i := range 10 {
		after := time.Duration(10+i) * time.Second
		ranIn(t, "kept", run(after, "s"), "fp16-0", Admitted)
		ranIn(t, "new", run(after, name("other", i)), "fp16-dyn-1", DegradedCost)
	}
	ranIn(t, "another that began below", run(30*time.Second, "other-0"), "fp16-dyn-1", DegradedSession)
}

// A session that came down stays down until it was silent for sessionFor.
func TestSessionStaysDown(t *testing.T) {
	p := house(4, func(p *policy.Policy) { p.Variants.SessionFor = time.Minute })
	core, e := newTestCore(p), effective(t, p)
	run := func(after time.Duration, session string) *Plan {
		plan := enter(core, start.Add(after), said(e, session, "acme", policy.Standard))
		core.Done(start.Add(after), plan, &End{Result: ResultCaller})
		return plan
	}
	ranIn(t, "first", run(0, "s"), "chat-dyn", Admitted)
	soft(core, start.Add(time.Second), "chat-dyn")
	ranIn(t, "by the breaker", run(2*time.Second, "s"), "chat-int8", DegradedBreaker)
	sound := func(p *policy.Policy) { // one in its place
		p.Variants.SessionFor = time.Minute
		p.Pools[1].Name, p.Models[0].Pools[1] = "chat-dyn-2", "chat-dyn-2"
	}
	next := house(4, sound)
	core.Swap(start.Add(3*time.Second), next)
	e = effective(t, next)
	for after := 4 * time.Second; after < 5*time.Minute; after += 50 * time.Second {
		ranIn(t, "down", run(after, "s"), "chat-int8", DegradedSession)
	}
	if d := run(10*time.Second, "new").Decision; d.Variant != policy.FP16Dyn {
		t.Errorf("a new session runs on %s", d.Variant)
	}
	if d := run(10*time.Minute, "s").Decision; d.Variant != policy.FP16Dyn || d.Reason != Admitted {
		t.Errorf("silent for long: %s by %s", d.Variant, d.Reason)
	}
}

// Expiry takes a session down as well.
func TestSessionAfterExpiry(t *testing.T) {
	p := house(1)
	core, e := newTestCore(p), effective(t, p)
	first := enter(core, start, ask(e, "runs", "other", policy.Standard))
	waits := enter(core, start, said(e, "s", "acme", policy.Standard))
	core.Advance(start.Add(500*ms), "chat-dyn")
	ranIn(t, "expired", waits, "chat-int8", DegradedExpiry)
	core.Done(start.Add(time.Second), first, &End{Result: ResultOK})
	core.Done(start.Add(time.Second), waits, &End{Result: ResultOK})
	ranIn(t, "next", enter(core, start.Add(time.Second), said(e, "s", "acme", policy.Standard)), "chat-int8", DegradedSession)
}

// Sessions are a tenant's own, of one class; an id gains nothing.
func TestSessionsAreApart(t *testing.T) {
	p := house(4)
	core, e := newTestCore(p), effective(t, p)
	run := func(tenant string, class policy.Class) *Plan {
		return enter(core, start, said(e, "s", tenant, class))
	}
	ranIn(t, "critical", run("acme", policy.Critical), "chat-fp16", Admitted)
	ranIn(t, "batch of a critical session", run("acme", policy.Batch), "chat-int8", Admitted)
	ranIn(t, "critical again", run("acme", policy.Critical), "chat-fp16", Admitted)
	ranIn(t, "the same id of another", run("rogue", policy.Batch), "chat-int8", Admitted)
	ranIn(t, "of a third", run("third", policy.Critical), "chat-fp16", Admitted)

	off := house(4, func(p *policy.Policy) { p.Variants.SessionFor = 0 })
	if core := newTestCore(off); enter(core, start, said(effective(t, off), "s", "acme", policy.Batch)).session != 0 {
		t.Error("remembered though sessionFor is 0")
	}
}

// Where nothing at or below its variant admits, a session is served by what
// its class allows rather than refused, and comes back to its own after that.
func TestSessionWithoutAPool(t *testing.T) {
	p := laidOut(three, byCost(2, 2, 1))
	core, e := newTestCore(p), effective(t, p)
	run := func() *Plan { return enter(core, start, said(e, "s", "acme", policy.Critical)) }
	ranIn(t, "by cost", run(), "int8-2", DegradedCost)
	fail(core.Breaker("int8-2"), start, 30)
	if d := run().Decision; d.Refused() || d.Variant == policy.INT8 {
		t.Errorf("%+v, want another variant", d)
	}
	ranIn(t, "of a class that may not", enter(core, start, said(e, "s", "acme", policy.Batch)), "", BreakerOpen)

	// The variant is gone from the policy: the next lower, else the lowest.
	for _, c := range []struct {
		pools []policy.Variant
		want  policy.Variant
	}{
		{[]policy.Variant{policy.FP16, policy.FP16Dyn}, policy.FP16Dyn},
		{[]policy.Variant{policy.FP16}, policy.FP16},
	} {
		next := laidOut(c.pools)
		core.Swap(start, next)
		if d := enter(core, start, said(effective(t, next), "s", "acme", policy.Critical)).Decision; d.Variant != c.want {
			t.Errorf("%v: %s, want %s", c.pools, d.Variant, c.want)
		}
	}
}

// Refused reports a decision against the request.
func (d *Decision) Refused() bool { return !d.Reason.Admits() }

// Memory is bounded, the longest silent go first, and expired ones in time.
func TestSessionsAreBounded(t *testing.T) {
	var s sessions
	s.open()
	count := func() (n int) {
		for i := range s.shards {
			n += len(s.shards[i].byKey)
			if s.shards[i].order.Len() != len(s.shards[i].byKey) {
				t.Fatal("list and map differ")
			}
		}
		return n
	}
	const made = 2 * sessionsKept
	for i := range uint64(made) {
		s.keep(start, 1+i, 1, time.Minute)
	}
	if n := count(); n != sessionsKept {
		t.Errorf("%d kept of %d, want %d", n, made, sessionsKept)
	}
	if _, ok := s.find(start, 1); ok {
		t.Error("the longest silent one was kept")
	}
	if _, ok := s.find(start, made); !ok {
		t.Error("the newest one was forgotten")
	}
	late := start.Add(time.Minute)
	if _, ok := s.find(late, made); ok {
		t.Error("found after its time")
	}
	for i := range uint64(sessionsKept) {
		s.keep(late, made+1+i, 1, time.Minute)
	}
	for i := range uint64(sessionsKept) {
		s.keep(late.Add(time.Hour), made+1+i%64, 1, time.Minute)
		s.keep(late.Add(time.Hour), 5*made+i%64, 1, time.Minute)
	}
	if n := count(); n > sessionsKept {
		t.Errorf("%d kept", n)
	}
}
