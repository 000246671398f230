package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// DefaultEvery is the period assumed for a source that states none (Q3).
const DefaultEvery = 5 * time.Second

// maxWaiting is the largest number of waiting or running requests that is
// believed; more is a corrupt reading.
const maxWaiting = 1e7

// maxFigure is the same of a card's figures in whatever unit: bytes are the
// largest.
const maxFigure = 1e18

// Gauge smooths (Q2), ages (Q3) and blends (Q8) the samples of one pool. All
// methods are safe for concurrent use: Observe, Miss and ColdStart lock,
// Reading does not.
type Gauge struct {
	policy policy.Gauge
	start  time.Time
	latest atomic.Pointer[Reading]

	mu      sync.Mutex
	sources []source
	cold    time.Time // since when the pool is cold (Q4); zero = it never was
	seen    time.Time // last value, or first failure, of the sources whose gap makes the pool cold; zero = neither
	engines bool      // there are engine sources: only they make gaps
	unknown uint64
	moves   uint64 // of all sources
	owners  map[cardKey]owner
	before  memory // from the gauges before this one
}

// source is what the gauge keeps for one source.
type source struct {
	info    SourceInfo
	place   int // in the policy's order
	state   SourceState
	util    signal
	kv      signal
	waiting signal
	watch   watch
	frozen  bool // Suspect is of every word, not of utilisation alone
	roll    roll
}

// owner is whose a card is.
type owner struct {
	source *source
	entry  *entry
}

// SourceInfo describes a source to a gauge. Every <= 0 means DefaultEvery.
type SourceInfo struct {
	Name   string
	Engine bool
	Every  time.Duration
}

// NewGauge makes a gauge for the given sources, whose names must differ.
// start counts for Q4's literal form and for age before any sample.
func NewGauge(c policy.Gauge, sources []SourceInfo, start time.Time) *Gauge {
	g := &Gauge{policy: c, start: start, owners: make(map[cardKey]owner)}
	if c.LiteralCold {
		g.cold = start
	}
	for _, info := range sources {
		if info.Every <= 0 {
			info.Every = DefaultEvery
		}
		g.engines = g.engines || info.Engine
		g.sources = append(g.sources, source{
			info:    info,
			place:   len(g.sources),
			state:   SourceState{Name: info.Name, Engine: info.Engine, Every: info.Every},
			util:    newSignal(c),
			kv:      newSignal(c),
			waiting: newSignal(c),
		})
	}
	g.publish(start)
	return g
}

// Observe takes one sample and publishes a new reading. A sample that is not
// newer than the last one of its source is ignored (a frozen snapshot is no
// news), unless it is older by more than the stale time: then a clock was set
// back and the sample counts. Values out of range (ratios 0..1; waiting and
// running 0..1e7; figures of cards 0..1e18) are dropped and counted. A sample
// of an unknown source is counted in Reading.Unknown and otherwise ignored.
func (g *Gauge) Observe(s Sample) {
	g.mu.Lock()
	defer g.mu.Unlock()
	src := g.find(s.Source)
	if src == nil {
		g.unknown++
		g.publish(s.At)
		return
	}
	last, window := src.state.At, g.window(src.info.Every)
	if !last.IsZero() && !s.At.After(last) && last.Sub(s.At) <= window {
		src.state.Repeated++
		g.publish(last)
		return
	}
	dropped := s.Dropped + clean(&s)
	gone := g.takeCards(src, s.Cards, s.At)
	s.Faults[FaultOther] += uint64(gone)
	src.state.take(s, dropped+gone)
	g.forget()
	src.state.Suspect, src.frozen = g.doubt(src, &s)
	g.noteGap(src.info.Engine, s.At, s.Util.OK || s.KV.OK || s.Waiting.OK)
	src.util.observe(s.Util, s.Util.V, s.At, window, src.info.Every)
	src.kv.observe(s.KV, share(s.KV.V, float64(g.policy.KVTarget)), s.At, window, src.info.Every)
	src.waiting.observe(s.Waiting, share(s.Waiting.V, g.policy.WaitingTarget), s.At, window, src.info.Every)
	g.publish(s.At)
}

