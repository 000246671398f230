package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// P2: caps of 200 by weight and longest wait are 46.15, 76.92, 76.92.
func TestClassCaps(t *testing.T) {
	cfg := standardConfig(1, 0)
	for length, want := range map[int][3]int{200: {46, 77, 77}, 50: {12, 19, 19}, 1: {0, 1, 0}, 26: {6, 10, 10}} {
		var c caps
		c.resize(length, &cfg)
		if c.places != want {
			t.Errorf("caps of %d = %v, want %v", length, c.places, want)
		}
	}
	cfg.MaxWaits = [3]time.Duration{}
	var c caps
	c.resize(9, &cfg)
	if c.places != [3]int{3, 3, 3} {
		t.Errorf("caps without waits = %v", c.places)
	}
}

// Q5, Q6: soft from 80 %, full at the length; critical may use the rest.
func TestSoftAndFull(t *testing.T) {
	l, _ := full(t, standardConfig(1, 0))
	b := Bounds{Length: 10, Soft: 8, PerTenant: 0.5}
	for range 8 {
		mustWait(t, l, at(0), waiter(policy.Standard, "a"), b)
	}
	if o := mustRefuse(t, l, at(0), waiter(policy.Standard, "a"), b, SoftFull); o.Hint <= 0 {
		t.Fatalf("no hint: %+v", o)
	}
	exempt := b
	exempt.Exempt = true
	mustWait(t, l, at(0), waiter(policy.Critical, "c"), exempt)
	mustWait(t, l, at(0), waiter(policy.Critical, "c"), exempt)
	if o := mustRefuse(t, l, at(0), waiter(policy.Critical, "c"), exempt, Full); o.Hint <= 0 {
		t.Fatalf("no hint: %+v", o)
	}
}

// P2: idle caps are lent, and taken back as their class asks.
func TestIdleCapsAreLent(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 26} // caps 6, 10, 10
	batch := func(i int) *Waiter { return waiter(policy.Batch, fmt.Sprint("b", i)) }
	for i := range 26 {
		mustWait(t, l, at(0), batch(i), b)
	}
	mustRefuse(t, l, at(0), waiter(policy.Standard, "s"), b, Full)
	// Standard has asked: the next place that comes free is its own.
	l.Release(at(1*ms), held[0])
	mustRefuse(t, l, at(1*ms), batch(99), b, ClassFull)
	mustWait(t, l, at(2*ms), waiter(policy.Standard, "s"), b)
	mustRefuse(t, l, at(3*ms), batch(99), b, Full)
}

// P2: a full class cap is 429 while the others use theirs.
func TestClassCapBinds(t *testing.T) {
	l, _ := full(t, standardConfig(1, 0))
	b := Bounds{Length: 26} // caps 6, 10, 10
	name := 0
	next := func(c policy.Class) *Waiter { name++; return waiter(c, fmt.Sprint("t", name)) }
	mustWait(t, l, at(0), next(policy.Critical), b)
	mustWait(t, l, at(0), next(policy.Standard), b)
	for range 10 {
		mustWait(t, l, at(0), next(policy.Batch), b)
	}
	mustRefuse(t, l, at(0), next(policy.Batch), b, ClassFull)
	for range 9 {
		mustWait(t, l, at(0), next(policy.Standard), b)
	}
	for range 5 {
		mustWait(t, l, at(0), next(policy.Critical), b)
	}
	mustRefuse(t, l, at(0), next(policy.Critical), b, Full) // 26 of 26
}

// P2: an idle class is one that nobody waits of and that has not asked within
// the longest wait.
func TestRecallEnds(t *testing.T) {
	l, _ := full(t, standardConfig(1, 0))
	b := Bounds{Length: 26}
	s := waiter(policy.Standard, "s")
	mustWait(t, l, at(0), s, b)
	l.Cancel(at(0), s)
	for i := range 16 {
		mustWait(t, l, at(0), long(waiter(policy.Batch, fmt.Sprint("b", i))), b)
	}
	mustRefuse(t, l, at(1000*ms), waiter(policy.Batch, "x"), b, ClassFull)
	mustWait(t, l, at(1000*ms+1), waiter(policy.Batch, "x"), b)
}

