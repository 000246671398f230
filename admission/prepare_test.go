package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// P4, P6: quick requests first, then streams, then the rest; nobody is set
// back by more than the ageing.
func TestHandicap(t *testing.T) {
	const ageing, half = 80 * time.Millisecond, 40 * time.Millisecond
	off := func(o *policy.Order) { o.Streaming = false }
	for _, c := range []struct {
		name  string
		order func(*policy.Order)
		ask   func(*Request)
		want  time.Duration
	}{
		{"the rest", nil, func(*Request) {}, ageing},
		{"streams", nil, func(r *Request) { r.Stream = true }, half},
		{"a cap below 50 tokens", nil, func(r *Request) { r.MaxOut = 49 }, 0},
		{"a cap of 50 tokens", nil, func(r *Request) { r.MaxOut = 50 }, ageing},
		{"no cap", nil, func(r *Request) { r.MaxOut = 0 }, ageing},
		{"small cap, streams", nil, func(r *Request) { r.MaxOut, r.Stream = 1, true }, 0},
		{"embeddings", nil, func(r *Request) { r.API = &policy.API{Kind: policy.OpenAIEmbeddings} }, 0},
		{"no API", nil, func(r *Request) { r.API = nil }, ageing},
		{"streams do not go first", off, func(r *Request) { r.Stream = true }, ageing},
		{"quick all the same", off, func(r *Request) { r.MaxOut = 49 }, 0},
		{"no ageing: as they came", func(o *policy.Order) { o.Ageing = 0 }, func(*Request) {}, 0},
		{"no cheap cap", func(o *policy.Order) { o.CheapTokens = 0 }, func(r *Request) { r.MaxOut = 1 }, ageing},
	} {
		p := house(1, func(p *policy.Policy) {
			p.Queue.Order.Ageing = ageing
			if c.order != nil {
				c.order(&p.Queue.Order)
			}
		})
		r := ask(effective(t, p), "a", "acme", policy.Standard)
		c.ask(r)
		if got := newTestCore(p).Plan(start, r).waiter.Handicap; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// P4: a request is quick where the pool has shown that its run time is below
// 100 ms, and there alone.
func TestQuickByRunTime(t *testing.T) {
	p := house(100)
	core, e := newTestCore(p), effective(t, p)
	now := start
	learn := func(token time.Duration, n int) {
		for i := range n {
			r := ask(e, name("r", i), "acme", policy.Critical)
			r.Stream = true
			plan := core.Plan(now, r)
			core.Enter(now, plan, allowed)
			end := fine(100, 100)
			end.FirstByte = 20 * time.Millisecond
			now = now.Add(end.FirstByte + 100*token)
			core.Done(now, plan, &end)
		}
	}
	handicap := func(class policy.Class) time.Duration {
		plan := core.Plan(now, ask(e, "a", "acme", class))
		defer core.Abandon(now, plan, ClientGone)
		return plan.waiter.Handicap
	}
	whole := p.Queue.Order.Ageing
	learn(700*time.Microsecond, warm-1) // 20 ms + 100 * 0.7 ms = 90 ms
	if got := handicap(policy.Critical); got != whole {
		t.Errorf("cold: %s, want %s", got, whole)
	}
	learn(700*time.Microsecond, 1)
	if got := handicap(policy.Critical); got != 0 {
		t.Errorf("90 ms: %s, want none", got)
	}
	if got := handicap(policy.Batch); got != whole {
		t.Errorf("in a pool that has not run: %s, want %s", got, whole)
	}
	learn(900*time.Microsecond, 200) // 110 ms
	if got := handicap(policy.Critical); got != whole {
		t.Errorf("110 ms: %s, want %s", got, whole)
	}
}

// What the line is told (P6, P8, P9, Q5).
func TestPrepare(t *testing.T) {
	p := house(1, func(p *policy.Policy) {
		p.Tiers = []policy.Tier{{Name: "gold", Weight: 4, Share: 0.2}, {Name: "silver", Weight: 2, Share: 0.6}, {Name: "bronze", Weight: 1, Share: 0.1}, {Name: "trial", Weight: 1, Share: 0.1}}
	})
	e := effective(t, p)
	for _, c := range []struct {
		tier   string
		group  int
		weight float64
	}{{"gold", 0, 4}, {"silver", 1, 2}, {"bronze", 2, 1}, {"trial", 3, 1}, {"", 1, 2}, {"platinum", 1, 2}} {
		r := ask(e, "a", "acme", policy.Standard)
		r.Identity.Tier = c.tier
		core := newTestCore(p)
		plan := core.Plan(start, r)
		core.Enter(start, plan, allowed)
		if w := plan.waiter; w.Group != c.group || w.Weight != c.weight {
			t.Errorf("tier %q: group %d, weight %g, want %d, %g", c.tier, w.Group, w.Weight, c.group, c.weight)
		}
	}
	core := newTestCore(p)
	r := ask(e, "a", "acme", policy.Critical)
	if w := core.Plan(start, r).waiter; w.Stream || w.Priority || w.Returns {
		t.Errorf("a plain request: %+v", w)
	}
	r.Stream, r.Priority, r.Attempt = true, true, 2
	if w := core.Plan(start, r).waiter; !w.Stream || !w.Priority || !w.Returns {
		t.Errorf("streams, has priority, comes back: %+v", w)
	}
}

// A profile's own tiers do not number the groups of pools that it shares with
// everybody.
func TestGroupsAreTheHouses(t *testing.T) {
	own := []policy.Tier{{Name: "gold", Weight: 9}, {Name: "silver", Weight: 1}, {Name: "bronze", Weight: 1}}
	p := house(1, func(p *policy.Policy) {
		p.Tiers = []policy.Tier{{Name: "bronze", Weight: 1, Share: 0.3}, {Name: "silver", Weight: 1, Share: 0.3}, {Name: "gold", Weight: 4, Share: 0.4}}
	})
	e, profile := effective(t, p), *p
	profile.Tiers, e.Policy = own, &profile
	for tier, want := range map[string]int{"gold": 2, "bronze": 0, "silver": 1, "none": 1} {
		r, core := ask(e, "a", "acme", policy.Standard), newTestCore(p)
		r.Identity.Tier = tier
		plan := core.Plan(start, r)
		core.Enter(start, plan, allowed)
		if got := plan.waiter.Group; got != want {
			t.Errorf("%s: group %d, want %d", tier, got, want)
		}
	}
}

// P9, P8, P6, T13, Q5: a line's shape follows the policy, also while it runs.
func TestLineConfig(t *testing.T) {
	p := house(10, func(p *policy.Policy) {
		p.Queue.Headroom = 0.1
		p.Shares = policy.Shares{Priority: 0.25, Streaming: 0.7}
		p.Tiers = []policy.Tier{{Name: "bronze", Share: 0.3}, {Name: "gold", Share: 0.4}, {Name: "silver", Share: 0.3}}
		p.RetryAfter = policy.RetryAfter{Share: 0.4, Grace: 3 * time.Second, Max: 30 * time.Second}
	})
	c := lineConfig(p, &p.Pools[0])
	if c.Shares.Headroom != 0.1 || c.Shares.Priority != 0.25 || c.Shares.Streaming != 0.7 {
		t.Errorf("shares %+v", c.Shares)
	}
	for i, want := range []policy.Ratio{0.3, 0.4, 0.3} {
		if len(c.Shares.Groups) != 3 || c.Shares.Groups[i].Share != want {
			t.Fatalf("groups %+v, want the tiers in their order", c.Shares.Groups)
		}
	}
	p.Tiers = []policy.Tier{{Name: "gold", Weight: 2}, {Name: "silver"}, {Name: "bronze"}}
	if none := lineConfig(p, &p.Pools[0]).Shares.Groups; none != nil {
		t.Errorf("groups %+v where no tier has a share", none)
	}
	if c.Booking != (queue.Booking{Share: 0.4, Grace: 3 * time.Second, Max: 30 * time.Second}) {
		t.Errorf("booking %+v", c.Booking)
	}
}

// P9: a seat counts to its tier wherever it is taken: on the way down, without
// being asked (pass), and in the shadow.
func TestSeatsOfATier(t *testing.T) {
	p := house(1)
	core, e := newTestCore(p), effective(t, p)
	bronze := func(id string) *Request {
		r := ask(e, id, "acme", policy.Standard)
		r.Identity.Tier, r.Stream, r.Priority = "bronze", true, true
		return r
	}
	judge := func(what string, plan *Plan) {
		if w := plan.held; w.Tier != "bronze" || !w.Stream || !w.Priority {
			t.Errorf("%s: tier %s, streams %v, priority %v", what, w.Tier, w.Stream, w.Priority)
		}
	}
	passed := core.Pass(start, bronze("a"), AdmittedPass)
	judge("pass", passed)
	second := core.Plan(start, bronze("b"))
	core.Enter(start, second, allowed)
	core.Advance(start.Add(500*time.Millisecond), "chat-dyn")
	if second.Decision.Reason != DegradedExpiry {
		t.Fatal(second.Decision.Reason)
	}
	judge("degraded", second)
	judge("mirrored", core.newEcho(start, p, core.rng).mirror(start, second))
}

// Q5: who goes down at expiry books nothing where it waited; who finds no seat
// there either does, and so does one for whose body there is no room.
func TestBookingsAtTheDesk(t *testing.T) {
	booked := func(core *Core, pool int, class policy.Class) int {
		b := core.Stats(start)[pool].Line.Bookings[class]
		return b.Outstanding + b.Due
	}
	p := house(1, func(p *policy.Policy) { p.Queue.MaxHeldBytes = 1200 })
	core, e := newTestCore(p), effective(t, p)
	var plans []*Plan
	for i := range 4 { // one runs, two wait, one's body is too much
		plan := core.Plan(start, ask(e, name("r", i), name("t", i), policy.Standard))
		core.Enter(start, plan, allowed)
		plans = append(plans, plan)
	}
	if d := &plans[3].Decision; d.Reason != HeldBytes || d.RetryAfter <= 0 || booked(core, 1, policy.Standard) != 1 {
		t.Errorf("%s, hint %s, %d booked", d.Reason, d.RetryAfter, booked(core, 1, policy.Standard))
	}
	core.Advance(start.Add(500*time.Millisecond), "chat-dyn")
	if d := &plans[1].Decision; d.Reason != DegradedExpiry {
		t.Errorf("the first: %s", d.Reason)
	}
	if d := &plans[2].Decision; d.Reason != ExpiredDegrade || d.RetryAfter <= 0 || booked(core, 1, policy.Standard) != 2 {
		t.Errorf("the second: %s, hint %s, %d booked, want its own booking beside the other", d.Reason, d.RetryAfter, booked(core, 1, policy.Standard))
	}
}

// P7: a request that does not stream takes the block's variant, waits as long
// as the block says, whatever its class, and gets 429; one that streams goes
// by P3.
func TestNonStreaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1, func(p *policy.Policy) {
			p.NonStreaming = &policy.NonStreaming{Variant: policy.FP16, MaxWait: 150 * time.Millisecond}
		})
		d := newTestDesk(t, p)
		e := effective(t, p)
		running := []*Ticket{admit(t, d, ask(e, "a", "acme", policy.Batch))}
		if pool := running[0].visit.plan.Decision.Pool; pool != "chat-fp16" {
			t.Errorf("batch runs in %s, want the block's fp16", pool)
		}
		for class := range policy.Class(policy.NumClasses) {
			v := d.Submit(t.Context(), ask(e, name("w", int(class)), "acme", class))
			if longest := v.Longest(); !v.Waiting() || longest != 150*time.Millisecond {
				t.Errorf("%s: longest wait %s, want 150ms", class, longest)
			}
			<-v.Ready()
			if ticket, dec := v.Result(); ticket != nil || dec.Reason != NonStreamingFull || dec.Action != Reject || dec.Waited != 150*time.Millisecond || dec.RetryAfter <= 0 {
				t.Errorf("%s: %s after %s, want 429 after 150ms", class, dec.Reason, dec.Waited)
			}
		}
		r := ask(e, "s", "acme", policy.Critical)
		r.Stream = true
		v := d.Submit(t.Context(), r)
		if longest := v.Longest(); longest < 200*time.Millisecond {
			t.Errorf("one that streams may wait %s, want its class's 200ms", longest)
		}
		<-v.Ready()
		if _, dec := v.Result(); dec.Reason != ExpiredDrop || dec.Waited != 200*time.Millisecond {
			t.Errorf("one that streams: %s after %s, want expired_drop after 200ms", dec.Reason, dec.Waited)
		}
		endAll(t, running)
		quiet(t, d)
	})
}

// P7: no room to wait is no seat in time: 429, not 503.
func TestNonStreamingWithoutWait(t *testing.T) {
	p := house(1, func(p *policy.Policy) { p.NonStreaming = &policy.NonStreaming{Variant: policy.INT8} })
	core, e := newTestCore(p), effective(t, p)
	for i, want := range []Reason{Admitted, NonStreamingFull} {
		plan := core.Plan(start, ask(e, name("r", i), "acme", policy.Standard))
		core.Enter(start, plan, allowed)
		if plan.Decision.Reason != want {
			t.Errorf("%d: %s, want %s", i, plan.Decision.Reason, want)
		}
	}
}
