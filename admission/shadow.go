package admission

import (
	"context"
	"sync"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// ghost is a request in the shadow core (O4): what would have become of a
// request that runs for real. It waits, expires and takes seats there, is
// ended by the real end, and holds nobody up.
type ghost struct {
	desk *Desk
	real *Plan
	plan *Plan // of the shadow core

	mu    sync.Mutex
	state ghostState
	last  End // once ended
}

type ghostState uint8

const (
	ghostWaits ghostState = iota
	ghostRuns
	ghostRefused
	ghostEnded
)

// haunt decides in shadow about a request that runs already, and writes the
// intended decision into the real one.
func (d *Desk) haunt(ctx context.Context, now time.Time, real *Plan) *ghost {
	if !d.mirror.Load() {
		d.mirror.Store(true)
	}
	g := &ghost{desk: d, real: real}
	g.mu.Lock() // decide waits until the real decision is written
	defer g.mu.Unlock()
	p := d.shadow.Plan(now, real.Request)
	g.plan, p.Owner = p, g
	outcome := Refused
	if !p.Refused() {
		outcome, _ = d.enter(ctx, now, d.shadow, p)
	}
	to := &real.Decision
	to.Shadow = true
	switch outcome {
	case InTheLine:
		to.Intended = Queued
	case Entered:
		g.state = ghostRuns
		g.lendProbe()
		to.copyIntent(&p.Decision)
	case Refused:
		g.state = ghostRefused
		to.copyIntent(&p.Decision)
	}
	p.where.Load().wake() // the only one that can have changed
	return g
}

// copyIntent takes what would have been.
func (d *Decision) copyIntent(from *Decision) {
	d.Intended, d.Trail, d.Quota, d.Detail = from.Reason, from.Trail, from.Quota, from.Detail
}

// lendProbe lets the real end be the verdict that the breakers wait for.
func (g *ghost) lendProbe() {
	if g.plan.probe && g.real.seat != nil && g.plan.seat.breaker == g.real.seat.breaker {
		g.plan.probe, g.real.probe = false, true
	}
	if g.plan.trial != nil && g.real.seat != nil {
		g.plan.trial, g.real.trial = nil, g.plan.trial
	}
}

// mirrored gives an enforced request its seat in the shadow core, so that
// shadow decisions see everything that runs.
func (d *Desk) mirrored(now time.Time, real *Plan) *ghost {
	if real.seat == nil {
		return nil
	}
	p := d.shadow.mirror(now, real)
	if p == nil {
		return nil
	}
	g := &ghost{desk: d, real: real, plan: p, state: ghostRuns}
	p.Owner = g
	p.wake()
	return g
}

// mirror seats what another core has seated.
func (c *Core) mirror(now time.Time, real *Plan) *Plan {
	l := c.floor.Load().pools[real.seat.name]
	if l == nil {
		return nil
	}
	p := &Plan{Request: real.Request, Class: real.Class, Input: real.Input, Output: real.Output, model: real.model}
	p.sit(now, l, real.held.Tier)
	return p
}

// settled reports whether the intended decision stands.
func (g *ghost) settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state != ghostWaits
}

// decide takes the shadow core's decision on a ghost that waited.
func (g *ghost) decide(now time.Time) {
	d, p := g.desk, g.plan
	g.mu.Lock()
	ended := g.state == ghostEnded
	switch {
	case ended:
	case p.refused:
		g.state = ghostRefused
	default:
		g.state = ghostRuns
	}
	g.mu.Unlock()
	switch {
	case ended && p.refused, !ended && p.refused:
		d.giveBack(p, quota.Amount{})
	case ended:
		g.finish(now, &g.last)
	}
	if !ended {
		g.tell(now, p.Decision.Reason)
	}
}

// tell lets the observers hear the intended decision of a ghost that waited.
func (g *ghost) tell(now time.Time, intended Reason) {
	dec := g.real.Decision
	dec.Intended = intended
	g.desk.tell(g.real.Request, &dec, now)
}

// end follows the real end. A ghost that still waits ran for real all the
// same: it is charged.
func (g *ghost) end(now time.Time, e *End) {
	d, p := g.desk, g.plan
	g.mu.Lock()
	was := g.state
	g.state, g.last = ghostEnded, *e
	g.mu.Unlock()
	switch was {
	case ghostRuns:
		g.finish(now, e)
	case ghostWaits:
		if d.shadow.Cancel(now, p) {
			d.giveBack(p, p.pool.bill(e.charge(p.Input, p.Output)))
		}
		g.tell(now, Queued)
	}
}

func (g *ghost) finish(now time.Time, e *End) {
	d := g.desk
	final, decided := d.shadow.Done(now, g.plan, e)
	d.deliver(now, decided)
	g.plan.wake()
	d.giveBack(g.plan, final)
}

// hasShadow reports whether the base policy decides anything in shadow; a
// profile that does is noticed by its first request.
func hasShadow(p *policy.Policy) bool {
	if p.Mode == policy.Shadow {
		return true
	}
	for i := range p.Classes {
		if p.Classes[i].Mode == policy.Shadow {
			return true
		}
	}
	return false
}
