package protect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// told are the numbers of one cluster among settings.
func told(all []Settings, cluster string) string {
	for _, s := range all {
		if s.Cluster == cluster {
			return numbers(s)
		}
	}
	return "no such cluster"
}

func storm(cluster string) []Input { return []Input{{Cluster: cluster, Storm: true}} }

func TestTightensAtOnceAndLoosensAfterCalm(t *testing.T) {
	p := street(nil) // calm 5s, interval 200ms
	k := new(Keeper)
	for _, c := range []struct {
		ms    int
		storm bool
		want  string
		next  int // ms; 0 = never
	}{
		{0, false, "", 0},
		{1000, true, stopped, 0},
		{1001, true, stopped, 0},
		{2000, false, stopped, 7000},
		{6000, true, stopped, 0}, // again: the wait begins anew
		{6500, false, stopped, 11500},
		{11499, false, stopped, 11500},
		{11500, false, "", 0},
	} {
		var in []Input
		if c.storm {
			in = storm("infer")
		}
		s, _, next := k.Step(start().Add(time.Duration(c.ms)*time.Millisecond), in, p)
		if got := told(s, "infer"); got != c.want {
			t.Errorf("at %d ms: told %q, want %q", c.ms, got, c.want)
		}
		if got := int(next.Sub(start()).Milliseconds()); !next.IsZero() && got != c.next || next.IsZero() && c.next != 0 {
			t.Errorf("at %d ms: next is %v, want %d ms", c.ms, next, c.next)
		}
	}
}

// TestLoosensStepByStep: after a hard level the number that loosens first is
// that of the soft one, which is wanted meanwhile.
func TestLoosensStepByStep(t *testing.T) {
	p, k := street(nil), new(Keeper)
	for _, c := range []struct {
		sec   int
		state breaker.State
		want  string
	}{
		{0, breaker.Hard, stopped}, {5, breaker.HalfOpen, stopped}, {6, breaker.Soft, stopped}, {9, breaker.Closed, stopped},
		{11, breaker.Closed, halved}, {13, breaker.Closed, halved}, {14, breaker.Closed, ""},
	} {
		s, _, _ := k.Step(start().Add(time.Duration(c.sec)*time.Second), []Input{{Cluster: "chat", Breakers: pools(c.state, breaker.Closed)}}, p)
		if got := told(s, "chat"); got != c.want {
			t.Errorf("at %d s: told %q, want %q", c.sec, got, c.want)
		}
	}
}

func TestChangesAreExplained(t *testing.T) {
	p, k := street(nil), new(Keeper)
	_, changed, _ := k.Step(start(), []Input{{Cluster: "infer", Storm: true, Seen: "9/s"}}, p)
	var all []string
	for _, c := range changed {
		all = append(all, fmt.Sprintf("%s %s: %s -> %s, %s", c.Cluster, strings.TrimPrefix(c.Key, "circuit_breakers.infer.default."), c.From, c.To, c.Because))
	}
	const why = "infer retry_budget.budget_percent: file -> 0, storm of GOAWAYs: no retries (9/s)"
	if len(all) != 3 || all[1] != why {
		t.Errorf("changes are %q, the second should be %q", all, why)
	}

	s, changed, _ := k.Step(start().Add(2*time.Second), nil, p)
	if len(changed) != 0 || len(s[2].Because) != 1 || s[2].Because[0].Text != "kept until 12:00:07.000Z, until it was calm for 5s; before: storm of GOAWAYs: no retries (9/s)" {
		t.Errorf("while it is kept: changes %v, reasons %v", changed, s[2].Because)
	}
	s, changed, _ = k.Step(start().Add(7*time.Second), nil, p)
	if len(changed) != 3 || changed[0].To != "file" || changed[0].From != "0" || changed[0].Because != "calm for 5s" || len(s[2].Because) != 0 {
		t.Errorf("when it is calm: changes %v, reasons %v", changed, s[2].Because)
	}

	_, changed, _ = k.Step(start().Add(8*time.Second), []Input{{Cluster: "aside", Hosts: 3, Unwell: map[string]bool{"10.0.0.1:80": true}}}, p)
	if len(changed) != 1 || changed[0].Key != "health 10.0.0.1:80" || changed[0].From != "healthy" || changed[0].To != "unhealthy" {
		t.Errorf("an endpoint: changes %v", changed)
	}
}

