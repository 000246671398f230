package breaker

import "time"

// stormHold is how long a breaker stays open after the last word of a GOAWAY
// storm (B7), jitter on top. Short, since whoever watches says so for three
// seconds longer than GOAWAYs come: with recovery's five it is under ten.
const stormHold = time.Second

// hold keeps a breaker in its state; immutable.
type hold struct {
	until time.Time // zero = until it is reset
	by    string
}

// held reports whether the phase is held at now.
func (p *phase) held(now time.Time) bool {
	return p.hold != nil && (p.hold.until.IsZero() || now.Before(p.hold.until))
}

// Trip opens the breaker by an operator's hand, from any state and whatever
// holds it: at level Soft or Hard (any other is Hard), for as long as open
// says, to the instant; 0 or less is the policy's open time with its jitter.
// Then it recovers by B2. It is no evidence to other replicas and does not
// count for B5. False if the breaker is switched off.
func (b *Breaker) Trip(now time.Time, level State, open time.Duration, by string) bool {
	if level != Soft {
		level = Hard
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.profile.Load()
	if s.Off || b.retired {
		return false
	}
	p := &phase{level: level, cause: ByHand, by: by}
	if open <= 0 {
		b.open(now, p, s.cool.First, b.figures(now))
		return true
	}
	p.state, p.since, p.until = level, now, now.Add(open)
	b.enter(now, p, b.figures(now))
	return true
}

// Reset closes the breaker by an operator's hand, ends a hold, and forgets
// what was counted and how long it was open.
func (b *Breaker) Reset(now time.Time, by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.figures(now)
	b.window.Store(nil)
	b.coolDown = 0
	b.enter(now, &phase{since: now, cause: ByHand, by: by}, seen)
}

// Hold keeps the breaker in the state that it is in, whatever is seen, until
// an instant; the zero time is until Reset or Trip. Meanwhile ends are counted
// and decide nothing; a half-open breaker goes on letting its share through.
// Afterwards the machine goes on from there. A hold that is over already ends
// a hold. False if the breaker is switched off.
func (b *Breaker) Hold(now, until time.Time, by string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.profile.Load()
	if s.Off || b.retired {
		return false
	}
	q := *b.catchUp(now)
	q.hold = &hold{until: until, by: by}
	held := time.Duration(-1)
	if !until.IsZero() {
		held = max(0, until.Sub(now))
	}
	if held == 0 {
		q.hold = nil
	}
	b.phase.Store(&q)
	if b.journal != nil {
		f := b.figures(now)
		t := Transition{
			Breaker: b.name, Kind: s.kind, From: q.state, To: q.state, At: now, Cause: ByHand,
			Requests: f.requests, Failures: f.failures, Held: held, By: by,
		}
		if q.state == Soft || q.state == Hard {
			t.Open = max(0, q.until.Sub(now))
		}
		b.journal.Add(t)
	}
	return true
}

// PreTrip opens a gRPC breaker hard before its own ends ask for it, because a
// storm of GOAWAYs was seen (B7), and keeps it open: call it again and again
// while the storm lasts. It stays open for 1 s after the last call, jitter on
// top, or for what is left of the open time that it had anyway. Then it
// recovers by B2, in steps of a fifth of their length where nothing but the
// storm had opened it: so it is closed within 10 s of the storm. Then a probe
// that fails is borne as long as fewer fail than the soft level's share. Once
// recovery has begun its probes decide; calls then change nothing. True if the breaker
// is open by it. Other kinds, and one that is held or switched off, do not
// hear it.
func (b *Breaker) PreTrip(now time.Time, seen string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.profile.Load()
	if s.Off || s.kind != GRPC || b.retired {
		return false
	}
	p := b.catchUp(now)
	switch {
	case p.state == HalfOpen || p.held(now):
		return false
	case p.state == Hard:
		if until := now.Add(p.jittered(stormHold)); until.After(p.until) {
			q := *p
			q.until = until
			b.phase.Store(&q)
		}
		return true
	}
	f := b.figures(now)
	q := &phase{state: Hard, level: Hard, since: now, seen: f, cause: ByGoAway, by: seen, storm: p.state == Closed, spread: b.rng.Float64()}
	q.until = now.Add(q.jittered(stormHold))
	if p.state == Soft {
		q.seen = p.seen
		if p.until.After(q.until) {
			q.until = p.until
		}
	}
	b.enter(now, q, f)
	return true
}

// Restore takes over an open state from a peer or an earlier life (B3), for
// what is left of its open time; from says whose it was. It does so only on a
// breaker that knows nothing yet: closed from the start, with fewer than
// MinRequests ends in its window. left is bounded by twice the policy's
// longest open time. It is no evidence to others. True if it did.
func (b *Breaker) Restore(now time.Time, level State, left time.Duration, from string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, p, f := b.profile.Load(), b.phase.Load(), b.figures(now)
	if s.Off || b.retired || p.state != Closed || p.cause != 0 || p.hold != nil ||
		f.requests >= s.MinRequests || left <= 0 || level != Soft && level != Hard {
		return false
	}
	left = min(left, 2*max(s.cool.First, s.cool.Cap))
	b.coolDown = s.cool.First
	b.enter(now, &phase{state: level, level: level, since: now, until: now.Add(left), cause: ByRestore, by: from}, f)
	return true
}

// overrun opens a tenant's breaker hard because of what it demands (T2). While
// it is open further words change nothing; in recovery one counts as a probe
// that failed. False if the breaker does not hear it.
func (b *Breaker) overrun(now time.Time, by string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.profile.Load()
	if s.Off || b.retired {
		return false
	}
	p := b.catchUp(now)
	f := b.figures(now)
	switch {
	case p.held(now):
		return false
	case p.state == Hard:
		return true
	case p.state == HalfOpen:
		q := *p
		q.level = Hard
		b.reopen(now, &q, ByOverrun, by, f)
		return true
	}
	b.cool(now, p, s)
	b.open(now, &phase{level: Hard, seen: f, cause: ByOverrun, by: by}, b.coolDown, f)
	return true
}

// retire takes a breaker out of use that is not needed: closed and not held,
// or with its open time over and silent for as long again. False if it is
// needed.
func (b *Breaker) retire(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.phase.Load()
	if p.held(now) {
		return false
	}
	if p.state != Closed {
		quiet := p.until
		if p.state == HalfOpen {
			quiet = b.stepped
		}
		if now.Sub(quiet) < max(b.coolDown, patience*b.stepLength(p)) {
			return false
		}
		b.catchUp(now)
		b.enter(now, &phase{since: now, cause: ByTime}, b.figures(now))
	}
	b.retired = true
	return true
}
