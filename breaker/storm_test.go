package breaker

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

func newGRPC(j *Journal) *Breaker { return New("pool", GRPC, defaults(), j, dice(1)) }

// B7: a storm opens a gRPC breaker hard, and no other.
func TestPreTrip(t *testing.T) {
	j := &Journal{}
	b := newGRPC(j)
	record(b, at(0), 0, 50)
	if !b.PreTrip(at(0), "12/s, 80% of 4") {
		t.Fatal("not heard")
	}
	if v := b.Allow(at(1*sec), policy.Critical); v.State != Hard || v.Action != Shed {
		t.Fatalf("%+v", v)
	}
	written(t, j, Transition{Kind: GRPC, From: Closed, To: Hard, At: at(0), Cause: ByGoAway, Requests: 50, Open: -1 * sec, By: "12/s, 80% of 4"})
	for _, kind := range []Kind{HTTP, Tenant} {
		c := defaults()
		c.Tenant.On = true
		b := New("pool", kind, c, nil, dice(1))
		if b.PreTrip(at(0), "") || b.View(at(0)).State != Closed {
			t.Errorf("%v heard it", kind)
		}
	}
}

// play runs calls of 100 a second, all of which succeed, and gives the instant
// at which all are admitted again.
func play(t *testing.T, b *Breaker, from time.Duration) time.Duration {
	t.Helper()
	for d := from; d < from+time.Hour; d += 10 * ms {
		v := b.Allow(at(d), policy.Batch)
		if v.State == Closed {
			return d
		}
		if v.Probe {
			b.Record(at(d), false, true)
		}
	}
	t.Fatal("never closed")
	return 0
}

// B7: while the storm lasts it stays open; it is closed within 10 s of its
// end, for any length of storm and any dice: within 7 s of the last word, which
// comes 3 s after the last GOAWAY.
func TestStormIsOverSoon(t *testing.T) {
	for seed := range uint64(20) {
		for _, storm := range []time.Duration{0, 3 * sec, 10 * sec, time.Minute} {
			b := New("pool", GRPC, defaults(), nil, dice(seed))
			for d := time.Duration(0); d <= storm; d += 500 * ms {
				if !b.PreTrip(at(d), "storm") {
					t.Fatalf("at %v of a storm of %v: not open", d, storm)
				}
				if v := b.Allow(at(d), policy.Critical); v.State != Hard {
					t.Fatalf("at %v of a storm of %v: %+v", d, storm, v)
				}
			}
			if took := play(t, b, storm) - storm; took < sec || took > 7*sec {
				t.Errorf("seed %d, storm of %v: closed after %v", seed, storm, took)
			}
		}
	}
}

// Words that come after recovery has begun change nothing: probes decide.
func TestLateWordsDoNotLengthenRecovery(t *testing.T) {
	quiet, noisy := newGRPC(nil), newGRPC(nil)
	for _, b := range []*Breaker{quiet, noisy} {
		b.PreTrip(at(0), "storm")
		probe(t, b, at(3*sec))
		b.Forget(at(3 * sec))
	}
	closed := play(t, quiet, 3*sec)
	for d := 3 * sec; d < closed; d += 10 * ms {
		if noisy.PreTrip(at(d), "echo") {
			t.Fatalf("at %v: opened", d)
		}
		if v := noisy.Allow(at(d), policy.Batch); v.Probe {
			noisy.Record(at(d), false, true)
		}
	}
	noisy.Allow(at(closed), policy.Batch)
	if v := noisy.View(at(closed)); v.State != Closed {
		t.Errorf("%v, without the words it was closed by then", v.State)
	}
	if !noisy.PreTrip(at(closed+sec), "a new storm") {
		t.Error("a new storm is not heard")
	}
}

// A probe that fails after a storm makes it an ordinary outage; a storm during
// an outage keeps it open, and its recovery ordinary.
func TestStormAndOutage(t *testing.T) {
	b := newGRPC(nil)
	b.PreTrip(at(0), "storm")
	probe(t, b, at(3*sec))
	b.Record(at(3*sec), true, true)
	wantState(t, b, at(8*sec-1), Hard)
	if took := play(t, b, 3*sec); took < 3*sec+25*sec {
		t.Errorf("closed after %v: its recovery is no shorter", took)
	}

	b = newGRPC(nil)
	record(b, at(0), 20, 0)
	for d := time.Duration(0); d <= 20*sec; d += sec {
		if !b.PreTrip(at(d), "storm") {
			t.Fatalf("at %v: not open", d)
		}
	}
	wantState(t, b, at(21*sec-1), Hard)
	if took := play(t, b, 20*sec); took < 20*sec+21*sec {
		t.Errorf("closed after %v: its recovery is no shorter", took)
	}

	b = newGRPC(nil) // a soft one becomes hard, for no shorter time
	record(b, at(0), 0, 14)
	record(b, at(0), 6, 0)
	b.PreTrip(at(0), "storm")
	wantState(t, b, at(5*sec-1), Hard)
	if v := b.View(at(0)); v.Evidence != (Evident{20, 6}) {
		t.Errorf("evidence %+v", v.Evidence)
	}
	if took := play(t, b, 0); took < 25*sec {
		t.Errorf("closed after %v: something had failed, its recovery is no shorter", took)
	}

	b = newGRPC(nil) // a held one hears nothing
	b.Hold(at(0), time.Time{}, "eve")
	if b.PreTrip(at(0), "storm") {
		t.Error("heard while held")
	}
}

// After a storm a pool of which a few calls in a hundred fail, as of any, is
// closed again; one of which many fail is not.
func TestStormRecoveryBearsAFewFailures(t *testing.T) {
	recovers := func(seed uint64, each int) bool {
		b := New("pool", GRPC, defaults(), nil, dice(seed))
		b.PreTrip(at(0), "storm")
		probes := 0
		for d := time.Duration(0); d < 10*sec; d += 5 * ms {
			v := b.Allow(at(d), policy.Batch)
			if v.State == Closed {
				return true
			}
			if v.Probe {
				probes++
				b.Record(at(d), probes%each == each-1, true)
			}
		}
		return false
	}
	for seed := range uint64(20) {
		if !recovers(seed, 50) || !recovers(seed, 10) {
			t.Errorf("seed %d: not closed though nine of ten calls succeed", seed)
		}
		if recovers(seed, 2) {
			t.Errorf("seed %d: closed though half of the calls fail", seed)
		}
	}
}
