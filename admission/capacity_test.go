package admission

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// rack is a core over one pool whose gauge hears of so many GPUs and an
// engine.
type rack struct {
	t      *testing.T
	core   *Core
	policy *policy.Effective
	gauge  *gpu.Gauge
	now    time.Time
	cards  []gpu.Card
	plans  []*Plan
	n      int
}

func metered(seats, tokens int64, edits ...func(*policy.Policy)) *policy.Policy {
	return onePool(seats, append([]func(*policy.Policy){func(p *policy.Policy) {
		p.Pools[0].Seats.Tokens = tokens
		p.Pools[0].Telemetry = []policy.TelemetrySource{{Kind: policy.KindDCGMExporter}}
	}}, edits...)...)
}

func newRack(t *testing.T, p *policy.Policy, cards int) *rack {
	r := &rack{t: t, policy: effective(t, p), now: start}
	r.gauge = gpu.NewGauge(p.Gauge, []gpu.SourceInfo{{Name: "gpus", Every: time.Second}, {Name: engineName, Engine: true, Every: time.Second}}, start)
	r.core = NewCore(start, p, func(string) *gpu.Reading { return r.gauge.Reading() }, rand.New(rand.NewPCG(1, 2)))
	for i := range cards {
		r.cards = append(r.cards, gpu.Card{ID: name("GPU", i), Util: gpu.Some(0.5), XID: gpu.Some(0)})
	}
	r.look(3)
	return r
}

// look is one look at the GPUs a second later, n times; the core is advanced
// whenever it wants to be.
func (r *rack) look(n int) {
	for range n {
		r.gauge.Observe(gpu.Sample{Source: "gpus", At: r.now, GPUs: len(r.cards), Cards: slices.Clone(r.cards)})
		r.pass(time.Second)
	}
}

func (r *rack) pass(d time.Duration) {
	end := r.now.Add(d)
	for {
		at, ok := r.core.NextAt(r.pool().Name)
		if !ok || at.After(end) {
			break
		}
		r.now = at
		plans, _ := r.core.Advance(at, r.pool().Name)
		r.plans = append(r.plans, plans...)
	}
	r.now = end
}

func (r *rack) pool() PoolStats { return r.core.Stats(r.now)[0] }

func (r *rack) enter() Outcome {
	r.n++
	plan := r.core.Plan(r.now, ask(r.policy, name("r", r.n), "acme", policy.Standard))
	entry := r.core.Enter(r.now, plan, allowed)
	if entry == Entered {
		r.plans = append(r.plans, plan)
	}
	return entry
}

func (r *rack) seats(what string, requests, tokens int64) {
	r.t.Helper()
	if got := r.pool().Line.SeatsTotal; got != (policy.Seats{Requests: requests, Tokens: tokens}) {
		r.t.Errorf("%s: %+v, want %d seats, %d tokens", what, got, requests, tokens)
	}
}

// A GPU that is faulty or lost takes its part of the seats within a second,
// from nobody who runs; it gives them back when it was well for FaultFor.
func TestSeatsFollowTheGPUs(t *testing.T) {
	r := newRack(t, metered(16, 160_000), 4)
	r.seats("whole", 16, 160_000)
	for range 16 {
		if r.enter() != Entered {
			t.Fatal("no seat in an empty pool")
		}
	}
	r.cards[1].XID = gpu.Some(79)
	r.look(1)
	r.seats("a second after a fatal XID", 12, 120_000)
	if s := r.pool(); s.Capacity != 0.75 || s.Wanted != 12 || s.Line.SeatsUsed.Requests != 16 {
		t.Errorf("capacity %v, %d wanted, %d in use", s.Capacity, s.Wanted, s.Line.SeatsUsed.Requests)
	}
	if r.enter() != InTheLine {
		t.Error("a seat beside sixteen on twelve")
	}
	lost := r.cards
	r.cards = lost[:3]
	r.look(1)
	r.seats("another is lost", 8, 80_000)
	r.cards = lost
	r.look(2)
	r.seats("it is back in two looks", 8, 80_000)
	r.look(2)
	r.seats("it is back", 12, 120_000)
	r.look(590)
	r.seats("before FaultFor", 12, 120_000)
	r.look(6)
	r.seats("after FaultFor", 16, 160_000)
}

// However few GPUs are left, there is a seat: the engine may know better.
func TestOneSeatStays(t *testing.T) {
	r := newRack(t, metered(16, 0), 2)
	r.cards[0].XID, r.cards[1].XID = gpu.Some(48), gpu.Some(48)
	if r.enter() != Entered {
		t.Fatal("no seat")
	}
	r.look(1)
	r.seats("no GPU is left", 1, 0)
}

// An idle pool wants no call; its first request finds out what its GPUs are
// worth by now.
func TestIdlePoolHearsOfItsGPUs(t *testing.T) {
	r := newRack(t, metered(16, 0), 4)
	r.cards[1].XID = gpu.Some(79)
	r.look(5)
	if at, ok := r.core.NextAt(r.pool().Name); ok {
		t.Errorf("an idle pool wants a call at %s", at)
	}
	r.enter()
	r.pass(0)
	r.seats("at its first request", 12, 0)
}

