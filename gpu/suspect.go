package gpu

import (
	"math"
	"time"
)

// The figures by which a source's words are doubted. Its value then counts
// only where nobody else's is fresh.
const (
	allBusy = 0.95
	allIdle = 0.01

	// A GPU that says 0 in so many looks in a row while an engine runs
	// requests: one look may have met a pause.
	flatLooks = 3

	// A source that says exactly the same in so many looks in a row while
	// others moved so often. Some exporters read GPUs only every 30 s
	// (dcgm-exporter's default), so GPUs get the time of two such reads and
	// some more; engines count their requests when they are asked.
	frozenLooks  = 10
	frozenMoves  = 5
	frozenAtMost = 75 * time.Second // of a GPU's exporter
	moveRatio    = 0.05             // a ratio moved
	moveCount    = 1                // a number of requests moved
)

// contradiction is what utilisation and profiling say against each other: a
// GPU that is all busy while its engines never ran, or the other way round
// (dcgm-exporter#662).
func contradiction(util, active Value) string {
	switch {
	case !util.OK || !active.OK:
	case util.V >= allBusy && active.V <= allIdle:
		return "utilisation says busy, profiling says idle"
	case util.V <= allIdle && active.V >= allBusy:
		return "utilisation says idle, profiling says busy"
	}
	return ""
}

// watch follows one source's values from look to look.
type watch struct {
	last   [4]Value // util, KV, waiting, running
	print  uint64   // of all figures that never stand still under load
	same   int      // looks in a row with this print
	since  time.Time
	others uint64 // moves of the other sources by then
	moves  uint64 // of this source
	flat   int    // looks in a row that said 0 while an engine ran requests
}

// see takes a look; others is how often the other sources moved so far, and
// working says that an engine runs requests.
func (w *watch) see(s *Sample, others uint64, working bool) (moved bool) {
	values := [4]Value{s.Util, s.KV, s.Waiting, s.Running}
	for i, v := range values {
		step := moveRatio
		if i >= 2 {
			step = moveCount
		}
		moved = moved || v.OK && w.last[i].OK && math.Abs(v.V-w.last[i].V) >= step
	}
	w.last = values
	if moved {
		w.moves++
	}
	if p := fingerprint(s); p == w.print && p != 0 {
		w.same++
	} else {
		w.print, w.same, w.since, w.others = p, 1, s.At, others
	}
	if working && s.Util.OK && s.Util.V == 0 {
		w.flat++
	} else {
		w.flat = 0
	}
	return moved
}

// frozen says that the source tells an old picture as if it were new.
func (w *watch) frozen(at time.Time, others uint64, engine bool) bool {
	return w.print != 0 && w.same >= frozenLooks && others-w.others >= frozenMoves &&
		(engine || at.Sub(w.since) >= frozenAtMost)
}

// fingerprint is a hash (FNV-1a) of the values that move when something is
// done; 0 where they may well stand still: all of them are absent, at an end
// of their range (idle, or saturated), or counts, which a steady crowd keeps
// where they are.
func fingerprint(s *Sample) uint64 {
	h, telling := uint64(14695981039346656037), false
	add := func(v Value, most float64) {
		if v.OK {
			telling = telling || v.V > 0 && v.V < most
			h = (h ^ math.Float64bits(v.V)) * 1099511628211
		}
		h *= 1099511628211
	}
	const ratio, figure, count = 1, math.MaxFloat64, 0
	add(s.Util, ratio)
	add(s.KV, ratio)
	add(s.Active, ratio)
	add(s.Waiting, count)
	add(s.Running, count)
	for i := range s.Cards {
		c := &s.Cards[i]
		for _, v := range [...]Value{c.Util, c.Active, c.SM, c.Tensor, c.DRAM} {
			add(v, ratio)
		}
		for _, v := range [...]Value{c.PCIeReceived, c.PCIeSent, c.Power} {
			add(v, figure)
		}
		add(c.Temperature, count)
	}
	if !telling {
		return 0
	}
	return h | 1
}

// doubt finds why a source's words are not to be believed; "" = nothing found.
// all says that it is every word, not the utilisation alone.
func (g *Gauge) doubt(src *source, s *Sample) (why string, all bool) {
	w := &src.watch
	others := g.moves - w.moves
	if w.see(s, others, g.working(s.At)) {
		g.moves++
	}
	if w.frozen(s.At, others, src.info.Engine) {
		return "says exactly the same for long while others move", true
	}
	if why := contradiction(s.Util, s.Active); why != "" {
		return why, false
	}
	if w.flat >= flatLooks {
		return "utilisation says idle, engines run requests", false
	}
	if n := src.doubted(); n > 0 && 2*n >= len(src.roll.entries) {
		return "on half of the GPUs or more utilisation and profiling contradict", false
	}
	return "", false
}

// doubted is how many of a source's cards contradict themselves.
func (src *source) doubted() (n int) {
	for _, e := range src.roll.entries {
		if e.state.Suspect != "" && e.round == src.roll.round {
			n++
		}
	}
	return n
}

// working says that an engine said of late that it runs requests.
func (g *Gauge) working(at time.Time) bool {
	for i := range g.sources {
		s := &g.sources[i].state
		if s.Engine && s.Running.OK && s.Running.V > 0 && at.Sub(s.At).Abs() <= g.window(s.Every) {
			return true
		}
	}
	return false
}
