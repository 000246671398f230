package gpu

import "time"

// rank orders the words of a pool (Q8): the engines' before the GPUs', and
// both before those of sources that are doubted. The first rank with a fresh
// word is in charge; without one, that which fell silent last.
type rank uint8

const (
	rankEngine rank = iota
	rankGPU
	rankSuspectEngine
	rankSuspectGPU
	numRanks
)

func rankOf(p *Part) rank {
	r := rankGPU
	if p.Engine {
		r = rankEngine
	}
	if p.Suspect {
		r += rankSuspectEngine
	}
	return r
}

// group is the newest part of a rank and when the last of them goes stale.
type group struct {
	newest, stale time.Time // zero = no part
}

func (g *group) take(p *Part, stale time.Time) {
	if stale.After(g.stale) {
		g.stale = stale
	}
	if p.At.After(g.newest) {
		g.newest = p.At
	}
}

// inCharge is the rank whose words count at now.
func (r *Reading) inCharge(now time.Time) rank {
	last := rankEngine
	for i := range r.groups {
		g := &r.groups[i]
		if !g.stale.IsZero() && !now.After(g.stale) {
			return rank(i)
		}
		if g.stale.After(r.groups[last].stale) {
			last = rank(i)
		}
	}
	return last
}

// counts says whether a part takes part in the pressure at now. Of the GPUs'
// utilisation, which is a mean, stale parts are left out while one is fresh.
func (r *Reading) counts(p *Part, charge rank, now time.Time) bool {
	if p.rank != charge || (r.policy.Literal && p.Signal != SignalUtil) {
		return false
	}
	return p.Engine || p.Signal != SignalUtil || now.After(r.groups[charge].stale) || !r.stale(p, now)
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

// steady is the pressure from an instant to another, both included, within
// which no word ages.
type steady struct {
	from, until time.Time
	pressure    float64
}

// settle works out what holds until a word goes stale, so that the question
// that every request asks is two comparisons.
func (r *Reading) settle(at time.Time) {
	r.mark(r.Parts, at)
	from := at
	for i := range r.Parts {
		if p := &r.Parts[i]; p.At.After(from) {
			from = p.At // before it, p is a word of the future
		}
	}
	until, charge := from.Add(-1), r.inCharge(from)
	if len(r.Parts) > 0 {
		until = r.groups[charge].stale
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		if stale := p.At.Add(r.window(p)); r.counts(p, charge, from) && stale.Before(until) {
			until = stale
		}
	}
	r.steady = steady{from, until, r.blend(from)}
}

// Pressure is 0..1 at now (Q8): the largest word of the engines, waiting and
// KV-cache use each as a share of its target; without a fresh one the mean
// utilisation of the GPUs. Stale words decay toward neutral (Q3); without any
// word it is neutral.
func (r *Reading) Pressure(now time.Time) float64 {
	if !now.Before(r.steady.from) && !now.After(r.steady.until) {
		return r.steady.pressure
	}
	return r.blend(now)
}

// Blend is what the pressure is made of, by signal: each 0..1 of its target,
// absent where no part of it counts.
type Blend struct{ Waiting, KV, Util Value }

// Blend gives the largest word of each of the engines' signals that count at
// now, and the mean utilisation. The pressure is the largest of them.
func (r *Reading) Blend(now time.Time) Blend {
	var b Blend
	var sum, weight float64
	charge := r.inCharge(now)
	for i := range r.Parts {
		p := &r.Parts[i]
		if !r.counts(p, charge, now) {
			continue
		}
		switch v := r.value(p, now); p.Signal {
		case SignalUtil:
			sum += v * p.weight
			weight += p.weight
		case SignalKV:
			b.KV = Some(max(b.KV.V, v))
		default:
			b.Waiting = Some(max(b.Waiting.V, v))
		}
	}
	if weight > 0 {
		b.Util = Some(sum / weight)
	}
	return b
}

// blend is Pressure, worked out.
func (r *Reading) blend(now time.Time) float64 {
	b := r.Blend(now)
	if !b.Util.OK && !b.KV.OK && !b.Waiting.OK {
		return unit(float64(r.policy.Neutral))
	}
	return unit(max(b.Util.V, b.KV.V, b.Waiting.V))
}
