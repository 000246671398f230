package admission

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// withLane is a share of seats for priority.
func withLane(share policy.Ratio) func(*policy.Policy) {
	return func(p *policy.Policy) { p.Shares.Priority = share }
}

// urgent is a critical request with the priority header.
func urgent(e *policy.Effective, id string) *Request {
	r := ask(e, id, "acme", policy.Critical)
	r.Priority = true
	return r
}

// P8: while the breaker is open, requests with priority have the lane's seats,
// and nobody else has any.
func TestLanePastAnOpenBreaker(t *testing.T) {
	p := house(20, withLane(0.1))
	core, e := newTestCore(p), effective(t, p)
	fail(core.Breaker("chat-fp16"), start, 30)
	plain := core.Plan(start, ask(e, "plain", "acme", policy.Critical))
	if !plain.Refused() || plain.Decision.Reason != BreakerOpen {
		t.Errorf("without priority: %s", plain.Decision.Reason)
	}
	var runs []*Plan
	for i := range 5 {
		plan := core.Plan(start, urgent(e, name("r", i)))
		if i < 2 {
			if plan.Refused() || core.Enter(start, plan, allowed) != Entered || plan.Decision.Reason != AdmittedLane || plan.Decision.Action != Admit {
				t.Fatalf("%d: %s, want a seat of the lane", i, plan.Decision.Reason)
			}
			runs = append(runs, plan)
		} else if plan.Decision.Reason != BreakerOpen || plan.Decision.RetryAfter < 5*time.Second {
			t.Errorf("%d: %s with hint %s, want breaker_open by the breaker's clock", i, plan.Decision.Reason, plan.Decision.RetryAfter)
		}
	}
	if got := core.Stats(start)[0].Lane; got != 2 {
		t.Errorf("%d run by the lane, want 2", got)
	}
	core.Done(start, runs[0], &End{Result: ResultFailed})
	plan := core.Plan(start, urgent(e, "next"))
	if plan.Refused() {
		t.Errorf("the seat of one that ended is not given again: %s", plan.Decision.Reason)
	}
}

// P8: the lane goes by the request, not by its class: at the soft level a red
// batch request that would be shed has it too. With a closed breaker nobody
// needs it.
func TestLaneByState(t *testing.T) {
	p := house(10, withLane(0.1))
	for _, c := range []struct {
		name      string
		good, bad int
		want      Reason
	}{{"closed", 100, 0, Admitted}, {"soft", 65, 35, AdmittedLane}, {"hard", 0, 30, AdmittedLane}} {
		core, e := newTestCore(p), effective(t, p)
		succeed(core.Breaker("chat-int8"), start, c.good)
		fail(core.Breaker("chat-int8"), start, c.bad)
		r := ask(e, "r", "acme", policy.Batch)
		r.Colour, r.Priority = policy.Red, true
		plan := core.Plan(start, r)
		core.Enter(start, plan, allowed)
		if plan.Decision.Reason != c.want {
			t.Errorf("%s: %s, want %s", c.name, plan.Decision.Reason, c.want)
		}
	}
	without := house(10, withLane(0))
	core, e := newTestCore(without), effective(t, without)
	fail(core.Breaker("chat-fp16"), start, 30)
	if plan := core.Plan(start, urgent(e, "r")); plan.Decision.Reason != BreakerOpen {
		t.Errorf("without a lane: %s", plan.Decision.Reason)
	}
}

// B1: what passes by the lane does not decide: thirty failures of the lane
// leave a breaker closed that thirty others would open.
func TestLaneDoesNotDecide(t *testing.T) {
	for _, lane := range []bool{true, false} {
		p := house(300, withLane(0.1))
		core, e := newTestCore(p), effective(t, p)
		b := core.Breaker("chat-fp16")
		if lane {
			fail(b, start, 30)
		}
		var runs []*Plan
		for i := range 30 {
			plan := core.Plan(start, urgent(e, name("r", i)))
			if plan.Refused() || core.Enter(start, plan, allowed) != Entered {
				t.Fatalf("%d: %s", i, plan.Decision.Reason)
			}
			runs = append(runs, plan)
		}
		off := p.Breaker
		off.Off = true
		b.Configure(start, breaker.HTTP, off) // closes it
		b.Configure(start, breaker.HTTP, p.Breaker)
		for _, plan := range runs {
			core.Done(start, plan, &End{Result: ResultFailed})
		}
		if open := b.View(start).State != breaker.Closed; open == lane {
			t.Errorf("by the lane %v: the breaker is open %v", lane, open)
		}
	}
}

