package simulate

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/internal/modelsim"
)

// machine is the engine behind a pool: a batch, or a service of places.
type machine struct {
	w     *world
	index int32
	name  string
	spec  Engine
	batch *modelsim.Batch // nil = a service

	out      seats     // given out by the pool's line
	inside   []*caller // in no order; each knows its slot
	stepping uint64    // the gen of the step under way; 0 = none
	steps    uint64
	length   time.Duration // of that step
	spent    time.Duration // in steps

	places  int
	busy    int
	waiting int
	line    []ask // who waits for a place, and some who have left
	head    int

	down   bool
	slow   float64 // everything takes so many times as long
	errors float64 // share of requests answered 500
	sensor sensor

	since time.Duration // of the count of who runs
	ran   float64       // seconds that requests ran, summed over them
}

// ask is a try of a caller that waits for a place.
type ask struct {
	c   *caller
	try uint64
}

// failTime is how long an error takes to come back.
const failTime = time.Millisecond

func newMachine(w *world, index int, name string) *machine {
	m := &machine{w: w, index: int32(index), name: name, spec: w.scenario.Engines[name], slow: 1, since: w.now}
	if m.spec.Service == nil {
		m.batch = modelsim.NewBatch(m.spec.Batch, rand.New(rand.NewPCG(w.scenario.Seed, uint64(index)<<8|2)))
	} else {
		m.places = m.spec.Service.Places
	}
	return m
}

// running is how many requests are worked on, not counting those that wait
// inside the engine.
func (m *machine) running() int {
	if m.batch != nil {
		return m.batch.Load().Running
	}
	return m.busy
}

// note counts the time that requests ran; to be called before their number
// changes.
func (m *machine) note() {
	m.ran += (m.w.now - m.since).Seconds() * float64(m.running())
	m.since = m.w.now
}

// take gives the machine a request that has a seat. An error that it meets is
// its answer, a moment later; nil = it is worked on or waits inside.
func (m *machine) take(c *caller) *admission.End {
	switch {
	case m.down:
		return &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 503, GRPC: -1}
	case m.errors > 0 && m.w.rng.Float64() < m.errors:
		return &admission.End{Result: admission.ResultFailed, Status: 500, GRPC: -1}
	case m.batch == nil && m.busy >= m.places && m.spec.Service.Beyond == FailBeyond:
		return &admission.End{Result: admission.ResultFailed, Status: 503, GRPC: -1}
	}
	if m.batch != nil {
		c.seq = modelsim.Sequence{Prompt: int(c.prompt), Output: int(c.output), Width: 1, Owner: c}
		if c.seq.KV() > m.batch.Load().KVTokens {
			return &admission.End{Result: admission.ResultCaller, Status: 400, GRPC: -1}
		}
	}
	c.machine, c.slot = m, len(m.inside)
	m.inside = append(m.inside, c)
	m.note()
	switch {
	case m.batch != nil:
		m.batch.Submit(&c.seq)
		if m.stepping == 0 {
			m.step()
		}
	case m.busy < m.places:
		m.serve(c)
	default:
		m.waiting++
		m.line = append(m.line, ask{c, c.tries})
	}
	return nil
}

// leave takes a request out; it says how many tokens it got.
func (m *machine) leave(c *caller) (made int64) {
	last := m.inside[len(m.inside)-1]
	m.inside[c.slot], last.slot = last, c.slot
	m.inside[len(m.inside)-1] = nil
	m.inside = m.inside[:len(m.inside)-1]
	c.machine = nil
	m.note()
	switch {
	case m.batch != nil:
		_, n := m.batch.Leave(&c.seq)
		return int64(n)
	case !c.placed:
		m.waiting--
		return 0
	}
	c.placed = false
	m.busy--
	made = int64(float64(c.output) * float64(m.w.now-c.begun) / float64(max(c.takes, 1)))
	m.refill()
	return made
}

// serve gives a request a place.
func (m *machine) serve(c *caller) {
	m.busy++
	s := m.spec.Service
	c.placed, c.begun = true, m.w.now
	c.takes = time.Duration(float64(s.Time) * (1 + s.Spread*c.luck) * m.slow)
	m.w.agenda.push(event{at: m.w.now + c.takes, kind: placeEnds, who: c, gen: c.tries})
	if c.stream {
		first := c.takes / time.Duration(max(c.output, 1))
		m.w.agenda.push(event{at: m.w.now + first, kind: firstToken, who: c, gen: c.tries})
	}
}

