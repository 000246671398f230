package breaker

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// written is the journal from seq on, held against what is wanted.
func written(t *testing.T, j *Journal, want ...Transition) {
	t.Helper()
	got, _ := j.Since(0)
	if len(got) != len(want) {
		t.Fatalf("%d entries, want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		g := got[i]
		if open := want[i].Open; open < 0 { // with jitter: up to a fifth more
			if g.Open < -open || g.Open > -open*12/10 {
				t.Errorf("entry %d: open for %v, want %v..%v", i, g.Open, -open, -open*12/10)
			}
			g.Open = open
		}
		want[i].Seq, want[i].Breaker = uint64(i+1), "pool"
		if g != want[i] {
			t.Errorf("entry %d:\n%+v, want\n%+v", i, g, want[i])
		}
	}
}

// Every transition is written down with its cause and figures (B1, B2).
func TestTransitionsAreWritten(t *testing.T) {
	j := &Journal{}
	c := defaults()
	c.Release = []policy.Ratio{1}
	b := New("pool", HTTP, c, j, dice(1))
	record(b, at(0), 0, 14)
	record(b, at(0), 6, 0)
	record(b, at(1*sec), 8, 0)
	probe(t, b, at(8*sec))
	b.Record(at(8*sec), false, true)
	b.Record(at(8*sec), true, true)
	for range 3 {
		probe(t, b, at(15*sec))
		b.Record(at(15*sec), false, true)
	}
	b.Allow(at(20*sec), policy.Batch) // up the ladder
	probe(t, b, at(20*sec))
	b.Record(at(20*sec), false, true)
	b.Allow(at(25*sec), policy.Batch)
	written(t, j,
		Transition{From: Closed, To: Soft, At: at(0), Cause: ByRatio, Requests: 20, Failures: 6, Limit: 0.3, Open: -5 * sec},
		Transition{From: Soft, To: Hard, At: at(1 * sec), Cause: ByRatio, Requests: 28, Failures: 14, Limit: 0.5, Open: -5 * sec},
		Transition{From: Hard, To: HalfOpen, At: at(8 * sec), Cause: ByTime, Requests: 28, Failures: 14},
		Transition{From: HalfOpen, To: Hard, At: at(8 * sec), Cause: ByProbe, Requests: 2, Failures: 1, Open: -5 * sec},
		Transition{From: Hard, To: HalfOpen, At: at(15 * sec), Cause: ByTime},
		Transition{From: HalfOpen, To: Closed, At: at(25 * sec), Cause: ByProbes, Requests: 4},
	)
}

// Time alone is enough to leave open, for who watches.
func TestAdvance(t *testing.T) {
	j := &Journal{}
	b := New("pool", HTTP, defaults(), j, dice(1))
	b.Advance(at(0))
	record(b, at(0), 20, 0)
	b.Advance(at(5*sec - 1))
	wantState(t, b, at(5*sec-1), Hard)
	b.Advance(at(6 * sec))
	got, _ := j.Since(1)
	if len(got) != 1 || got[0].To != HalfOpen || got[0].At != at(6*sec) {
		t.Fatalf("%+v", got)
	}
}

// An operator's trip: at once, from any state, for the time said to the
// instant, or the policy's; then it recovers as ever. Who and what is written.
func TestTrip(t *testing.T) {
	j := &Journal{}
	b := New("pool", HTTP, defaults(), j, dice(1))
	if !b.Trip(at(0), Soft, time.Minute, "eve") {
		t.Fatal("refused")
	}
	if v := b.View(at(0)); v.State != Soft || v.Left != time.Minute || v.Cause != ByHand || v.By != "eve" {
		t.Fatalf("%+v", v)
	}
	if v := b.Allow(at(59*sec), policy.Critical); v.Action != Admit || v.Probe {
		t.Fatalf("soft: %+v", v)
	}
	b.Trip(at(59*sec), Hard, 10*sec, "ada") // harder, and anew
	wantState(t, b, at(69*sec-1), Hard)
	wantState(t, b, at(69*sec), HalfOpen)
	probe(t, b, at(70*sec))
	b.Trip(at(70*sec), 77, 0, "ada") // no level: hard
	b.Record(at(71*sec), false, true)
	wantState(t, b, at(75*sec-1), Hard)
	written(t, j,
		Transition{From: Closed, To: Soft, At: at(0), Cause: ByHand, Open: time.Minute, By: "eve"},
		Transition{From: Soft, To: Hard, At: at(59 * sec), Cause: ByHand, Open: 10 * sec, By: "ada"},
		Transition{From: Hard, To: HalfOpen, At: at(70 * sec), Cause: ByTime},
		Transition{From: HalfOpen, To: Hard, At: at(70 * sec), Cause: ByHand, Open: -5 * sec, By: "ada"},
	)
}

// The ratio may make an operator's soft level hard: for the first open time,
// whatever there was long ago (B5).
func TestTrippedSoftBecomesHard(t *testing.T) {
	c := defaults()
	c.Progressive = true
	b := opened(t, c, 1)
	probe(t, b, at(36*sec))
	b.Record(at(36*sec), true, true) // 5 min
	b.Trip(at(40*sec), Soft, time.Minute, "eve")
	record(b, at(41*sec), 20, 0)
	if v := b.View(at(41 * sec)); v.State != Hard || v.Left < 30*sec || v.Left > 36*sec {
		t.Fatalf("%+v, want 30s and a fifth", v)
	}
}

// Who is dropped from its set opens no more: it would do so for nobody.
func TestRetired(t *testing.T) {
	b := newHTTP(defaults(), dice(1))
	if !b.retire(at(0)) {
		t.Fatal("needed")
	}
	record(b, at(0), 100, 0)
	if b.overrun(at(0), "x") || b.Trip(at(0), Hard, sec, "eve") || b.View(at(0)).State != Closed {
		t.Fatalf("%+v", b.View(at(0)))
	}
}

// A reset closes, whatever held it, and starts to count anew.
func TestReset(t *testing.T) {
	j := &Journal{}
	c := defaults()
	c.Progressive = true
	b := New("pool", HTTP, c, j, dice(1))
	record(b, at(0), 20, 0)
	b.Hold(at(0), time.Time{}, "eve")
	b.Reset(at(1*sec), "ada")
	if v := b.View(at(1 * sec)); v.State != Closed || v.Held || v.Requests != 0 || v.Left != 0 {
		t.Fatalf("%+v", v)
	}
	record(b, at(1*sec), 20, 0)
	written(t, j,
		Transition{From: Closed, To: Hard, At: at(0), Cause: ByRatio, Requests: 20, Failures: 20, Limit: 0.5, Open: -30 * sec},
		Transition{From: Hard, To: Hard, At: at(0), Cause: ByHand, Requests: 20, Failures: 20, Open: j.kept[0].Open, Held: -1, By: "eve"},
		Transition{From: Hard, To: Closed, At: at(1 * sec), Cause: ByHand, Requests: 20, Failures: 20, By: "ada"},
		// not B5's second time: a reset begins anew
		Transition{From: Closed, To: Hard, At: at(1 * sec), Cause: ByRatio, Requests: 20, Failures: 20, Limit: 0.5, Open: -30 * sec},
	)
}

// A held breaker stays in its state whatever is seen, and goes on from there.
func TestHold(t *testing.T) {
	minute := at(time.Minute)

	b := newHTTP(defaults(), dice(1)) // held closed
	b.Hold(at(0), minute, "eve")
	record(b, at(1*sec), 100, 0)
	if v := b.View(at(59 * sec)); v.State != Closed || !v.Held || v.HeldUntil != minute || v.HeldBy != "eve" {
		t.Fatalf("%+v", v)
	}
	record(b, at(55*sec), 30, 0)
	wantState(t, b, at(59*sec), Closed)
	b.Record(minute, true, false) // what was counted meanwhile decides now
	wantState(t, b, minute, Hard)

	b = opened(t, defaults(), 1) // held open
	b.Hold(at(1*sec), minute, "eve")
	for _, now := range []time.Duration{2 * sec, 30 * sec, time.Minute - 1} {
		if v := b.View(at(now)); v.State != Hard || v.Left != time.Minute-now || v.Evidence != (Evident{20, 20}) {
			t.Fatalf("at %v: %+v", now, v)
		}
		if v := b.Allow(at(now), policy.Critical); v.Action != Shed || v.State != Hard || v.RetryAfter != max(time.Minute-now, ms) {
			t.Fatalf("at %v: %+v", now, v)
		}
	}
	if v := b.Peek(at(30*sec), policy.Critical); v.Action != Shed || v.RetryAfter != 30*sec {
		t.Fatalf("%+v", v)
	}
	probe(t, b, minute)

	b.Hold(minute, time.Time{}, "eve") // held half-open: the share goes on, nothing decides
	for d := time.Minute; d < 2*time.Minute; d += 100 * ms {
		if v := b.Allow(at(d), policy.Critical); v.Probe {
			b.Record(at(d), int(d/ms)%2 == 0, true)
		}
	}
	if v := b.View(at(2 * time.Minute)); v.State != HalfOpen || v.Release != 0.1 {
		t.Fatalf("%+v", v)
	}
	b.Hold(at(2*time.Minute), at(0), "eve") // over already: it ends the hold
	if v := b.View(at(2 * time.Minute)); v.Held {
		t.Fatalf("%+v", v)
	}
	probe(t, b, at(2*time.Minute))
	b.Record(at(2*time.Minute), true, true)
	wantState(t, b, at(2*time.Minute), Hard)

	b.Hold(at(2*time.Minute), time.Time{}, "eve") // for good
	if v := b.Allow(at(1000*time.Hour), policy.Critical); v.Action != Shed || v.RetryAfter != 5*sec {
		t.Fatalf("%+v", v)
	}
	b.Trip(at(1000*time.Hour), Soft, sec, "ada") // the newer word of a hand
	if v := b.View(at(1000 * time.Hour)); v.State != Soft || v.Held {
		t.Fatalf("%+v", v)
	}
}

// A breaker that is switched off hears no hand; switching it off is written.
func TestSwitchedOff(t *testing.T) {
	j := &Journal{}
	b := New("pool", GRPC, defaults(), j, dice(1))
	record(b, at(0), 20, 0)
	off := defaults()
	off.Off = true
	b.Configure(at(1*sec), GRPC, off)
	b.Configure(at(2*sec), GRPC, off)
	if b.Trip(at(2*sec), Hard, sec, "eve") || b.Hold(at(2*sec), time.Time{}, "eve") || b.PreTrip(at(2*sec), "") || b.Restore(at(2*sec), Hard, sec, "x") {
		t.Fatal("heard")
	}
	written(t, j,
		Transition{Kind: GRPC, From: Closed, To: Hard, At: at(0), Cause: ByRatio, Requests: 20, Failures: 20, Limit: 0.5, Open: -5 * sec},
		Transition{Kind: GRPC, From: Hard, To: Closed, At: at(1 * sec), Cause: ByPolicy, Requests: 20, Failures: 20},
	)
}

// B3: a joining replica takes over what stands, for what is left of it, once,
// and only where it knows nothing better.
func TestRestore(t *testing.T) {
	j := &Journal{}
	b := New("pool", HTTP, defaults(), j, dice(1))
	for _, bad := range []struct {
		level State
		left  time.Duration
	}{{Closed, sec}, {HalfOpen, sec}, {Hard, 0}, {Hard, -sec}} {
		if b.Restore(at(0), bad.level, bad.left, "x") {
			t.Fatalf("took %+v", bad)
		}
	}
	if !b.Restore(at(0), Hard, 3*sec, "weir-2") || b.Restore(at(0), Hard, 4*sec, "weir-3") {
		t.Fatal("once, and no more")
	}
	if v := b.View(at(1 * sec)); v.State != Hard || v.Left != 2*sec || v.Evidence != (Evident{}) {
		t.Fatalf("%+v", v)
	}
	wantState(t, b, at(3*sec), HalfOpen)
	written(t, j, Transition{From: Closed, To: Hard, At: at(0), Cause: ByRestore, Open: 3 * sec, By: "weir-2"})

	b = newHTTP(defaults(), dice(1))
	record(b, at(0), 0, 20)
	if b.Restore(at(0), Hard, sec, "x") {
		t.Fatal("its own 20 good ends say better")
	}
	b = newHTTP(defaults(), dice(1))
	b.Trip(at(0), Hard, sec, "eve")
	b.Reset(at(1*sec), "eve")
	if b.Restore(at(2*sec), Hard, sec, "x") {
		t.Fatal("an operator has closed it in this life")
	}
	b = newHTTP(defaults(), dice(1))
	b.Restore(at(0), Soft, 1000*time.Hour, "x")
	if v := b.View(at(0)); v.Left != 10*sec {
		t.Fatalf("left %v, want twice the open time at most", v.Left)
	}
}

// B4 literal: thresholds sink below the usual rate.
func TestDynamicLiteral(t *testing.T) {
	run := func(literal bool) State {
		c := defaults()
		c.DynamicThreshold, c.DynamicLiteral = true, literal
		b := newHTTP(c, dice(1))
		for s := range 600 { // usual: 10 a second
			record(b, at(time.Duration(s)*sec), 0, 10)
		}
		for s := 620; s < 640; s++ { // then 4 a second, a quarter fails: below 30 %, above 12 %
			record(b, at(time.Duration(s)*sec), 0, 3)
			record(b, at(time.Duration(s)*sec), 1, 0)
		}
		return b.View(at(639 * sec)).State
	}
	if s := run(false); s != Closed {
		t.Errorf("as weir has it: %v", s)
	}
	if s := run(true); s == Closed {
		t.Errorf("literal: %v", s)
	}
	b := baseline{}
	b.observe(at(0), 100)
	for qps, want := range map[float64]float64{0: 0, 50: 0.5, 100: 1, 150: 1.5, 200: 2, 1e9: 2} {
		if f := b.factor(qps, true); f != want {
			t.Errorf("factor at %v of 100: %v, want %v", qps, f, want)
		}
	}
}

// B5 is for HTTP pools; gRPC pools open for B2's time.
func TestCoolDownByKind(t *testing.T) {
	c := defaults()
	c.Progressive = true
	c.Tenant = policy.TenantBreaker{On: true}
	for kind, want := range map[Kind][]time.Duration{
		HTTP: {30 * sec, 5 * time.Minute, 5 * time.Minute},
		GRPC: {5 * sec, 5 * sec, 5 * sec},
		Tenant: {
			300 * sec, 450 * sec, 675 * sec, 1012500 * ms, 1518750 * ms, 30 * time.Minute, 30 * time.Minute,
		},
	} {
		p := profileOf(kind, c)
		d := p.again(0, time.Hour)
		for i, w := range want {
			if d != w {
				t.Errorf("%v: open time %d is %v, want %v", kind, i+1, d, w)
			}
			d = p.next(d)
		}
	}
}
