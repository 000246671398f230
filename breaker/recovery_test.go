package breaker

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// opened is a breaker that opened hard at the epoch.
func opened(t *testing.T, c policy.Breaker, seed uint64) *Breaker {
	t.Helper()
	b := newHTTP(c, dice(seed))
	record(b, at(0), 20, 0)
	wantState(t, b, at(0), Hard)
	return b
}

// B2: constant calls while open do not prolong it: half-open within 5..6 s.
func TestHalfOpenAtTheSetTime(t *testing.T) {
	b := opened(t, defaults(), 1)
	for d := time.Duration(0); d < 5*sec; d += ms {
		if v := b.Allow(at(d), policy.Critical); v.Action != Shed || v.State != Hard {
			t.Fatalf("at %v: %+v", d, v)
		}
	}
	if v := b.Allow(at(6*sec), policy.Critical); v.State != HalfOpen {
		t.Fatalf("at 6s: %+v", v)
	}
}

// B2: half-open lets the documented share through, whatever the rush.
func TestProbeShare(t *testing.T) {
	b := opened(t, defaults(), 7)
	probes := 0
	for range 10000 {
		switch v := b.Allow(at(6*sec), policy.Standard); {
		case v.Probe && v.Action == Admit:
			probes++
		case v.Probe || v.Action != Shed || v.RetryAfter <= 0 || v.RetryAfter > 5*sec:
			t.Fatalf("%+v", v)
		}
	}
	if probes < 900 || probes > 1100 {
		t.Fatalf("%d of 10000 are probes, want about 10 %%", probes)
	}
}

// B2: the ladder 10, 25, 50, 100 % in steps of 5 s, then closed.
func TestReleaseLadder(t *testing.T) {
	b := opened(t, defaults(), 1)
	start := 6 * sec
	for step, want := range []float64{0.1, 0.25, 0.5, 1} {
		begin := start + time.Duration(step)*5*sec
		for d := begin; d < begin+5*sec; d += 10 * ms {
			if v := b.Allow(at(d), policy.Critical); v.Probe {
				b.Record(at(d), false, true)
			}
			if v := b.View(at(d)); v.State != HalfOpen || v.Release != want {
				t.Fatalf("at %v: %+v, want share %v", d, v, want)
			}
		}
	}
	if v := b.Allow(at(start+20*sec), policy.Batch); v != (Verdict{}) {
		t.Fatalf("after the ladder: %+v", v)
	}
	v := b.View(at(start + 20*sec))
	if v.State != Closed || v.Requests != 0 || v.Release != 1 {
		t.Fatalf("closed anew: %+v", v)
	}
}

// probe takes dice until a probe comes.
func probe(t *testing.T, b *Breaker, now time.Time) {
	t.Helper()
	for range 1000 {
		if b.Allow(now, policy.Critical).Probe {
			return
		}
	}
	t.Fatal("no probe in 1000 throws")
}

// B2: any failing probe opens again, from any step; others do not decide.
func TestFailingProbeReopens(t *testing.T) {
	b := opened(t, defaults(), 1)
	probe(t, b, at(6*sec))
	record(b, at(6*sec), 100, 0) // ends from before
	wantState(t, b, at(6*sec), HalfOpen)
	b.Record(at(7*sec), true, true)
	wantState(t, b, at(7*sec), Hard)
	if v := b.Allow(at(11999*ms), policy.Critical); v.Action != Shed || v.State != Hard {
		t.Fatalf("%+v", v)
	}
	if v := b.Allow(at(13*sec), policy.Critical); v.State != HalfOpen {
		t.Fatalf("%+v", v)
	}
}

// A trial whose end says nothing is given back, and the next one is admitted.
func TestForgottenProbe(t *testing.T) {
	b := opened(t, defaults(), 1)
	for range 50 {
		probe(t, b, at(6*sec))
		b.Forget(at(6 * sec))
	}
	wantState(t, b, at(6*sec), HalfOpen)
	probe(t, b, at(6*sec))
}

// A probe that nobody ends holds the ladder up for six steps, not for ever;
// one good probe beside it is enough.
func TestHangingProbe(t *testing.T) {
	b := opened(t, defaults(), 1)
	probe(t, b, at(6*sec))
	b.Allow(at(35999*ms), policy.Critical)
	if v := b.View(at(35999 * ms)); v.Release != 0.1 {
		t.Fatalf("%+v", v)
	}
	b.Allow(at(36*sec), policy.Critical)
	if v := b.View(at(36 * sec)); v.Release != 0.25 {
		t.Fatalf("%+v", v)
	}
	b.Record(at(37*sec), false, true)
	b.Allow(at(41*sec), policy.Critical)
	if v := b.View(at(41 * sec)); v.Release != 0.5 {
		t.Fatalf("%+v", v)
	}
}

