package breaker

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// openedFor is a breaker that 20 failures opened at 0, with this open time.
func openedFor(kind Kind, open time.Duration, seed uint64) *Breaker {
	c := defaults()
	c.Open = open
	if kind == Tenant {
		c.Tenant.On = true
		c.Tenant.CoolDown.First = open
	}
	b := New("pool", kind, c, nil, dice(seed))
	record(b, at(0), 20, 0)
	return b
}

// firstProbe is when the first of calls that come each interval from an instant
// on is a probe.
func firstProbe(t *testing.T, b *Breaker, from, every time.Duration) time.Duration {
	t.Helper()
	for d := from; d < from+time.Hour; d += every {
		if b.Allow(at(d), policy.Batch).Probe {
			return d
		}
	}
	t.Fatal("never a probe")
	return 0
}

// B2: however few calls come, none of two open times is without a probe,
// whatever the dice say, for pools and for tenants.
func TestProbeBound(t *testing.T) {
	for _, kind := range []Kind{HTTP, GRPC, Tenant} {
		for _, open := range []time.Duration{sec, 2 * sec, 5 * sec, time.Minute} {
			for _, every := range []time.Duration{open / 50, open / 10, open / 5, open / 2} {
				for seed := range uint64(50) {
					b := openedFor(kind, open, seed)
					// The first, which hangs, and each that follows on it.
					last := time.Duration(0)
					for range 5 {
						d := firstProbe(t, b, last+every, every)
						if d-last > 2*open {
							t.Fatalf("%v, open %v, seed %d: a call each %v had no probe from %v to %v", kind, open, seed, every, last, d)
						}
						last = d
					}
				}
			}
		}
	}
}

// B2: a pool that is well again is closed by few calls too, each of which is
// answered before the next.
func TestFewCallsClose(t *testing.T) {
	for seed := range uint64(50) {
		b := openedFor(HTTP, 2*sec, seed)
		d := time.Duration(0)
		for ; b.View(at(d)).State != Closed; d += sec {
			if d > 90*sec {
				t.Fatalf("seed %d: %+v after %v of a call a second", seed, b.View(at(d)), d)
			}
			if b.Allow(at(d), policy.Standard).Probe {
				b.Record(at(d+100*ms), false, true)
			}
		}
	}
}

// B2: callers that are refused elsewhere after the breaker let them try, by a
// quota or a full line, do not use up the probes of others; callers that leave
// get no more than their share.
func TestUntriedProbes(t *testing.T) {
	for seed := range uint64(20) {
		b := openedFor(HTTP, 2*sec, seed)
		d := 3 * sec
		for range 400 { // 200 a second
			d += 5 * ms
			if b.Allow(at(d), policy.Batch).Probe {
				b.Untried(at(d))
			}
		}
		if d = d + 20*ms; !b.Allow(at(d), policy.Batch).Probe {
			t.Errorf("seed %d: the first who can run is no probe", seed)
		}
		left := 0
		b = openedFor(HTTP, 2*sec, seed)
		for d = 3 * sec; d < 4*sec; d += ms {
			if b.Allow(at(d), policy.Batch).Probe {
				b.Forget(at(d))
				left++
			}
		}
		if left > 150 {
			t.Errorf("seed %d: %d of 1000 were let through", seed, left)
		}
	}
}

// A breaker that is held half-open lets its share through and no more.
func TestHeldHalfOpenHasItsShare(t *testing.T) {
	b := openedFor(HTTP, 2*sec, 1)
	b.Advance(at(3 * sec))
	b.Hold(at(3*sec), time.Time{}, "eve")
	probes := 0
	for d := 3 * sec; d < 103*sec; d += 100 * ms {
		if b.Allow(at(d), policy.Batch).Probe {
			b.Record(at(d), false, true)
			probes++
		}
	}
	if probes < 60 || probes > 140 {
		t.Errorf("%d of 1000, want about 100", probes)
	}
}
