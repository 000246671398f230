package admission

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

// plant drives a core and one engine in virtual time: so many callers always
// want something, and ask again when their answer is through.
type plant struct {
	t       *testing.T
	core    *Core
	policy  *policy.Effective
	batch   *modelsim.Batch
	rng     *rand.Rand
	gauge   *gpu.Gauge
	now     time.Time
	busy    bool
	due     time.Time // end of the step
	callers int       // not in the pool
	inside  map[*modelsim.Sequence]*Plan
	stream  bool
	deaf    bool // no telemetry
	n       int
}

const engineName = "engine"

func newPlant(t *testing.T, p *policy.Policy, callers int) *plant {
	pl := &plant{
		t: t, policy: effective(t, p), now: start, callers: callers, stream: true,
		rng:    rand.New(rand.NewPCG(7, 7)),
		batch:  modelsim.NewBatch(modelsim.EngineConfig{Running: 64, KVTokens: 1_000_000}, nil),
		gauge:  gpu.NewGauge(p.Gauge, []gpu.SourceInfo{{Name: engineName, Engine: true, Every: time.Second}}, start),
		inside: map[*modelsim.Sequence]*Plan{},
	}
	pl.core = NewCore(start, p, func(string) *gpu.Reading { return pl.gauge.Reading() }, rand.New(rand.NewPCG(1, 2)))
	return pl
}

func (p *plant) pool() PoolStats { return p.core.Stats(p.now)[0] }

func (p *plant) ask() {
	for ; p.callers > 0; p.callers-- {
		p.n++
		r := ask(p.policy, name("r", p.n), "acme", policy.Standard)
		r.Stream = p.stream
		plan := p.core.Plan(p.now, r)
		switch p.core.Enter(p.now, plan, allowed) {
		case Entered:
			p.run(plan)
		case Refused:
			p.t.Fatalf("%s: %s", p.now.Sub(start), plan.Decision.Reason)
		}
	}
}

func (p *plant) run(plan *Plan) {
	if plan.Refused() {
		p.callers++
		return
	}
	s := &modelsim.Sequence{Prompt: 100 + p.rng.IntN(400), Output: 50 + p.rng.IntN(300)}
	p.inside[s] = plan
	p.batch.Submit(s)
}

func (p *plant) runAll(plans []*Plan) {
	for _, plan := range plans {
		p.run(plan)
	}
}

// until plays on. Once a second the engine is sampled.
func (p *plant) until(end time.Duration) {
	for sample := p.now; ; {
		p.ask()
		if !p.busy {
			if d := p.batch.Begin(); d > 0 {
				p.busy, p.due = true, p.now.Add(d)
			}
		}
		next := start.Add(end)
		if at, ok := p.core.NextAt(p.pool().Name); ok && at.Before(next) {
			next = at
		}
		if p.busy && p.due.Before(next) {
			next = p.due
		}
		if sample.Before(next) {
			next = sample
		}
		p.now = next
		if !sample.After(p.now) {
			sample = sample.Add(time.Second)
			if l := p.batch.Load(); !p.deaf {
				p.gauge.Observe(gpu.Sample{Source: engineName, At: p.now, Waiting: gpu.Some(float64(l.Waiting)),
					Running: gpu.Some(float64(l.Running)), KV: gpu.Some(float64(l.KVUsed) / float64(l.KVTokens))})
			}
		}
		if p.busy && !p.due.After(p.now) {
			p.busy = false
			first, done := p.batch.Finish()
			for _, s := range first {
				p.core.First(p.now, p.inside[s])
			}
			for _, s := range done {
				e := fine(int64(s.Prompt), int64(s.Output))
				_, decided := p.core.Done(p.now, p.inside[s], &e)
				delete(p.inside, s)
				p.callers++
				p.runAll(decided)
			}
		}
		decided, _ := p.core.Advance(p.now, p.pool().Name)
		p.runAll(decided)
		if !p.now.Before(start.Add(end)) {
			return
		}
	}
}

