package protect

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// anything is an input of any kind for one cluster of street.
func anything(cluster string) *rapid.Generator[Input] {
	return rapid.Custom(func(t *rapid.T) Input {
		in := Input{Cluster: cluster, Storm: rapid.IntRange(0, 5).Draw(t, "storm") == 0, Protect: rapid.IntRange(0, 2).Draw(t, "protect") == 0}
		in.Share = rapid.Float64Range(-0.2, 1.2).Draw(t, "share")
		in.Running = rapid.Int64Range(-1, 1200).Draw(t, "running")
		in.Hosts = rapid.IntRange(0, 3).Draw(t, "hosts")
		for _, name := range []string{"big", "small", "infer"} {
			if s := breaker.State(rapid.IntRange(0, 4).Draw(t, "state")); s <= breaker.HalfOpen {
				in.Breakers = append(in.Breakers, State{Pool: name, State: s, Level: breaker.Hard, Release: rapid.Float64Range(0, 1).Draw(t, "release")})
			}
		}
		in.Unwell = map[string]bool{"a": rapid.Bool().Draw(t, "a"), "b": rapid.IntRange(0, 9).Draw(t, "b") == 0}
		return in
	})
}

// model is the slow, plain form of one cluster: all that was ever wanted, and
// what is told.
type model struct {
	told    measure
	wanted  []measure   // at each step
	at      []time.Time // of each step
	changed time.Time
}

// goal holds each number that is told while it was wanted within calm: until
// the step that wanted something else.
func (m *model) goal(calm time.Duration) measure {
	last := len(m.at) - 1
	now, want := m.at[last], m.wanted[last]
	g := want
	for f := range fields {
		held := int64(math.MaxInt64)
		for i := range last {
			if now.Sub(m.at[i+1]) < calm {
				held = min(held, m.wanted[i].n[f])
			}
		}
		g.n[f] = min(want.n[f], max(held, m.told.n[f]))
	}
	g.health = map[string]Health{}
	for _, host := range []string{"a", "b"} {
		held := Healthy
		for i := range last {
			if now.Sub(m.at[i+1]) < calm {
				held = max(held, m.wanted[i].health[host])
			}
		}
		if h := max(want.health[host], min(held, m.told.health[host])); h != Healthy {
			g.health[host] = h
		}
	}
	return g
}

func anyProtection(t *rapid.T) func(*policy.Policy) {
	v := policy.Protection{
		Calm:      rapid.SampledFrom([]time.Duration{300 * time.Millisecond, 2 * time.Second, 10 * time.Second}).Draw(t, "calm"),
		Interval:  rapid.SampledFrom([]time.Duration{10 * time.Millisecond, 200 * time.Millisecond, 3 * time.Second}).Draw(t, "interval"),
		MaxPerSec: rapid.SampledFrom([]int{1, 2, 3, 100}).Draw(t, "max"),
		Floor:     policy.Ratio(rapid.Float64Range(0, 1).Draw(t, "floor")),
		SoftDrop:  policy.Ratio(rapid.Float64Range(0, 0.5).Draw(t, "soft drop")),
		HardDrop:  policy.Ratio(rapid.Float64Range(0.5, 1).Draw(t, "hard drop")),
		Shedding:  policy.Shedding(rapid.IntRange(0, 1).Draw(t, "shedding")),
	}
	return func(p *policy.Policy) { p.Envoy.Protection = v }
}