// P2: one tenant holds at most half of its class cap while others wait.
func TestTenantShare(t *testing.T) {
	l, _ := full(t, standardConfig(1, 0))
	b := Bounds{Length: 26, PerTenant: 0.5} // standard's cap 10, a tenant's 5
	mustWait(t, l, at(0), waiter(policy.Standard, "b"), b)
	for range 5 {
		mustWait(t, l, at(0), waiter(policy.Standard, "a"), b)
	}
	mustRefuse(t, l, at(0), waiter(policy.Standard, "a"), b, TenantFull)
	mustWait(t, l, at(0), waiter(policy.Batch, "a"), b) // another class, another flow
	mustWait(t, l, at(0), waiter(policy.Standard, "c"), b)
}

// P2: a tenant alone may use the class, but cannot keep others of the class
// out: the first of another tenant passes class cap and soft limit, and from
// then on the share binds.
func TestOneTenantCannotFillAClass(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 200, Soft: 160, PerTenant: 0.5}
	for range 160 {
		mustWait(t, l, at(0), waiter(policy.Standard, "flood"), b)
	}
	mustRefuse(t, l, at(0), waiter(policy.Standard, "flood"), b, SoftFull)
	small := waiter(policy.Standard, "small")
	mustWait(t, l, at(0), small, b)
	mustRefuse(t, l, at(0), waiter(policy.Standard, "flood"), b, TenantFull)
	// Served within two rounds.
	last, rounds := held[0], 0
	for last != small {
		if rounds++; rounds > 2 {
			t.Fatal("not served within 2 rounds")
		}
		last = granted(l.Release(at(1*ms), last))[0]
	}
}

// A tenant refused because the line is full is heard: the flooding tenant is
// held to its share, so that the next place is the other's.
func TestRefusedTenantIsHeard(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 20, PerTenant: 0.5}
	for range 20 {
		mustWait(t, l, at(0), waiter(policy.Standard, "flood"), b)
	}
	mustRefuse(t, l, at(1*ms), waiter(policy.Standard, "small"), b, Full)
	l.Release(at(2*ms), held[0])
	mustRefuse(t, l, at(3*ms), waiter(policy.Standard, "flood"), b, TenantFull)
	mustWait(t, l, at(4*ms), waiter(policy.Standard, "small"), b)
}

// Q5: the hint is position / measured drain rate.
func TestHintFollowsDrainRate(t *testing.T) {
	l, held := full(t, standardConfig(10, 0))
	b := Bounds{Length: 1000, Soft: 50}
	running := held
	now := time.Duration(0)
	// 10 seats of 100 ms each: 100 seats a second, for 20 s, with 50 waiting.
	for now < 20*time.Second {
		now += 10 * ms
		for l.Offer(at(now), long(waiter(policy.Standard, "a")), b).Refusal == Taken {
		}
		w := running[0]
		running = append(running[1:], granted(l.Release(at(now), w))...)
	}
	for l.Offer(at(now), long(waiter(policy.Standard, "a")), b).Refusal == Taken {
	}
	o := mustRefuse(t, l, at(now), long(waiter(policy.Standard, "a")), b, SoftFull)
	if want := 510 * ms; o.Hint < want*9/10 || o.Hint > want*11/10 {
		t.Fatalf("hint %v, want about %v (51 / 100 a second)", o.Hint, want)
	}
	if r := l.Stats(at(now)).DrainRate; r < 95 || r > 105 {
		t.Fatalf("drain rate %v, want about 100", r)
	}
	// Nobody is freed for a minute: the hint grows, within its bound.
	l.Advance(at(now))
	later := mustRefuse(t, l, at(now+time.Minute), long(waiter(policy.Standard, "a")), b, SoftFull)
	if later.Hint <= o.Hint || later.Hint > maxWait {
		t.Fatalf("hint of a stuck pool %v after %v", later.Hint, o.Hint)
	}
}

func long(w *Waiter) *Waiter { w.MaxWait = time.Hour; return w }

