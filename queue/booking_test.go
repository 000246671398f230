package queue

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// enquire makes a caller's enquiry: class standard alone, a pool of 100 seats a
// second whose line takes 100 ms.
func enquire(now time.Duration, tenant string) *enquiry {
	return &enquiry{
		class: policy.Standard, tenant: tenant, weight: 1, since: now, first: now + 100*ms,
		rate: 100, grouped: 100, all: 100, weights: [policy.NumClasses]float64{3, 2, 1},
	}
}

func newBook() *book {
	b := &book{}
	b.shape(Booking{Share: 0.5, Grace: 5 * time.Second, Max: time.Minute})
	return b
}

// mustBook books at instant 0.
func mustBook(t *testing.T, b *book, e *enquiry) time.Duration {
	t.Helper()
	at, ok := b.add(0, e)
	if !ok || at < e.first || at > time.Minute {
		t.Fatalf("slot %v, %t", at, ok)
	}
	return at
}

// Slots follow each other at the Share of the rate, behind the present line.
func TestSlotsFollowEachOther(t *testing.T) {
	b := newBook()
	for i := range 400 {
		at := mustBook(t, b, enquire(0, fmt.Sprint("t", i)))
		if want := 100*ms + time.Duration(i+1)*20*ms; at < want-20*ms || at > want+20*ms {
			t.Fatalf("the slot of number %d is %v, want %v", i, at, want)
		}
	}
}

// The bookings of a flow are in order; beyond Max nothing is booked; a book is
// not larger than what the pool can serve within Max.
func TestBookIsBounded(t *testing.T) {
	b := newBook()
	last, n := time.Duration(0), 0
	for range 100000 {
		at, ok := b.add(0, enquire(0, "flood"))
		if !ok {
			continue
		}
		if n++; at < last {
			t.Fatalf("slot %v after %v", at, last)
		}
		last = at
	}
	k := b.flows[policy.Standard]["flood"]
	if n < 2900 || n > 6000 || len(k.slots) > quanta {
		t.Errorf("%d bookings, %d slots of 24 bytes", n, len(k.slots))
	}
	if allocs := testing.AllocsPerRun(1000, func() { b.add(0, enquire(0, "flood")) }); allocs != 0 {
		t.Errorf("a refusal allocates %v times", allocs)
	}
	b.pass(time.Hour)
	if b.all.total != 0 || len(b.flows[policy.Standard]) != 0 || b.events.len() != 0 || b.stats[policy.Standard].Due != 0 {
		t.Errorf("something is left of a book that is over: %+v", b.stats)
	}
	if got := b.stats[policy.Standard].Lapsed; got != uint64(n) {
		t.Errorf("%d lapsed of %d", got, n)
	}
}

// A tenant that has booked the whole book moves nobody else: others get their
// fair turn, by weight, and all together no more than the pool serves.
func TestFloodMovesNoOther(t *testing.T) {
	b := newBook()
	for range 10000 {
		b.add(0, enquire(0, "flood"))
	}
	if at := mustBook(t, b, enquire(0, "small")); at > 100*ms+2*20*ms {
		t.Errorf("the first of two flows is told %v", at)
	}
	heavy := enquire(0, "heavy")
	heavy.weight = 8
	if at := mustBook(t, b, heavy); at > 100*ms+30*ms { // 10/8 turns
		t.Errorf("one of eight times the weight is told %v", at)
	}
	for i := range 3000 {
		b.add(0, enquire(0, fmt.Sprint("t", i)))
	}
	due := 0
	for now := time.Duration(0); now < time.Minute; now += 100 * ms {
		b.pass(now)
		due = b.stats[policy.Standard].Due + int(b.stats[policy.Standard].Lapsed)
		if most := 100*now.Seconds() + 100; float64(due) > most { // a cell or two
			t.Fatalf("%d due until %v", due, now)
		}
	}
}

// A flow books no slower than the others leave it: what they do not ask for is
// its own.
func TestFlowTakesWhatOthersLeave(t *testing.T) {
	b := newBook()
	for i := range 9 {
		mustBook(t, b, enquire(0, fmt.Sprint("small", i)))
	}
	var last time.Duration
	for range 100 {
		e := enquire(0, "large")
		e.asked, e.refused = 20, 20 // nearly all of them its own
		last = mustBook(t, b, e)
	}
	if want := 100*ms + 109*20*ms; last > want+250*ms { // a cell; at a tenth of the rate it would be 10 s
		t.Errorf("the last of 109 slots is %v, want %v", last, want)
	}
}

// Bookings of a class are never nearer than a part of its own rate allows, not
// even where its group has much more: newcomers of the class have the rest.
func TestNewcomersAreLeftSome(t *testing.T) {
	b := newBook()
	for i := range 100 {
		e := enquire(0, fmt.Sprint("t", i))
		e.rate = 20
		at := mustBook(t, b, e)
		if want := 100*ms + seconds(float64(i+1)/(20*pageLimit)); at < want-250*ms {
			t.Fatalf("the slot of number %d is %v, not before %v", i, at, want)
		}
	}
}