// TestKeeperAgainstAModel: any inputs at any instants.
func TestKeeperAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := street(anyProtection(t))
		v, plan := p.Envoy.Protection, newPlan(p)
		k := new(Keeper)
		names := []string{"aside", "chat", "infer"}
		models := make([]model, len(names))
		for i := range models {
			models[i].told = measureOf(&Settings{})
		}
		var told []time.Time // each change of a cluster
		now := start()
		in := make([]Input, len(names))
		step := func() time.Time {
			settings, changed, next := k.Step(now, in, p)
			if again, more, later := k.Step(now, in, p); len(more) != 0 || !slices.EqualFunc(settings, again, same) || !later.Equal(next) {
				t.Fatalf("the same again changes %v", more)
			}
			for i := range names {
				if is := measureOf(&settings[i]); !is.equal(models[i].told) {
					told = append(told, now)
				}
			}
			for i := range names {
				m := &models[i]
				want := wanted(plan, in[i])
				m.wanted, m.at = append(m.wanted, measureOf(&want)), append(m.at, now)
				if listed := slices.ContainsFunc(changed, func(c Change) bool {
					return c.Cluster == names[i] && c.At.Equal(now) && c.From != c.To && c.Because != ""
				}); listed == same(settings[i], m.told.settings(names[i])) {
					t.Fatalf("%s: listed as changed: %v, from %v to %v", names[i], listed, m.told, settings[i])
				}
				is, goal := measureOf(&settings[i]), m.goal(v.Calm)
				if !is.equal(m.told) {
					if !is.equal(goal) {
						t.Fatalf("%s: told %v, want %v", names[i], is, goal)
					}
					if !m.changed.IsZero() && now.Sub(m.changed) < v.Interval {
						t.Fatalf("%s: changed after %v, the interval is %v", names[i], now.Sub(m.changed), v.Interval)
					}
					bounds(t, plan, i, &in[i], m.told.n[maxRequests], is.n[maxRequests])
					m.changed, m.told = now, is
				} else if n := recent(told, now); !is.equal(goal) && (m.changed.IsZero() || now.Sub(m.changed) >= v.Interval) && n < v.MaxPerSec {
					t.Fatalf("%s: told %v, want %v, and only %d changes within a second", names[i], is, goal, n)
				}
				if differs := !is.equal(measureOf(&Settings{})); differs && len(settings[i].Because) == 0 {
					t.Fatalf("%s: told %v without a reason", names[i], is)
				}
			}
			if n := recent(told, now); n > v.MaxPerSec {
				t.Fatalf("%d changes within a second, at most %d may be", n, v.MaxPerSec)
			}
			if !next.IsZero() && !next.After(now) {
				t.Fatalf("next is %v at %v", next, now)
			}
			return next
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if i := rapid.IntRange(-1, len(names)-1).Draw(t, "which"); i >= 0 {
				in[i] = anything(names[i]).Draw(t, "input")
			}
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 50, 200, 999, 1000, 2500, 12000}).Draw(t, "ms")) * time.Millisecond)
			for i := range in {
				in[i].Cluster = names[i]
			}
			step()
		}
		// Inputs stop: called only when it asks for it, it comes to what is wanted.
		for steps := 0; ; steps++ {
			next := step()
			if next.IsZero() {
				break
			}
			if steps > 200 {
				t.Fatal("it never comes to rest")
			}
			now = next
		}
		for i := range models {
			want := wanted(plan, in[i])
			if !models[i].told.equal(measureOf(&want)) {
				t.Fatalf("%s: at rest it is told %v, want %v", names[i], models[i].told, measureOf(&want))
			}
		}
	})
}

func same(a, b Settings) bool { return measureOf(&a).equal(measureOf(&b)) }

func recent(told []time.Time, now time.Time) (n int) {
	for _, at := range told {
		if now.Sub(at) < time.Second {
			n++
		}
	}
	return n
}

// bounds: what lowers max_requests stops at floor, lane and what runs.
func bounds(t *rapid.T, plan *plan, i int, in *Input, from, to int64) {
	if to >= from {
		return
	}
	lane := []int64{0, 40, 20}[i] // 10 % of 300 and 100, of 200
	floor := float64(plan.protection.Floor) * 1000
	if to < lane || to < in.Running || float64(to) < floor-1e-6 || to < 1 {
		t.Fatal(fmt.Sprintf("max_requests lowered to %d: lane %d, running %d, floor %g", to, lane, in.Running, floor))
	}
}
