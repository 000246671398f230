package simulate

import (
	"math"
	"slices"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// comeback is how long a caller of the burst may take until it is admitted at
// a later hint (C1: a total of 5 s).
const comeback = 5 * time.Second

// tally counts what becomes of the requests that are first sent after the
// warm-up. Judged are those of the burst; without one, all.
type tally struct {
	burst    bool // the scenario has one
	requests int
	prompt   float64 // tokens of all of them
	output   float64

	judged    int
	atFirst   int
	atHint    int // at the first try, or at a later hint within comeback
	classes   [policy.NumClasses]classTally
	waits     []time.Duration
	latencies []time.Duration

	answers int // whole ones within the run's duration
	flood   int // of them, within the burst
	failed  int
	reasons [admission.NumReasons]int

	tenants map[string]*TenantResult

	given    int
	came     int // obedient callers who came back once
	cameIn   int // who were admitted then
	errors   []float64
	returned []time.Duration // obedient returns within the last second
	wave     int             // the most of them in any second
	windows  []use           // one a second of the run
	before   []float64
	series   []Sample
	cell     cell
}

// classTally is a class of the judged.
type classTally struct {
	requests, first int
	waits           []time.Duration
}

// use is what the machines worked in one second.
type use struct {
	at      time.Duration // its end
	worked  []float64     // by machine: seconds that requests ran
	refused int           // tries
}

// cell is what happened since the last sample.
type cell struct {
	admitted [policy.NumClasses]int
	waited   [policy.NumClasses]time.Duration
	refused  int
}

func (t *tally) open(s *Scenario) {
	t.burst = slices.ContainsFunc(s.Arrivals, func(a Arrival) bool { return a.Burst })
	t.tenants = map[string]*TenantResult{}
}

// obeys says whether a caller comes back when it is told to.
func (c *caller) obeys() bool { return c.client.Kind == Obedient && c.client.obedientEarly() }

func (k *Client) obedientEarly() bool { return k.Early <= 0 || k.Early >= 1 }

func (t *tally) counts(c *caller) bool { return c.counted && (c.burst || !t.burst) }

func (t *tally) sent(c *caller) {
	if !c.counted {
		return
	}
	t.requests++
	t.prompt += float64(c.prompt)
	t.output += float64(c.output)
	c.tenant = t.tenant(c.identity.Tenant)
	c.tenant.Requests++
	if t.counts(c) {
		t.judged++
		t.classes[c.class].requests++
	}
}

// tenant is the account of a tenant; one beyond MaxTenants gets one that
// nobody reads.
func (t *tally) tenant(name string) *TenantResult {
	k := t.tenants[name]
	if k != nil {
		return k
	}
	k = &TenantResult{}
	if len(t.tenants) < MaxTenants {
		t.tenants[name] = k
	}
	return k
}

func (t *tally) tried(w *world, c *caller) {
	w.checks.tries++
	if c.counted && c.tries > 1 && c.obeys() {
		t.cameBack(w.now)
		if c.tries == 2 {
			t.came++
		}
	}
}

// cameBack counts the returns of the second that ends now.
func (t *tally) cameBack(now time.Duration) {
	t.returned = append(t.returned, now)
	gone := 0
	for t.returned[gone] <= now-time.Second {
		gone++
	}
	t.returned = t.returned[gone:]
	t.wave = max(t.wave, len(t.returned))
}

// admitted is a try that got a seat and an engine that took it.
func (t *tally) admitted(w *world, c *caller) {
	wait := w.now - c.sent
	t.cell.admitted[c.class]++
	t.cell.waited[c.class] += wait
	if !c.counted {
		return
	}
	t.reasons[c.plan.Decision.Reason]++
	if c.tries == 2 && c.obeys() {
		t.cameIn++
	}
	t.judgeHint(w, c)
	c.tenant.waits = append(c.tenant.waits, wait)
	if c.tries == 1 {
		c.tenant.AdmittedFirst++
	}
	if !t.counts(c) {
		return
	}
	k := &t.classes[c.class]
	k.waits = append(k.waits, wait)
	t.waits = append(t.waits, wait)
	if c.in {
		return
	}
	c.in = true
	if c.tries == 1 {
		t.atFirst++
		k.first++
	}
	if c.tries == 1 || c.atHint && w.now-c.first <= comeback {
		t.atHint++
	}
}

// judgeHint compares a caller's first hint with the time until it was let in,
// or until it gave up.
func (t *tally) judgeHint(w *world, c *caller) {
	if c.hint > 0 && c.obeys() {
		t.errors = append(t.errors, math.Abs(float64(w.now-c.told-c.hint))/float64(c.hint))
		c.hint = -1
	}
}

func (t *tally) refused(c *caller, hint time.Duration) {
	t.cell.refused++
	if !c.counted {
		return
	}
	t.reasons[c.plan.Decision.Reason]++
	if hint > 0 && c.obeys() {
		t.given++
	}
}

// turnedBack is a try that got a seat, but an error of its engine.
func (t *tally) turnedBack(c *caller) {
	if c.counted {
		t.reasons[c.plan.Decision.Reason]++
	}
}

func (t *tally) answered(w *world, c *caller) {
	t.hungUp(w, c)
	if c.counted {
		c.tenant.Served++
	}
	if w.now < 0 || w.now >= w.scenario.Duration {
		return
	}
	t.answers++
	if w.scenario.InBurst(w.now) {
		t.flood++
	}
}

// hungUp is an admitted try that the caller ended; how long it took counts.
func (t *tally) hungUp(w *world, c *caller) {
	if t.counts(c) {
		t.latencies = append(t.latencies, w.now-c.sent)
	}
}

func (t *tally) lost(w *world, c *caller) {
	if c.counted {
		t.failed++
		c.tenant.Failed++
		if c.tries > 1 { // who did not come back says nothing of its hint
			t.judgeHint(w, c)
		}
	}
}

// second ends a second of the run: a sample, and what the machines worked.
func (t *tally) second(w *world) {
	worked := make([]float64, len(w.order))
	for i, m := range w.order {
		if i == len(t.before) {
			t.before = append(t.before, 0)
		}
		worked[i], t.before[i] = m.ran-t.before[i], m.ran
	}
	if w.now > 0 {
		t.windows = append(t.windows, use{w.now, worked, t.cell.refused})
	}
	s := Sample{At: w.now, Refused: float64(t.cell.refused)}
	for i, n := range t.cell.admitted {
		s.Admitted[i] = float64(n)
		if n > 0 {
			s.Wait[i] = t.cell.waited[i] / time.Duration(n)
		}
	}
	t.cell = cell{}
	for _, p := range w.core.Stats(w.clock()) {
		for _, n := range p.Line.Waiting {
			s.Waiting += n
		}
		for _, n := range p.Line.Running {
			s.Running += n
		}
		s.Retrying += p.Line.Retrying
		s.Seats += int(p.Line.SeatsTotal.Requests)
		s.Length += p.Length
		s.Pressure = max(s.Pressure, p.Pressure)
	}
	if w.now > 0 { // the first one is of the warm-up
		t.series = append(t.series, s)
	}
}
