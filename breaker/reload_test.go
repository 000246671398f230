package breaker

import (
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// A policy that makes a pool's breaker one of another kind while it is open: it
// stays open for what was left, and by the new kind's numbers from then on (B1,
// B5, B7).
func TestKindChangesWhileOpen(t *testing.T) {
	c := defaults()
	c.Progressive = true
	j := &Journal{}
	b := New("pool", HTTP, c, j, dice(1))
	record(b, at(0), 20, 0)
	if v := b.View(at(0)); v.Left < 30*sec || v.Left > 36*sec {
		t.Fatalf("%+v", v)
	}
	left := b.View(at(0)).Left
	b.Configure(at(10*sec), GRPC, c)
	if v := b.View(at(10 * sec)); v.State != Hard || v.Kind != GRPC || v.Left != left-10*sec {
		t.Fatalf("%+v, want hard for the %v that were left", v, left-10*sec)
	}
	probe(t, b, at(left))
	b.Record(at(left), true, true) // B5 would make it five minutes
	if v := b.View(at(left)); v.State != Hard || v.Left < 5*sec || v.Left > 6*sec {
		t.Fatalf("%+v, want hard for 5 to 6 s", v)
	}
	b.Reset(at(time.Minute), "eve")
	if !b.PreTrip(at(time.Minute), "storm") {
		t.Fatal("a storm is not heard")
	}
	b.Configure(at(time.Minute), HTTP, c)
	if b.PreTrip(at(61*sec), "storm") {
		t.Fatal("an HTTP breaker hears a storm")
	}
	closed := play(t, b, time.Minute)
	if closed > 70*sec {
		t.Fatalf("closed at %v: the storm's recovery was lost on the way", closed)
	}
	record(b, at(closed), 20, 0)
	if v := b.View(at(closed)); v.Left < 30*sec || v.Left > 36*sec {
		t.Fatalf("%+v, want HTTP's 30 to 36 s", v)
	}
	entries, _ := j.Since(0)
	for i := 1; i < len(entries); i++ {
		if entries[i].From != entries[i-1].To {
			t.Errorf("%+v after %+v", entries[i], entries[i-1])
		}
	}
}

// Policies that come and go, kinds, windows and switches, under traffic that
// fails, storms and an operator: every entry of the journal begins where the
// one before it ended, no probe is lost, and it recovers in the end.
func TestReloadsUnderTraffic(t *testing.T) {
	c := defaults()
	c.Open, c.ReleaseStep = 20*ms, 5*ms
	j := &Journal{Max: 1 << 20}
	b := New("pool", HTTP, c, j, dice(1))
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			r := dice(uint64(g))
			for i := range 4000 {
				now := at(time.Duration(i) * ms)
				if v := b.Allow(now, policy.Class(i%3)); v.Action == Admit {
					if v.Probe && r.IntN(4) == 0 {
						b.Forget(now)
						continue
					}
					b.Record(now, r.IntN(3) == 0, v.Probe)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 400 {
			now, next := at(time.Duration(10*i)*ms), c
			next.Progressive, next.DynamicThreshold, next.Off = i%3 == 0, i%5 == 0, i%11 == 0
			next.Window += time.Duration(i%2) * sec
			b.Configure(now, Kind(i%2), next)
			b.PreTrip(now, "storm")
			if i%50 == 0 {
				b.Trip(now, Soft, 0, "eve")
			}
		}
	})
	all.Wait()
	entries, _ := j.Since(0)
	if len(entries) < 20 {
		t.Fatalf("only %d transitions: nothing is shown", len(entries))
	}
	for i := 1; i < len(entries); i++ {
		if entries[i].From != entries[i-1].To {
			t.Fatalf("%+v after %+v", entries[i], entries[i-1])
		}
	}
	if b.out != 0 {
		t.Errorf("%d probes are out", b.out)
	}
	b.Configure(at(time.Hour), GRPC, c)
	if closed := play(t, b, time.Hour); closed > time.Hour+sec {
		t.Errorf("closed %v after the last failure", closed-time.Hour)
	}
}

// A probe that ends while the policy has the breaker off is over all the same:
// the next recovery does not wait for it.
func TestProbeEndsWhileOff(t *testing.T) {
	c, off := defaults(), defaults()
	off.Off = true
	b := opened(t, c, 1)
	probe(t, b, at(6*sec))
	b.Configure(at(7*sec), HTTP, off)
	b.Record(at(8*sec), true, true)
	b.Configure(at(9*sec), HTTP, c)
	wantState(t, b, at(9*sec), Closed)
	record(b, at(9*sec), 20, 0)
	b.Advance(at(15 * sec))
	b.Advance(at(20 * sec)) // a step without traffic
	if v := b.View(at(20 * sec)); v.Release != 0.25 {
		t.Fatalf("%+v, want the second step", v)
	}
}
