package queue

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// judge decides whether w may wait: a newcomer as room says, and who comes
// back in its slot as long as there is any place. One that does not say
// whether it comes back is taken for a newcomer as long as it finds room.
func (l *Line) judge(w *Waiter, b Bounds, redeemed bool) Refusal {
	if !redeemed {
		l.drain.asked[w.Class]++
		r := l.room(w, b)
		if r == Taken {
			return r
		}
		if w.Returns || l.total >= b.Length || !l.redeem(w) {
			l.drain.refused[w.Class]++
			return r
		}
	}
	l.drain.back++
	if l.total >= b.Length {
		return Full
	}
	return Taken
}

// redeem lets w use a booking of its flow that is due, if there is one. The
// time since it was refused is credited to it inside its flow (P4).
func (l *Line) redeem(w *Waiter) bool {
	since, ok := l.book.take(l.now, w.Class, w.Tenant, w.Returns)
	if ok {
		w.came = since
	}
	return ok
}

// Book gives a slot to a caller who was refused for want of room elsewhere
// than in the line (held bytes, no seat on the way down), and returns the hint
// that says when it comes. It does not touch w.
func (l *Line) Book(now time.Time, w *Waiter) time.Duration {
	l.tick(now)
	return l.hint(w, l.now, w.Returns)
}

// hint is the time until w, refused first at since, would be let in, and books
// that slot for it; again says that one of its flow that is not used up is its
// own. Without a book it is position / drain rate, and beyond the longest hint
// some time in the last half of that.
func (l *Line) hint(w *Waiter, since time.Duration, again bool) time.Duration {
	first := l.wait(l.total + 1)
	if !l.book.open() || l.draining || w.Class >= policy.NumClasses {
		return first
	}
	e := enquiry{
		class: w.Class, group: w.Group, tenant: w.Tenant, weight: weightOf(w),
		again: again, since: since, first: l.now + first, all: l.drain.rate(l.usable.Requests),
	}
	if e.group < 0 || e.group >= len(l.groups) {
		e.group = len(l.groups) - 1
	}
	for c, n := range l.cfg.Weights {
		e.weights[c] = float64(max(1, n))
	}
	portion := max(minPortion, l.portion(w))
	e.grouped = e.all * portion
	e.rate = e.grouped * l.drain.share(w.Class, e.weights, &l.book.stats)
	e.asked = e.grouped * l.drain.per(l.drain.asked[w.Class])
	e.refused = e.grouped * l.drain.per(l.drain.refused[w.Class])
	e.flows = int(portion * float64(l.tenantsOf(w.Class)))
	at, ok := l.book.add(l.now, &e)
	if !ok {
		hint := l.book.cfg.Max - l.spread(l.book.cfg.Max/2)
		l.book.invite(&e, l.now+hint)
		return hint
	}
	hint := at - l.now
	return min(l.book.cfg.Max, hint+l.spread(min(hint/8, seconds(1/e.rate))))
}

// minPortion keeps the rate of a group that has only what others leave
// positive.
const minPortion = 1.0 / 64

// spread is a random time below d.
func (l *Line) spread(d time.Duration) time.Duration {
	if l.rng == nil || d <= 0 {
		return 0
	}
	return time.Duration(l.rng.Int64N(int64(d)))
}

// wait is how long one in that place waits, as measured.
func (l *Line) wait(place int) time.Duration { return l.drain.wait(l.usable.Requests, place) }