// TestManyClustersAtOnce: 25 clusters a second; those that tighten first, who
// loosens not much later, and every one gets its turn.
func TestManyClustersAtOnce(t *testing.T) {
	p := street(func(p *policy.Policy) {
		p.Envoy.Protection.MaxPerSec = 25
		p.Envoy.Clusters, p.Pools = nil, nil
		for i := range 100 {
			p.Envoy.Clusters = append(p.Envoy.Clusters, policy.Cluster{Name: fmt.Sprintf("c%03d", i), MaxRequests: 100, MaxRetries: 3})
		}
	})
	k := new(Keeper)
	step := func(ms int, from, to int) []Change {
		var in []Input
		for i := from; i < to; i++ {
			in = append(in, Input{Cluster: fmt.Sprintf("c%03d", i), Storm: true})
		}
		_, changed, next := k.Step(start().Add(time.Duration(ms)*time.Millisecond), in, p)
		if ms > 5999 && ms < 8000 && ms%1000 == 0 && len(changed) > 0 && next.Sub(start()) != time.Duration(ms+1000)*time.Millisecond {
			t.Errorf("at %d ms: next is %v after the start, want a second later", ms, next.Sub(start()))
		}
		return changed
	}
	first := step(0, 0, 25) // 0..24 tighten
	if len(first) != 3*25 {
		t.Fatalf("%d changes at first, want 75", len(first))
	}
	// From 1 s on 0..24 may loosen at 6 s; at 6.001 s the other 75 want to tighten.
	if c := step(1000, 0, 0); len(c) != 0 {
		t.Fatalf("loosens before calm: %v", c)
	}
	step(6000, 25, 100)
	turns := map[string]int{}
	for ms := 6000; ms < 12000; ms += 250 {
		for _, c := range step(ms, 25, 100) {
			if _, seen := turns[c.Cluster]; !seen {
				turns[c.Cluster] = ms
			}
		}
	}
	for i := range 100 {
		at, seen := turns[fmt.Sprintf("c%03d", i)]
		switch {
		case i >= 25 && i < 50: // told in the step at 6000, whose changes are not in turns
			continue
		case !seen:
			t.Errorf("c%03d never had its turn", i)
		case i >= 50 && at > 8000:
			t.Errorf("c%03d tightened at %d ms, want 8000 at the latest", i, at)
		case i < 25 && at != 9000:
			t.Errorf("c%03d loosened at %d ms, want 9000: behind those that tightened", i, at)
		}
	}
}

// TestNobodyStarves: two clusters whose tightening never ends use up the rate;
// one that wants to loosen gets its turn all the same.
func TestNobodyStarves(t *testing.T) {
	p := street(func(p *policy.Policy) { p.Envoy.Protection.MaxPerSec = 2 })
	k := new(Keeper)
	k.Step(start(), storm("aside"), p)
	var loosened time.Duration
	for ms := 1000; ms < 20000; ms += 100 {
		at := start().Add(time.Duration(ms) * time.Millisecond)
		running := int64(900 - ms/25) // each step wants a little less
		in := []Input{{Cluster: "chat", Protect: true, Running: running}, {Cluster: "infer", Protect: true, Running: running}}
		_, changed, _ := k.Step(at, in, p)
		for _, c := range changed {
			if c.Cluster == "aside" && c.To == "file" && loosened == 0 {
				loosened = at.Sub(start())
			}
		}
	}
	if loosened < 6*time.Second || loosened > 9*time.Second {
		t.Errorf("loosened after %v, want 6s to 9s", loosened)
	}
}

func TestClockSteps(t *testing.T) {
	p, k := street(nil), new(Keeper)
	k.Step(start(), storm("infer"), p)
	back := start().Add(-time.Hour)
	s, changed, next := k.Step(back, nil, p)
	if told(s, "infer") != stopped || len(changed) != 0 || !next.Equal(back.Add(5*time.Second)) {
		t.Errorf("after a step back: told %q, %d changes, next %v", told(s, "infer"), len(changed), next)
	}
	if s, _, _ = k.Step(back.Add(time.Second), []Input{{Cluster: "infer", Storm: true, Protect: true}}, p); told(s, "infer") != "max_requests=100 "+stopped {
		t.Errorf("after a step back nothing tightens: %q", told(s, "infer"))
	}
	if s, _, _ = k.Step(back.Add(time.Hour), nil, p); told(s, "infer") == "" {
		t.Error("a step ahead loosens at once what was asked for until now")
	}
}

func TestAnotherPolicy(t *testing.T) {
	p, k := street(nil), new(Keeper)
	k.Step(start(), storm("infer"), p)
	s, changed, _ := k.Step(start().Add(time.Second), storm("infer"), street(func(p *policy.Policy) {
		p.Pools = p.Pools[:2]
		p.Envoy.Clusters = append(p.Envoy.Clusters[:1], p.Envoy.Clusters[2:]...)
	}))
	if told(s, "infer") != "no such cluster" || len(s) != 2 || len(changed) != 3 || changed[0].To != "file" {
		t.Errorf("a cluster that is gone: %d clusters, changes %v", len(s), changed)
	}

	k.Step(start().Add(2*time.Second), storm("chat"), p)
	off := street(func(p *policy.Policy) { p.Envoy.Protection.Off = true })
	if s, _, _ = k.Step(start().Add(3*time.Second), storm("chat"), off); told(s, "chat") != "" {
		t.Errorf("switched off: told %q", told(s, "chat"))
	}
}

// BenchmarkProtection is one Step over 1,000 clusters, of which each changes
// its mind in every Step.
func BenchmarkProtection(b *testing.B) {
	p := street(func(p *policy.Policy) {
		p.Pools, p.Envoy.Clusters = nil, nil
		p.Envoy.Protection.MaxPerSec = 100_000
		for i := range 1000 {
			name := fmt.Sprintf("c%03d", i)
			p.Pools = append(p.Pools, policy.Pool{Name: name, Cluster: name, Seats: policy.Seats{Requests: 100}})
		}
	})
	in := make([]Input, 1000)
	k := new(Keeper)
	at := start()
	k.Step(at, nil, p)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		at = at.Add(time.Second)
		for i := range in {
			in[i] = Input{Cluster: p.Pools[i].Cluster, Protect: n%2 == 0, Share: 0.3, Breakers: []State{{Pool: p.Pools[i].Name, State: breaker.State(1 + n%2)}}}
		}
		k.Step(at, in, p)
	}
}
