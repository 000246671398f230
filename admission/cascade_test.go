package admission

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/breaker/membus"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/memstore"
)

// withPeers is a core with a council that nobody has spoken in.
func withPeers(p *policy.Policy) (*Core, *breaker.Council) {
	co := breaker.NewCouncil("me", p.Breaker)
	return newCore(start, p, nil, rand.New(rand.NewPCG(1, 2)), nil, co), co
}

// word is what a peer says of a pool.
func word(replica, pool string, seq uint64, state breaker.State, left time.Duration) breaker.Opinion {
	o := breaker.Opinion{Replica: replica, Breaker: pool, State: state, Requests: 40, Failures: 30, Left: left, Seq: seq, TTL: 15 * time.Second}
	if state != breaker.Closed {
		o.Level = state
	}
	return o
}

// only is a model of one pool for all classes.
func only(p *policy.Policy) {
	p.Models[0].Pools = []string{"chat-fp16"}
}

// B3: what peers say sheds batch and nothing else, by the time that is left to
// them; the own breaker decides as before.
func TestPeersShedBatch(t *testing.T) {
	for _, c := range []struct {
		name    string
		literal bool
		words   []breaker.Opinion
		fails   int // of the own breaker, of 100
		want    [policy.NumClasses]Reason
		open    float64 // in the trail of batch; -1 = nothing of peers
	}{
		{"nobody speaks", false, nil, 0, [3]Reason{Admitted, Admitted, Admitted}, -1},
		{"one that is alone", false, []breaker.Opinion{word("a", "chat-fp16", 1, breaker.Hard, 4*time.Second)}, 0,
			[3]Reason{Admitted, Admitted, BreakerShed}, 1},
		{"a cut-off one of three", false, []breaker.Opinion{
			word("a", "chat-fp16", 1, breaker.Hard, 4*time.Second), word("b", "chat-fp16", 1, breaker.Closed, 0), word("c", "chat-fp16", 1, breaker.Closed, 0)}, 0,
			[3]Reason{Admitted, Admitted, Admitted}, -1},
		{"of another pool", false, []breaker.Opinion{word("a", "chat-dyn", 1, breaker.Hard, 4*time.Second)}, 0,
			[3]Reason{Admitted, Admitted, Admitted}, -1},
		{"literal, of another pool", true, []breaker.Opinion{word("a", "chat-dyn", 1, breaker.Hard, 4*time.Second)}, 0,
			[3]Reason{Admitted, Admitted, BreakerShed}, 0},
		{"the own one is hard", false, []breaker.Opinion{word("a", "chat-fp16", 1, breaker.Hard, 4*time.Second)}, 100,
			[3]Reason{BreakerOpen, BreakerOpen, BreakerOpen}, -1},
		{"the own one is soft", false, []breaker.Opinion{word("a", "chat-fp16", 1, breaker.Hard, 4*time.Second)}, 35,
			[3]Reason{Admitted, BreakerShed, BreakerShed}, -1},
	} {
		p := house(10, only, func(p *policy.Policy) { p.Breaker.Cascade.Literal = c.literal })
		core, co := withPeers(p)
		e := effective(t, p)
		for _, o := range c.words {
			co.Hear(start, o)
		}
		succeed(core.Breaker("chat-fp16"), start, 100-c.fails)
		fail(core.Breaker("chat-fp16"), start, c.fails)
		for class, want := range c.want {
			now := start.Add(time.Second)
			plan := core.Plan(now, ask(e, name("r", class), "acme", policy.Class(class)))
			if !plan.Refused() {
				core.Enter(now, plan, allowed)
			}
			d := &plan.Decision
			if d.Reason != want {
				t.Errorf("%s, %s: %s, want %s", c.name, policy.Class(class), d.Reason, want)
			}
			if class != int(policy.Batch) {
				continue
			}
			seen := -1.0
			for _, s := range d.Trail.Steps[:d.Trail.N] {
				if s.What == "elsewhere" {
					seen = s.Observed
				}
			}
			if seen != c.open {
				t.Errorf("%s: the trail says that %g are open, want %g: %+v", c.name, seen, c.open, d.Trail.Steps[:d.Trail.N])
			}
			if seen >= 0 && (d.RetryAfter < 3*time.Second || d.RetryAfter > 3600*time.Millisecond) {
				t.Errorf("%s: retry after %v, want the 3 s that are left and 20 %% at most", c.name, d.RetryAfter)
			}
		}
	}
}

