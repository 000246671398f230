package simulate

import (
	"fmt"
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
	returned int   // obedient returns in the present second
	wave     int   // the most of them in a second
	windows  []use // one a second of the run
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
	at     time.Duration // its end
	worked []float64     // by machine: seconds that requests ran
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
		t.returned++
		if c.tries == 2 {
			t.came++
		}
	}
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
		t.judgeHint(w, c)
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
		t.windows = append(t.windows, use{w.now, worked})
	}
	t.wave, t.returned = max(t.wave, t.returned), 0
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

// result sums up.
func (t *tally) result(w *world) *Result {
	s := w.scenario
	capacity, shares := t.capacity(w)
	r := &Result{
		Requests: t.requests,
		Classes:  map[string]*ClassResult{},
		Goodput:  float64(t.answers) / s.Duration.Seconds(),
		Failed:   t.failed,
		Reasons:  map[string]int{},
		Advice:   t.advice(w, capacity),
		Violated: w.checks.list(),
		Series:   t.series,
		Tenants:  t.tenants,
	}
	for _, k := range t.tenants {
		k.WaitP99, k.waits = milliseconds(percentile(k.waits, 0.99)), nil
	}
	for i, n := range t.reasons {
		if n > 0 {
			r.Reasons[admission.Reason(i).String()] = n
		}
	}
	for i := range t.classes {
		if k := &t.classes[i]; k.requests > 0 {
			r.Classes[policy.Class(i).String()] = &ClassResult{
				Requests:      k.requests,
				AdmittedFirst: ratio(float64(k.first), float64(k.requests)),
				WaitP99:       milliseconds(percentile(k.waits, 0.99)),
			}
		}
	}
	r.UtilisationMin, r.UtilisationMax = t.utilisation(s, shares)
	t.hints(r, capacity)
	if !t.burst {
		return r
	}
	judged := float64(t.judged)
	r.BurstAdmitted = some(ratio(float64(t.atHint), judged))
	r.BurstAdmittedFirst = some(ratio(float64(t.atFirst), judged))
	r.LatencyP99 = some(milliseconds(percentile(t.latencies, 0.99)))
	r.WaitP99 = some(milliseconds(percentile(t.waits, 0.99)))
	r.Throughput = some(ratio(float64(t.flood), capacity*s.burstLength().Seconds()))
	return r
}

func (t *tally) hints(r *Result, capacity float64) {
	h := &r.Hints
	h.Given = t.given
	h.FirstReturn = ratio(float64(t.cameIn), float64(t.came))
	if n := len(t.errors); n > 0 {
		slices.Sort(t.errors)
		h.MedianError = t.errors[(n-1)/2]
	}
	h.WavePeakRatio = ratio(float64(max(t.wave, t.returned)), capacity)
}

// capacity is what the engines of the first policy's pools carry in a second,
// of requests as they came, and for each machine the part of it that one
// request at work stands for.
func (t *tally) capacity(w *world) (perSecond float64, shares []float64) {
	n := float64(max(t.requests, 1))
	shares = make([]float64, len(w.order))
	for i, m := range w.order {
		if _, ok := w.policies[0].Pool(m.name); !ok {
			continue
		}
		rate, places := m.capacity(t.prompt/n, t.output/n)
		perSecond += rate
		shares[i] = rate / places
	}
	for i := range shares {
		shares[i] /= max(perSecond, math.SmallestNonzeroFloat64)
	}
	if w.scenario.Capacity > 0 {
		perSecond = w.scenario.Capacity
	}
	return perSecond, shares
}

// utilisation is the least and the most of the windows that lie in the burst
// (else the run), as a share of the engines' capacity.
func (t *tally) utilisation(s *Scenario, shares []float64) (least, most float64) {
	seen := false
	for _, u := range t.windows {
		if u.at > s.Duration || t.burst && !(s.InBurst(u.at-time.Second) && s.InBurst(u.at-1)) {
			continue
		}
		sum := 0.0
		for i, worked := range u.worked {
			sum += worked * shares[i]
		}
		if !seen {
			least, most, seen = sum, sum, true
		}
		least, most = min(least, sum), max(most, sum)
	}
	return least, most
}

// advice says so when more was offered over the whole run than the engines
// carry, by more than chance: then no order of service helps.
func (t *tally) advice(w *world, capacity float64) string {
	s := w.scenario
	seconds := s.Duration.Seconds()
	carried := capacity * w.available() * seconds
	missing := float64(t.requests) - carried
	if carried <= 0 || missing <= 3*math.Sqrt(float64(t.requests)) {
		return ""
	}
	seats := 0.0
	for i := range w.policies[0].Pools {
		seats += float64(w.policies[0].Pools[i].Seats.Requests)
	}
	return fmt.Sprintf("no policy can help: %.1f requests/s are offered over the whole run and the engines carry %.1f/s; %.1f/s are missing, %.0f %% more engines (about %.0f more seats)",
		float64(t.requests)/seconds, carried/seconds, missing/seconds, math.Ceil(100*missing/carried), math.Ceil(seats*missing/carried))
}

// available is the share of the engines' capacity that failures leave over
// the run.
func (w *world) available() float64 {
	run, sum := w.scenario.Duration, 0.0
	for _, m := range w.order {
		left := run.Seconds()
		for _, f := range m.spec.Failures {
			to := run
			if f.For > 0 {
				to = min(run, f.At+f.For)
			}
			lasts := max(to-f.At, 0).Seconds()
			switch f.Kind {
			case Down:
				left -= lasts
			case Slow:
				left -= lasts * (1 - 1/max(f.Value, 1))
			case Errors:
				left -= lasts * f.Value
			case Resize:
				left -= lasts * (1 - f.Value)
			}
		}
		sum += max(left, 0) / run.Seconds()
	}
	return sum / float64(max(len(w.order), 1))
}

// burstLength is how long the burst lasts.
func (s *Scenario) burstLength() (sum time.Duration) {
	var edges []time.Duration
	for i := range s.Arrivals {
		if s.Arrivals[i].Burst {
			for _, span := range s.Arrivals[i].Spans() {
				edges = append(edges, span.From, span.To)
			}
		}
	}
	slices.Sort(edges)
	for i := 1; i < len(edges); i++ {
		if s.InBurst(edges[i-1]) {
			sum += edges[i] - edges[i-1]
		}
	}
	return sum
}

// percentile is the least value that the share q of the list does not exceed;
// 0 of none. It sorts the list.
func percentile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[max(int(math.Ceil(q*float64(len(list))))-1, 0)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func some(v float64) *float64 { return &v }

// ratio is a / b, 0 where there is no b.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}
