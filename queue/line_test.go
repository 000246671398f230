package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(d time.Duration) time.Time { return epoch.Add(d) }

const ms = time.Millisecond

// standardConfig is the default policy's line: P1's weights, P3's waits.
func standardConfig(requests, tokens int64) Config {
	return Config{
		Seats:    policy.Seats{Requests: requests, Tokens: tokens},
		Weights:  [3]int{3, 2, 1},
		MaxWaits: [3]time.Duration{200 * ms, 500 * ms, time.Second},
	}
}

var wide = Bounds{Length: 200, RetryLimit: 5 * time.Second, RetryLen: 200}

func waiter(c policy.Class, tenant string) *Waiter {
	cfg := standardConfig(1, 0)
	return &Waiter{Class: c, Tenant: tenant, Cost: 1, Tokens: 1, MaxWait: cfg.MaxWaits[c], OnExpiry: policy.Expiry(c), Owner: tenant}
}

// full is a line whose only seats are taken at the epoch.
func full(t *testing.T, c Config) (*Line, []*Waiter) {
	t.Helper()
	l := New(c, nil)
	var held []*Waiter
	for range c.Seats.Requests {
		w := waiter(policy.Standard, "holder")
		if o := l.Offer(at(0), w, wide); !o.Granted {
			t.Fatalf("free seat refused: %+v", o)
		}
		held = append(held, w)
	}
	return l, held
}

func mustWait(t *testing.T, l *Line, now time.Time, w *Waiter, b Bounds) {
	t.Helper()
	if o := l.Offer(now, w, b); o.Refusal != Taken || o.Granted || o.Position < 1 {
		t.Fatalf("offer of %v/%s = %+v, want a place", w.Class, w.Tenant, o)
	}
}

func mustRefuse(t *testing.T, l *Line, now time.Time, w *Waiter, b Bounds, r Refusal) Offered {
	t.Helper()
	o := l.Offer(now, w, b)
	if o.Refusal != r || o.Granted {
		t.Fatalf("offer of %v/%s = %+v, want refusal %d", w.Class, w.Tenant, o, r)
	}
	return o
}

func granted(exits []Exit) (ws []*Waiter) {
	for _, e := range exits {
		if e.Granted {
			ws = append(ws, e.Waiter)
		}
	}
	return ws
}

// Q9: a free seat is given at once, its end gives it to who waits.
func TestSeatIsGivenAtOnceAndPassedOn(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	w := waiter(policy.Standard, "a")
	mustWait(t, l, at(10*ms), w, wide)
	exits := l.Release(at(30*ms), held[0])
	if len(exits) != 1 || !exits[0].Granted || exits[0].Waiter != w || exits[0].Waited != 20*ms {
		t.Fatalf("release gave %+v", exits)
	}
	if again := l.Release(at(31*ms), held[0]); again != nil {
		t.Fatalf("second release gave %+v", again)
	}
	if s := l.Stats(at(31 * ms)); s.SeatsUsed.Requests != 1 || s.Running[policy.Standard] != 1 {
		t.Fatalf("stats %+v", s)
	}
	l.Release(at(40*ms), w)
	if s := l.Stats(at(40 * ms)); s.SeatsUsed != (policy.Seats{}) {
		t.Fatalf("seat leaked: %+v", s)
	}
}

// P3: each class's time ends to the nanosecond, with what it wants then.
func TestExpiryIsExact(t *testing.T) {
	for c, want := range map[policy.Class]time.Duration{policy.Critical: 200 * ms, policy.Standard: 500 * ms} {
		l, _ := full(t, standardConfig(1, 0))
		w := waiter(c, "a")
		mustWait(t, l, at(7*ms), w, wide)
		due, ok := l.Next()
		if !ok || !due.Equal(at(7*ms+want)) {
			t.Fatalf("%v: next %v, want %v", c, due, at(7*ms+want))
		}
		if exits := l.Advance(due.Add(-1)); len(exits) != 0 {
			t.Fatalf("%v: early exit %+v", c, exits)
		}
		exits := l.Advance(due)
		if len(exits) != 1 || exits[0].Granted || exits[0].Action != policy.Expiry(c) || exits[0].Waited != want || exits[0].Hint <= 0 {
			t.Fatalf("%v: %+v", c, exits)
		}
		if _, ok := l.Next(); ok {
			t.Fatalf("%v: something is due in an empty line", c)
		}
	}
}