// Words end: with their TTL, or when the peer is closed again; a peer whose
// open time is over without a new word leaves a second as hint.
func TestPeersAreHeededWhileTheySpeak(t *testing.T) {
	p := house(10, only)
	core, co := withPeers(p)
	e := effective(t, p)
	co.Hear(start, word("a", "chat-fp16", 1, breaker.Soft, 5*time.Second))
	for _, step := range []struct {
		after time.Duration
		want  Reason
		least time.Duration
	}{
		{0, BreakerShed, 5 * time.Second}, {4900 * time.Millisecond, BreakerShed, 100 * time.Millisecond},
		{6 * time.Second, BreakerShed, time.Second}, {15*time.Second - 1, BreakerShed, time.Second}, {15 * time.Second, Admitted, 0},
	} {
		tenant := step.after.String() // who is refused in a row waits longer
		d := core.Plan(start.Add(step.after), ask(e, "r", tenant, policy.Batch)).Decision
		if d.Reason != step.want || d.RetryAfter < step.least || d.RetryAfter > step.least*12/10 {
			t.Errorf("after %v: %s, retry after %v, want %s after %v", step.after, d.Reason, d.RetryAfter, step.want, step.least)
		}
	}
	now := start.Add(20 * time.Second)
	co.Hear(now, word("a", "chat-fp16", 2, breaker.Hard, 5*time.Second))
	co.Hear(now, word("a", "chat-fp16", 3, breaker.Closed, 0))
	if plan := core.Plan(now, ask(e, "r", "acme", policy.Batch)); plan.Refused() {
		t.Errorf("closed again: %s", plan.Decision.Reason)
	}
}

// The front door refuses batch for peers' sake, too; a batch request that
// expires elsewhere does not go down to a pool that peers have open.
func TestPeersAtTheFrontAndBelow(t *testing.T) {
	p := house(1, func(p *policy.Policy) {
		p.Classes[policy.Batch].Variant, p.Classes[policy.Batch].OnExpiry = policy.FP16, policy.ExpireDegrade
	})
	d, e := newTestDesk(t, p), effective(t, p)
	if d.core.council != nil {
		t.Fatal("a council of nobody")
	}
	core, co := withPeers(p)
	co.Hear(start, word("a", "chat-dyn", 1, breaker.Soft, 5*time.Second))
	core.Enter(start, core.Plan(start, ask(e, "seat", "acme", policy.Critical)), allowed)
	plan := core.Plan(start, ask(e, "batch", "acme", policy.Batch))
	if core.Enter(start, plan, allowed) != InTheLine {
		t.Fatal(plan.Decision.Reason)
	}
	core.Advance(start.Add(2*time.Second), "chat-fp16")
	if plan.Decision.Reason != DegradedExpiry || plan.Decision.Pool != "chat-int8" {
		t.Errorf("%s at %q, want the pool below the one that peers have open", plan.Decision.Reason, plan.Decision.Pool)
	}
	for _, pool := range p.Pools {
		co.Hear(start, word("a", pool.Name, 2, breaker.Hard, 5*time.Second))
	}
	r := ask(e, "front", "acme", policy.Batch)
	if v, _, open := core.allOpen(start, r); !open || openReason(v) != BreakerShed {
		t.Errorf("batch: open %v, %s", open, openReason(v))
	}
	fail(core.Breaker("chat-fp16"), start, 30)
	if v, _, open := core.allOpen(start, r); !open || openReason(v) != BreakerShed {
		t.Errorf("batch, with one of the own open: open %v, %s", open, openReason(v))
	}
	core.Breaker("chat-fp16").Reset(start, "hand")
	r.Class = policy.Standard
	if _, _, open := core.allOpen(start, r); open {
		t.Error("standard is refused for peers' sake")
	}
}

