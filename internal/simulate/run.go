package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/memstore"
)

// world is a scenario under one policy, at an instant of virtual time.
type world struct {
	scenario *Scenario
	agenda   agenda
	epoch    time.Time     // the start of the run on weir's clock, which never steps, as production's monotonic one
	now      time.Duration // since the start of the run; negative while warming up
	shift    time.Duration // of the store's clock (ClockStep)
	rng      *rand.Rand    // of what callers and engines draw while the run goes on
	streams  []*stream
	sending  int // streams that have more to send
	alive    int // callers who are neither served nor gone

	policies []*policy.Policy // in the order of the reloads, the first one in front
	rules    rules
	core     *admission.Core
	store    *memstore.Store
	id       uint64
	swaps    uint64 // reloads so far; what a pool wanted before one is overtaken
	lines    []line
	machines map[string]*machine
	order    []*machine

	tally  tally
	checks checks
}

// rules is the policy in force.
type rules struct {
	*policy.Effective
	chat, embed *policy.API
}

// line is a pool of the policy in force, as the core knows it.
type line struct {
	name  string
	armed time.Duration // when it will be advanced; never = not
}

const never = time.Duration(1<<63 - 1)

// clock is the instant that weir reads.
func (w *world) clock() time.Time { return w.epoch.Add(w.now) }

// wall is the instant that the store reads: the wall clock, which may step.
func (w *world) wall() time.Time { return w.epoch.Add(w.now + w.shift) }

// Run plays a scenario with one policy, to the end of its last request. With
// skipBad, lines of a trace that cannot be read are passed over. The result's
// Wall is the caller's to measure. Equal arguments give equal results.
func Run(s *Scenario, c Candidate, skipBad bool) (*Result, error) {
	w, err := newWorld(s, c)
	if err != nil {
		return nil, err
	}
	defer w.close()
	for i := range s.Arrivals {
		t, err := newStream(s, i, skipBad)
		if err != nil {
			return nil, err
		}
		w.streams = append(w.streams, t)
		w.sending++
		if err := w.comes(i); err != nil {
			return nil, err
		}
	}
	w.plan()
	for e, more := w.agenda.pop(); more; e, more = w.agenda.pop() {
		w.now = e.at
		if err := w.happen(&e); err != nil {
			return nil, err
		}
	}
	w.checkEmpty()
	r := w.tally.result(w)
	r.Policy, r.Skipped = c.Name, w.close()
	r.Cut = slices.ContainsFunc(w.streams, func(t *stream) bool { return t.cut })
	return r, nil
}

// newWorld furnishes a world in which nobody sends yet.
func newWorld(s *Scenario, c Candidate) (*world, error) {
	if len(c.Reloads) != len(s.Reloads) {
		return nil, fmt.Errorf("%s: the policy is reloaded %d times, %d policies are given", c.Name, len(s.Reloads), len(c.Reloads))
	}
	w := &world{
		scenario: s,
		epoch:    time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		now:      -s.Warmup,
		rng:      rand.New(rand.NewPCG(s.Seed, 3)),
		policies: append([]*policy.Policy{c.Policy}, c.Reloads...),
		store:    memstore.New(memstore.Options{Hold: 24 * time.Hour}),
		machines: map[string]*machine{},
	}
	w.tally.open(s)
	if err := w.furnish(c.Policy); err != nil {
		return nil, err
	}
	w.core = admission.NewCore(w.clock(), c.Policy, w.gauge, rand.New(rand.NewPCG(s.Seed, 4)))
	return w, nil
}

// close gives back the files of the traces.
func (w *world) close() (skipped int) {
	for _, t := range w.streams {
		skipped += t.close()
	}
	return skipped
}

// plan puts on the agenda what stands in the scenario.
func (w *world) plan() {
	s := w.scenario
	w.agenda.push(event{at: 0, kind: ticks})
	for i := range s.Reloads {
		w.agenda.push(event{at: s.Reloads[i].At, kind: reloads, i: int32(i)})
	}
	for i := range s.Clock {
		w.agenda.push(event{at: s.Clock[i].At, kind: clockSteps, i: int32(i)})
	}
	for _, m := range w.order {
		w.planFailures(m)
	}
}

func (w *world) planFailures(m *machine) {
	for j, f := range m.spec.Failures {
		if f.At < w.now {
			continue
		}
		w.agenda.push(event{at: f.At, kind: befalls, i: m.index, j: int32(j)})
		if f.For > 0 {
			w.agenda.push(event{at: f.At + f.For, kind: passes, i: m.index, j: int32(j)})
		}
	}
}

// furnish makes the machines and sensors of a policy's pools and takes its
// rules.
func (w *world) furnish(p *policy.Policy) error {
	e, err := p.For(policy.Overrides{})
	if err != nil {
		return err
	}
	w.rules = rules{Effective: e, chat: apiOf(p, policy.OpenAIChat), embed: apiOf(p, policy.OpenAIEmbeddings)}
	w.lines = w.lines[:0]
	for i := range p.Pools {
		pool := &p.Pools[i]
		m := w.machines[pool.Name]
		if m == nil {
			m = newMachine(w, len(w.order), pool.Name)
			w.machines[pool.Name] = m
			w.order = append(w.order, m)
			if w.core != nil {
				w.planFailures(m)
			}
		}
		m.watch(p, pool)
		w.lines = append(w.lines, line{name: pool.Name, armed: never})
	}
	return nil
}