func adaptive(low, high int64, replicas int) *policy.Policy {
	return onePool(8, func(p *policy.Policy) {
		p.Server.Replicas = replicas
		p.Pools[0].Adaptive = &policy.Adaptive{Min: low, Max: high, TTFT: 2 * time.Second}
		p.Queue.Length = policy.Length{Min: 1000, Max: 1000}
		p.Queue.SoftLimit, p.Queue.PerTenant = 1, 1
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Hour
		}
	})
}

// TestSeatsFollowTheEngine: the desk finds the engine's 64 places by what it
// hears, stays when it hears nothing any more, and follows when they are
// halved.
func TestSeatsFollowTheEngine(t *testing.T) {
	for _, c := range []struct {
		name         string
		deaf, stream bool
	}{{"both", false, true}, {"telemetry", false, false}, {"first tokens", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlant(t, adaptive(8, 256, 1), 300)
			p.deaf, p.stream = c.deaf, c.stream
			p.until(0)
			if s := p.pool(); s.Line.SeatsTotal.Requests != 8 || s.Wanted != 8 {
				t.Fatalf("starts with %d seats, %d wanted; want 8", s.Line.SeatsTotal.Requests, s.Wanted)
			}
			p.until(60 * time.Second)
			if n := p.pool().Line.SeatsTotal.Requests; n < 55 || n > 95 {
				t.Errorf("%d seats after a minute, the engine has 64 places", n)
			}
			p.batch.Configure(modelsim.EngineConfig{Running: 32, KVTokens: 1_000_000})
			p.until(75 * time.Second)
			n := p.pool().Line.SeatsTotal.Requests
			if n < 28 || n > 50 {
				t.Errorf("%d seats 15 s later, the engine has 32 places", n)
			}
			if s := p.pool(); s.Line.SeatsTotal.Requests != s.Wanted || s.Alarms > 0 || s.Raised != 0 {
				t.Errorf("%d seats, %d wanted, %d raised, %d alarms", s.Line.SeatsTotal.Requests, s.Wanted, s.Raised, s.Alarms)
			}
		})
	}
}

func TestSeatsStayWithoutWords(t *testing.T) {
	p := newPlant(t, adaptive(8, 256, 1), 300)
	p.stream = false
	p.until(60 * time.Second)
	p.deaf = true
	p.until(70 * time.Second)
	n := p.pool().Line.SeatsTotal.Requests
	p.until(300 * time.Second)
	if s := p.pool(); s.Line.SeatsTotal.Requests != n || !s.Stale {
		t.Errorf("%d seats became %d without a word, stale %v", n, s.Line.SeatsTotal.Requests, s.Stale)
	}
}

// TestSeatsAreDividedOverReplicas: a replica's bounds are its part, and so is
// what the engine says of all.
func TestSeatsAreDividedOverReplicas(t *testing.T) {
	p := newPlant(t, adaptive(16, 40, 2), 300)
	p.until(time.Second / 2)
	if n := p.pool().Line.SeatsTotal.Requests; n != 8 {
		t.Errorf("starts with %d seats, want 8", n)
	}
	p.until(60 * time.Second)
	if n := p.pool().Wanted; n != 20 {
		t.Errorf("%d seats wanted, want 20, the most", n)
	}
	core := NewCore(start, adaptive(1, 1, 4), nil, rand.New(rand.NewPCG(1, 2)))
	if n := core.Stats(start)[0].Line.SeatsTotal.Requests; n != 1 {
		t.Errorf("%d seats of one over four replicas, want 1", n)
	}
}

