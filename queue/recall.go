package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// A new policy may leave a waiter where it is, by other rules (Renew), or send
// it to another line (Recall, then Resume). Its time counts from its Offer in
// either case, and nobody is turned away for want of room who had a place.

// Recalled is what a waiter takes along from the line that it was taken out of.
type Recalled struct {
	Waiter  *Waiter
	Waited  time.Duration // since its Offer
	Credit  time.Duration // inside its flow, beyond that: since it was first refused (Q5)
	Retried bool          // it was in the retry queue
}

// Waiters are all who wait or retry, in the order of their arrival.
func (l *Line) Waiters() []*Waiter {
	out := make([]*Waiter, 0, l.expiry.len())
	for i := range l.expiry.entries {
		out = append(out, l.expiry.entries[i].item)
	}
	slices.SortFunc(out, func(a, b *Waiter) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

// Recall takes a waiter out, to be offered to another line by Resume; false =
// it does not wait here. No seat is given meanwhile: Configure or Drain is to
// follow.
func (l *Line) Recall(now time.Time, w *Waiter) (Recalled, bool) {
	if !l.holds(w) {
		return Recalled{}, false
	}
	l.tick(now)
	was := Recalled{Waiter: w, Waited: l.now - w.since, Credit: max(0, w.since-w.came), Retried: w.state == retrying}
	l.takeOut(w)
	return was, true
}

// Renew lets the wait of w end by its MaxWait and OnExpiry, which may have
// changed, and by b, counted from its Offer. What is due by that is done by
// the next Advance.
func (l *Line) Renew(now time.Time, w *Waiter, b Bounds) {
	if !l.holds(w) {
		return
	}
	l.tick(now)
	w.retryLimit, w.retryLen = b.RetryLimit, b.RetryLen
	w.expires = min(plus(w.since, w.MaxWait), w.deadline)
	if w.state == retrying && w.OnExpiry == policy.ExpireRetry {
		w.expires = min(plus(w.expires, max(0, w.retryLimit)), w.deadline)
	}
	l.expiry.fix(w.pos, w.expires, w.seq)
}

// Resume is Offer for a waiter that was recalled: it has a place whether or not
// the line has room. One whose time is over by now waits in the retry queue
// where its class does, or leaves with the next Advance. Of the refusals only
// those are left that no room would change.
func (l *Line) Resume(now time.Time, w *Waiter, b Bounds, was Recalled) Offered {
	l.tick(now)
	l.catchUp()
	if r := l.turnAway(w); r != Taken {
		return l.refuse(r)
	}
	w.since -= was.Waited
	w.came = w.since - was.Credit
	place := l.place(w)
	l.enqueue(w, b)
	if w.expires <= l.now && w.OnExpiry == policy.ExpireRetry && w.expires < w.deadline && w.retryLimit > 0 && (was.Retried || l.retry.len < w.retryLen) {
		l.moveToRetry(w)
	}
	if l.grant(w); w.state == seated {
		return Offered{Granted: true}
	}
	l.note(w)
	return Offered{Position: place}
}