// apiOf is the policy's API of a kind; without one, a plain one.
func apiOf(p *policy.Policy, kind policy.Kind) *policy.API {
	for i := range p.APIs {
		if p.APIs[i].Kind == kind {
			return &p.APIs[i]
		}
	}
	return &policy.API{Kind: kind}
}

// gauge is what the core reads pressure from.
func (w *world) gauge(pool string) *gpu.Reading {
	if m := w.machines[pool]; m != nil {
		return m.sensor.gauge.Reading()
	}
	return nil
}

// over says that nobody is left and nobody will come.
func (w *world) over() bool { return w.sending == 0 && w.alive == 0 && w.now >= w.scenario.Duration }

// happen does what an event is about.
func (w *world) happen(e *event) error {
	switch e.kind {
	case sends:
		return w.send(int(e.i))
	case returns:
		w.try(e.who)
	case hangsUp:
		w.hangUp(e.who, e.gen)
	case tooLate:
		if e.who.runs(e.gen) {
			w.cutShort(e.who)
		}
	case due:
		w.advance(int(e.i), e.gen, e.at)
	case stepEnds:
		if m := w.order[e.i]; m.stepping == e.gen {
			m.finish()
		}
	case firstToken:
		if e.who.runs(e.gen) {
			w.first(e.who)
		}
	case placeEnds:
		if e.who.runs(e.gen) {
			w.answered(e.who)
		}
	case fails:
		if e.who.runs(e.gen) {
			w.failed(e.who)
		}
	case looks:
		if m := w.order[e.i]; m.sensor.gen == e.gen {
			m.look(e.j)
		}
	case sees:
		if m := w.order[e.i]; m.sensor.gen == e.gen {
			m.sensor.see()
		}
	case befalls, passes:
		m := w.order[e.i]
		m.befall(&m.spec.Failures[e.j], e.kind == befalls)
	case reloads:
		return w.reload(int(e.i))
	case clockSteps:
		w.shift += w.scenario.Clock[e.i].Step
	case ticks:
		w.tick()
	}
	return nil
}

// tick ends a second.
func (w *world) tick() {
	for _, m := range w.order {
		m.note()
	}
	w.tally.second(w)
	if !w.over() {
		w.agenda.push(event{at: w.now + time.Second, kind: ticks})
	}
}

// reload swaps the policy in mid run, as a changed file does.
func (w *world) reload(i int) error {
	p := w.policies[i+1]
	if err := w.furnish(p); err != nil {
		return err
	}
	w.swaps++
	decided := w.core.Swap(w.clock(), p)
	w.deliver(decided)
	w.arm()
	return nil
}

// decide asks the desk for a seat, in its three calls.
func (w *world) decide(c *caller) admission.Outcome {
	now := w.clock()
	if mode := c.request.Policy.ModeOf(c.class); mode != policy.Enforce {
		reason := admission.Admitted
		if mode == policy.Pass {
			reason = admission.AdmittedPass
		}
		c.plan = w.core.Pass(now, &c.request, reason)
		c.plan.Owner = c
		return admission.Entered
	}
	p := w.core.Plan(now, &c.request)
	c.plan, p.Owner = p, c
	if p.Refused() {
		return admission.Refused
	}
	verdict := quota.Verdict{Allowed: true}
	if len(p.Claims) > 0 {
		c.request.ID = w.nextID()
		var err error
		if verdict, err = w.store.Reserve(context.Background(), w.wall(), c.request.ID, p.Claims); err != nil {
			w.core.Abandon(now, p, admission.StoreUnavailable)
			w.settle(p, quota.Amount{})
			return admission.Refused
		}
	}
	outcome := w.core.Enter(now, p, verdict)
	if outcome == admission.Refused && verdict.Allowed {
		w.settle(p, quota.Amount{})
	}
	return outcome
}

// settle replaces what a plan reserved by its final amount.
func (w *world) settle(p *admission.Plan, final quota.Amount) {
	if len(p.Claims) == 0 {
		return
	}
	if err := w.store.Settle(context.Background(), w.wall(), p.Request.ID, p.Claims, final); err != nil {
		w.checks.fault("settling failed: %v", err)
	}
}

// deliver tells the callers of plans that were decided while they waited.
func (w *world) deliver(plans []*admission.Plan) {
	for _, p := range plans {
		c := p.Owner.(*caller)
		if p.Refused() {
			w.settle(p, quota.Amount{})
			w.refused(c)
		} else {
			w.seated(c)
		}
	}
}

// arm sees to it that every pool is advanced when it wants to be.
func (w *world) arm() {
	for i := range w.lines {
		l := &w.lines[i]
		at, wants := w.core.NextAt(l.name)
		if !wants {
			continue
		}
		if d := max(at.Sub(w.epoch), w.now); d < l.armed {
			l.armed = d
			w.agenda.push(event{at: d, kind: due, i: int32(i), gen: w.swaps})
		}
	}
}

// advance does what is due in a pool.
func (w *world) advance(i int, swaps uint64, at time.Duration) {
	if swaps != w.swaps || w.lines[i].armed != at {
		return // overtaken
	}
	l := &w.lines[i]
	l.armed = never
	if !w.checks.turns(w, i) {
		return
	}
	decided, overdue := w.core.Advance(w.clock(), l.name)
	w.deliver(decided)
	for _, p := range overdue {
		w.broken(p.Owner.(*caller), &admission.End{Result: admission.ResultUnknown, GRPC: -1})
	}
	w.arm()
}