// Adaptive seats and their bounds shrink with the GPUs; the bounds come back
// with them, the seats as the engine bears it.
func TestAdaptiveSeatsFollowTheGPUs(t *testing.T) {
	r := newRack(t, metered(16, 0, func(p *policy.Policy) {
		p.Pools[0].Adaptive = &policy.Adaptive{Min: 20, Max: 200, TTFT: time.Second}
	}), 4)
	check := func(what string, seats, least, most int64) {
		t.Helper()
		if s := r.pool(); s.Line.SeatsTotal.Requests != seats || s.Least != least || s.Most != most {
			t.Errorf("%s: %d seats of %d..%d, want %d of %d..%d", what, s.Line.SeatsTotal.Requests, s.Least, s.Most, seats, least, most)
		}
	}
	check("whole", 20, 20, 200)
	r.enter()
	r.cards[1].XID = gpu.Some(79)
	r.look(1)
	check("a fatal XID", 15, 15, 150)
	r.cards[2].XID = gpu.Some(79)
	r.look(1)
	check("another", 10, 10, 100)
	r.look(602)
	check("both are back", 20, 20, 200)
}

// Pressure moves the queue's length with the sample that tells of it, and
// adaptive seats with the look after it.
func TestPressureMovesWithinOneSample(t *testing.T) {
	r := newRack(t, metered(2, 0, func(p *policy.Policy) {
		p.Gauge.Smoothing = [3]float64{1, 0, 0}
		p.Pools[0].Adaptive = &policy.Adaptive{Min: 4, Max: 64, TTFT: 2 * time.Second}
		p.Queue.SoftLimit, p.Queue.PerTenant = 1, 1
	}), 1)
	engine := func(waiting, kv float64) {
		r.gauge.Observe(gpu.Sample{Source: engineName, At: r.now, Waiting: gpu.Some(waiting), Running: gpu.Some(float64(r.n)), KV: gpu.Some(kv)})
	}
	engine(0, 0.1)
	if n := r.pool().Length; n != 200 {
		t.Errorf("length %d of an easy engine, want 200", n)
	}
	r.now = r.now.Add(time.Second)
	engine(4.5, 0.1)
	if n := r.pool().Length; n != 100 {
		t.Errorf("length %d at a pressure of 90 %%, want 100", n)
	}

	r = newRack(t, metered(2, 0, func(p *policy.Policy) {
		p.Pools[0].Adaptive = &policy.Adaptive{Min: 4, Max: 64, TTFT: 2 * time.Second}
		p.Queue.SoftLimit, p.Queue.PerTenant = 1, 1
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Hour
		}
	}), 1)
	for range 60 {
		r.enter()
	}
	for range 40 {
		engine(0, 0.2)
		r.look(1)
	}
	grown := r.pool().Line.SeatsTotal.Requests
	if grown < 20 {
		t.Fatalf("%d seats of an engine that bears more", grown)
	}
	looks := 0
	for ; r.pool().Line.SeatsTotal.Requests == grown && looks < 10; looks++ {
		engine(40, 0.9)
		r.look(1)
	}
	if looks > 3 {
		t.Errorf("seats shrink after %d samples of a standing line", looks)
	}
}

// The trail of a request that waits, or is turned away, shows what the
// pressure was made of.
func TestTrailShowsThePressure(t *testing.T) {
	r := newRack(t, metered(1, 0, func(p *policy.Policy) { p.Gauge.Smoothing = [3]float64{1, 0, 0} }), 1)
	trail := func(refused bool, want ...Step) {
		t.Helper()
		r.n++
		plan := r.core.Plan(r.now, ask(r.policy, name("r", r.n), "acme", policy.Standard))
		if got := r.core.Enter(r.now, plan, allowed); got == Entered || (got == Refused) != refused {
			t.Fatalf("outcome %v", got)
		}
		got := slices.Clone(plan.Decision.Trail.Steps[:plan.Decision.Trail.N])
		got = slices.DeleteFunc(got, func(s Step) bool { return s.What == "tier_share" })
		i := slices.IndexFunc(got, func(s Step) bool { return s.Room == RoomGauge })
		if i < 0 || len(got) != i+len(want)+1 || got[i+len(want)].Room != RoomQueue || !slices.Equal(got[i:i+len(want)], want) {
			t.Errorf("trail %+v, want %+v and the queue", got, want)
		}
	}
	r.enter()
	r.gauge.Observe(gpu.Sample{Source: "gpus", At: r.now, Util: gpu.Some(0.75), GPUs: 1})
	trail(false, Step{RoomGauge, "util", 0.75, 1, true})
	r.gauge.Observe(gpu.Sample{Source: engineName, At: r.now, Waiting: gpu.Some(9), KV: gpu.Some(0.4)})
	for r.pool().Line.Waiting[policy.Standard] < 40 && r.enter() == InTheLine {
	}
	trail(true, Step{RoomGauge, "waiting", 1, 1, false}, Step{RoomGauge, "kv", 0.5, 1, true})
}
