package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Numbers of those who come early.
const (
	invitations = 128 // of a flow, nearer than Max / invitations, share one
	idle        = 4   // a pool is idle with fewer than 1 / idle of its seats in use
)

// mayCome reports whether one that comes early may be let in all the same:
// because its group, or the priority lane, is short of its guarantee, or the
// pool is as good as idle, which says that its hint was too long. A seat that
// is merely free just now is not for the hasty: those who obey are away, and
// could not have had it.
func (l *Line) mayCome(w *Waiter) bool {
	return l.entitled(w) || l.total == 0 && idle*(l.used.Requests+1) <= l.usable.Requests
}

// invite notes that a caller who got no booking is told to come at an instant.
// It does so as a newcomer: nothing is kept for it. Of a flow without bookings
// nothing is noted, as nobody of it can be early.
func (b *book) invite(e *enquiry, at time.Duration) {
	k := b.flows[e.class][e.tenant]
	if k == nil {
		return
	}
	at -= at % max(1, b.cfg.Max/invitations)
	i, ok := slices.BinarySearchFunc(k.asked, at, func(s slot, at time.Duration) int { return cmp.Compare(s.at, at) })
	if !ok {
		k.asked = slices.Insert(k.asked, i, slot{at: at})
	}
	k.asked[i].n++
	b.schedule(k)
}

// early reports whether a caller that comes back and found no booking of its
// flow due has come before its time: others of the flow are booked or invited,
// and none of the invitations is due. One that is, is used up.
func (b *book) early(now time.Duration, c policy.Class, tenant string) bool {
	k := b.flows[c][tenant]
	if k == nil || k.undue == 0 && len(k.asked) == 0 {
		return false
	}
	if len(k.asked) == 0 || k.asked[0].at > now {
		return true
	}
	b.welcome(k)
	return false
}

// welcome uses up the flow's next invitation.
func (b *book) welcome(k *booker) {
	if k.asked[0].n--; k.asked[0].n == 0 {
		k.asked = slices.Delete(k.asked, 0, 1)
	}
	b.tidy(k)
}

// forgo gives up, for one who is let in early, what its flow has next: so the
// flow gets no more by it.
func (b *book) forgo(c policy.Class, tenant string) {
	k := b.flows[c][tenant]
	if k.undue == 0 {
		b.welcome(k)
		return
	}
	s := &k.slots[k.due]
	b.count(k, s.at, -1)
	b.stats[c].Claimed++
	if s.n--; s.n == 0 {
		k.due++
		b.drop(k)
	}
}

// latest is the last instant at which anybody of the flow is to come.
func (k *booker) latest() (time.Duration, bool) {
	if k.undue > 0 {
		return k.last, true
	}
	if n := len(k.asked); n > 0 {
		return k.asked[n-1].at, true
	}
	return 0, false
}
