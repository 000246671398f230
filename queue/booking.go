package queue

import (
	"math"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Numbers of the book of appointments.
const (
	cells     = 256         // counters of a page: its resolution is Max / 254
	quanta    = 4096        // bookings of a flow nearer than Max / quanta share a slot
	spares    = 1024        // forgotten flows whose memory is kept
	late      = time.Second // so much does Retry-After, in whole seconds, round up
	few       = 16          // a class with less than 1 / few of the bookings counts as one that has none
	pageLimit = 0.7         // of a page's rate, that it may be booked to,
	turnLimit = 0.95        // and that the fair turns of flows may book it to
)

// book is the line's book of appointments: it makes retry hints true (Q5-Q7).
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
// drain rate. A caller who says that it comes back and is not in its slot has
// come early: it is told the last slot of its flow, and nothing more is booked.
//
// Fuller than a rate means: for some t, the bookings due from now
// until t are more than rate * (t - first), where first is when the present
// line is gone through; or those due in one cell are more than rate * its
// width, and more than one. The first is the service curve of a server of that
// rate with latency first (R. Cruz, A calculus for network delay, IEEE Trans.
// Inf. Theory 37(1), 1991): who comes at its slot is served as it comes.
//
// A booking is due from its slot on and forgotten Grace later. Nothing is
// booked beyond Max. Memory: 24 bytes a slot, at most quanta slots a flow, and
// no more bookings over all than the drain rate clears in Max + Grace. Each
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
	cells [cells]int32 // a ring
}

func (c *counts) add(cell int, n int32) {
	c.cells[cell%cells] += n
	c.total += int(n)
}

// page is the part of the book of one class of a group.
type page struct {
	counts
	flows  int
	weight float64 // of the flows
}

// booker is a flow that has bookings.
type booker struct {
	name   string
	class  policy.Class
	page   int
	weight float64
	slots  []slotted // in order; those before head are gone
	head   int
	due    int           // slots[head:due] are due
	undue  int           // bookings in slots[due:]
	last   time.Duration // its latest booking
	marked bool          // its callers say that they come back
	pos    int           // in the heap of events
}

func (k *booker) place(i int) { k.pos = i }

