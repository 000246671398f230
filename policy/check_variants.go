package policy

import (
	"slices"
	"strings"
)

// checkVariants: who is to be degraded, or to get the cheapest pool, must have
// pools to choose from in one model at least. Which models have none, the
// notes say.
func (d *decoder) checkVariants(p *Policy, prefix string) {
	q := *p
	q.index = newIndex(p)
	some := func(has func(m *Model) bool) bool {
		return slices.ContainsFunc(q.Models, func(m Model) bool { return has(&m) })
	}
	for i := range q.Classes {
		c := &q.Classes[i]
		if c.degradeSet && c.MaxWait > 0 && !some(func(m *Model) bool { return q.degrades(m, c) }) {
			d.failAt(d.classAt(prefix, c.Class, "onExpiry"), "degrade", "class "+c.Class.String()+
				" has nowhere to go: no pool below the one that serves it in model "+strings.Join(modelNames(q.Models), ", "))
		}
	}
	if q.Variants.ByCost && !some(q.chooses) {
		d.failAt(prefix+"variants.choose", "cost", "there is nothing to choose: no class has more than one pool at or below its variant in model "+
			strings.Join(modelNames(q.Models), ", "))
	}
}

// degrades reports whether a model has a pool below the one that serves a
// class (V2).
func (p *Policy) degrades(m *Model, c *ClassPolicy) bool {
	pools := p.PoolsFor(m, c.Variant)
	return len(pools) > 0 && p.upTo(m, pools[0].Variant.Rank()-1) > 0
}

// chooses reports whether some class has more than one pool of a model to
// choose from by cost (V3).
func (p *Policy) chooses(m *Model) bool {
	return slices.ContainsFunc(p.Classes[:], func(c ClassPolicy) bool {
		pools := p.PoolsFor(m, c.Variant)
		return len(pools) > 0 && p.upTo(m, pools[0].Variant.Rank()) > 1
	})
}

// upTo counts the pools of a model up to a rank of precision.
func (p *Policy) upTo(m *Model, rank int) int {
	n := 0
	for _, name := range m.Pools {
		if pool, ok := p.Pool(name); ok && pool.Variant.Rank() <= rank {
			n++
		}
	}
	return n
}
