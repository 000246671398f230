package breaker

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

const (
	jitter     = 0.2 // of the open time, on top
	goodProbes = 3   // to close, in all
	patience   = 6   // step lengths after which a step ends without a verdict

	// B5: open times with progressive cool-down.
	firstCoolDown = 30 * time.Second
	nextCoolDown  = 5 * time.Minute
)

// Breaker is one pool's machine. Safe for concurrent use; reading a closed
// breaker takes no lock. A now that lies before an earlier one is tolerated.
type Breaker struct {
	settings atomic.Pointer[policy.Breaker]
	phase    atomic.Pointer[phase]  // nil before anything happened: closed
	window   atomic.Pointer[window] // nil before the first end
	baseline baseline

	mu       sync.Mutex // transitions and everything below
	rng      *rand.Rand
	step     int       // of the ladder
	stepped  time.Time // start of the step
	stepGood int       // probes that ended well in this step
	good     int       // probes that ended well since half-open
	out      int       // probes under way
	coolDown time.Duration
}

// phase is a state with what Allow needs to know of it; immutable.
type phase struct {
	state State
	level State // Soft or Hard: where it opened, and where a failing probe leads
	since time.Time
	until time.Time // open: when half-open begins
	share float64   // half-open: of requests that become probes
}

// New makes a closed breaker; rng throws the half-open dice (B2) and the
// jitter. It is used under the breaker's lock and must not be shared; nil is a
// fixed seed.
func New(c policy.Breaker, rng *rand.Rand) *Breaker {
	if rng == nil {
		rng = rand.New(rand.NewPCG(1, 2))
	}
	b := &Breaker{rng: rng}
	b.settings.Store(&c)
	b.phase.Store(&phase{})
	return b
}

// Configure changes the numbers; the state stays, but for a breaker that is
// switched off: it is closed. A new Window starts to count anew.
func (b *Breaker) Configure(c policy.Breaker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.settings.Swap(&c)
	if c.Window != old.Window {
		b.window.Store(nil)
	}
	if c.Off {
		b.phase.Store(&phase{})
		b.window.Store(nil)
	}
}

