package queue

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// parts are what the tenants of x got while n requests ended, of all real work.
func (x *mixes) parts(n int) map[string]float64 {
	x.run(n)
	all, parts := 0.0, map[string]float64{}
	for _, cost := range x.cost {
		all += cost
	}
	for name, cost := range x.cost {
		parts[name] = cost / all
	}
	return parts
}

// P2: whose requests cost less than predicted has its part of the real work all
// the same, with any number of seats, whoever it competes with.
func TestTenantPredictedTooHigh(t *testing.T) {
	exact := mixer{weight: 1, others: true, cost: 10, real: 10}
	for _, seats := range []int64{1, 4, 20} {
		for _, predicted := range []int64{20, 40, 400} {
			for _, tenants := range []int{2, 10} {
				var ms []mixer
				for i := range tenants {
					ms = append(ms, exact)
					ms[i].name = fmt.Sprint("t", i)
				}
				ms[0].cost = predicted
				x := newMixesOf(t, seats, 0, ms...)
				x.run(3000)
				parts := x.parts(6000)
				for _, m := range ms {
					if got, want := parts[m.name], 1/float64(tenants); got < want-0.03 || got > want+0.03 || got < want*0.9 {
						t.Errorf("%d seats, %d tenants, %s predicted %d, real 10: has %.3f of the work, want %.3f", seats, tenants, m.name, m.cost, got, want)
					}
				}
			}
		}
	}
}

// P2: one of 200 that is predicted too high, and each of those that is not, has
// what all have within 5 %.
func TestTenantPredictedTooHighAmongMany(t *testing.T) {
	var ms []mixer
	for i := range 200 {
		ms = append(ms, mixer{name: fmt.Sprint("t", i), weight: 1, others: true, cost: 10, real: 10})
	}
	ms[0].cost = 400
	x := newMixesOf(t, 20, 0, ms...)
	x.run(4000)
	x.run(40000)
	for _, m := range ms {
		if got := x.cost[m.name] / 10; got < 190 || got > 210 {
			t.Errorf("%s, predicted %d, has %v requests, want 200", m.name, m.cost, got)
		}
	}
}

// P2, P6: the same in two leaves, whatever the tenants mix.
func TestTenantPredictedTooHighInLeaves(t *testing.T) {
	both := mixer{weight: 1, streams: true, others: true, cost: 10, real: 10}
	streams, plain := both, both
	streams.others, plain.streams = false, false
	for _, predicted := range []int64{20, 40} {
		for _, c := range []struct {
			name    string
			ceiling policy.Ratio
			ms      []mixer
			want    []float64
		}{
			{"two of both kinds", 0.5, []mixer{both, both}, []float64{0.5, 0.5}},
			{"two of both kinds, few streams", 0.2, []mixer{both, both}, []float64{0.5, 0.5}},
			{"who mixes beside one who streams", 0.7, []mixer{both, streams}, []float64{0.5, 0.5}},
			{"who streams beside one who mixes", 0.7, []mixer{streams, both}, []float64{0.5, 0.5}},
			{"who mixes between two", 0.5, []mixer{both, streams, plain}, []float64{1. / 3, 1. / 3, 1. / 3}},
			{"who streams beside two", 0.5, []mixer{streams, both, plain}, []float64{1. / 3, 1. / 3, 1. / 3}},
			{"the ceiling keeps it below", 0.3, []mixer{streams, both}, []float64{0.3, 0.7}},
			{"the ceiling keeps the other below", 0.3, []mixer{both, streams}, []float64{0.7, 0.3}},
		} {
			ms := make([]mixer, len(c.ms))
			for i, m := range c.ms {
				m.name, ms[i] = fmt.Sprint("t", i), m
				ms[i].name = m.name
			}
			ms[0].cost = predicted
			x := newMixes(t, c.ceiling, ms...)
			x.run(3000)
			parts := x.parts(8000)
			for i, m := range ms {
				if got := parts[m.name]; got < c.want[i]-0.03 || got > c.want[i]+0.03 {
					t.Errorf("%s, predicted %d: %s has %.3f of the work, want %.3f", c.name, predicted, m.name, got, c.want[i])
				}
			}
		}
	}
}

