package queue

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// booker is a flow that has bookings.
type booker struct {
	name   string
	class  policy.Class
	page   int
	weight float64
	slots  []slot // in order; those before head are gone
	head   int
	due    int           // slots[head:due] are due
	asked  []slot        // invited to come without a booking, in order
	undue  int           // bookings in slots[due:]
	last   time.Duration // its latest booking
	marked bool          // its callers say that they come back
	pos    int           // in the heap of events
}

func (k *booker) place(i int) { k.pos = i }

// slot is an instant with its bookings.
type slot struct {
	at    time.Duration
	since time.Duration // when the first of them was refused first
	n     int32
}

// enter makes a flow known that is going to have a booking.
func (b *book) enter(e *enquiry, index int) *booker {
	var k *booker
	if n := len(b.spare); n > 0 {
		k, b.spare = b.spare[n-1], b.spare[:n-1]
	} else {
		k = &booker{}
	}
	*k = booker{name: e.tenant, class: e.class, page: index, slots: k.slots[:0], asked: k.asked[:0]}
	if b.flows[e.class] == nil {
		b.flows[e.class] = make(map[string]*booker)
	}
	b.flows[e.class][e.tenant] = k
	b.pages[index].flows++
	b.events.push(never, 0, k)
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
	k.slots = append(k.slots, slot{at, since, 1})
	b.schedule(k)
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
		if len(k.asked) > 0 && (k.head == k.due || k.asked[0].at < k.slots[k.head].at) {
			k.asked = slices.Delete(k.asked, 0, 1)
			b.tidy(k)
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
	next, kept := never, b.cfg.Grace+b.cfg.Max/quanta+1
	if k.head < k.due {
		next = plus(k.slots[k.head].at, kept)
	}
	if len(k.asked) > 0 {
		next = min(next, plus(k.asked[0].at, kept))
	}
	if k.due < len(k.slots) {
		next = min(next, k.slots[k.due].at)
	}
	b.events.fix(k.pos, next, 0)
}

// drop forgets the flow's first slot.
func (b *book) drop(k *booker) {
	k.head++
	b.tidy(k)
}

// tidy forgets a flow of which nobody is to come any more.
func (b *book) tidy(k *booker) {
	if k.head < len(k.slots) || len(k.asked) > 0 {
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
