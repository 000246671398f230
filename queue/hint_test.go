package queue

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// booking is a line of one seat of 100 ms that is taken, and of two places that
// are too, with a book.
func booking(t *testing.T) (*Line, *Waiter, Bounds) {
	t.Helper()
	c := standardConfig(1, 0)
	c.Booking = Booking{Share: 0.5, Grace: 5 * time.Second, Max: time.Minute}
	l := New(c, nil)
	b := Bounds{Length: 2}
	for range 5 {
		w := waiter(policy.Standard, "holder")
		l.Offer(at(0), w, b)
		l.Release(at(100*ms), w)
		l.Release(at(100*ms), w)
	}
	holder := waiter(policy.Standard, "holder")
	l.Offer(at(100*ms), holder, b)
	for _, w := range []*Waiter{long(waiter(policy.Standard, "x")), long(waiter(policy.Standard, "y"))} {
		mustWait(t, l, at(100*ms), w, b)
	}
	return l, holder, b
}

func returning(c policy.Class, tenant string) *Waiter {
	w := waiter(c, tenant)
	w.Returns = true
	return w
}

// Q5, Q6: refused, a caller has a slot; in it, it goes before newcomers,
// whatever the soft limit and the caps say; early, it gains nothing.
func TestSlotIsAPlace(t *testing.T) {
	l, holder, b := booking(t)
	now := 100 * ms
	hint := mustRefuse(t, l, at(now), waiter(policy.Standard, "a"), b, Full).Hint
	if want := 300*ms + 200*ms; hint < want-50*ms || hint > want+50*ms { // three seats, and one at half the rate
		t.Fatalf("hint %v, want about %v", hint, want)
	}
	slot := now + hint
	early := mustRefuse(t, l, at(slot-50*ms), returning(policy.Standard, "a"), b, TenantFull).Hint
	if early < 50*ms {
		t.Errorf("early, it was told %v: sooner than its slot", early)
	}
	if s := l.Stats(at(slot - 50*ms)).Bookings[policy.Standard]; s != (Bookings{Outstanding: 1}) {
		t.Errorf("early: %+v", s)
	}
	b.Soft = 1
	l.Release(at(slot), holder)
	mustRefuse(t, l, at(slot), waiter(policy.Standard, "new"), b, SoftFull)
	a := returning(policy.Standard, "a")
	mustWait(t, l, at(slot), a, b)
	if a.came != now {
		t.Errorf("credited since %v, was refused at %v", a.came, now)
	}
	if s := l.Stats(at(slot)).Bookings[policy.Standard]; s.Claimed != 1 || s.Due != 0 {
		t.Errorf("claimed: %+v", s)
	}
}

// Q7: hints are spread upwards, by less than an eighth and than the time between
// two seats.
func TestHintsAreSpread(t *testing.T) {
	ask := func(rng *rand.Rand) time.Duration {
		l, _, b := booking(t)
		l.rng = rng
		return mustRefuse(t, l, at(100*ms), waiter(policy.Standard, "a"), b, Full).Hint
	}
	begins := ask(nil)
	seen := map[time.Duration]bool{}
	for seed := range uint64(100) {
		hint := ask(rand.New(rand.NewPCG(seed, 1)))
		if hint < begins || hint > begins+min(begins/8, 100*ms) {
			t.Fatalf("hint %v of a slot that begins in %v", hint, begins)
		}
		seen[hint] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different hints of 100", len(seen))
	}
}

// An unmarked caller is a newcomer while there is room, and has its slot when
// there is not.
func TestUnmarkedReturn(t *testing.T) {
	l, holder, b := booking(t)
	hint := mustRefuse(t, l, at(100*ms), waiter(policy.Standard, "a"), b, Full).Hint
	slot := 100*ms + hint
	l.Release(at(slot), holder)
	b.Soft = 1
	mustWait(t, l, at(slot), waiter(policy.Standard, "a"), b)
	if s := l.Stats(at(slot)).Bookings[policy.Standard]; s.Claimed != 1 {
		t.Errorf("not claimed: %+v", s)
	}
}

