package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// P2: real costs, settled afterwards, decide the shares: of one who is
// predicted too low, and of one who is predicted too high.
func TestSettleCorrects(t *testing.T) {
	for _, c := range []struct{ predicted, real int64 }{{100, 200}, {200, 100}, {1, 100}, {100, 100}} {
		l, held := full(t, standardConfig(1, 0))
		b := Bounds{Length: 10000}
		for range 2000 {
			w := long(waiter(policy.Standard, "a"))
			w.Cost = c.predicted
			mustWait(t, l, at(0), w, b)
			w = long(waiter(policy.Standard, "exact"))
			w.Cost = 100
			mustWait(t, l, at(0), w, b)
		}
		running := held[0]
		spent := map[string]int64{}
		for range 900 {
			cost := int64(100)
			if running.Tenant == "a" {
				cost = c.real
			}
			if running != held[0] {
				l.Settle(running, cost)
				l.Settle(running, cost) // once only
				spent[running.Tenant] += cost
			}
			running = granted(l.Release(at(0), running))[0]
		}
		if d := spent["a"] - spent["exact"]; d < -300 || d > 300 {
			t.Errorf("predicted %d, real %d: spent %v, want even", c.predicted, c.real, spent)
		}
	}
}

// P2: a tenant who never waits twice at a time is held to its real cost too,
// and so is a class. What it loses between two of its waiters is less than one
// request of the others.
func TestSettleReachesWhoDoesNotWait(t *testing.T) {
	for _, class := range []policy.Class{policy.Standard, policy.Critical} {
		l, held := full(t, standardConfig(1, 0))
		b := Bounds{Length: 20000}
		for range 12000 {
			w := long(waiter(policy.Standard, "exact"))
			w.Cost = 10
			mustWait(t, l, at(0), w, b)
		}
		next := func() { mustWait(t, l, at(0), long(waiter(class, "sly")), b) } // predicted 1, real 1000
		next()
		running := held[0]
		spent := map[string]int64{}
		for range 10000 {
			done := running
			running = granted(l.Release(at(0), done))[0]
			if done == held[0] {
				continue
			}
			cost := done.Cost
			if done.Tenant == "sly" {
				cost = 1000
				next()
			}
			l.Settle(done, cost)
			spent[done.Tenant] += cost
		}
		ratio, want := float64(spent["sly"])/float64(spent["exact"]), 1.0
		if class == policy.Critical {
			want = 1.5 // 3:2
		}
		if ratio < want*0.95 || ratio > want*1.05 {
			t.Errorf("%v: spent %v, want %v : 1", class, spent, want)
		}
	}
}

// A change of price or weights in mid queue starves nobody.
func TestRepricing(t *testing.T) {
	cfg := standardConfig(1, 0)
	l, held := full(t, cfg)
	b := Bounds{Length: 10000}
	for range 600 {
		for c := range policy.Class(3) {
			w := long(waiter(c, "t"))
			w.Cost = 5000
			mustWait(t, l, at(0), w, b)
		}
	}
	_, running := serve(t, l, held[0], 50, className)
	cfg.Price, cfg.Weights = policy.ByRequests, [3]int{1, 1, 1}
	l.Configure(at(0), cfg)
	got, _ := serve(t, l, running, 300, className)
	for name, n := range got {
		if n < 99 || n > 101 {
			t.Fatalf("%s: %v, want 100 each", name, got)
		}
	}
}

// Memory: 100,000 tenants come and go while the line is never empty; what is
// kept follows who waits, not who ever came.
func TestTenantsAreForgotten(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 1000, RetryLimit: time.Second, RetryLen: 10}
	running := held[0]
	most := 0
	for i := range 100_000 {
		w := long(waiter(policy.Class(i%3), fmt.Sprint("t", i)))
		w.Cost = int64(1 + i%100)
		mustWait(t, l, at(time.Duration(i)*ms), w, b)
		if i < 100 {
			continue
		}
		l.Settle(running, int64(1+i%250))
		running = granted(l.Release(at(time.Duration(i)*ms), running))[0]
		most = max(most, l.Stats(at(0)).Tenants)
	}
	if most > 1000 {
		t.Fatalf("%d flows for 100 waiters", most)
	}
	for range 100 {
		running = granted(l.Release(at(time.Hour), running))[0]
	}
	if s := l.Stats(at(time.Hour)); s.Tenants != 0 || s.Waiting != [3]int{} {
		t.Fatalf("left behind: %+v", s)
	}
}

// mixer is a tenant that has requests waiting all the time, of one kind or of
// both.
type mixer struct {
	name            string
	weight          float64
	streams, others bool
	class           policy.Class
	cost            int64 // predicted
	real            int64 // 0 = as predicted
}

