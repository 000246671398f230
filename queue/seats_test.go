package queue

import (
	"testing"

	"github.com/weirproxy/weir/policy"
)

// Q9: tokens. The next in order that does not fit blocks those behind it, so
// that a large request is served in the end; what can never fit is refused.
func TestTokensInOrder(t *testing.T) {
	l := New(standardConfig(10, 100), nil)
	take := func(tokens int64) *Waiter {
		w := waiter(policy.Standard, "a")
		w.Tokens = tokens
		return w
	}
	mustRefuse(t, l, at(0), take(101), wide, TooLarge)
	r1, r2 := take(60), take(30)
	for _, w := range []*Waiter{r1, r2} {
		if o := l.Offer(at(0), w, wide); !o.Granted {
			t.Fatalf("%+v", o)
		}
	}
	large, small := take(80), take(10)
	mustWait(t, l, at(1*ms), large, wide)
	mustWait(t, l, at(2*ms), small, wide) // would fit, but stands behind
	if exits := l.Release(at(3*ms), r2); len(exits) != 0 {
		t.Fatalf("overtaken: %+v", exits)
	}
	ws := granted(l.Release(at(4*ms), r1))
	if len(ws) != 2 || ws[0] != large || ws[1] != small {
		t.Fatalf("granted %v", ws)
	}
	if s := l.Stats(at(4 * ms)); s.SeatsUsed != (policy.Seats{Requests: 2, Tokens: 90}) {
		t.Fatalf("used %+v", s.SeatsUsed)
	}
}

// A cancel or an expiry of the one who blocks lets those behind go: the line
// asks to be advanced at once.
func TestUnblockedByCancelOrExpiry(t *testing.T) {
	for _, expire := range []bool{false, true} {
		l := New(standardConfig(10, 100), nil)
		run := waiter(policy.Standard, "a")
		run.Tokens = 60
		l.Offer(at(0), run, wide)
		large, small := waiter(policy.Standard, "a"), waiter(policy.Standard, "b")
		large.Tokens, large.MaxWait = 80, 100*ms
		mustWait(t, l, at(1*ms), large, wide)
		mustWait(t, l, at(2*ms), small, wide)
		now := at(50 * ms)
		if expire {
			now = at(101 * ms)
		} else if _, ok := l.Cancel(now, large); !ok {
			t.Fatal("cancel refused")
		}
		if due, ok := l.Next(); !ok || due.After(now) {
			t.Fatalf("next %v %v, want at once", due, ok)
		}
		if ws := granted(l.Advance(now)); len(ws) != 1 || ws[0] != small {
			t.Fatalf("granted %v", ws)
		}
	}
}

// Shrinking revokes no seat and gives none until enough came back; growing
// gives them at once.
func TestConfigure(t *testing.T) {
	l, held := full(t, standardConfig(3, 0))
	a, b := waiter(policy.Standard, "a"), waiter(policy.Standard, "b")
	mustWait(t, l, at(0), a, wide)
	mustWait(t, l, at(0), b, wide)
	if exits := l.Configure(at(1*ms), standardConfig(1, 0)); len(exits) != 0 {
		t.Fatalf("%+v", exits)
	}
	for _, w := range held[:2] {
		if exits := l.Release(at(2*ms), w); len(exits) != 0 {
			t.Fatalf("granted above the new total: %+v", exits)
		}
	}
	if ws := granted(l.Release(at(3*ms), held[2])); len(ws) != 1 || ws[0] != a {
		t.Fatalf("%v", ws)
	}
	if ws := granted(l.Configure(at(4*ms), standardConfig(2, 0))); len(ws) != 1 || ws[0] != b {
		t.Fatalf("%v", ws)
	}
}

// A pool that shrinks below a waiter's tokens serves it with all it has.
func TestShrunkBelowAWaiter(t *testing.T) {
	l := New(standardConfig(4, 100), nil)
	run, w := waiter(policy.Standard, "a"), waiter(policy.Standard, "b")
	run.Tokens, w.Tokens = 50, 90
	l.Offer(at(0), run, wide)
	mustWait(t, l, at(0), w, wide)
	l.Configure(at(1*ms), standardConfig(4, 60))
	if ws := granted(l.Release(at(2*ms), run)); len(ws) != 1 || ws[0] != w {
		t.Fatalf("%v", ws)
	}
	if s := l.Stats(at(2 * ms)); s.SeatsUsed.Tokens != 60 {
		t.Fatalf("%+v", s.SeatsUsed)
	}
	l.Release(at(3*ms), w)
	if s := l.Stats(at(3 * ms)); s.SeatsUsed.Tokens != 0 {
		t.Fatalf("%+v", s.SeatsUsed)
	}
}