// A seat freed at the very instant of expiry is granted, one later is not.
func TestSeatAtTheVeryLastInstant(t *testing.T) {
	for late, want := range map[time.Duration]bool{0: true, 1: false} {
		l, held := full(t, standardConfig(1, 0))
		w := waiter(policy.Critical, "a")
		mustWait(t, l, at(0), w, wide)
		exits := l.Release(at(200*ms+late), held[0])
		if len(exits) != 1 || exits[0].Granted != want {
			t.Fatalf("released %v after the end: %+v", late, exits)
		}
	}
}

// P3: batch is held on in the retry queue, served from spare seats only.
func TestRetryQueue(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := waiter(policy.Batch, "b")
	mustWait(t, l, at(0), b, wide)
	if exits := l.Advance(at(1000 * ms)); len(exits) != 0 {
		t.Fatalf("batch left: %+v", exits)
	}
	if s := l.Stats(at(1000 * ms)); s.Retrying != 1 || s.Waiting != [3]int{} {
		t.Fatalf("stats %+v", s)
	}
	// Newcomers to the line are served first.
	a := waiter(policy.Standard, "a")
	mustWait(t, l, at(1001*ms), a, wide)
	if ws := granted(l.Release(at(1002*ms), held[0])); len(ws) != 1 || ws[0] != a {
		t.Fatalf("granted %v, want the line first", ws)
	}
	// Closed while the breaker is open.
	l.Pause(at(1003*ms), true)
	if exits := l.Release(at(1004*ms), a); len(exits) != 0 {
		t.Fatalf("served while closed: %+v", exits)
	}
	if l.TryTake(at(1004*ms), waiter(policy.Standard, "c")) {
		t.Fatal("TryTake overtook the retry queue")
	}
	exits := l.Pause(at(1005*ms), false)
	if len(exits) != 1 || !exits[0].Granted || !exits[0].Retried || exits[0].Waited != 1005*ms {
		t.Fatalf("reopened: %+v", exits)
	}
}

// P3: after its own limit, counted from the exact end of the wait, or when it
// is full, the retry queue ends in ExpireRetry.
func TestRetryQueueEnds(t *testing.T) {
	l, _ := full(t, standardConfig(1, 0))
	b := Bounds{Length: 200, RetryLimit: 5 * time.Second, RetryLen: 1}
	first, second := waiter(policy.Batch, "b"), waiter(policy.Batch, "b")
	mustWait(t, l, at(0), first, b)
	mustWait(t, l, at(1*ms), second, b)
	exits := l.Advance(at(1003 * ms)) // late on purpose
	if len(exits) != 1 || exits[0].Waiter != second || exits[0].Action != policy.ExpireRetry || exits[0].Retried {
		t.Fatalf("full retry queue: %+v", exits)
	}
	due, _ := l.Next()
	if !due.Equal(at(6 * time.Second)) {
		t.Fatalf("retry ends at %v, want 6s", due.Sub(epoch))
	}
	exits = l.Advance(due)
	if len(exits) != 1 || exits[0].Waiter != first || !exits[0].Retried || exits[0].Action != policy.ExpireRetry || exits[0].Waited != 6*time.Second {
		t.Fatalf("end of retry: %+v", exits)
	}
	if s := l.Stats(due); s.HeldBytes != 0 || s.Retrying != 0 {
		t.Fatalf("stats %+v", s)
	}
}