// Miss counts a failed sample. The picture stays and ages.
func (g *Gauge) Miss(source string, at time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	src := g.find(source)
	if src == nil {
		g.unknown++
	} else {
		src.state.miss(err)
		g.noteGap(src.info.Engine, at, false)
	}
	g.publish(g.latest.Load().At)
}

// ColdStart says that the pool got new endpoints at this instant (Q4). In
// Q4's literal form only the start of the process counts, so it does nothing.
func (g *Gauge) ColdStart(at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.policy.LiteralCold {
		return
	}
	g.cold = at
	g.publish(at)
}

// Reading is the latest picture: an atomic load, never nil, never blocks.
func (g *Gauge) Reading() *Reading { return g.latest.Load() }

func (g *Gauge) find(name string) *source {
	i := slices.IndexFunc(g.sources, func(s source) bool { return s.info.Name == name })
	if i < 0 {
		return nil
	}
	return &g.sources[i]
}

// window is the age up to which a sample is fresh (Q3).
func (g *Gauge) window(every time.Duration) time.Duration {
	return time.Duration(max(g.policy.StalePeriods, 1)) * every
}

// noteGap starts Q4's cold time when the telemetry that counts first was
// silent for ColdGap: that of the engines, or of the GPUs in a pool without
// engine sources. One of several sources that returns is no gap. A pool that
// was never heard is silent from the first look in vain.
func (g *Gauge) noteGap(engine bool, at time.Time, heard bool) {
	if engine != g.engines {
		return
	}
	if !heard {
		if g.seen.IsZero() {
			g.seen = at
		}
		return
	}
	gap := at.Sub(g.seen)
	if !g.seen.IsZero() && !g.policy.LiteralCold && g.policy.ColdGap > 0 && gap >= g.policy.ColdGap {
		g.cold = at
	}
	g.seen = at
}

// publish makes the reading of this moment; the caller holds the lock (or is
// the constructor).
func (g *Gauge) publish(at time.Time) {
	r := &Reading{
		At:      at,
		Parts:   make([]Part, 0, 3*len(g.sources)),
		Sources: make([]SourceState, 0, len(g.sources)),
		chunks:  make([]*chunk, 0, len(g.sources)),
		Unknown: g.unknown,
		policy:  g.policy,
		start:   g.start,
		cold:    g.cold,
	}
	for i := range g.sources {
		src := &g.sources[i]
		r.Sources = append(r.Sources, src.state)
		r.add(src, SignalUtil, &src.util)
		r.add(src, SignalKV, &src.kv)
		r.add(src, SignalWaiting, &src.waiting)
		c := src.roll.show()
		r.chunks = append(r.chunks, c)
		r.impaired = r.impaired || c.good < c.all
	}
	if len(g.before.shown.entries) > 0 {
		c := g.before.shown.show()
		r.chunks = append(r.chunks, c)
		r.impaired = r.impaired || c.good < c.all
	}
	r.settle(at)
	g.latest.Store(r)
}

// clean makes values out of range absent and says how many there were.
func clean(s *Sample) (dropped int) {
	keep := func(v *Value, top float64) {
		if v.OK && !(v.V >= 0 && v.V <= top) { // also NaN
			*v = Value{}
			dropped++
		}
	}
	for _, v := range []*Value{&s.Util, &s.KV, &s.Active, &s.Load} {
		keep(v, 1)
	}
	keep(&s.Waiting, maxWaiting)
	keep(&s.Running, maxWaiting)
	s.Cards = slices.Clone(s.Cards) // the source may keep its own
	for i := range s.Cards {
		c := &s.Cards[i]
		for _, v := range []*Value{&c.Util, &c.Active, &c.SM, &c.Tensor, &c.DRAM} {
			keep(v, 1)
		}
		for _, v := range []*Value{&c.MemoryUsed, &c.MemoryTotal, &c.PCIeReceived, &c.PCIeSent, &c.Power, &c.Temperature, &c.XID, &c.Clocks} {
			keep(v, maxFigure)
		}
	}
	return dropped
}
