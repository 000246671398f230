package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// caps are the places of each class when all classes want theirs (P2):
// length * w*W / sum(w*W), rounded by largest remainder so that they sum up to
// the length. W is the longest wait of the class: a class is not given more
// places than its share of the seats can clear in time.
type caps struct {
	length int
	places [policy.NumClasses]int
}

func (c *caps) resize(length int, cfg *Config) {
	if c.length == length {
		return
	}
	c.length = length
	var parts [policy.NumClasses]float64
	var sum float64
	for i := range parts {
		parts[i] = float64(max(1, cfg.Weights[i])) * max(0, cfg.MaxWaits[i].Seconds())
		sum += parts[i]
	}
	if sum == 0 {
		parts, sum = [policy.NumClasses]float64{1, 1, 1}, policy.NumClasses
	}
	left := length
	order := [policy.NumClasses]int{0, 1, 2}
	for i := range parts {
		parts[i] *= float64(length) / sum
		c.places[i] = int(parts[i])
		left -= c.places[i]
	}
	slices.SortStableFunc(order[:], func(a, b int) int {
		return cmp.Compare(parts[b]-float64(c.places[b]), parts[a]-float64(c.places[a]))
	})
	for i := 0; i < len(order) && left > 0; i++ {
		c.places[order[i]]++
		left--
	}
}

// asks remembers when a class last asked for a place and got no seat at once,
// taken or refused, and by which tenant: the signs that it is not idle.
type asks struct {
	asked  bool
	last   time.Duration
	tenant string // of the last
	others bool
	other  time.Duration // last by another tenant than that
}

// note records that w asks for a place, for want of a seat.
func (l *Line) note(w *Waiter) {
	a := &l.asks[w.Class]
	if a.asked && a.tenant != w.Tenant {
		a.others, a.other = true, a.last
	}
	a.asked, a.last, a.tenant = true, l.now, w.Tenant
	l.drain.full = float64(min(l.used.Requests, l.usable.Requests))
}

// recall is how long an ask counts: the longest wait of any class.
func (l *Line) recall() time.Duration { return slices.Max(l.cfg.MaxWaits[:]) }

// room judges whether w may wait, in this order:
//
//   - P8, P9: who is entitled to one of the next freed seats may wait for it,
//     however many do: so those who borrowed a share do not keep its owner out.
//     No more go beyond Length than there are seats.
//   - Q6: the line is full with Length waiting, whoever they are.
//   - P2: a tenant that has its share (PerTenant of its class cap) waiting gets
//     no more while another tenant of the class waits or has lately asked.
//   - P2: a class below its cap has room. Above it, it may have what is lent:
//     the places of classes that are idle, that is, of which nobody waits and
//     nobody has lately asked. A class that asks takes its places back as
//     they come free: the borrowers get no more.
//   - Q5: from Soft waiting on only the exempt may wait. A class that has
//     bookings yields to those who come back in their slots.
//
// One who is the first of its tenant passes the last two while those who wait
// of its class hold more than a whole share each: no tenant can fill a class.
//
// Lately is within the longest wait of any class.
func (l *Line) room(w *Waiter, b Bounds) Refusal {
	if l.entitled(w) {
		return Taken
	}
	if l.total >= b.Length {
		return Full
	}
	l.caps.resize(b.Length, &l.cfg)
	c, all, mine := w.Class, l.waiting[w.Class], l.waitingBy(w.Class, w.Tenant)
	flows := l.tenantsOf(c)
	booked, crowds := l.book.standing(c, w.Tenant, flows)
	places := float64(l.caps.places[c])
	whole := b.share(places)
	if booked || mine > 0 {
		places *= l.rest(c)
	}
	share := b.share(places)
	if crowds || mine >= share && (all > mine || l.othersAsk(w)) {
		return TenantFull
	}
	if mine == 0 && all > whole*flows {
		return Taken
	}
	if all >= l.caps.places[c] && l.total+l.owed(c) >= b.Length {
		return ClassFull
	}
	fair := float64((mine+1)*max(1, flows)) <= places
	if places < float64(l.caps.places[c]) && float64(all) >= places && !fair || b.Soft > 0 && l.total >= b.Soft && !b.Exempt {
		return SoftFull
	}
	return Taken
}

// share is what one tenant may have of so many places of its class.
func (b *Bounds) share(places float64) int {
	if b.PerTenant > 0 && b.PerTenant < 1 {
		return max(1, int(places*float64(b.PerTenant)))
	}
	return b.Length
}

// rest is the part of the places that newcomers of a class that has bookings
// may take: the rest of the seats besides those who come back in their slots
// take, and squared, because these come in gusts.
func (l *Line) rest(c policy.Class) float64 {
	if !l.book.books(c) {
		return 1
	}
	rest := 1 - l.drain.returns()
	return rest * rest
}

// owed is the room below their caps of the other classes that are not idle.
func (l *Line) owed(c policy.Class) (n int) {
	for o := range policy.Class(policy.NumClasses) {
		if o == c {
			continue
		}
		a, waiting := &l.asks[o], l.waiting[o]
		if waiting > 0 || a.asked && l.now-a.last <= l.recall() {
			n += max(0, l.caps.places[o]-waiting)
		}
	}
	return n
}

// othersAsk reports whether another tenant of w's class has lately asked; w
// itself is the last that asked.
func (l *Line) othersAsk(w *Waiter) bool {
	a := &l.asks[w.Class]
	return a.others && l.now-a.other <= l.recall()
}

// refuse answers one whom no room would have helped; what can never run gets
// no hint.
func (l *Line) refuse(r Refusal) Offered {
	if r == TooLarge {
		return Offered{Refusal: r}
	}
	return Offered{Refusal: r, Hint: l.wait(l.total + 1)}
}
