package simulate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// result sums up.
func (t *tally) result(w *world) *Result {
	s := w.scenario
	e := t.engines(w)
	r := &Result{
		Requests: t.requests,
		Classes:  map[string]*ClassResult{},
		Goodput:  float64(t.answers) / s.Duration.Seconds(),
		Failed:   t.failed,
		Reasons:  map[string]int{},
		Advice:   t.advice(w, &e),
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
	r.UtilisationMin, r.UtilisationMax = t.utilisation(s, e.shares)
	t.hints(r, e.rate)
	if !t.burst {
		return r
	}
	judged := float64(t.judged)
	r.BurstAdmitted = new(ratio(float64(t.atHint), judged))
	r.BurstAdmittedFirst = new(ratio(float64(t.atFirst), judged))
	r.LatencyP99 = new(milliseconds(percentile(t.latencies, 0.99)))
	r.WaitP99 = new(milliseconds(percentile(t.waits, 0.99)))
	r.Throughput = new(ratio(float64(t.flood), e.rate*s.burstLength().Seconds()))
	return r
}

func (t *tally) hints(r *Result, capacity float64) {
	h := &r.Hints
	h.Given, h.Returned = t.given, t.came
	h.FirstReturn = ratio(float64(t.cameIn), float64(t.came))
	if n := len(t.errors); n > 0 {
		slices.Sort(t.errors)
		h.MedianError = t.errors[(n-1)/2]
	}
	h.WavePeakRatio = ratio(float64(t.wave), capacity)
}

// engines are those of the first policy's pools, for requests as they came.
type engines struct {
	rate    float64   // requests that they carry in a second
	places  float64   // requests that they then work on
	lasting float64   // part of the rate that failures leave over the run
	shares  []float64 // by machine: part of the rate that one request at work stands for
	whole   []float64 // by machine: its places; 0 if failures befall it, or a reload adds it
}

func (t *tally) engines(w *world) (e engines) {
	n := float64(max(t.requests, 1))
	e.shares, e.whole = make([]float64, len(w.order)), make([]float64, len(w.order))
	for i, m := range w.order {
		if _, ok := w.policies[0].Pool(m.name); !ok {
			continue
		}
		rate, places := m.capacity(t.prompt/n, t.output/n)
		e.rate += rate
		e.places += places
		e.lasting += rate * m.lasting()
		e.shares[i] = rate / places
		if m.lasting() == 1 {
			e.whole[i] = places
		}
	}
	e.lasting = ratio(e.lasting, e.rate)
	for i := range e.shares {
		e.shares[i] = ratio(e.shares[i], e.rate)
	}
	if w.scenario.Capacity > 0 {
		e.rate = w.scenario.Capacity
	}
	return e
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
		sum = min(sum, 1)
		if !seen {
			least, most, seen = sum, sum, true
		}
		least, most = min(least, sum), max(most, sum)
	}
	return least, most
}

// advice says so when more was offered over the whole run than the engines
// carry, by more than chance: then no policy serves all. Where a pool idled
// nevertheless, another policy serves more.
func (t *tally) advice(w *world, e *engines) string {
	seconds := w.scenario.Duration.Seconds()
	carried := e.rate * e.lasting * seconds
	missing := float64(t.requests) - carried
	switch {
	case missing <= 3*math.Sqrt(float64(t.requests)):
		return ""
	case carried <= 0:
		return fmt.Sprintf("no policy can help: %.1f requests/s are offered and no engine stands for any part of the run", float64(t.requests)/seconds)
	}
	verdict, idle := "no policy can help", t.idle(w, e)
	if idle != "" {
		verdict = "no policy can serve all"
	}
	return fmt.Sprintf("%s: %.1f requests/s are offered over the whole run and the engines carry %.1f/s; %.1f/s are missing, %.0f %% more engines (about %.0f more seats)%s", verdict,
		float64(t.requests)/seconds, carried/seconds, missing/seconds, math.Ceil(100*missing/carried), math.Ceil(e.places*missing/carried), idle)
}

// idle tells of the pools without failures that worked less than four fifths of
// what they could in the seconds in which requests were refused.
func (t *tally) idle(w *world, e *engines) (text string) {
	for i, whole := range e.whole {
		ran, could := 0.0, 0.0
		for _, u := range t.windows {
			if whole > 0 && u.at <= w.scenario.Duration && u.refused > 0 {
				ran, could = ran+u.worked[i], could+whole
			}
		}
		if ran < 0.8*could {
			text += fmt.Sprintf("; but %s is %.0f %% busy while requests are refused, and a policy that sends it more serves more", w.order[i].name, 100*ran/could)
		}
	}
	return text
}

// lasting is the part of the machine that failures leave over the run.
func (m *machine) lasting() float64 {
	run := m.w.scenario.Duration
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
	return max(left, 0) / run.Seconds()
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

// ratio is a / b, 0 where there is no b.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}
