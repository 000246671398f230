package breaker

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/policy"
)

// ways are the legal transitions by cause, a hand's and the policy's apart.
var ways = map[Cause][][2]State{
	ByRatio:   {{Closed, Soft}, {Closed, Hard}, {Soft, Hard}},
	ByTime:    {{Soft, HalfOpen}, {Hard, HalfOpen}},
	ByProbes:  {{HalfOpen, Closed}},
	ByProbe:   {{HalfOpen, Soft}, {HalfOpen, Hard}},
	ByGoAway:  {{Closed, Hard}, {Soft, Hard}},
	ByOverrun: {{Closed, Hard}, {Soft, Hard}, {HalfOpen, Hard}},
	ByRestore: {{Closed, Soft}, {Closed, Hard}},
}

// lawful holds one entry of the journal against the law.
func lawful(t *rapid.T, e *Transition, p *profile) {
	way := [2]State{e.From, e.To}
	opened := e.To == Soft || e.To == Hard
	ok := slices.Contains(ways[e.Cause], way)
	switch e.Cause {
	case ByHand:
		ok = e.By != "" && (e.Held == 0 && e.To != HalfOpen || e.Held != 0 && e.From == e.To)
	case ByPolicy:
		ok = e.To == Closed
	case ByGoAway:
		ok = ok && e.Kind == GRPC
	case ByOverrun:
		ok = ok && e.Kind == Tenant
	case ByRatio:
		ok = ok && e.Limit > 0 && float64(e.Failures) >= e.Limit*float64(e.Requests)-1e-9 && e.Requests >= p.MinRequests
	case ByProbe:
		ok = ok && e.Failures == 1
	case ByProbes:
		ok = ok && e.Failures == 0 && e.Requests >= goodProbes
	}
	if !ok || e.Failures > e.Requests || e.Failures < 0 || e.Kind != p.kind || e.Held == 0 && opened != (e.Open > 0) || e.Cause != ByRatio && e.Limit != 0 {
		t.Fatalf("unlawful: %+v", *e)
	}
	if e.Cause == ByRatio || e.Cause == ByProbe || e.Cause == ByOverrun { // B2, B5
		if e.From != Closed && e.From != HalfOpen {
			return
		}
		if e.Open < p.cool.First || e.Open > max(p.cool.First, p.cool.Cap)*12/10 {
			t.Fatalf("open for %v, want %v..%v and a fifth: %+v", e.Open, p.cool.First, p.cool.Cap, *e)
		}
	}
}

func transitionsAreLawful(t *rapid.T) {
	kind := Kind(rapid.IntRange(0, 2).Draw(t, "kind"))
	c := defaults()
	c.MinRequests, c.Progressive = rapid.IntRange(1, 6).Draw(t, "min"), rapid.Bool().Draw(t, "progressive")
	c.Tenant = policy.TenantBreaker{On: true, Soft: 0.3, Hard: 0.5, MinRequests: c.MinRequests}
	j := &Journal{Max: 1 << 20}
	b := New("pool", kind, c, j, dice(rapid.Uint64().Draw(t, "seed")))
	p := b.profile.Load()
	var now time.Duration
	state, seq, last, probes := Closed, uint64(0), at(0), 0
	record := func(t *rapid.T) { b.Record(at(now), rapid.Bool().Draw(t, "failed"), false) }
	t.Repeat(map[string]func(*rapid.T){
		"record": record, "record2": record,
		"pass": func(t *rapid.T) { now += time.Duration(rapid.IntRange(0, 100).Draw(t, "tenths")) * 100 * ms },
		"wait": func(t *rapid.T) { now += time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute },
		"allow": func(t *rapid.T) {
			peek := b.Peek(at(now), policy.Standard)
			v := b.Allow(at(now), policy.Standard)
			if v.Probe {
				probes++
			}
			if v.State == Hard && v.Action != Shed || v.State == Closed && v != (Verdict{}) {
				t.Fatalf("%+v", v)
			}
			if v.State == Soft && peek != v || v.State == Hard && peek != v {
				t.Fatalf("peek %+v, allow %+v", peek, v)
			}
		},
		"probe": func(t *rapid.T) {
			if probes == 0 {
				return // to skip ends a fuzzer's run as a failure
			}
			probes--
			b.Record(at(now), rapid.IntRange(0, 3).Draw(t, "bad") == 0, true)
		},
		"advance": func(*rapid.T) { b.Advance(at(now)) },
		"storm":   func(*rapid.T) { b.PreTrip(at(now), "storm") },
		"overrun": func(t *rapid.T) {
			if kind != Tenant {
				return
			}
			b.overrun(at(now), "70%")
		},
		"restore": func(t *rapid.T) { b.Restore(at(now), State(rapid.IntRange(0, 4).Draw(t, "level")), 3*sec, "peer") },
		"hand": func(t *rapid.T) {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				b.Trip(at(now), State(rapid.IntRange(0, 4).Draw(t, "level")), time.Duration(rapid.IntRange(-1, 9).Draw(t, "open"))*sec, "eve")
			case 1:
				b.Reset(at(now), "eve")
			case 2:
				b.Hold(at(now), at(now+time.Duration(rapid.IntRange(1, 90).Draw(t, "for"))*sec), "eve")
			case 3:
				off := c
				off.Off = true
				b.Configure(at(now), kind, off)
				b.Configure(at(now), kind, c)
			}
		},
		"": func(t *rapid.T) {
			entries, _ := j.Since(seq)
			for i := range entries {
				e := &entries[i]
				if e.Seq != seq+1 || e.From != state || e.At.Before(last) {
					t.Fatalf("after %v (%d): %+v", state, seq, *e)
				}
				lawful(t, e, p)
				state, seq, last = e.To, e.Seq, e.At
			}
			if got := b.phase.Load(); got.state != state {
				t.Fatalf("it is %v, the journal says %v", got.state, state)
			}
			v := b.View(at(now))
			o := v.Opinion("a", 1, sec)
			if err := o.Check(); err != nil || v.Ratio < 0 || v.Ratio > 1 {
				t.Fatalf("%v: %+v", err, v)
			}
			if open := v.State == Soft || v.State == Hard; open != (v.Left > 0) {
				t.Fatalf("left: %+v", v)
			}
		},
	})
}

// B1, B2, B5, B7: whatever happens, in whatever order, to a breaker of any
// kind, it goes only legal ways, and its journal tells all of it.
func TestTransitionsAreLawful(t *testing.T) { rapid.Check(t, transitionsAreLawful) }

func FuzzTransitions(f *testing.F) { f.Fuzz(rapid.MakeFuzz(transitionsAreLawful)) }