// Whatever becomes of a request, its seat of the lane comes back.
func TestLaneComesBack(t *testing.T) {
	full := func(p *policy.Policy) { p.Queue.Length.Min, p.Queue.Length.Max = 0, 0 }
	for _, c := range []struct {
		name  string
		edit  func(*policy.Policy)
		taken int // seats taken before
		then  func(core *Core, plan *Plan)
	}{
		{"refused by quota", nil, 0, func(core *Core, plan *Plan) { core.Enter(start, plan, quota.Verdict{}) }},
		{"abandoned", nil, 0, func(core *Core, plan *Plan) { core.Abandon(start, plan, StoreUnavailable) }},
		{"refused by the line", full, 10, func(core *Core, plan *Plan) { core.Enter(start, plan, allowed) }},
		{"cancelled", nil, 10, func(core *Core, plan *Plan) { core.Enter(start, plan, allowed); core.Cancel(start, plan) }},
		{"expired", nil, 10, func(core *Core, plan *Plan) {
			core.Enter(start, plan, allowed)
			core.Advance(start.Add(time.Second), "chat-fp16")
		}},
		{"degraded", func(p *policy.Policy) { p.Classes[policy.Critical].OnExpiry = policy.ExpireDegrade }, 10, func(core *Core, plan *Plan) {
			core.Enter(start, plan, allowed)
			core.Advance(start.Add(time.Second), "chat-fp16")
			if plan.seat == nil || plan.seat.name != "chat-dyn" {
				t.Errorf("degraded to %v", plan.seat)
			}
		}},
		{"drained", nil, 10, func(core *Core, plan *Plan) { core.Enter(start, plan, allowed); core.Drain(start) }},
		{"larger than the pool", func(p *policy.Policy) { p.Pools[0].Seats.Tokens = 20 }, 0, func(*Core, *Plan) {}},
		{"ended", nil, 0, func(core *Core, plan *Plan) { core.Enter(start, plan, allowed); core.Done(start, plan, &End{}) }},
	} {
		p := house(10, withLane(0.1), func(p *policy.Policy) {
			if c.edit != nil {
				c.edit(p)
			}
		})
		core, e := newTestCore(p), effective(t, p)
		for i := range c.taken {
			core.Enter(start, core.Plan(start, ask(e, name("taken", i), "acme", policy.Critical)), allowed)
		}
		fail(core.Breaker("chat-fp16"), start, 30)
		plan := core.Plan(start, urgent(e, "r"))
		if plan.lane == nil && !plan.Refused() {
			t.Fatalf("%s: not in the lane", c.name)
		}
		c.then(core, plan)
		if got := core.floor.Load().pools["chat-fp16"].laned.Load(); got != 0 || plan.lane != nil {
			t.Errorf("%s: %d seats of the lane are held", c.name, got)
		}
	}
}

// P8: the breaker opens while they wait: who has priority gets the seat that
// comes free, the others are refused.
func TestLaneUnderWaiters(t *testing.T) {
	p := house(1, withLane(0.1))
	core, e := newTestCore(p), effective(t, p)
	running := core.Plan(start, ask(e, "r", "acme", policy.Critical))
	core.Enter(start, running, allowed)
	plain := core.Plan(start, ask(e, "plain", "acme", policy.Critical))
	core.Enter(start, plain, allowed)
	first := core.Plan(start, urgent(e, "urgent"))
	core.Enter(start, first, allowed)
	at := start.Add(100 * time.Millisecond)
	fail(core.Breaker("chat-fp16"), at, 30)
	_, decided := core.Done(at, running, &End{Result: ResultFailed})
	if len(decided) == 1 { // the lane's waiter went first and has the seat
		more, _ := core.Advance(start.Add(time.Second), "chat-fp16")
		decided = append(decided, more...)
	}
	if len(decided) != 2 || first.Decision.Reason != AdmittedLane || first.Decision.Waited != 100*time.Millisecond {
		t.Errorf("%d decided, the one with priority as %s after %s", len(decided), first.Decision.Reason, first.Decision.Waited)
	}
	if !plain.Refused() || plain.Decision.RetryAfter < 4*time.Second {
		t.Errorf("the other: %s with hint %s, want a refusal by the breaker's clock", plain.Decision.Reason, plain.Decision.RetryAfter)
	}
}

// Q5: one that waited in vain in a pool that is down is told when the breaker
// may admit, not when a seat may come free.
func TestDownPoolHintsByItsBreaker(t *testing.T) {
	p := house(1)
	core, e := newTestCore(p), effective(t, p)
	for i := range 2 {
		core.Enter(start, core.Plan(start, ask(e, name("r", i), "acme", policy.Critical)), allowed)
	}
	at := start.Add(200 * time.Millisecond)
	fail(core.Breaker("chat-fp16"), at, 30)
	back := core.Breaker("chat-fp16").Peek(at, policy.Critical).RetryAfter
	decided, _ := core.Advance(at, "chat-fp16")
	if len(decided) != 1 || decided[0].Decision.Reason != ExpiredDrop {
		t.Fatalf("%d decided", len(decided))
	}
	if hint := decided[0].Decision.RetryAfter; hint < back || hint > back*12/10 {
		t.Errorf("hint %s, want the breaker's %s and at most 20 %% more", hint, back)
	}
}

