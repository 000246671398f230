package gpu

import (
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

// Reading is an immutable picture of a pool's load and of its GPUs. Its
// methods take the instant of the question, since a picture ages.
type Reading struct {
	At      time.Time     // of the sample that made it; the gauge's start before any
	Parts   []Part        // signals that were seen at least once, in the order of the sources
	Sources []SourceState // in the order given to NewGauge
	Unknown uint64        // samples of sources that the gauge does not know

	policy policy.Gauge
	start  time.Time
	cold   time.Time // zero = never cold
	groups [numRanks]group
	steady steady

	chunks   []*chunk // cards by source
	impaired bool     // a GPU is faulty or lost
}

// Part is one signal of one source, for explain and /debug.
type Part struct {
	Source   string
	Signal   string // util, kv, waiting
	Engine   bool   // an engine's word: counts before the GPU's (Q8)
	Suspect  bool   // counts only where nobody else's word is fresh
	Raw      Value
	Smoothed float64 // 0..1 of its target, at At
	At       time.Time
	Value    float64 // Smoothed, decayed once it is stale (Q3); as of Used
	Used     bool    // counted in the pressure, at the reading's own instant (PartsAt: at another)

	every  time.Duration
	weight float64 // GPUs behind it
	rank   rank
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
		Suspect:  src.state.Suspect != "" && (src.frozen || name == SignalUtil),
		Raw:      s.raw,
		Smoothed: s.s1,
		At:       s.at,
		every:    src.info.Every,
		weight:   float64(max(src.state.GPUs, 1)),
	}
	p.rank = rankOf(&p)
	r.Parts = append(r.Parts, p)
	if r.policy.Literal && name != SignalUtil {
		return
	}
	r.groups[p.rank].take(&p, p.At.Add(r.window(&p)))
}

// PartsAt are the parts with Value and Used as of now.
func (r *Reading) PartsAt(now time.Time) []Part {
	parts := slices.Clone(r.Parts)
	r.mark(parts, now)
	return parts
}

// mark says of the parts what they come to at now.
func (r *Reading) mark(parts []Part, now time.Time) {
	charge := r.inCharge(now)
	for i := range parts {
		p := &parts[i]
		p.Value, p.Used = r.value(p, now), r.counts(p, charge, now)
	}
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

// Load is the CPU load of the pool's nodes at now, 0..1 (T4): the mean of what
// their fresh sources said last, as they said it; absent where none did. It is
// no input of pressure. The window over which it counts is the asker's.
func (r *Reading) Load(now time.Time) Value {
	var sum, n float64
	for i := range r.Sources {
		if s := &r.Sources[i]; s.Load.OK && !r.stale(&Part{At: s.At, every: s.Every}, now) {
			sum += s.Load.V
			n++
		}
	}
	if n == 0 {
		return Value{}
	}
	return Some(sum / n)
}

// Age is the time since the last sample that counts; stale = older than
// StalePeriods periods. Before any sample it is the time since the gauge's
// start, stale after StalePeriods of the slowest source. A gauge without
// sources, or with those of nodes alone, has nothing that could age: 0, false.
func (r *Reading) Age(now time.Time) (age time.Duration, stale bool) {
	g := r.groups[r.inCharge(now)]
	if !g.newest.IsZero() {
		return max(now.Sub(g.newest), 0), now.After(g.stale)
	}
	var slowest time.Duration
	for i := range r.Sources {
		if s := &r.Sources[i]; !s.Load.OK { // a node's source tells of no pressure
			slowest = max(slowest, s.Every)
		}
	}
	if slowest == 0 {
		return 0, false
	}
	age = max(now.Sub(r.start), 0)
	return age, age > time.Duration(max(r.policy.StalePeriods, 1))*slowest
}