// P2: classes have their weights' parts of the real work, whichever of them is
// predicted fourfold.
func TestClassPredictedTooHigh(t *testing.T) {
	for _, seats := range []int64{1, 6, 20} {
		for high := range policy.Class(policy.NumClasses) {
			var ms []mixer
			for c := range policy.Class(policy.NumClasses) {
				ms = append(ms, mixer{name: c.String(), class: c, weight: 1, others: true, cost: 10, real: 10})
			}
			ms[high].cost = 40
			x := newMixesOf(t, seats, 0, ms...)
			x.run(3000)
			parts := x.parts(12000)
			for c, want := range []float64{3. / 6, 2. / 6, 1. / 6} {
				if got := parts[ms[c].name]; got < want*0.95 || got > want*1.05 {
					t.Errorf("%d seats, %v predicted fourfold: %s has %.3f of the work, want %.3f", seats, high, ms[c].name, got, want)
				}
			}
		}
	}
}

// rest takes a tenant's waiters out; it brings none until it is woken.
func (x *mixes) rest(name string) {
	m := x.by[name]
	m.others = false
	x.by[name] = m
	for _, s := range slices.Clone(x.l.expiry.entries) {
		if s.item.Tenant == name {
			x.l.Cancel(at(0), s.item)
		}
	}
}

func (x *mixes) wake(name string) {
	m := x.by[name]
	m.others = true
	x.by[name] = m
	for range 40 {
		x.bring(name, false)
	}
}

// P2: wrong predictions gain nothing over time: not in bursts after which the
// account is left alone, and not by overstating until refunds are due and
// having exact requests served for them.
func TestTenantGainsNothingByWrongPredictions(t *testing.T) {
	exact := mixer{weight: 1, others: true, cost: 10, real: 10}
	bursts := func(predicted, real int64, on, off int) float64 {
		sly, g, h := exact, exact, exact
		sly.name, g.name, h.name, sly.cost, sly.real = "sly", "g", "h", predicted, real
		x := newMixes(t, 0, sly, g, h)
		var mine, all float64
		for range 20000 / (on + off) {
			for i, n := range []int{on, off} {
				if n == 0 {
					continue
				}
				if i == 1 {
					x.rest("sly")
				}
				x.run(n)
				for name, cost := range x.cost {
					all += cost
					if name == "sly" {
						mine += cost
					}
				}
				if i == 1 {
					x.wake("sly")
				}
			}
		}
		return mine / all
	}
	for _, c := range []struct{ on, off int }{{30, 30}, {200, 200}, {200, 2000}, {1000, 50}, {100, 0}} {
		honest := bursts(10, 10, c.on, c.off)
		if got := bursts(4096, 10, c.on, c.off); got > honest+0.01 {
			t.Errorf("on for %d, off for %d: who overstates has %.3f of the work, the honest %.3f", c.on, c.off, got, honest)
		}
		if got := bursts(1, 100, c.on, c.off); got > 1./3+0.01 {
			t.Errorf("on for %d, off for %d: who understates has %.3f of the work, its part is a third", c.on, c.off, got)
		}
	}

	for _, turn := range []int{50, 500, 5000} {
		sly, g, h := exact, exact, exact
		sly.name, g.name, h.name = "sly", "g", "h"
		x := newMixes(t, 0, sly, g, h)
		var mine, all float64
		for i := range 40000 / turn {
			sly.cost = []int64{4096, 10}[i%2]
			x.by["sly"] = sly
			x.run(turn)
			for name, cost := range x.cost {
				all += cost
				if name == "sly" {
					mine += cost
				}
			}
		}
		if mine/all > 1./3+0.01 {
			t.Errorf("overstating every other %d requests has %.3f of the work, its part is a third", turn, mine/all)
		}
	}
}