// B1: at the soft level too it recovers by B2; critical goes on, and is a probe
// by the same dice.
func TestSoftRecovers(t *testing.T) {
	b := newHTTP(defaults(), dice(3))
	record(b, at(0), 0, 14)
	record(b, at(0), 6, 0)
	probes := 0
	for range 1000 {
		v := b.Allow(at(6*sec), policy.Critical)
		if v.Action != Admit || v.State != HalfOpen {
			t.Fatalf("critical at soft: %+v", v)
		}
		if v.Probe {
			probes++
		}
	}
	if probes < 60 || probes > 140 {
		t.Fatalf("%d of 1000 are probes", probes)
	}
	for !b.Allow(at(6*sec), policy.Standard).Probe {
		if v := b.Allow(at(6*sec), policy.Batch); !v.Probe && v.Action != Shed {
			t.Fatalf("batch: %+v", v)
		}
	}
	b.Record(at(7*sec), true, true)
	wantState(t, b, at(7*sec), Soft)
}

// Little traffic leaves open too: one call a minute, all good.
func TestLittleTrafficRecovers(t *testing.T) {
	for seed := range uint64(20) {
		b := opened(t, defaults(), seed)
		for m := 1; m <= 10; m++ {
			now := at(time.Duration(m) * time.Minute)
			if v := b.Allow(now, policy.Standard); v.Action == Admit {
				b.Record(now.Add(sec), false, v.Probe)
			}
		}
		wantState(t, b, at(10*time.Minute), Closed)
	}
}

// More than one good probe is needed to close.
func TestOneLuckyProbeDoesNotClose(t *testing.T) {
	c := defaults()
	c.Probes, c.Release, c.ReleaseStep = 1, []policy.Ratio{1}, sec
	b := opened(t, c, 1)
	for i, want := range []State{HalfOpen, HalfOpen, Closed} {
		now := at(time.Duration(10+10*i) * sec)
		if v := b.Allow(now, policy.Batch); !v.Probe {
			t.Fatalf("%+v", v)
		}
		b.Record(now.Add(sec), false, true)
		wantState(t, b, now.Add(sec), want)
	}
}

// An upstream that fails every other call does not make it flap: hardly
// anything gets through, and it never closes.
func TestFailingUpstreamDoesNotFlap(t *testing.T) {
	b, r := opened(t, defaults(), 1), dice(9)
	passed, calls := 0, 0
	for d := time.Duration(0); d < 10*time.Minute; d += 10 * ms {
		calls++
		if v := b.Allow(at(d), policy.Critical); v.Action == Admit {
			passed++
			b.Record(at(d), r.IntN(2) == 0, v.Probe)
		}
		if v := b.View(at(d)); v.State == Closed {
			t.Fatalf("closed at %v", d)
		}
	}
	if passed == 0 || passed > calls/100 {
		t.Fatalf("%d of %d calls passed", passed, calls)
	}
}

// B5: 30 s, then 5 min on re-opening; anew after it was closed as long as it
// had been open.
func TestProgressiveCoolDown(t *testing.T) {
	c := defaults()
	c.Progressive, c.Probes, c.Release, c.ReleaseStep = true, 1, []policy.Ratio{1}, sec
	b := opened(t, c, 1)
	wait := func(now time.Time, low, high time.Duration) {
		t.Helper()
		if v := b.Allow(now, policy.Critical); v.Action != Shed || v.RetryAfter < low || v.RetryAfter > high {
			t.Fatalf("%+v, want to wait %v..%v", v, low, high)
		}
	}
	wait(at(0), 30*sec, 36*sec)
	probe(t, b, at(36*sec))
	b.Record(at(36*sec), true, true)
	wait(at(36*sec), 5*time.Minute, 6*time.Minute)
	heal := func(now time.Time) time.Time {
		t.Helper()
		for range 3 {
			probe(t, b, now)
		}
		for i := range 3 {
			b.Record(now.Add(time.Duration(i)*sec), false, true)
		}
		wantState(t, b, now.Add(2*sec), Closed)
		return now.Add(2 * sec)
	}
	closed := heal(at(7 * time.Minute))
	record(b, closed.Add(4*time.Minute), 20, 0)
	wait(closed.Add(4*time.Minute), 5*time.Minute, 6*time.Minute) // re-opened
	closed = heal(closed.Add(11 * time.Minute))
	record(b, closed.Add(5*time.Minute), 20, 0)
	wait(closed.Add(5*time.Minute), 30*sec, 36*sec) // anew
}

// 50 breakers that opened together begin their trials over at least 10 % of
// the open time, and none before it.
func TestTrialsAreSpread(t *testing.T) {
	var first, last time.Duration = time.Hour, 0
	for seed := range uint64(50) {
		b := opened(t, defaults(), seed)
		v := b.Allow(at(0), policy.Batch)
		first, last = min(first, v.RetryAfter), max(last, v.RetryAfter)
	}
	if first < 5*sec || last > 6*sec || last-first < 500*ms {
		t.Fatalf("trials begin from %v to %v", first, last)
	}
}