// Nobody is held past the caller's own deadline, in line or retry queue.
func TestOwnDeadline(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	w := waiter(policy.Standard, "a")
	w.Deadline = at(30 * ms)
	mustWait(t, l, at(0), w, wide)
	exits := l.Advance(at(30 * ms))
	if len(exits) != 1 || !exits[0].Late || exits[0].Action != policy.ExpireDrop || exits[0].Waited != 30*ms {
		t.Fatalf("%+v", exits)
	}
	b := waiter(policy.Batch, "b")
	b.Deadline = at(1500 * ms)
	mustWait(t, l, at(31*ms), b, wide)
	if exits := l.Advance(at(1031 * ms)); len(exits) != 0 {
		t.Fatalf("%+v", exits)
	}
	if exits := l.Advance(at(1500 * ms)); len(exits) != 1 || !exits[0].Late || !exits[0].Retried {
		t.Fatalf("%+v", exits)
	}
	// Measured: one seat in 1.5 s. A deadline of 100 ms cannot be met.
	mustRefuseDeadline(t, l, held[0])
}

func mustRefuseDeadline(t *testing.T, l *Line, held *Waiter) {
	t.Helper()
	next := waiter(policy.Standard, "n")
	mustWait(t, l, at(1501*ms), next, wide)
	l.Release(at(1502*ms), held)
	w := waiter(policy.Standard, "a")
	w.Deadline = at(1602 * ms)
	o := mustRefuse(t, l, at(1502*ms), w, wide, CannotMeet)
	if o.Hint < 100*ms {
		t.Fatalf("hint %v is within the deadline", o.Hint)
	}
	w.Deadline = at(1502 * ms) // over already
	mustRefuse(t, l, at(1502*ms), w, wide, CannotMeet)
}

// No waiting (Length 0, MaxWait 0): a seat or Full.
func TestNoWaiting(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	mustRefuse(t, l, at(0), waiter(policy.Standard, "a"), Bounds{}, Full)
	w := waiter(policy.Standard, "a")
	w.MaxWait = 0
	mustRefuse(t, l, at(0), w, wide, Full)
	l.Release(at(1*ms), held[0])
	if o := l.Offer(at(1*ms), w, Bounds{}); !o.Granted {
		t.Fatalf("free seat: %+v", o)
	}
}

// Cancel against grant: whoever comes first wins, no seat is lost.
func TestCancelAndGrantRace(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	a, b := waiter(policy.Standard, "a"), waiter(policy.Standard, "b")
	mustWait(t, l, at(0), a, wide)
	mustWait(t, l, at(0), b, wide)
	l.Release(at(5*ms), held[0])
	if _, ok := l.Cancel(at(5*ms), a); ok {
		t.Fatal("cancelled one that has a seat")
	}
	if waited, ok := l.Cancel(at(6*ms), b); !ok || waited != 6*ms {
		t.Fatalf("cancel = %v %v", waited, ok)
	}
	if _, ok := l.Cancel(at(6*ms), b); ok {
		t.Fatal("cancelled twice")
	}
	if exits := l.Release(at(7*ms), b); exits != nil {
		t.Fatalf("released a seat that never was: %+v", exits)
	}
	l.Release(at(8*ms), a)
	if s := l.Stats(at(8 * ms)); s.SeatsUsed != (policy.Seats{}) || s.HeldBytes != 0 || s.Waiting != [3]int{} {
		t.Fatalf("%+v", s)
	}
}

// 10,000 cancelled waiters leave nothing behind; the next critical call is next.
func TestCancelsLeaveNoGhosts(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 20000}
	var ws []*Waiter
	for i := range 10000 {
		w := waiter(policy.Class(i%3), fmt.Sprint("t", i%97))
		mustWait(t, l, at(0), w, b)
		ws = append(ws, w)
	}
	for _, w := range ws {
		if _, ok := l.Cancel(at(1*ms), w); !ok {
			t.Fatal("lost")
		}
	}
	if s := l.Stats(at(1 * ms)); s.Waiting != [3]int{} || s.Tenants != 0 {
		t.Fatalf("%+v", s)
	}
	w := waiter(policy.Critical, "p")
	mustWait(t, l, at(2*ms), w, b)
	if got := granted(l.Release(at(3*ms), held[0])); len(got) != 1 || got[0] != w {
		t.Fatalf("%v", got)
	}
}