// The early refusal leaves the lane open.
func TestPrecheckKnowsTheLane(t *testing.T) {
	p := house(10, withLane(0.1))
	d := newTestDesk(t, p)
	e := effective(t, p)
	now := time.Now()
	for _, pool := range p.Pools {
		fail(d.core.Breaker(pool.Name), now, 30)
	}
	if dec, refused := d.Precheck(now, ask(e, "plain", "acme", policy.Critical)); !refused || dec.Reason != BreakerOpen {
		t.Errorf("without priority: refused %v as %s", refused, dec.Reason)
	}
	r := urgent(e, "urgent")
	if dec, refused := d.Precheck(now, r); refused {
		t.Errorf("with priority: %s", dec.Reason)
	}
	ticket := admit(t, d, r)
	second := urgent(e, "second")
	second.Model = ""
	for _, l := range d.core.floor.Load().order[1:] {
		l.laned.Store(1) // their only seat of the lane
	}
	if _, refused := d.Precheck(now, second); !refused {
		t.Error("let through with the lanes of all pools full")
	}
	for _, l := range d.core.floor.Load().order[1:] {
		l.laned.Store(0)
	}
	ticket.Done(fine(1, 1))
	quiet(t, d)
}

// P8, T13: 10 % of what headroom leaves, at least one; it follows the policy.
func TestLaneSeats(t *testing.T) {
	core := newTestCore(house(64, withLane(0.1)))
	for _, c := range []struct {
		seats              int64
		headroom, priority policy.Ratio
		want               int64
	}{
		{64, 0, 0.1, 6}, {10, 0, 0.1, 1}, {9, 0, 0.1, 1}, {1, 0, 0.1, 1}, {100, 0.2, 0.1, 8}, {100, 0, 0, 0}, {10, 0.5, 0.1, 1},
	} {
		core.Swap(start, house(c.seats, withLane(c.priority), func(p *policy.Policy) { p.Queue.Headroom = c.headroom }))
		if got := core.floor.Load().order[0].lane.Load(); got != c.want {
			t.Errorf("%d seats, headroom %g, priority %g: %d, want %d", c.seats, c.headroom, c.priority, got, c.want)
		}
	}
}

// P8: the lane's 10 % are served through open, half-open and peers' breakers,
// to anybody's priority, and never more; half-open, probes go beside it.
func TestLaneIsServedInEveryState(t *testing.T) {
	for _, c := range []struct {
		name   string
		class  policy.Class
		now    time.Time
		open   func(core *Core, co *breaker.Council)
		beside bool // probes
	}{
		{"hard", policy.Critical, start, func(core *Core, _ *breaker.Council) { fail(core.Breaker("chat-fp16"), start, 30) }, false},
		{"held", policy.Critical, start.Add(time.Hour), func(core *Core, _ *breaker.Council) {
			core.Breaker("chat-fp16").Trip(start, breaker.Hard, time.Second, "hand")
			core.Breaker("chat-fp16").Hold(start, time.Time{}, "hand")
		}, false},
		{"half-open", policy.Critical, start.Add(7 * time.Second), func(core *Core, _ *breaker.Council) { fail(core.Breaker("chat-fp16"), start, 30) }, true},
		{"a storm", policy.Critical, start, func(core *Core, _ *breaker.Council) {
			core.Breaker("chat-fp16").PreTrip(start, "60/s")
			core.floor.Load().pools["chat-fp16"].retries.storm.Store(true)
		}, false},
		{"elsewhere", policy.Batch, start, func(_ *Core, co *breaker.Council) {
			co.Hear(start, word("a", "chat-fp16", 1, breaker.Hard, 5*time.Second))
		}, false},
	} {
		p := house(100, only, withLane(0.1), func(p *policy.Policy) { p.Pools[0].Protocol = policy.GRPCProtocol })
		core, co := withPeers(p)
		e := effective(t, p)
		c.open(core, co)
		lane, probes := 0, 0
		for i := range 200 {
			r := urgent(e, name("r", i))
			r.Class = c.class
			plan := core.Plan(c.now, r)
			switch {
			case plan.Refused():
				if d := &plan.Decision; d.Reason != BreakerOpen && d.Reason != BreakerShed {
					t.Errorf("%s: %s", c.name, d.Reason)
				}
				continue
			case plan.probe:
				probes++
			default:
				lane++
			}
			if core.Enter(c.now, plan, allowed) != Entered || plan.probe == (plan.Decision.Reason == AdmittedLane) {
				t.Fatalf("%s: %s, probe %v", c.name, plan.Decision.Reason, plan.probe)
			}
		}
		if lane != 10 || probes > 0 != c.beside {
			t.Errorf("%s: %d by the lane, %d probes, want 10 and probes %v", c.name, lane, probes, c.beside)
		}
		plain := ask(e, "plain", "acme", c.class)
		for range 20 { // dice may make one a probe
			if plan := core.Plan(c.now, plain); !plan.Refused() && !plan.probe {
				t.Errorf("%s: without priority: %s", c.name, plan.Decision.Reason)
			}
		}
	}
}
