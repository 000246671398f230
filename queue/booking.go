package queue

import (
	"math"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Numbers of the book.
const (
	cells     = 256         // counters of a page: its resolution is Max / 254
	quanta    = 4096        // bookings of a flow nearer than Max / quanta share a slot
	spares    = 1024        // forgotten flows whose memory is kept
	late      = time.Second // so much does Retry-After, in whole seconds, round up
	few       = 16          // a class with less than 1 / few of the bookings counts as one that has none
	pageLimit = 0.8         // of a page's rate, that it may be booked to,
	turnLimit = 0.95        // and that the fair turns of flows may book it to
)

// book is the line's book of slots: it makes retry hints true (Q5-Q7).
// A caller who is refused is given a slot, the instant at which it would be
// let in, and who comes back in its slot goes before newcomers.
//
// Each class of each group has a page. Bookings of a flow (tenant x class) are
// in order: a new one is never before an older one of its flow. It gets the
// earlier of two instants:
//
//   - behind all of its page: the first from which on the page is nowhere
//     fuller than its part of the drain rate (see share);
//   - in the fair turn of its flow: when the flow would have so many if the
//     flows of the page took turns by weight. So those who book little are not
//     moved by those who book much.
//
// It is then moved on until all pages together are nowhere fuller than the
// drain rate.
//
// A caller who says that it comes back, while others of its flow are booked and
// none of them is due, has come early. It is refused, seats or no seats, told
// the last slot of its flow, and nothing more is booked: so it gets no seat
// before those who obey, who are away. Let in early is who is entitled to a seat
// (see room), or comes to a pool that is as good as idle (see mayCome); it uses
// up the next booking of its flow, which has as many seats in sum. Callers who
// do not say that they come back cannot be told from newcomers, and are these.
//
// Fuller than a rate means: for some t, the bookings due from now
// until t are more than rate * (t - first), where first is when the present
// line is gone through; or those due in one cell are more than rate * its
// width, and more than one. The first is the service curve of a server of that
// rate with latency first (R. Cruz, A calculus for network delay, IEEE Trans.
// Inf. Theory 37(1), 1991): who comes at its slot is served as it comes.
//
// A booking is due from its slot on and forgotten Grace later. Nothing is
// booked beyond Max: who finds no slot is invited for some instant before it,
// to come as a newcomer. Memory: 24 bytes a slot, at most quanta slots and
// 2*invitations invitations a flow, and no more bookings over all than the drain
// rate clears in Max + Grace; only a flow with bookings has invitations. Each
// operation is O(log n) in the number of flows; a new booking walks over
// 3*cells counters at most, and allocates only for a flow that has none.
type book struct {
	cfg    Booking
	width  time.Duration // of a cell
	flows  [policy.NumClasses]map[string]*booker
	pages  []page // by group, then class
	all    counts // over the pages
	stats  [policy.NumClasses]Bookings
	events heap[time.Duration, *booker]
	spare  []*booker
}

// counts are the bookings not yet due, by the cell in which they will be.
type counts struct {
	total int
	top   int          // no cell after it has had a booking
	cells [cells]int32 // a ring
}

func (c *counts) add(cell int, n int32) {
	c.cells[cell%cells] += n
	c.total += int(n)
	c.top = max(c.top, cell)
}

// page is the part of the book of one class of a group.
type page struct {
	counts
	flows  int
	weight float64 // of the flows
}

// shape sets the book's times. Bookings stay.
func (b *book) shape(c Booking) {
	b.cfg = c
	width := max(1, c.Max/(cells-2))
	if width == b.width {
		return
	}
	b.width, b.all = width, counts{}
	for i := range b.pages {
		b.pages[i].counts = counts{}
	}
	for _, flows := range b.flows {
		for _, k := range flows {
			for _, s := range k.slots[k.due:] {
				b.mark(k, s.at, s.n)
			}
		}
	}
}

// open reports whether anything is booked.
func (b *book) open() bool { return b.cfg.Share > 0 && b.cfg.Max > 0 }

// count adds to the bookings that are not yet due.
func (b *book) count(k *booker, at time.Duration, n int32) {
	b.mark(k, at, n)
	k.undue += int(n)
	b.stats[k.class].Outstanding += int(n)
}

func (b *book) mark(k *booker, at time.Duration, n int32) {
	cell := int(at / b.width)
	b.pages[k.page].add(cell, n)
	b.all.add(cell, n)
}

// enquiry is what a caller asks of the book. Rates are seats a second.
type enquiry struct {
	class  policy.Class
	group  int
	tenant string
	weight float64
	again  bool          // has a booking of its flow already
	since  time.Duration // when it was refused first
	first  time.Duration // when the present line is gone through

	rate    float64 // that its class may have in its group
	grouped float64 // of its group
	all     float64
	weights [policy.NumClasses]float64

	asked   float64 // by newcomers of its class
	refused float64 // of these
	flows   int     // of its class that wait
}

// pace is the rate at which one of so many flows of a page may book, max-min
// fair: what the others do not ask for, and not less than an equal part. Of
// those refused, the flow is taken to be as many as of those who have booked.
func (e *enquiry) pace(ahead, total, flows int) float64 {
	others := e.asked - e.refused*float64(ahead)/float64(max(1, total))
	return max(e.rate/float64(max(flows, e.flows)), e.rate-others)
}

// add books a slot; false = there is none within Max.
func (b *book) add(now time.Duration, e *enquiry) (time.Duration, bool) {
	k := b.flows[e.class][e.tenant]
	index := e.group*policy.NumClasses + int(e.class)
	if k != nil {
		if index = k.page; e.again {
			if at, ok := k.latest(); ok {
				return at, true
			}
		}
	}
	for index >= len(b.pages) {
		b.pages = append(b.pages, page{})
	}
	p := &b.pages[index]
	from, ahead, had := e.first, 0, 0.0
	if k != nil {
		ahead, had = k.undue, k.weight
		from = max(from, plus(k.last, seconds(1/e.pace(ahead, p.total, p.flows))))
	}
	weights, share := p.weight-had+e.weight, b.share(e)
	turn := plus(e.first, seconds(float64(ahead+1)*weights/e.weight/share))
	at := min(
		b.room(&p.counts, now, e.first, from, share, true),
		b.room(&p.counts, now, e.first, max(from, turn), e.rate*turnLimit, false))
	at = b.room(&b.all, now, e.first, at, e.all, false)
	if at > plus(now, b.cfg.Max) {
		return 0, false
	}
	if k == nil {
		k = b.enter(e, index)
	}
	p.weight, k.weight = weights, e.weight
	b.write(k, at, e.since)
	return at, true
}

// books reports whether a class has a part of the bookings worth counting.
func (b *book) books(c policy.Class) bool { return b.stats[c].Outstanding*few > b.all.total }

// standing is how a flow stands among so many of its class: whether it has
// bookings at all, and whether they are more than twice the average.
func (b *book) standing(c policy.Class, tenant string, flows int) (booked, crowds bool) {
	k := b.flows[c][tenant]
	if k == nil {
		return false, false
	}
	p := &b.pages[k.page]
	return true, k.undue > 2*p.total/max(p.flows, flows)+few
}

// share is the rate at which a page is booked: its part by weight, among the
// classes of its group that have bookings, of the Share of the group's rate,
// as far as that leaves newcomers of the class something; and not less than
// the Share of its own rate.
func (b *book) share(e *enquiry) float64 {
	weights := 0.0
	for c := range e.weights {
		if policy.Class(c) == e.class || b.books(policy.Class(c)) {
			weights += e.weights[c]
		}
	}
	part := float64(b.cfg.Share)
	return max(e.rate*part, min(e.rate*pageLimit, e.grouped*part*e.weights[e.class]/weights))
}

// room is the first instant not before from at which one more booking leaves c
// nowhere fuller than rate. Even also spreads the bookings inside the cell.
// The search goes back from the last cell with bookings, or from where rate has
// cleared them all: beyond both, nothing is fuller.
func (b *book) room(c *counts, now, first, from time.Duration, rate float64, even bool) time.Duration {
	low, cleared := int(from/b.width), plus(first, seconds(float64(c.total+1)/rate))
	cell := min(int(now/b.width)+cells-1, max(c.top, int(cleared/b.width)+1))
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
	most := rate * b.width.Seconds()
	for cell = int(from / b.width); from <= now+b.cfg.Max && float64(c.cells[cell%cells]) > most; cell++ {
		from = time.Duration(cell+1) * b.width
	}
	return from
}

// clear ends all bookings.
func (b *book) clear() {
	b.events.clear()
	b.pages, b.all = nil, counts{}
	for c := range b.flows {
		clear(b.flows[c])
		b.stats[c].Outstanding, b.stats[c].Due = 0, 0
	}
}

// seconds is a time, at most never.
func seconds(s float64) time.Duration {
	if !(s*float64(time.Second) < math.MaxInt64) {
		return never
	}
	return time.Duration(s * float64(time.Second))
}