// Nor do the fair turns of many take the whole rate from newcomers, where a
// flood has booked before them.
func TestTurnsLeaveNewcomersSome(t *testing.T) {
	b := newBook()
	for range 1000 {
		b.add(0, enquire(0, "flood"))
	}
	for i := range 1000 {
		b.add(0, enquire(0, fmt.Sprint("t", i)))
	}
	b.pass(10*time.Second + 100*ms)
	st := b.stats[policy.Standard]
	if due, most := float64(st.Due)+float64(st.Lapsed), 1000*turnLimit; due > most+5 || due < most-30 {
		t.Errorf("%v bookings within ten seconds, want %v", due, most)
	}
}

// The pages of a group divide what it may book by weight; a class with hardly
// any bookings does not count.
func TestPagesShareByWeight(t *testing.T) {
	b := newBook()
	e := enquire(0, "t")
	e.rate = 40
	critical := func(n int) {
		for range n {
			c := enquire(0, "c")
			c.class = policy.Critical
			mustBook(t, b, c)
		}
	}
	check := func(who string, want float64) {
		t.Helper()
		if got := b.share(e); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v bookings a second, want %v", who, got, want)
		}
	}
	for i := range 20 {
		mustBook(t, b, enquire(0, fmt.Sprint("t", i)))
	}
	check("alone", 40*pageLimit)
	critical(1)
	check("beside one of class critical", 40*pageLimit)
	critical(4)
	check("beside class critical", 20) // 2 of 5 parts, and half of its own rate
}

// A booking is claimed from its slot until Grace after it, once, by its flow.
func TestClaims(t *testing.T) {
	const slot = 120 * ms
	for _, c := range []struct {
		name   string
		class  policy.Class
		tenant string
		at     time.Duration
		want   bool
	}{
		{"early", policy.Standard, "a", slot - ms, false},
		{"in time", policy.Standard, "a", slot, true},
		{"by Retry-After", policy.Standard, "a", slot + time.Second, true},
		{"at the end of grace", policy.Standard, "a", slot + 5*time.Second, true},
		{"too late", policy.Standard, "a", slot + 5*time.Second + time.Minute/quanta + 2, false},
		{"another tenant", policy.Standard, "b", slot, false},
		{"another class", policy.Batch, "a", slot, false},
	} {
		b := newBook()
		if at := mustBook(t, b, enquire(0, "a")); at != slot {
			t.Fatalf("slot %v", at)
		}
		b.pass(c.at)
		if since, ok := b.take(c.at, c.class, c.tenant, true); ok != c.want || since != 0 {
			t.Errorf("%s: %t, since %v", c.name, ok, since)
		}
		if _, ok := b.take(c.at, c.class, c.tenant, true); ok {
			t.Errorf("%s: claimed twice", c.name)
		}
	}
}

// In a flow whose callers mark their returns, newcomers do not take the slots
// of those who are about to come.
func TestMarkedFlow(t *testing.T) {
	b := newBook()
	for range 3 {
		mustBook(t, b, enquire(0, "a"))
	}
	b.pass(time.Second)
	if _, ok := b.take(time.Second, policy.Standard, "a", false); !ok {
		t.Error("nobody marks, and the slot is due")
	}
	if _, ok := b.take(time.Second, policy.Standard, "a", true); !ok {
		t.Error("a marked return in its slot")
	}
	if _, ok := b.take(time.Second, policy.Standard, "a", false); ok {
		t.Error("an unmarked one took the slot of one who may be a second late")
	}
	b.pass(2 * time.Second)
	if _, ok := b.take(2*time.Second, policy.Standard, "a", false); !ok {
		t.Error("by now he should have come")
	}
}

// A change of the times keeps bookings, and what they leave free.
func TestReshapedBook(t *testing.T) {
	b := newBook()
	for range 100 {
		mustBook(t, b, enquire(0, "a"))
	}
	b.shape(Booking{Share: 0.5, Grace: time.Second, Max: 10 * time.Second})
	if n := b.stats[policy.Standard].Outstanding; n != 100 || b.all.total != 100 {
		t.Errorf("%d outstanding, %d counted", n, b.all.total)
	}
	if at := mustBook(t, b, enquire(0, "a")); at < 1900*ms {
		t.Errorf("slot %v, behind 100 at 50 a second", at)
	}
	b.clear()
	if at := mustBook(t, b, enquire(0, "a")); at != 120*ms || b.stats[policy.Standard].Outstanding != 1 {
		t.Errorf("slot %v of an empty book: %+v", at, b.stats)
	}
}