// A refund takes off what was charged, but brings no flow before where v stood
// when it began to wait.
func TestRefundsOfAFlowAndAccount(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(l *level, f, b *flow)
		v    float64
		tag  float64 // of f; of one that is gone, what it would begin with
		gone bool
	}{
		{"while it waits, all of it", func(l *level, f, _ *flow) {
			l.correct(f, -30, 0)
		}, 20, 10, false},
		{"then v stands still for as much work", func(l *level, f, b *flow) {
			l.correct(f, -30, 0)
			l.charge(b, 20)
			l.charge(b, 20)
		}, 25, 10, false},
		{"what it has to come when it leaves is nobody's", func(l *level, f, b *flow) {
			l.correct(f, -30, 0)
			l.charge(b, 20) // 10 of the refund are left, f is 10 before v
			l.leave(f)
			l.join(f, 2, 2)
			l.charge(f, 10)
		}, 25, 30, false},
		{"while nothing of it waits, what it is ahead", func(l *level, f, _ *flow) {
			l.leave(f)
			l.correct(f, -30, 0)
		}, 20, 20, true},
		{"and v stands still for no more than that", func(l *level, f, _ *flow) {
			l.leave(f)
			l.correct(f, -30, 0)
			l.join(f, 2, 1)
			l.charge(f, 30)
		}, 25, 50, false},
		{"for what it had before it waited, what it was ahead then", func(l *level, f, _ *flow) {
			l.leave(f)
			l.join(f, 2, 1)
			l.charge(f, 10)
			l.correct(f, -30, 0)
			l.correct(f, -5, 0)
		}, 25, 30, false},
		{"but all for what it had since", func(l *level, f, _ *flow) {
			l.leave(f)
			l.join(f, 2, 1)
			l.charge(f, 10)
			l.correct(f, -30, 0)
			l.correct(f, -9, 1)
		}, 25, 21, false},
		{"a charge for what it had before makes room for a refund", func(l *level, f, _ *flow) {
			l.leave(f)
			l.join(f, 2, 1)
			l.correct(f, 10, 0)
			l.correct(f, -40, 0)
		}, 25, 20, false},
		{"nothing for what was worked off before", func(l *level, f, b *flow) {
			l.leave(f)
			l.charge(b, 40)
			l.join(f, 2, 2)
			l.charge(f, 10)
			l.correct(f, -30, 0)
		}, 45, 50, false},
	} {
		l, f, b := &level{}, &flow{weight: 1}, &flow{weight: 1}
		l.join(f, 0, 0)
		l.join(b, 1, 0)
		l.charge(f, 40) // f at 40, b at 0, v at 20
		c.do(l, f, b)
		tag := f.tag
		if f.state == gone {
			tag = l.v
		}
		if l.v != c.v || tag != c.tag || (f.state == gone) != c.gone {
			t.Errorf("%s: v at %v, f at %v, gone %t; want %v, %v, %t", c.name, l.v, tag, f.state == gone, c.v, c.tag, c.gone)
		}
	}
}

// P6: in the other leaf a tenant is given back only what was counted there: in
// the end what its requests really cost, or leeway of them.
func TestLeafGivesBackWhatItCounted(t *testing.T) {
	var a, b lane
	a.twin, b.twin = &b, &a
	for _, ln := range []*lane{&a, &b} {
		ln.configure([policy.NumClasses]int{3, 2, 1}, policy.ByTokens)
	}
	wait := func(ln *lane, name string) {
		w := waiter(policy.Standard, name)
		w.Cost, w.spots[0].waiter = 40, w
		ln.push(&w.spots[0])
	}
	wait(&a, "g")
	wait(&a, "f")
	for range 40 {
		wait(&b, "f")
	}
	wait(&b, "f")
	var served []*Waiter
	for range 40 {
		w := b.next()
		b.charge(&w.spots[0], policy.ByTokens)
		b.remove(&w.spots[0])
		served = append(served, w)
	}
	f := a.classes[policy.Standard].level.tenants["f"]
	if f.tag != leeway*40 {
		t.Fatalf("40 requests of 40 elsewhere count %v, want %v", f.tag, leeway*40)
	}
	for _, w := range served {
		b.settle(w, 10)
	}
	if f.tag != leeway*10 {
		t.Fatalf("they cost 10 each: count %v, want %v", f.tag, leeway*10)
	}
}