// Allow judges one request of a class at now. A verdict with Probe set must be
// answered by Record or Forget.
func (b *Breaker) Allow(now time.Time, class policy.Class) Verdict {
	p := b.phase.Load()
	if p.state == Closed {
		return Verdict{}
	}
	if p.state != HalfOpen && now.Before(p.until) && !now.Before(p.since) {
		return p.held(class, p.until.Sub(now))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p = b.catchUp(now)
	switch p.state {
	case Closed:
		return Verdict{}
	case HalfOpen:
		if b.rng.Float64() < p.share {
			b.out++
			return Verdict{Probe: true, State: HalfOpen}
		}
		return p.held(class, b.stepLeft(now))
	}
	return p.held(class, p.until.Sub(now))
}

// Peek is what Allow would say, without taking a probe: where dice decide it
// says Admit. It takes no lock.
func (b *Breaker) Peek(now time.Time, class policy.Class) Verdict {
	p := b.phase.Load()
	switch {
	case p.state == Closed:
		return Verdict{}
	case p.state == HalfOpen || !now.Before(p.until):
		return Verdict{State: HalfOpen}
	}
	return p.held(class, min(p.until.Sub(now), p.until.Sub(p.since)))
}

// held is the verdict on a request that is no probe while not closed.
func (p *phase) held(class policy.Class, retryAfter time.Duration) Verdict {
	v := Verdict{State: p.state}
	switch {
	case p.level == Hard || class >= policy.Batch:
		v.Action, v.RetryAfter = Shed, max(retryAfter, time.Millisecond)
	case class == policy.Standard:
		v.Action = Degrade
	}
	return v
}

// Record counts one end (B6): failed or not, and whether it was a probe.
// What the caller did, client cancels and unknown ends are not recorded; a
// probe that ends so must be given back with Forget.
func (b *Breaker) Record(now time.Time, failed, probe bool) {
	s := b.settings.Load()
	if s.Off {
		return
	}
	if probe && b.recordProbe(now, failed) {
		return
	}
	p := b.phase.Load()
	if p.state != Closed && (p.state != Soft || probe || !now.Before(p.until)) {
		return // admitted under another state: says nothing of this one
	}
	w := b.counting(now, s)
	if fresh := w.add(now, failed); fresh && w.whole(now) {
		b.baseline.observe(now, w.rate(now))
	}
	if b.level(w, now, s) > p.state {
		b.trip(now)
	}
}

// counting is the window, made at the first end.
func (b *Breaker) counting(now time.Time, s *policy.Breaker) *window {
	for {
		if w := b.window.Load(); w != nil {
			return w
		}
		b.window.CompareAndSwap(nil, newWindow(now, s.Window))
	}
}

// level is the state that the window's ratio asks for: Closed, Soft or Hard.
func (b *Breaker) level(w *window, now time.Time, s *policy.Breaker) State {
	total, fails := w.sum(now)
	if fails == 0 || total < s.MinRequests {
		return Closed
	}
	soft, hard := float64(s.Soft), float64(s.Hard)
	if s.DynamicThreshold {
		f := b.baseline.factor(w.rate(now))
		soft, hard = loosened(soft, f), loosened(hard, f)
	}
	const eps = 1e-9 // 0.55*20 is a little more than 11
	switch n := float64(total); {
	case float64(fails) >= hard*n-eps:
		return Hard
	case float64(fails) >= soft*n-eps:
		return Soft
	}
	return Closed
}

// trip opens a closed breaker, or a soft one harder, if the window still says
// so.
func (b *Breaker) trip(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, w, s := b.phase.Load(), b.window.Load(), b.settings.Load()
	if w == nil || s.Off || p.state != Closed && p.state != Soft {
		return
	}
	level := b.level(w, now, s)
	if level <= p.state {
		return
	}
	if p.state == Closed {
		b.coolDown = firstOf(s, b.coolDown, now.Sub(p.since))
	}
	b.open(now, level)
}

// firstOf is the open time of a breaker that was closed for some time after
// its last one. With progressive cool-down, opening again before it has been
// closed for as long as it was open is re-opening.
func firstOf(s *policy.Breaker, last, closed time.Duration) time.Duration {
	switch {
	case !s.Progressive:
		return s.Open
	case last > 0 && closed < last:
		return nextCoolDown
	}
	return firstCoolDown
}

// open begins an open time at the given level. The caller holds the lock.
func (b *Breaker) open(now time.Time, level State) {
	d := b.coolDown + time.Duration(float64(b.coolDown)*jitter*b.rng.Float64())
	b.phase.Store(&phase{state: level, level: level, since: now, until: now.Add(d)})
}

// catchUp makes the transitions that time alone brings. The caller holds the
// lock.
func (b *Breaker) catchUp(now time.Time) *phase {
	p := b.phase.Load()
	switch p.state {
	case Closed:
		return p
	case Soft, Hard:
		if now.Before(p.since) { // the clock went back: the open time starts now
			q := *p
			q.since, q.until = now, now.Add(p.until.Sub(p.since))
			b.phase.Store(&q)
			return &q
		}
		if now.Before(p.until) {
			return p
		}
		b.step, b.stepped, b.stepGood, b.good = 0, now, 0, 0
		p = &phase{state: HalfOpen, level: p.level, since: now, share: b.share(0)}
		b.phase.Store(p)
		return p
	}
	return b.release(now, p)
}

// release goes up the ladder of a half-open breaker as far as time and probes
// allow: one step a call, so that a quiet time does not jump to the top.
func (b *Breaker) release(now time.Time, p *phase) *phase {
	s := b.settings.Load()
	if now.Before(b.stepped) {
		b.stepped = now
	}
	lasted := now.Sub(b.stepped)
	judged := b.stepGood > 0 || b.out == 0 || lasted >= patience*s.ReleaseStep
	if lasted < s.ReleaseStep || !judged {
		return p
	}
	q := &phase{state: HalfOpen, level: p.level, since: p.since}
	if b.share(b.step) >= 1 || b.share(b.step+1) == 0 {
		if b.good < goodProbes {
			return p
		}
		q = &phase{since: now}
		b.window.Store(nil)
	} else {
		b.step++
		b.stepped, b.stepGood = now, 0
		q.share = b.share(b.step)
	}
	b.phase.Store(q)
	return q
}

// share is a step of the ladder: Probes first, then what of Release is more
// than the step before; 0 above the top.
func (b *Breaker) share(step int) float64 {
	s := b.settings.Load()
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

// stepLeft is the time until the next step may begin.
func (b *Breaker) stepLeft(now time.Time) time.Duration {
	s := b.settings.Load().ReleaseStep
	if left := s - now.Sub(b.stepped); left > 0 {
		return left
	}
	return s
}

// recordProbe takes a probe's verdict; false if it decides nothing any more
// because the breaker is closed by now.
func (b *Breaker) recordProbe(now time.Time, failed bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out = max(0, b.out-1)
	p := b.phase.Load()
	if p.state != HalfOpen {
		return p.state != Closed
	}
	if failed {
		s := b.settings.Load()
		b.coolDown = s.Open
		if s.Progressive {
			b.coolDown = nextCoolDown
		}
		b.open(now, p.level)
		return true
	}
	b.good++
	b.stepGood++
	b.release(now, p)
	return true
}

// Forget gives a probe back without a verdict.
func (b *Breaker) Forget(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out = max(0, b.out-1)
	b.catchUp(now)
}

// View is a picture for metrics and /debug; no lock on the reader's side.
func (b *Breaker) View(now time.Time) View {
	p := b.phase.Load()
	v := View{State: p.state, Since: p.since}
	switch {
	case p.state == Closed:
		v.Release = 1
	case p.state == HalfOpen:
		v.Release = p.share
	case !now.Before(p.until):
		v.State, v.Since, v.Release = HalfOpen, p.until, b.share(0)
	}
	s := b.settings.Load()
	if w := b.window.Load(); w != nil {
		v.Requests, v.Failures = w.sum(now)
	}
	if v.Requests > 0 && v.Requests >= s.MinRequests {
		v.Ratio = float64(v.Failures) / float64(v.Requests)
	}
	return v
}

// View is a picture of a breaker.
type View struct {
	State    State
	Since    time.Time // zero if it has been closed from the start
	Requests int       // in the window
	Failures int       // in the window
	Ratio    float64   // 0 when below MinRequests
	Release  float64   // share admitted while half-open, else 1 or 0
}