// mixes keeps a pool busy with mixers and counts what they cost.
type mixes struct {
	t       *testing.T
	l       *Line
	r       *rand.Rand
	by      map[string]mixer
	running []*Waiter
	cost    map[string]float64
	streams float64 // of all
}

func newMixes(t *testing.T, ceiling policy.Ratio, ms ...mixer) *mixes {
	return newMixesOf(t, 20, ceiling, ms...)
}

func newMixesOf(t *testing.T, seats int64, ceiling policy.Ratio, ms ...mixer) *mixes {
	cfg := standardConfig(seats, 0)
	cfg.Shares.Streaming = ceiling
	x := &mixes{t: t, l: New(cfg, nil), r: dice(7), by: map[string]mixer{}, cost: map[string]float64{}}
	for range 40 {
		for _, m := range ms {
			x.by[m.name] = m
			for _, stream := range []bool{true, false} {
				x.bring(m.name, stream)
			}
		}
	}
	return x
}

func (x *mixes) bring(name string, stream bool) {
	m := x.by[name]
	if stream && !m.streams || !stream && !m.others {
		return
	}
	w := long(waiter(m.class, name))
	w.Weight, w.Stream, w.Cost = m.weight, stream, m.cost
	if x.l.Offer(at(0), w, endless).Granted {
		x.running = append(x.running, w)
	}
}

// run ends n requests, each a random one, and counts those that follow.
func (x *mixes) run(n int) {
	clear(x.cost)
	x.streams = 0
	for range n {
		i := x.r.IntN(len(x.running))
		w := x.running[i]
		x.running[i] = x.running[len(x.running)-1]
		x.running = x.running[:len(x.running)-1]
		if real := x.by[w.Tenant].real; real > 0 {
			x.l.Settle(w, real)
		}
		for _, w := range granted(x.l.Release(at(0), w)) {
			x.running = append(x.running, w)
			cost := float64(w.Cost)
			if real := x.by[w.Tenant].real; real > 0 {
				cost = float64(real)
			}
			x.cost[w.Tenant] += cost
			if w.Stream {
				x.streams += cost
			}
			x.bring(w.Tenant, w.Stream)
		}
	}
}

// P2, P6: a tenant has one account in its class, whatever it mixes: equal
// weights get equal parts of the work as far as the ceiling lets them.
func TestTenantHasOneAccount(t *testing.T) {
	streams, plain := mixer{name: "streams", weight: 1, streams: true, cost: 10}, mixer{name: "plain", weight: 1, others: true, cost: 10}
	both := mixer{name: "both", weight: 1, streams: true, others: true, cost: 10}
	with := func(m mixer, change func(m *mixer)) mixer { change(&m); return m }
	for _, c := range []struct {
		name    string
		ceiling policy.Ratio
		ms      []mixer
		want    map[string]float64 // parts of the work
	}{
		{"half each under 70 %", 0.7, []mixer{both, streams}, map[string]float64{"both": 0.5, "streams": 0.5}},
		{"half each under 50 %", 0.5, []mixer{both, streams}, map[string]float64{"both": 0.5, "streams": 0.5}},
		{"the ceiling keeps one below", 0.3, []mixer{both, streams}, map[string]float64{"both": 0.7, "streams": 0.3}},
		{"three", 0.5, []mixer{both, streams, plain}, map[string]float64{"both": 1. / 3, "streams": 1. / 3, "plain": 1. / 3}},
		{"who only streams is below, the others are even", 0.2, []mixer{both, streams, plain}, map[string]float64{"both": 0.4, "streams": 0.2, "plain": 0.4}},
		{"weights", 0.7, []mixer{with(both, func(m *mixer) { m.weight = 3 }), streams, plain}, map[string]float64{"both": 0.6, "streams": 0.2, "plain": 0.2}},
		{"in tokens, not in requests", 0.7, []mixer{both, with(streams, func(m *mixer) { m.cost = 30 })}, map[string]float64{"both": 0.5, "streams": 0.5}},
		{"settled", 0.7, []mixer{with(both, func(m *mixer) { m.real, m.cost = 10, 1 }), streams}, map[string]float64{"both": 0.5, "streams": 0.5}},
	} {
		x := newMixes(t, c.ceiling, c.ms...)
		x.run(500)
		x.run(6000)
		all := 0.0
		for _, cost := range x.cost {
			all += cost
		}
		for name, want := range c.want {
			if got := x.cost[name] / all; got < want-0.015 || got > want+0.015 {
				t.Errorf("%s: %s has %.3f of the work, want %.3f", c.name, name, got, want)
			}
		}
	}
}