// TestAdaptiveSwap: a pool that becomes adaptive starts with what it has, and
// one that becomes fixed has what the policy says.
func TestAdaptiveSwap(t *testing.T) {
	fixed := onePool(40)
	core := newTestCore(fixed)
	seats := func() int64 { return core.Stats(start)[0].Line.SeatsTotal.Requests }
	core.Swap(start, adaptive(8, 256, 1))
	if n := seats(); n != 40 {
		t.Errorf("%d seats after it became adaptive, want 40", n)
	}
	core.Swap(start, adaptive(8, 30, 1))
	if n := seats(); n != 30 {
		t.Errorf("%d seats with at most 30", n)
	}
	core.Swap(start, adaptive(50, 99, 1))
	if n := seats(); n != 50 {
		t.Errorf("%d seats with at least 50", n)
	}
	core.Swap(start, onePool(12))
	if n := seats(); n != 12 {
		t.Errorf("%d seats after it became fixed, want 12", n)
	}
}

// TestWatchdogOfAFixedPool: 16 seats before an engine with 64 places. The alarm
// comes after 10 s of waiting; the raise stays within half; it is gone when
// nobody waits.
func TestWatchdogOfAFixedPool(t *testing.T) {
	p := newPlant(t, onePool(16, func(p *policy.Policy) {
		p.Pools[0].Seats.Tokens = 1_000_000
		p.Queue.Watchdog = policy.Watchdog{After: 10 * time.Second, Step: 0.1, Max: 0.5}
		p.Queue.Length = policy.Length{Min: 1000, Max: 1000}
		p.Queue.SoftLimit, p.Queue.PerTenant = 1, 1
	}), 100)
	p.until(9 * time.Second)
	if s := p.pool(); s.Alarm || s.Line.SeatsTotal.Requests != 16 {
		t.Errorf("at 9 s: alarm %v, %d seats", s.Alarm, s.Line.SeatsTotal.Requests)
	}
	p.until(13 * time.Second)
	if s := p.pool(); !s.Alarm || s.Alarms != 1 || s.Wanted != 16 || s.Raised != 2 || s.Line.SeatsTotal != (policy.Seats{Requests: 18, Tokens: 1_100_000}) {
		t.Errorf("at 13 s: alarm %v (%d), %d + %d seats, %v", s.Alarm, s.Alarms, s.Wanted, s.Raised, s.Line.SeatsTotal)
	}
	p.until(120 * time.Second)
	if s := p.pool(); !s.Alarm || s.Alarms != 1 || s.Line.SeatsTotal != (policy.Seats{Requests: 24, Tokens: 1_500_000}) {
		t.Errorf("at 120 s: alarm %v (%d), %v", s.Alarm, s.Alarms, s.Line.SeatsTotal)
	}
	p.callers -= 95
	p.until(240 * time.Second)
	if s := p.pool(); s.Alarm || s.Alarms != 1 || s.Raised != 0 || s.Line.SeatsTotal.Requests != 16 {
		t.Errorf("with nobody waiting: alarm %v (%d), %d seats", s.Alarm, s.Alarms, s.Line.SeatsTotal.Requests)
	}
}

// TestWatchdogOfAdaptiveSeats: the alarm does not come while seats are added,
// but when they have reached a bound that is too low for the engine.
func TestWatchdogOfAdaptiveSeats(t *testing.T) {
	p := newPlant(t, adaptive(8, 40, 1), 100)
	p.until(20 * time.Second)
	if s := p.pool(); s.Wanted != 40 || s.Alarms != 0 {
		t.Errorf("%d seats wanted, %d alarms; want 40, none", s.Wanted, s.Alarms)
	}
	p.until(120 * time.Second)
	if s := p.pool(); s.Wanted != 40 || s.Raised != 20 || s.Line.SeatsTotal.Requests != 60 || !s.Alarm {
		t.Errorf("%d seats, %d of them raised, alarm %v; want 60, 20, true", s.Line.SeatsTotal.Requests, s.Raised, s.Alarm)
	}
}