// replica is a desk with what a process gives it to hear and to be heard.
type replica struct {
	*Desk
	journal breaker.Journal
	bus     *membus.Bus
	stop    context.CancelFunc
	work    sync.WaitGroup
}

func join(t *testing.T, board *membus.Board, self string, p *policy.Policy, seed uint64) *replica {
	t.Helper()
	r := &replica{bus: board.Join()}
	co := breaker.NewCouncil(self, p.Breaker)
	store := memstore.New(memstore.Options{})
	r.Desk = New(Options{Policy: p, Store: store, Rand: rand.New(rand.NewPCG(seed, 1)), Journal: &r.journal, Council: co})
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.work.Go(func() { r.bus.Listen(ctx, func(o breaker.Opinion) { co.Hear(time.Now(), o) }, func(error) {}) })
	r.work.Go(func() { r.speak(ctx, breaker.NewVoice(self, time.Now(), p.Breaker.Cascade)) })
	t.Cleanup(func() {
		stop()
		_ = r.bus.Close()
		r.work.Wait()
		r.Close()
		_ = store.Close()
	})
	return r
}

// speak says each change at once, and looks once a second.
func (r *replica) speak(ctx context.Context, v *breaker.Voice) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		_, changed := r.journal.Since(0)
		now := time.Now()
		for _, b := range r.Breakers(now) {
			if o, ok := v.Say(now, b.View, b.Ruling.Open > 0); ok && r.bus.Publish(ctx, o) != nil {
				v.Unsaid(o)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

// B3 through two desks: within 250 ms of A's opening B sheds batch at that
// pool, goes on with critical and standard there, and stops shedding when A is
// closed again; A itself answers 503.
func TestCascadeThroughTwoDesks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(50, only)
		e := effective(t, p)
		var board membus.Board
		a, b := join(t, &board, "a", p, 1), join(t, &board, "b", p, 2)
		at := func(d *replica, id string, class policy.Class) Reason {
			ticket, dec := d.Admit(t.Context(), ask(e, id, "acme", class))
			if ticket != nil {
				ticket.Done(fine(1, 1))
			}
			return dec.Reason
		}
		time.Sleep(time.Second)
		for i := range 25 {
			ticket := admit(t, a.Desk, ask(e, name("a", i), "acme", policy.Critical))
			ticket.Done(End{Result: ResultFailed})
			if a.Breaker("chat-fp16").View(time.Now()).State != breaker.Closed {
				break
			}
		}
		opened := time.Now()
		if got := at(a, "own", policy.Critical); got != BreakerOpen {
			t.Fatalf("a: %s", got)
		}
		for at(b, "batch", policy.Batch) != BreakerShed {
			if time.Since(opened) > 250*time.Millisecond {
				t.Fatal("b has not heard of it after 250 ms")
			}
			time.Sleep(time.Millisecond)
		}
		for class := range policy.Batch {
			if got := at(b, name("r", int(class)), class); !got.Admits() {
				t.Errorf("b, %s: %s", class, got)
			}
		}
		s := b.Breakers(time.Now())[0]
		if !s.Sheds || s.Ruling.Elsewhere != breaker.Hard || s.View.State != breaker.Closed || s.Cluster != "chat-fp16" {
			t.Errorf("%+v", s)
		}
		for i := 0; a.Breaker("chat-fp16").View(time.Now()).State != breaker.Closed && i < 10_000; i++ {
			time.Sleep(10 * time.Millisecond)
			at(a, name("well", i), policy.Critical)
		}
		time.Sleep(250 * time.Millisecond)
		if got := at(b, "after", policy.Batch); !got.Admits() {
			t.Errorf("b, a quarter of a second after a has closed: %s", got)
		}
		quiet(t, a.Desk)
		quiet(t, b.Desk)
	})
}