// A line that is full with those who came in time is full all the same.
func TestClaimNeedsAPlace(t *testing.T) {
	l, _, b := booking(t)
	hint := mustRefuse(t, l, at(100*ms), waiter(policy.Standard, "a"), b, Full).Hint
	if again := mustRefuse(t, l, at(100*ms+hint), returning(policy.Standard, "a"), b, Full).Hint; again <= 0 {
		t.Errorf("hint %v", again)
	}
}

// Who leaves without a seat has a slot too, unless its own deadline is over.
func TestExpiryBooks(t *testing.T) {
	l, _, b := booking(t)
	b.Length = 9
	mustWait(t, l, at(100*ms), waiter(policy.Critical, "a"), b)
	late := waiter(policy.Critical, "late")
	late.Deadline = at(290 * ms)
	l.drain = drain{} // nothing known: deadlines are not judged
	mustWait(t, l, at(100*ms), late, b)
	xs := l.Advance(at(300 * ms))
	if len(xs) != 2 || xs[0].Hint <= 0 || xs[1].Hint <= 0 {
		t.Fatalf("%+v", xs)
	}
	if s := l.Stats(at(300 * ms)).Bookings[policy.Critical]; s.Outstanding != 1 {
		t.Errorf("%+v, want the one of a", s)
	}
}

// A reload keeps the book, a drain ends it, and a book without Share is none.
func TestLifeOfTheBook(t *testing.T) {
	l, _, b := booking(t)
	mustRefuse(t, l, at(100*ms), waiter(policy.Standard, "a"), b, Full)
	c := l.cfg
	c.Weights, c.Booking.Max = [3]int{5, 2, 1}, 30*time.Second
	l.Configure(at(110*ms), c)
	if hint := l.Book(at(110*ms), waiter(policy.Standard, "elsewhere")); hint <= 0 {
		t.Errorf("hint %v", hint)
	}
	if s := l.Stats(at(120 * ms)).Bookings[policy.Standard]; s.Outstanding != 2 {
		t.Errorf("after a reload: %+v", s)
	}
	l.Drain(at(130 * ms))
	if s := l.Stats(at(130 * ms)).Bookings[policy.Standard]; s != (Bookings{}) {
		t.Errorf("after a drain: %+v", s)
	}
	l.Reopen()
	c.Booking = Booking{}
	l.Configure(at(140*ms), c)
	if hint := l.Book(at(140*ms), waiter(policy.Standard, "a")); hint != l.wait(l.total+1) {
		t.Errorf("hint %v without a book, want position / drain rate", hint)
	}
}

// Beyond Max there is no slot; the hints are spread over the last half of it.
func TestHintsBeyondMax(t *testing.T) {
	l, _, b := booking(t)
	l.rng = dice(5)
	c := l.cfg
	c.Booking.Max = 2 * time.Second
	l.Configure(at(100*ms), c)
	least, most := time.Minute, time.Duration(0)
	for range 1000 {
		hint := mustRefuse(t, l, at(100*ms), waiter(policy.Standard, "a"), b, Full).Hint
		if hint > 2*time.Second {
			t.Fatalf("hint %v", hint)
		}
		if l.book.all.total > 20 { // 10 a second serve no more in 2 s
			t.Fatalf("%d booked", l.book.all.total)
		}
		least, most = min(least, hint), max(most, hint)
	}
	if least > 1100*ms || most < 1900*ms {
		t.Errorf("hints from %v to %v, want a spread from 1 s to 2 s", least, most)
	}
}

// A refusal of a tenant that has bookings allocates nothing.
func BenchmarkRefuse(b *testing.B) {
	c := standardConfig(1, 0)
	c.Booking = Booking{Share: 0.5, Grace: 5 * time.Second, Max: time.Minute}
	l := New(c, dice(1))
	for range 2 {
		l.Offer(at(0), long(waiter(policy.Standard, "x")), wide)
	}
	ws := make([]*Waiter, 200)
	for i := range ws {
		ws[i] = waiter(policy.Standard, string(rune('A'+i)))
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		l.Offer(at(time.Duration(n)*100*time.Microsecond), ws[n%len(ws)], Bounds{Length: 1})
	}
}