// slotted is one slot with its bookings.
type slotted struct {
	at    time.Duration
	since time.Duration // when the first of them was refused first
	n     int32
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

// appointment is what a caller asks of the book. Rates are seats a second.
type appointment struct {
	class  policy.Class
	group  int
	tenant string
	weight float64
	again  bool          // says that it comes back
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
func (a *appointment) pace(ahead, total, flows int) float64 {
	others := a.asked - a.refused*float64(ahead)/float64(max(1, total))
	return max(a.rate/float64(max(flows, a.flows)), a.rate-others)
}

// add books a slot; false = there is none within Max.
func (b *book) add(now time.Duration, a *appointment) (time.Duration, bool) {
	k := b.flows[a.class][a.tenant]
	index := a.group*policy.NumClasses + int(a.class)
	if k != nil {
		if index = k.page; a.again && k.undue > 0 {
			return k.last, true
		}
	}
	for index >= len(b.pages) {
		b.pages = append(b.pages, page{})
	}
	p := &b.pages[index]
	from, ahead, had := a.first, 0, 0.0
	if k != nil {
		ahead, had = k.undue, k.weight
		from = max(from, plus(k.last, seconds(1/a.pace(ahead, p.total, p.flows))))
	}
	weights, share := p.weight-had+a.weight, b.share(a)
	turn := plus(a.first, seconds(float64(ahead+1)*weights/a.weight/share))
	at := min(
		b.room(&p.counts, now, a.first, from, share, true),
		b.room(&p.counts, now, a.first, max(from, turn), a.rate*turnLimit, false))
	at = b.room(&b.all, now, a.first, at, a.all, false)
	if at > plus(now, b.cfg.Max) {
		return 0, false
	}
	if k == nil {
		k = b.enter(a, index)
	}
	p.weight, k.weight = weights, a.weight
	b.write(k, at, a.since)
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
func (b *book) share(a *appointment) float64 {
	weights := 0.0
	for c := range a.weights {
		if policy.Class(c) == a.class || b.books(policy.Class(c)) {
			weights += a.weights[c]
		}
	}
	part := float64(b.cfg.Share)
	return max(a.rate*part, min(a.rate*pageLimit, a.grouped*part*a.weights[a.class]/weights))
}

// room is the first instant not before from at which one more booking leaves c
// nowhere fuller than rate. Even also spreads the bookings inside the cell.
func (b *book) room(c *counts, now, first, from time.Duration, rate float64, even bool) time.Duration {
	cell, low := int(now/b.width)+cells-1, int(from/b.width)
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

// enter makes a flow known.
func (b *book) enter(a *appointment, index int) *booker {
	var k *booker
	if n := len(b.spare); n > 0 {
		k, b.spare = b.spare[n-1], b.spare[:n-1]
	} else {
		k = &booker{}
	}
	*k = booker{name: a.tenant, class: a.class, page: index, slots: k.slots[:0]}
	if b.flows[a.class] == nil {
		b.flows[a.class] = make(map[string]*booker)
	}
	b.flows[a.class][a.tenant] = k
	b.pages[index].flows++
	return k
}

// write puts a booking behind the flow's others.
func (b *book) write(k *booker, at, since time.Duration) {
	k.last = at
	if i := len(k.slots) - 1; i >= k.due && at-k.slots[i].at < b.cfg.Max/quanta {
		k.slots[i].n++
		b.count(k, k.slots[i].at, 1)
		return
	}
	b.count(k, at, 1)
	if k.head > len(k.slots)/2 {
		n := copy(k.slots, k.slots[k.head:])
		k.slots, k.due, k.head = k.slots[:n], k.due-k.head, 0
	}
	k.slots = append(k.slots, slotted{at, since, 1})
	if len(k.slots) == 1 {
		b.events.push(at, 0, k)
	} else {
		b.schedule(k)
	}
}

// take claims a booking of the flow that is due, and tells since when its
// caller has been waiting. In a flow whose callers mark their returns, others
// claim only what such a caller should have come for already.
func (b *book) take(now time.Duration, c policy.Class, tenant string, marked bool) (since time.Duration, ok bool) {
	k := b.flows[c][tenant]
	if k == nil {
		return 0, false
	}
	k.marked = k.marked || marked
	if k.head == k.due || k.marked && !marked && now-k.slots[k.head].at <= late {
		return 0, false
	}
	s := &k.slots[k.head]
	since = s.since
	b.stats[c].Due--
	b.stats[c].Claimed++
	if s.n--; s.n == 0 {
		b.drop(k)
	}
	return since, true
}

// pass does what became due until now: slots begin, and are forgotten.
func (b *book) pass(now time.Duration) {
	for b.events.len() > 0 && b.events.min().key <= now {
		k := b.events.min().item
		st := &b.stats[k.class]
		if k.due < len(k.slots) && k.slots[k.due].at <= now {
			s := k.slots[k.due]
			k.due++
			b.count(k, s.at, -s.n)
			st.Due += int(s.n)
			b.schedule(k)
			continue
		}
		n := int(k.slots[k.head].n)
		st.Due -= n
		st.Lapsed += uint64(n)
		b.drop(k)
	}
}

// schedule tells when pass has to look at the flow.
func (b *book) schedule(k *booker) {
	next := never
	if k.head < k.due {
		next = plus(k.slots[k.head].at, b.cfg.Grace+b.cfg.Max/quanta+1)
	}
	if k.due < len(k.slots) {
		next = min(next, k.slots[k.due].at)
	}
	b.events.fix(k.pos, next, 0)
}

// drop forgets the flow's first slot, and the flow with its last.
func (b *book) drop(k *booker) {
	if k.head++; k.head < len(k.slots) {
		b.schedule(k)
		return
	}
	b.events.remove(k.pos)
	delete(b.flows[k.class], k.name)
	p := &b.pages[k.page]
	p.weight -= k.weight
	if p.flows--; p.flows == 0 {
		p.weight = 0 // whatever rounding left
	}
	if len(b.spare) < spares && cap(k.slots) <= 64 {
		b.spare = append(b.spare, k)
	}
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
