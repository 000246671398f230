package breaker

import "time"

const (
	jitter     = 0.2 // of the open time, on top
	goodProbes = 3   // to close, in all
	patience   = 6   // step lengths after which a step ends without a verdict
	stormSteps = 5   // B7: so many times shorter are the steps after a storm

	untriedPause = 10 * time.Millisecond
)

// Advance makes the transitions that time alone brings, for who watches the
// journal or speaks of the state while nobody calls. Closed, it is one load.
func (b *Breaker) Advance(now time.Time) {
	if b.phase.Load().state == Closed {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.catchUp(now)
}

// catchUp makes the transitions that time alone brings. The caller holds the
// lock.
func (b *Breaker) catchUp(now time.Time) *phase {
	p := b.phase.Load()
	switch {
	case p.state == Closed || p.held(now):
		return p
	case p.state == HalfOpen:
		return b.release(now, p)
	case now.Before(p.since): // the clock went back: the open time starts now
		q := *p
		q.since, q.until = now, now.Add(p.until.Sub(p.since))
		b.phase.Store(&q)
		return &q
	case now.Before(p.until):
		return p
	}
	b.step, b.stepped, b.stepGood, b.good, b.bad, b.due = 0, now, 0, 0, 0, now
	q := &phase{
		state: HalfOpen, level: p.level, since: now, share: b.share(0),
		storm: p.storm, seen: p.seen, cause: ByTime,
	}
	b.enter(now, q, b.figures(now))
	return q
}

// release goes up the ladder of a half-open breaker as far as time and probes
// allow: one step a call, so that a quiet time does not jump to the top.
func (b *Breaker) release(now time.Time, p *phase) *phase {
	if now.Before(b.stepped) { // the clock went back
		b.stepped, b.due = now, now
	}
	length, lasted := b.stepLength(p), now.Sub(b.stepped)
	judged := b.stepGood > 0 || b.out == 0 || lasted >= patience*length
	if lasted < length || !judged {
		return p
	}
	if b.share(b.step) >= 1 || b.share(b.step+1) == 0 {
		if b.good < goodProbes {
			return p
		}
		b.window.Store(nil)
		q := &phase{since: now, cause: ByProbes}
		b.enter(now, q, figures{requests: b.good})
		return q
	}
	b.step++
	b.stepped, b.stepGood = now, 0
	q := *p
	q.share = b.share(b.step)
	b.phase.Store(&q)
	return &q
}

// share is a step of the ladder: Probes first, then what of Release is more
// than the step before; 0 above the top.
func (b *Breaker) share(step int) float64 {
	s := b.profile.Load()
	last := float64(s.Probes)
	if step == 0 {
		return last
	}
	for _, r := range s.Release {
		if float64(r) <= last {
			continue
		}
		last = float64(r)
		if step--; step == 0 {
			return last
		}
	}
	return 0
}

// stepLength is how long a step of the ladder lasts. Where nothing had failed
// before the storm, there is less to find out after it.
func (b *Breaker) stepLength(p *phase) time.Duration {
	d := b.profile.Load().ReleaseStep
	if p.storm {
		d /= stormSteps
	}
	return d
}

// stepLeft is the time until the next step may begin.
func (b *Breaker) stepLeft(now time.Time, p *phase) time.Duration {
	d := b.stepLength(p)
	if left := d - now.Sub(b.stepped); left > 0 {
		return left
	}
	return d
}

// recordProbe takes a probe's verdict; false if it decides nothing any more
// because the breaker is closed by now.
func (b *Breaker) recordProbe(now time.Time, failed bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out = max(0, b.out-1)
	p := b.phase.Load()
	if p.state != HalfOpen || p.held(now) {
		return p.state != Closed
	}
	if failed {
		b.failProbe(now, p)
		return true
	}
	b.good++
	b.stepGood++
	b.release(now, p)
	return true
}

// failProbe takes the word of a probe that failed: it ends the recovery. Where
// nothing but a storm had opened the breaker, some may fail, as they do of any
// pool, as long as they are fewer than open a closed one. The caller holds the
// lock.
func (b *Breaker) failProbe(now time.Time, p *phase) {
	b.bad++
	all := b.good + b.bad
	if p.storm && float64(b.bad) < float64(b.profile.Load().Soft)*float64(all) {
		return
	}
	b.reopen(now, p, ByProbe, "", figures{requests: all, failures: b.bad})
}

// Lost counts an end as failed of which that was heard only later: then it was
// given back, if it was a probe. One that was, in this recovery, decides.
func (b *Breaker) Lost(now time.Time, probe bool) {
	if b.phase.Load().state != HalfOpen {
		b.Record(now, true, false)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.phase.Load(); probe && p.state == HalfOpen && !p.held(now) {
		b.failProbe(now, p)
	}
}

// reopen ends a recovery: open again at the level of before, for the next
// longer time (B5). The evidence is still that of the first opening.
func (b *Breaker) reopen(now time.Time, p *phase, cause Cause, by string, seen figures) {
	b.coolDown = b.profile.Load().next(b.coolDown)
	b.open(now, &phase{level: p.level, seen: p.seen, cause: cause, by: by}, b.coolDown, seen)
}

// Untried gives back a probe that never ran: refused elsewhere, or gone while it
// waited. The next request takes its place, a moment later, so that those who
// are refused anyway keep nobody from trying.
func (b *Breaker) Untried(now time.Time) {
	b.Forget(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	if next := now.Add(untriedPause); next.Before(b.due) {
		b.due = next
	}
}

// Forget gives a probe back that ran and brought no verdict.
func (b *Breaker) Forget(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out = max(0, b.out-1)
	b.catchUp(now)
}
