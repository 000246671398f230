package queue

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Offer brings a waiter: seat at once, place in the line, or refusal. A
// waiter that has a place or a seat already is refused as Full.
func (l *Line) Offer(now time.Time, w *Waiter, b Bounds) Offered {
	l.tick(now)
	l.catchUp()
	if r := l.turnAway(w); r != Taken {
		return l.refuse(r)
	}
	redeemed := w.Returns && l.redeem(w)
	early := w.Returns && !redeemed && l.book.early(l.now, w.Class, w.Tenant)
	if early && !l.mayCome(w) {
		return Offered{Refusal: TenantFull, Hint: l.hint(w, w.came, true)}
	}
	if l.total == 0 && l.fits(w) {
		if early {
			l.book.forgo(w.Class, w.Tenant)
		}
		l.seat(w, l.favoured(w) && l.priority.short())
		return Offered{Granted: true}
	}
	if b.Length <= 0 || w.MaxWait <= 0 {
		return Offered{Refusal: Full, Hint: l.hint(w, w.came, early)}
	}
	l.note(w)
	if r := l.judge(w, b, redeemed); r != Taken {
		return Offered{Refusal: r, Hint: l.hint(w, w.came, early)}
	}
	place := l.place(w)
	if w.deadline != never {
		if wait := l.wait(place); l.drain.known() && wait > w.deadline-l.now {
			return Offered{Refusal: CannotMeet, Hint: max(wait, l.hint(w, w.came, early))}
		}
	}
	if early {
		l.book.forgo(w.Class, w.Tenant)
	}
	l.enqueue(w, b)
	if l.grant(w); w.state == seated {
		return Offered{Granted: true}
	}
	return Offered{Position: place}
}

// Knock is an Offer to a line that has no room for w, so that it is certain to
// refuse. False: there may be room, or something is due that may make some;
// then nothing has changed.
func (l *Line) Knock(now time.Time, w *Waiter, b Bounds) (Offered, bool) {
	l.assign(w)
	next, due := l.Next()
	if l.total == 0 || l.total < b.Length || due && !next.After(now) || l.entitled(w) {
		return Offered{}, false
	}
	return l.Offer(now, w, b), true
}

// turnAway makes the refusals that no seat would change, and prepares w.
func (l *Line) turnAway(w *Waiter) Refusal {
	if w.state != outside || w.Class >= policy.NumClasses {
		return Full
	}
	if l.draining {
		return Draining
	}
	if l.cfg.Seats.Tokens > 0 && w.Tokens > max(l.cfg.Seats.Tokens, l.cfg.Largest) {
		return TooLarge
	}
	deadline := never
	if !w.Deadline.IsZero() {
		deadline = w.Deadline.Sub(l.base)
		if deadline <= l.now {
			return CannotMeet
		}
	}
	w.node = node{line: l, since: l.now, came: l.now, deadline: deadline}
	l.assign(w)
	return Taken
}

// TryTake takes a free seat at once if nobody is ahead (waiting or retrying
// of any class): the way down on degrade (V2). It never queues.
func (l *Line) TryTake(now time.Time, w *Waiter) bool {
	l.tick(now)
	l.catchUp()
	if l.total > 0 || l.retry.len > 0 || l.turnAway(w) != Taken || !l.fits(w) {
		return false
	}
	l.seat(w, l.favoured(w) && l.priority.short())
	return true
}

// Cancel takes a waiter out that waits (true), or reports false when it has a
// seat already or left: then the seat is to be released, or the exit is on
// its way.
func (l *Line) Cancel(now time.Time, w *Waiter) (waited time.Duration, ok bool) {
	if !l.holds(w) {
		return 0, false
	}
	l.tick(now)
	l.takeOut(w)
	l.catchUp()
	return l.now - w.since, true
}

// Release frees a granted waiter's seat, exactly once (later calls return
// nothing), and grants what follows.
func (l *Line) Release(now time.Time, w *Waiter) []Exit {
	if w.line != l || w.state != seated {
		return nil
	}
	l.tick(now)
	w.state = outside
	l.used.Requests--
	l.used.Tokens -= w.tokens
	l.running[w.Class]--
	l.giveUp(w)
	l.drain.freed(l.now-w.granted, l.cfg.Seats.Requests, l.total > 0)
	l.catchUp()
	return l.flush()
}

// Settle corrects the accounts of the waiter's tenant and class by the real
// cost of a request that was granted, once (P2). It may come before or after
// Release.
func (l *Line) Settle(w *Waiter, cost int64) {
	if w.line != l || w.charged == 0 || w.settled || l.cfg.Price != policy.ByTokens {
		return
	}
	w.settled = true
	w.via.settle(w, cost)
	l.grant(nil) // the next in order may be another, who fits
}

// Advance does everything that is due: expiries (P3), moves to the retry
// queue, grants from it. Whoever's time ends at now is expired.
func (l *Line) Advance(now time.Time) []Exit {
	l.tick(now)
	l.expire(l.now)
	l.grant(nil)
	return l.flush()
}

