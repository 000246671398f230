package queue

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/policy"
)

// Whatever is booked, claimed, forgotten and reshaped: every booking is counted
// once, the slots of a flow are in order and within Max, and each booking ends
// as claimed or lapsed.
func TestBookCountsEveryBookingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now, made := newBook(), time.Duration(0), uint64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * ms
			b.pass(now)
			a := enquire(now, fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "tenant")))
			a.class = policy.Class(rapid.IntRange(0, 2).Draw(t, "class"))
			a.group = rapid.IntRange(0, 1).Draw(t, "group")
			a.weight = rapid.Float64Range(minWeight, 100).Draw(t, "weight")
			a.rate = rapid.Float64Range(0.01, 100).Draw(t, "rate")
			switch rapid.IntRange(0, 9).Draw(t, "action") {
			case 0:
				b.shape(Booking{Share: 0.5, Grace: 5 * time.Second, Max: time.Duration(rapid.IntRange(1, 60).Draw(t, "max")) * time.Second})
			case 1, 2, 3:
				b.take(now, a.class, a.tenant, rapid.Bool().Draw(t, "marked"))
			default:
				for range rapid.IntRange(1, 30).Draw(t, "times") {
					at, ok := b.add(now, a)
					if ok {
						made++
					}
					if ok && (at < a.first || at > now+b.cfg.Max) {
						t.Fatalf("slot %v at %v", at, now)
					}
				}
			}
			checkBook(t, b, made)
		}
		b.pass(now + time.Hour)
		checkBook(t, b, made)
		if b.events.len() != 0 || b.all.total != 0 {
			t.Fatalf("%d flows left, %d bookings", b.events.len(), b.all.total)
		}
	})
}

// Where a page has room is found as by its definition: over all cells, from the last one back.
func TestRoomIsAfterTheLastFullCell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now := newBook(), time.Duration(0)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 9000).Draw(t, "ms")) * ms
			b.pass(now)
			a := enquire(now, fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "tenant")))
			a.first = now + time.Duration(rapid.IntRange(0, 5000).Draw(t, "first"))*ms
			a.rate = rapid.Float64Range(0.01, 100).Draw(t, "rate of the class")
			for range rapid.IntRange(0, 300).Draw(t, "times") {
				b.add(now, a)
			}
			first := now + time.Duration(rapid.IntRange(0, 20000).Draw(t, "after"))*ms
			from := first + time.Duration(rapid.IntRange(0, 70000).Draw(t, "from"))*ms
			rate := rapid.SampledFrom([]float64{0, 0.01, 1, 10, 50, 95, 1e3, 1e9}).Draw(t, "rate")
			even := rapid.Bool().Draw(t, "even")
			got, want := b.room(&b.all, now, first, from, rate, even), roomFromTheEnd(b, now, first, from, rate, even)
			if got != want {
				t.Fatalf("room at %v, want %v, of %d bookings", got, want, b.all.total)
			}
		}
	})
}

func roomFromTheEnd(b *book, now, first, from time.Duration, rate float64, even bool) time.Duration {
	c, cell, low := &b.all, int(now/b.width)+cells-1, int(from/b.width)
	until, later := c.total+1, 0 // until the end of the cell, with the new one; in the cell after it
	for ; cell >= low; cell-- {
		end := time.Duration(cell+1) * b.width
		if float64(until) > rate*(end-first).Seconds() {
			even = true
			break
		}
		later = int(c.cells[cell%cells])
		until -= later
	}
	if even {
		from = max(from, plus(first, seconds(float64(until+later)/rate)))
	}
	for cell = int(from / b.width); from <= now+b.cfg.Max && float64(c.cells[cell%cells]) > rate*b.width.Seconds(); cell++ {
		from = time.Duration(cell+1) * b.width
	}
	return from
}

func checkBook(t *rapid.T, b *book, made uint64) {
	undue, flows, ended, open := 0, 0, uint64(0), 0
	for c := range b.flows {
		ended += b.stats[c].Claimed + b.stats[c].Lapsed
		open += b.stats[c].Outstanding + b.stats[c].Due
		for _, k := range b.flows[c] {
			flows++
			undue += k.undue
			n, last := 0, time.Duration(0)
			for i, s := range k.slots[k.head:] {
				if s.n <= 0 || s.at < last {
					t.Fatalf("%s: slot %+v after %v", k.name, s, last)
				}
				if last = s.at; k.head+i >= k.due {
					n += int(s.n)
				}
			}
			if n != k.undue {
				t.Fatalf("%s: %d bookings not due, counted %d", k.name, n, k.undue)
			}
		}
	}
	pages := 0
	for i := range b.pages {
		pages += b.pages[i].total
	}
	if undue != b.all.total || undue != pages || flows != b.events.len() {
		t.Fatalf("%d not due, counted %d and %d by page; %d flows, %d in the heap", undue, b.all.total, pages, flows, b.events.len())
	}
	if ended+uint64(open) != made {
		t.Fatalf("%d made, %d ended, %d open", made, ended, open)
	}
}