// SIGTERM: everybody who waits leaves, newcomers are refused, seats come back.
func TestDrain(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	mustWait(t, l, at(0), waiter(policy.Batch, "b"), wide)
	l.Advance(at(1000 * ms))
	mustWait(t, l, at(1000*ms), waiter(policy.Critical, "a"), wide)
	exits := l.Drain(at(1001 * ms))
	if len(exits) != 2 {
		t.Fatalf("%+v", exits)
	}
	for _, e := range exits {
		if !e.Drained || e.Granted || e.Hint <= 0 {
			t.Fatalf("%+v", e)
		}
	}
	mustRefuse(t, l, at(1002*ms), waiter(policy.Critical, "a"), wide, Draining)
	l.Release(at(1003*ms), held[0])
	if s := l.Stats(at(1003 * ms)); s.SeatsUsed != (policy.Seats{}) {
		t.Fatalf("%+v", s)
	}
	if l.TryTake(at(1004*ms), waiter(policy.Standard, "a")) {
		t.Fatal("took a seat while draining")
	}
}

// Misuse changes nothing: a waiter twice, a class that is none, another line's.
func TestMisuse(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	w := waiter(policy.Standard, "a")
	mustWait(t, l, at(0), w, wide)
	mustRefuse(t, l, at(0), w, wide, Full)
	mustRefuse(t, l, at(0), held[0], wide, Full)
	mustRefuse(t, l, at(0), &Waiter{Class: 7, MaxWait: ms}, wide, Full)
	other := New(standardConfig(1, 0), nil)
	if exits := other.Release(at(0), held[0]); exits != nil {
		t.Fatalf("%+v", exits)
	}
	if _, ok := other.Cancel(at(0), w); ok {
		t.Fatal("another line cancelled it")
	}
	if s := l.Stats(at(0)); s.SeatsUsed.Requests != 1 || s.Waiting[policy.Standard] != 1 {
		t.Fatalf("%+v", s)
	}
}

// Time that goes back counts as the latest seen.
func TestTimeNeverGoesBack(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	w := waiter(policy.Standard, "a")
	mustWait(t, l, at(100*ms), w, wide)
	exits := l.Release(at(20*ms), held[0])
	if len(exits) != 1 || exits[0].Waited != 0 {
		t.Fatalf("%+v", exits)
	}
}

// Q9: a request that fits the pool of all replicas, but not the part of it that
// is here, takes all there is when it gets its seat: no less after a growth.
func TestLargestTakesWhatThereIs(t *testing.T) {
	for _, c := range []struct{ before, after, want int64 }{{500, 1000, 900}, {500, 500, 500}, {1000, 500, 500}, {500, 0, 900}} {
		cfg := standardConfig(1, c.before)
		cfg.Largest = 1000
		l, held := full(t, cfg)
		large, huge := long(waiter(policy.Standard, "a")), long(waiter(policy.Standard, "a"))
		large.Tokens, huge.Tokens = 900, 1001
		mustWait(t, l, at(0), large, wide)
		mustRefuse(t, l, at(0), huge, wide, TooLarge)
		cfg.Seats.Tokens = c.after
		l.Configure(at(0), cfg)
		if ws := granted(l.Release(at(0), held[0])); len(ws) != 1 || l.used.Tokens != c.want {
			t.Errorf("%d tokens, then %d: %d seated, %d tokens used, want %d", c.before, c.after, len(ws), l.used.Tokens, c.want)
		}
		if l.Release(at(0), large); l.used != (policy.Seats{}) {
			t.Errorf("leaked: %+v", l.used)
		}
	}
}