// Before anything is measured the hint is positive and bounded.
func TestHintWithoutMeasurement(t *testing.T) {
	l, _ := full(t, standardConfig(4, 0))
	o := mustRefuse(t, l, at(0), waiter(policy.Standard, "a"), Bounds{}, Full)
	if o.Hint != 250*ms { // 4 seats of a second each
		t.Fatalf("hint %v", o.Hint)
	}
	empty := New(Config{}, nil)
	if o := empty.Offer(at(0), waiter(policy.Standard, "a"), Bounds{}); o.Refusal != Full || o.Hint <= 0 || o.Hint > maxWait {
		t.Fatalf("no seats at all: %+v", o)
	}
}

// Predict counts the fair order: a critical call does not wait for the whole
// batch backlog, and a tenant not for all of another's.
func TestPredictByFairOrder(t *testing.T) {
	l := New(standardConfig(1, 0), nil)
	if d := l.Predict(at(0), waiter(policy.Standard, "a")); d != 0 {
		t.Fatalf("free seat: %v", d)
	}
	w := waiter(policy.Standard, "h")
	l.Offer(at(0), w, wide)
	l.Release(at(100*ms), w) // a seat takes 100 ms
	l.Offer(at(100*ms), w, wide)
	for range 100 {
		mustWait(t, l, at(100*ms), long(waiter(policy.Batch, "b")), wide)
	}
	for _, c := range []struct {
		w    *Waiter
		want time.Duration
	}{
		{waiter(policy.Critical, "a"), 100 * ms}, // turn 1
		{waiter(policy.Batch, "a"), 200 * ms},    // turn 2
		{waiter(policy.Batch, "b"), 10100 * ms},  // turn 101
	} {
		if d := l.Predict(at(100*ms), c.w); d != c.want {
			t.Errorf("class %v of %s: %v, want %v", c.w.Class, c.w.Tenant, d, c.want)
		}
	}
}

// Who knocks at a full line is refused as by an Offer; where there may be room
// it is left as it is.
func TestKnock(t *testing.T) {
	two := Bounds{Length: 2}
	l, _ := full(t, standardConfig(1, 0))
	w := waiter(policy.Critical, "w")
	if _, refused := l.Knock(at(0), w, two); refused {
		t.Error("refused by an empty line")
	}
	mustWait(t, l, at(0), waiter(policy.Critical, "a"), two)
	mustWait(t, l, at(0), waiter(policy.Batch, "b"), two)
	if o, refused := l.Knock(at(0), w, two); !refused || o.Refusal != Full || o.Hint <= 0 {
		t.Errorf("knock at a full line = %+v, %v, want Full with a hint", o, refused)
	}
	if _, refused := l.Knock(at(0), w, Bounds{Length: 3}); refused {
		t.Error("refused where a place is free")
	}
	if _, refused := l.Knock(at(200*ms), w, two); refused {
		t.Error("refused when a place is about to come free")
	}
}

// Who may wait though the line is full is not asked to prove it: to seat it
// and to take the seat back would let others go first unheard.
func TestKnockOfTheEntitled(t *testing.T) {
	c := standardConfig(10, 1000)
	c.Shares.Groups = []Group{{Share: 0.5}, {Share: 0.5}}
	l := New(c, nil)
	offer := func(class policy.Class, group int, tokens int64, late time.Duration) *Waiter {
		w := waiter(class, "t")
		w.Group, w.Tokens, w.Handicap = group, tokens, late
		l.Offer(at(0), w, Bounds{Length: 2})
		return w
	}
	offer(policy.Standard, 1, 700, 0)
	offer(policy.Critical, 0, 400, 100*ms) // does not fit, so
	small := offer(policy.Standard, 0, 100, 0)
	w := waiter(policy.Critical, "t") // goes before it, and fits
	w.Tokens = 20
	if _, refused := l.Knock(at(0), w, Bounds{Length: 2}); refused {
		t.Error("refused, though its group is owed a seat")
	}
	if exits := l.Advance(at(200 * ms)); len(exits) != 2 || exits[1].Waiter != small || !exits[1].Granted {
		t.Errorf("exits %+v, want the large one expired and the small one granted", exits)
	}
}
