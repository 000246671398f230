package queue

import (
	"math"
	"slices"

	"github.com/weirproxy/weir/policy"
)

type modelLane struct {
	classes modelLevel
	tenants [policy.NumClasses]modelLevel
	passed  int64 // tokens that went past its first, which did not fit
}

type modelLevel struct {
	v      float64
	credit float64      // work given back, to be done again before v moves
	flows  []*modelFlow // ready or in debt
}

type modelFlow struct {
	name   string
	weight float64
	tag    float64
	ready  bool
	since  int     // seats given when it began to wait
	early  float64 // how far it was ahead of v then, less what was given back of charges before
}

func (m *modelLevel) find(name string) *modelFlow {
	for _, f := range m.flows {
		if f.name == name {
			return f
		}
	}
	return nil
}

func (m *modelLevel) arrive(name string, weight float64, given int) {
	f := m.find(name)
	if f == nil {
		f = &modelFlow{name: name, tag: m.v}
		m.flows = append(m.flows, f)
	}
	if f.weight = weight; !f.ready {
		f.ready, f.tag, f.since = true, max(f.tag, m.v), given
		f.early = f.tag - m.v
	}
}

func (m *modelLevel) busy() bool {
	return slices.ContainsFunc(m.flows, func(f *modelFlow) bool { return f.ready })
}

func (m *modelLevel) sum() (s float64) {
	for _, f := range m.flows {
		s += f.weight
	}
	return s
}

// serve charges one flow and lets the fluid server do that work.
func (m *modelLevel) serve(name string, work float64) {
	f := m.find(name)
	f.tag += work / f.weight
	m.work(work)
}

// work lets the fluid server do an amount of work.
func (m *modelLevel) work(work float64) {
	back := min(work, m.credit)
	work, m.credit = work-back, m.credit-back
	for {
		var first *modelFlow
		for _, f := range m.flows {
			if !f.ready && (first == nil || f.tag < first.tag) {
				first = f
			}
		}
		if first == nil || max(0, first.tag-m.v)*m.sum() > work {
			break
		}
		work -= max(0, first.tag-m.v) * m.sum()
		m.v = max(m.v, first.tag)
		m.flows = slices.DeleteFunc(m.flows, func(f *modelFlow) bool { return f == first })
	}
	m.v += work / m.sum()
	m.raise()
}

// correct hands out more work late, or takes some back: of a flow that waits
// all that it was charged since, otherwise what it is ahead.
func (m *modelLevel) correct(name string, weight, work float64, given int) {
	f := m.find(name)
	if f == nil && work > 0 {
		f = &modelFlow{name: name, tag: m.v, weight: weight, since: given}
		m.flows = append(m.flows, f)
	}
	if f == nil {
		return
	}
	if given < f.since {
		work = max(work, -f.early*f.weight)
		f.early += work / f.weight
	}
	if !f.ready {
		work = max(work, -(f.tag-m.v)*f.weight)
	}
	if work > 0 {
		m.serve(name, work)
		return
	}
	f.tag += work / f.weight
	m.credit -= work
	m.work(0)
}

// account counts work for w, at the weight of its own tier, and returns what it
// has counted; elsewhere = it was given in the twin.
func (m *modelLevel) account(w *Waiter, work float64, given int, elsewhere bool) float64 {
	if !m.busy() {
		return 0
	}
	f, weight, tag := m.find(w.Tenant), w.Weight, m.v
	if f != nil {
		weight, tag = f.weight, f.tag
	}
	work *= weight / w.Weight
	if elsewhere && work > 0 {
		least := math.Inf(1)
		for _, f := range m.flows {
			if f.ready {
				least = min(least, f.tag)
			}
		}
		work = min(work, max(0, (least+leeway*work/weight-tag)*weight))
	}
	m.correct(w.Tenant, weight, work, given)
	return work / (weight / w.Weight)
}

// raise keeps v from lying behind all who wait.
func (m *modelLevel) raise() {
	least := math.Inf(1)
	for _, f := range m.flows {
		if f.ready {
			least = min(least, f.tag)
		}
	}
	if !math.IsInf(least, 1) {
		m.v = max(m.v, least)
	}
}

// rest says that a flow has no waiters any more.
func (m *modelLevel) rest(name string) {
	f := m.find(name)
	f.ready = false
	if !m.busy() {
		*m = modelLevel{}
		return
	}
	if f.tag <= m.v {
		m.credit = max(0, m.credit-(m.v-f.tag)*f.weight) // what it had to come is nobody's
		m.flows = slices.DeleteFunc(m.flows, func(g *modelFlow) bool { return g == f })
	}
	m.raise()
}