// catchUp does what was due before now, so that no call acts on waiters whose
// time is over, and gives out the seats that are free.
func (l *Line) catchUp() {
	l.expire(l.now - 1)
	l.grant(nil)
}

// expire ends the time of all due until t, in order.
func (l *Line) expire(t time.Duration) {
	for l.expiry.len() > 0 && l.expiry.min().key <= t {
		w := l.expiry.min().item
		if w.state == waiting && w.OnExpiry == policy.ExpireRetry && w.expires < w.deadline && w.retryLimit > 0 && l.retry.len < w.retryLen {
			l.moveToRetry(w)
			continue
		}
		e := Exit{Waiter: w, Action: w.OnExpiry, Retried: w.state == retrying, Late: w.expires >= w.deadline, Waited: l.now - w.since}
		l.takeOut(w)
		if e.Late {
			e.Action = policy.ExpireDrop
		}
		if e.Hint = l.wait(l.total + 1); !e.Late && e.Action != policy.ExpireDegrade {
			e.Hint = l.hint(w, w.came, false)
		}
		l.pending = append(l.pending, e)
	}
}

// moveToRetry lets a waiter whose MaxWait ended be held on, behind everybody.
func (l *Line) moveToRetry(w *Waiter) {
	until := min(plus(w.expires, w.retryLimit), w.deadline)
	l.takeOut(w)
	w.state, w.expires = retrying, until
	l.bytes += w.Bytes
	l.retry.push(w)
	l.expiry.push(until, w.seq, w)
}

// grant gives free seats to whose turn it is; when no line waits, to the
// retry queue. One whose Offer or Resume this is leaves no exit.
func (l *Line) grant(offered *Waiter) {
	for i, ok := l.turn(); ok; i, ok = l.turn() {
		if w := l.dispatch(i); w != offered {
			l.pending = append(l.pending, Exit{Waiter: w, Granted: true, Waited: l.now - w.since})
		}
	}
	for l.total == 0 && !l.paused && l.retry.head != nil && l.fits(l.retry.head) {
		w := l.retry.head
		l.takeOut(w)
		l.seat(w, l.favoured(w) && l.priority.short())
		if w != offered {
			l.pending = append(l.pending, Exit{Waiter: w, Granted: true, Retried: true, Waited: l.now - w.since})
		}
	}
}

// enqueue gives w its place.
func (l *Line) enqueue(w *Waiter, b Bounds) {
	l.seq++
	w.seq, w.state = l.seq, waiting
	w.retryLimit, w.retryLen = b.RetryLimit, b.RetryLen
	w.expires = min(plus(w.since, w.MaxWait), w.deadline)
	l.queue(w)
	l.bytes += w.Bytes
	l.expiry.push(w.expires, w.seq, w)
}

// takeOut ends w's waiting, in the line or the retry queue.
func (l *Line) takeOut(w *Waiter) {
	if w.state == retrying {
		l.retry.remove(w)
	} else {
		l.leave(w)
	}
	l.forgo(w)
}

// forgo ends the line's claims on one who waited.
func (l *Line) forgo(w *Waiter) {
	l.expiry.remove(w.pos)
	l.bytes -= w.Bytes
	w.state = outside
}

func (l *Line) count(w *Waiter, n int) {
	l.total += n
	l.waiting[w.Class] += n
}

// seat gives w a seat, which is free, of the priority lane or of its group.
func (l *Line) seat(w *Waiter, favoured bool) {
	w.state, w.granted, w.tokens = seated, l.now, l.tokens(w)
	l.used.Requests++
	l.used.Tokens += w.tokens
	l.running[w.Class]++
	l.given++
	if favoured {
		l.priority.hold(w.tokens)
		return
	}
	w.group = l.groupOf(w)
	s := &w.group.leaves[side(w)]
	w.group.hold(w.tokens)
	s.hold(w.tokens)
	w.group.served, s.served = l.given, l.given
}

// giveUp ends what w's seat counted to.
func (l *Line) giveUp(w *Waiter) {
	if w.group == nil {
		l.priority.giveUp(w.tokens)
		return
	}
	g := w.group.live()
	g.giveUp(w.tokens)
	g.leaves[side(w)].giveUp(w.tokens)
}

// tokens is what w's seat takes: not more than there are now.
func (l *Line) tokens(w *Waiter) int64 {
	n := max(0, w.Tokens)
	if l.usable.Tokens > 0 {
		n = min(n, l.usable.Tokens)
	}
	return n
}

func (l *Line) fits(w *Waiter) bool { return l.free(l.tokens(w)) }

// free reports whether a seat with so many tokens is.
func (l *Line) free(tokens int64) bool {
	s := l.usable
	return l.used.Requests < s.Requests && (s.Tokens == 0 || l.used.Tokens <= s.Tokens-tokens)
}

// holds reports whether w waits here.
func (l *Line) holds(w *Waiter) bool {
	return w.line == l && (w.state == waiting || w.state == retrying)
}