// TestShadowSeats: the shadow has as many seats as the real pool.
func TestShadowSeats(t *testing.T) {
	p := newPlant(t, adaptive(8, 256, 1), 100)
	shadow := p.core.newEcho(start, adaptive(8, 256, 1), rand.New(rand.NewPCG(1, 3)))
	p.until(30 * time.Second)
	r := ask(p.policy, "r", "acme", policy.Standard)
	if plan := shadow.Plan(p.now, r); shadow.Enter(p.now, plan, allowed) != Entered {
		t.Fatal(plan.Decision.Reason)
	}
	at, ok := shadow.NextAt(p.pool().Name)
	if !ok || at.After(p.now.Add(time.Second)) {
		t.Fatalf("the shadow wants a call at %s, %v", at, ok)
	}
	shadow.Advance(at, p.pool().Name)
	if real, n := p.pool().Line.SeatsTotal, shadow.Stats(at)[0].Line.SeatsTotal; n != real || n.Requests <= 8 {
		t.Errorf("%+v in shadow, %+v real", n, real)
	}
}

// TestIdlePoolsRest: a pool that nobody asks wants no call, tuned or not.
func TestIdlePoolsRest(t *testing.T) {
	for _, p := range []*policy.Policy{onePool(4), adaptive(8, 64, 1)} {
		pl := newPlant(t, p, 0)
		if at, ok := pl.core.NextAt(pl.pool().Name); ok {
			t.Errorf("an idle pool wants a call at %s", at)
		}
		r := ask(pl.policy, "r", "acme", policy.Standard)
		plan := pl.core.Plan(start, r)
		if pl.core.Enter(start, plan, allowed) != Entered {
			t.Fatal(plan.Decision.Reason)
		}
		e := fine(1, 1)
		pl.core.Done(start.Add(time.Second), plan, &e)
		if at, ok := pl.core.NextAt(pl.pool().Name); ok {
			t.Errorf("a pool that is idle again wants a call at %s", at)
		}
	}
}

// TestFoundSeatsRest: so does one whose seats are no longer those it began with,
// once all have left.
func TestFoundSeatsRest(t *testing.T) {
	p := newPlant(t, adaptive(8, 64, 1), 100)
	p.until(30 * time.Second)
	p.callers -= 100 // nobody comes again
	p.until(2 * time.Minute)
	if s := p.pool(); s.Wanted <= 8 || s.Line.SeatsUsed.Requests != 0 {
		t.Fatalf("%d seats wanted, %d used; want more than 8, none", s.Wanted, s.Line.SeatsUsed.Requests)
	}
	if at, ok := p.core.NextAt(p.pool().Name); ok {
		t.Errorf("an idle pool wants a call at %s", at)
	}
}

// TestFirstOnce: the first token of a stream counts once, and only while it
// runs; what does not stream counts never.
func TestFirstOnce(t *testing.T) {
	core := newTestCore(adaptive(8, 64, 1))
	e := effective(t, adaptive(8, 64, 1))
	enter := func(id string, stream bool) *Plan {
		r := ask(e, id, "acme", policy.Standard)
		r.Stream = stream
		plan := core.Plan(start, r)
		if core.Enter(start, plan, allowed) != Entered {
			t.Fatal(plan.Decision.Reason)
		}
		return plan
	}
	a, b, c := enter("a", true), enter("b", true), enter("c", false)
	t1 := &core.floor.Load().order[0].tuned
	want := func(what string, silent int64, began uint64) {
		t.Helper()
		if t1.silent != silent || t1.began != began {
			t.Errorf("%s: %d silent, %d began; want %d, %d", what, t1.silent, t1.began, silent, began)
		}
	}
	want("three run", 2, 0)
	core.First(start, a)
	core.First(start, a)
	core.First(start, c)
	want("one began", 1, 1)
	end := fine(1, 1)
	for _, p := range []*Plan{a, b, c} {
		core.Done(start, p, &end)
		core.First(start, p)
	}
	want("all ended", 0, 1)
}
