package gpu

import (
	"math"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// The signals of Part.Signal.
const (
	SignalUtil    = "util"
	SignalKV      = "kv"
	SignalWaiting = "waiting"
)

// Reading is an immutable picture of a pool's load. Its methods take the
// instant of the question, since a picture ages.
type Reading struct {
	At      time.Time     // of the sample that made it; the gauge's start before any
	Parts   []Part        // signals that were seen at least once, in the order of the sources
	Sources []SourceState // in the order given to NewGauge
	Unknown uint64        // samples of sources that the gauge does not know

	policy policy.Gauge
	start  time.Time
	cold   time.Time // zero = never cold
	engine group     // engines' words: waiting, kv
	gpu    group     // the rest
}

// group is one rank of Q8: the newest sample in it and when it goes stale.
type group struct {
	newest, stale time.Time // zero = no part
}

// Part is one signal of one source, for explain and /debug.
type Part struct {
	Source   string
	Signal   string // util, kv, waiting
	Engine   bool   // an engine's word: counts before the GPU's (Q8)
	Raw      Value
	Smoothed float64 // 0..1 of its target, at At
	At       time.Time
	Used     bool // counted in the pressure, at the reading's own instant (PartsAt: at another)

	every  time.Duration
	weight float64 // GPUs behind it
}

// add appends the part of a signal that was seen.
func (r *Reading) add(src *source, name string, s *signal) {
	if s.at.IsZero() {
		return
	}
	p := Part{
		Source:   src.info.Name,
		Signal:   name,
		Engine:   src.info.Engine && name != SignalUtil,
		Raw:      s.raw,
		Smoothed: s.s1,
		At:       s.at,
		every:    src.info.Every,
		weight:   float64(max(src.state.GPUs, 1)),
	}
	r.Parts = append(r.Parts, p)
	if r.policy.Literal && name != SignalUtil {
		return
	}
	g := &r.gpu
	if p.Engine {
		g = &r.engine
	}
	if stale := p.At.Add(r.window(&p)); stale.After(g.stale) {
		g.stale = stale
	}
	if p.At.After(g.newest) {
		g.newest = p.At
	}
}

// settle marks the parts that count at now.
func (r *Reading) settle(now time.Time) {
	for i := range r.Parts {
		r.Parts[i].Used = r.counts(&r.Parts[i], now)
	}
}

// PartsAt are the parts with Used as of now.
func (r *Reading) PartsAt(now time.Time) []Part {
	parts := slices.Clone(r.Parts)
	for i := range parts {
		parts[i].Used = r.counts(&parts[i], now)
	}
	return parts
}

// byEngine says which rank is in charge (Q8): the engines while any of their
// signals is fresh, else the GPUs while theirs are, else who fell silent last.
func (r *Reading) byEngine(now time.Time) bool {
	if r.engine.stale.IsZero() {
		return false
	}
	return !now.After(r.engine.stale) || !r.engine.stale.Before(r.gpu.stale)
}

// counts says whether a part takes part in the pressure at now. Of the GPUs'
// utilisation, which is a mean, stale parts are left out while one is fresh.
func (r *Reading) counts(p *Part, now time.Time) bool {
	if p.Engine != r.byEngine(now) || (r.policy.Literal && p.Signal != SignalUtil) {
		return false
	}
	return p.Engine || p.Signal != SignalUtil || now.After(r.gpu.stale) || !r.stale(p, now)
}

func (r *Reading) window(p *Part) time.Duration {
	return time.Duration(max(r.policy.StalePeriods, 1)) * p.every
}

// age is the distance to now. A sample from the future (a clock was set) is
// as far from the truth as one of the past.
func age(p *Part, now time.Time) time.Duration { return now.Sub(p.At).Abs() }

func (r *Reading) stale(p *Part, now time.Time) bool { return age(p, now) > r.window(p) }

// value is a part's word at now: smoothed, and decayed when stale (Q3).
func (r *Reading) value(p *Part, now time.Time) float64 {
	beyond := age(p, now) - r.window(p)
	if beyond <= 0 {
		return p.Smoothed
	}
	return decay(p.Smoothed, unit(float64(r.policy.Neutral)), beyond, p.every)
}

// Engine is what the engines of a pool say of themselves, unsmoothed.
type Engine struct {
	At      time.Time // of the oldest sample in it; zero = no fresh one
	Waiting Value     // sum
	Running Value     // sum
	KV      Value     // of the fullest
}

// Engine gives the engines' fresh words at now (Q9). An engine that fell
// silent is left out.
func (r *Reading) Engine(now time.Time) Engine {
	var e Engine
	add := func(at time.Time) {
		if e.At.IsZero() || at.Before(e.At) {
			e.At = at
		}
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		if !p.Engine || r.stale(p, now) {
			continue
		}
		add(p.At)
		switch p.Signal {
		case SignalWaiting:
			e.Waiting = Some(e.Waiting.V + p.Raw.V)
		case SignalKV:
			e.KV = Some(max(e.KV.V, p.Raw.V))
		}
	}
	for i := range r.Sources {
		s := &r.Sources[i]
		if !s.Engine || !s.Running.OK || r.stale(&Part{At: s.At, every: s.Every}, now) {
			continue
		}
		add(s.At)
		e.Running = Some(e.Running.V + s.Running.V)
	}
	return e
}

// Pressure is 0..1 at now (Q8): the largest word of the engines, waiting and
// KV-cache use each as a share of its target; without a fresh one the mean
// utilisation of the GPUs. Stale words decay toward neutral (Q3); without any
// word it is neutral.
func (r *Reading) Pressure(now time.Time) float64 {
	var top, sum, weight float64
	seen := false
	for i := range r.Parts {
		p := &r.Parts[i]
		if !r.counts(p, now) {
			continue
		}
		seen = true
		if v := r.value(p, now); p.Signal == SignalUtil {
			sum += v * p.weight
			weight += p.weight
		} else {
			top = max(top, v)
		}
	}
	if !seen {
		return unit(float64(r.policy.Neutral))
	}
	if weight > 0 {
		top = max(top, sum/weight)
	}
	return unit(top)
}

// Age is the time since the last sample that counts; stale = older than
// StalePeriods periods. Before any sample it is the time since the gauge's
// start, stale after StalePeriods of the slowest source. A gauge without
// sources has nothing that could age: 0, false.
func (r *Reading) Age(now time.Time) (age time.Duration, stale bool) {
	g := r.gpu
	if r.byEngine(now) {
		g = r.engine
	}
	if !g.newest.IsZero() {
		return max(now.Sub(g.newest), 0), now.After(g.stale)
	}
	if len(r.Sources) == 0 {
		return 0, false
	}
	var slowest time.Duration
	for _, s := range r.Sources {
		slowest = max(slowest, s.Every)
	}
	age = max(now.Sub(r.start), 0)
	return age, age > time.Duration(max(r.policy.StalePeriods, 1))*slowest
}

// Cold says whether the pool is in its cold start at now (Q4).
func (r *Reading) Cold(now time.Time, q policy.Queue) bool {
	since := now.Sub(r.cold)
	return !r.cold.IsZero() && since >= 0 && since < q.ColdStartFor && len(q.ColdStart) > 0
}

// Length is the queue length at now: Q4 while cold, else Q1. It never exceeds
// q.Length.Max, so a profile without a queue has none while cold either. The
// queue's numbers come with every call, since profiles may differ in them.
func (r *Reading) Length(now time.Time, q policy.Queue) int {
	if r.Cold(now, q) {
		step := int(int64(now.Sub(r.cold)) * int64(len(q.ColdStart)) / int64(q.ColdStartFor))
		return max(min(q.ColdStart[step], q.Length.Max), 0)
	}
	return LengthFor(q.Length, r.Pressure(now))
}

// LengthFor is Q1: clamp(intercept - slope*pressure%, min, max), rounded down
// to whole places. Where min and max contradict, max wins.
func LengthFor(l policy.Length, pressure float64) int {
	v := l.Intercept - l.Slope*100*pressure
	if math.IsNaN(v) {
		return max(min(l.Min, l.Max), 0)
	}
	const ulps = 1e-6 // 0.83*100 may be a hair below 83
	v = math.Floor(v + ulps)
	return max(int(min(max(v, float64(l.Min)), float64(l.Max))), 0)
}