// refill gives free places to those who wait, in order.
func (m *machine) refill() {
	for m.busy < m.places && m.head < len(m.line) {
		a := m.line[m.head]
		m.line[m.head] = ask{}
		if m.head++; 2*m.head > len(m.line) {
			m.line = m.line[:copy(m.line, m.line[m.head:])]
			m.head = 0
		}
		if a.c.runs(a.try) && a.c.machine == m {
			m.waiting--
			m.serve(a.c)
		}
	}
}

// step begins the batch's next step.
func (m *machine) step() {
	m.note()
	length := m.batch.Begin()
	if length == 0 {
		m.stepping = 0
		return
	}
	m.steps++
	m.stepping = m.steps
	m.length = time.Duration(float64(length) * m.slow)
	m.w.agenda.push(event{at: m.w.now + m.length, kind: stepEnds, i: m.index, gen: m.steps})
}

// finish ends a step: first tokens are out, whole answers end. The engine goes
// on at once: who gets a seat by these ends finds it in its next step, as one
// who comes over a network does.
func (m *machine) finish() {
	m.note()
	m.spent += m.length
	first, done := m.batch.Finish()
	m.step()
	for _, s := range first {
		m.w.first(s.Owner.(*caller))
	}
	for _, s := range done {
		m.w.answered(s.Owner.(*caller))
	}
}

// breakOff ends everything inside: the endpoints are gone.
func (m *machine) breakOff() {
	for _, c := range append([]*caller(nil), m.inside...) {
		e := admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 503, GRPC: -1}
		if c.stream && c.firstAt >= 0 {
			e = admission.End{Result: admission.ResultUnknown, GRPC: -1}
		}
		m.w.broken(c, &e)
	}
	if m.stepping != 0 {
		m.batch.Finish()
		m.stepping = 0
	}
}

// befall begins or ends a failure.
func (m *machine) befall(f *Failure, begins bool) {
	value := 1.0
	if begins {
		value = f.Value
	}
	switch f.Kind {
	case Down:
		if m.down = begins; begins {
			m.breakOff()
		}
	case Slow:
		m.slow = value
	case Errors:
		if m.errors = 0; begins {
			m.errors = value
		}
	case Resize:
		m.resize(value)
	case Cold:
		if m.sensor.silent = begins; !begins {
			m.sensor.gauge.ColdStart(m.w.clock())
		}
	case Stale:
		m.sensor.frozen = begins
	}
}

// resize makes the machine so many times as large as it was built.
func (m *machine) resize(factor float64) {
	m.note()
	if m.batch == nil {
		m.places = max(int(math.Round(float64(m.spec.Service.Places)*factor)), 1)
		m.refill()
		return
	}
	m.batch.Configure(m.scaled(factor))
}

func (m *machine) scaled(factor float64) modelsim.EngineConfig {
	c := modelsim.NewBatch(m.spec.Batch, nil).Config()
	c.Running = max(int(math.Round(float64(c.Running)*factor)), 1)
	c.KVTokens = max(int64(math.Round(float64(c.KVTokens)*factor)), 1)
	return c
}

// capacity is how many requests of a mean prompt and output the machine
// carries in a second, and how many at a time it works on then. For a batch,
// a place is held for one step a token of output and the steps in which the
// prompt is read; a step reads the prompts of all that arrive while it lasts.
func (m *machine) capacity(prompt, output float64) (perSecond, places float64) {
	if s := m.spec.Service; s != nil {
		return float64(s.Places) / s.Time.Seconds(), float64(s.Places)
	}
	c := m.scaled(1)
	places = min(float64(c.Running), max(float64(c.KVTokens)/max(prompt+output, 1), 1))
	steps := max(output, 1) + math.Ceil(prompt/float64(c.PrefillChunk)) - 1
	rate := places / (max(steps, 1) * (c.StepBase.Seconds() + places*c.StepPerSequence.Seconds()))
	return rate / (1 + rate*prompt*c.PrefillPerToken.Seconds()), places
}