// P2, P6: on random mixes the parts are the exact weighted max-min ones: if
// those who only stream, or only do not, cannot have their part of the whole,
// they have that side and the others have the rest.
func TestOneAccountIsMaxMin(t *testing.T) {
	for seed := range uint64(12) {
		r := dice(seed)
		ceiling := 0.2 + 0.6*r.Float64()
		var ms []mixer
		var weights [3]float64 // of those who stream, do not, do both
		for i := range 2 + r.IntN(5) {
			kind := (i + int(seed)) % 3
			m := mixer{name: fmt.Sprint("t", i), weight: float64(1 + r.IntN(3)), streams: kind != 1, others: kind != 0, cost: 10}
			weights[kind] += m.weight
			ms = append(ms, m)
		}
		x := newMixes(t, policy.Ratio(ceiling), ms...)
		x.run(500)
		x.run(6000)
		all := 0.0
		for _, cost := range x.cost {
			all += cost
		}
		side, level := [2]float64{x.streams / all, 1 - x.streams/all}, 1/(weights[0]+weights[1]+weights[2])
		for _, m := range ms {
			want := level
			for kind, part := range side {
				if weights[kind]*level > part { // that side is too small
					if want = (1 - part) / (weights[1-kind] + weights[2]); m.streams != m.others && m.streams == (kind == 0) {
						want = part / weights[kind]
					}
				}
			}
			want *= m.weight
			if got := x.cost[m.name] / all; got < want-0.02 || got > want+0.02 {
				t.Errorf("seed %d, ceiling %.2f, weights %v: %+v has %.3f of the work, want %.3f", seed, ceiling, weights, m, got, want)
			}
		}
	}
}

// P2: what a tenant had elsewhere while nobody could have had it instead is not
// held against it for long: after leeway requests of others at most it has its
// part again.
func TestOneAccountForgets(t *testing.T) {
	x := newMixes(t, 0.3, mixer{name: "both", weight: 1, streams: true, others: true, cost: 10}, mixer{name: "streams", weight: 1, streams: true, cost: 10})
	x.run(5000)
	if n := x.cost["both"] - (x.cost["both"] + x.cost["streams"] - x.streams); n > 0.02*x.streams {
		t.Fatalf("beside its 70 %% it has %v of %v in streams", n, x.streams)
	}
	m := x.by["both"]
	m.others = false
	x.by["both"] = m
	for _, s := range slices.Clone(x.l.expiry.entries) {
		if !s.item.Stream {
			x.l.Cancel(at(0), s.item)
		}
	}
	x.run(60) // the seats change hands, the rest of the account is served off
	x.run(400)
	if d := x.cost["both"] - x.cost["streams"]; d < -100 || d > 100 {
		t.Errorf("then it has %v, the other %v", x.cost["both"], x.cost["streams"])
	}
}

// P2, P9: who brings tokens of two tiers pays each request by the tier of its
// own. Where tiers have shares it is one of the tenants of each.
func TestTenantOfTwoTiers(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	bring := func(name string, weight float64, group int) {
		w := long(waiter(policy.Standard, name))
		w.Cost, w.Weight, w.Group = 10, weight, group
		mustWait(t, l, at(0), w, endless)
	}
	for range 1000 {
		bring("two", 4, 0)
		bring("two", 1, 2)
		bring("gold", 4, 0)
		bring("bronze", 1, 2)
	}
	// One of each tier costs "two" 1/4 + 1: 1.6 requests to one of bronze, 4 of gold.
	got, _ := serve(t, l, held[0], 660, tenantName)
	for name, want := range map[string]int{"two": 160, "gold": 400, "bronze": 100} {
		if n := got[name]; n < want-2 || n > want+2 {
			t.Errorf("without shares %s has %d of 660, want %d", name, n, want)
		}
	}

	l = New(tiers(policy.Seats{Requests: 20}, Shares{Groups: []Group{{Share: 0.6}, {Share: 0}, {Share: 0.4}}}), nil)
	var running []*Waiter
	offer := func(name string, weight float64, group int) {
		w := long(waiter(policy.Standard, name))
		w.Weight, w.Group = weight, group
		if l.Offer(at(0), w, endless).Granted {
			running = append(running, w)
		}
	}
	for range 60 {
		offer("two", 4, 0)
		offer("two", 1, 2)
		offer("gold", 4, 0)
		offer("bronze", 1, 2)
	}
	got = map[string]int{}
	for range 2000 {
		w := granted(l.Release(at(0), running[0]))[0]
		running = append(running[1:], w)
		got[fmt.Sprint(w.Tenant, w.Group)]++
		offer(w.Tenant, w.Weight, w.Group)
	}
	for name, want := range map[string]int{"two0": 600, "gold0": 600, "two2": 400, "bronze2": 400} {
		if n := got[name]; n < want-20 || n > want+20 {
			t.Errorf("with shares %s has %d of 2000, want %d", name, n, want)
		}
	}
}
