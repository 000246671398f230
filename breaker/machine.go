package breaker

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Breaker is the machine of one pool or one tenant. Safe for concurrent use;
// reading a closed breaker is one atomic load, feeding it takes no lock. A now
// that lies before an earlier one is tolerated.
type Breaker struct {
	name     string
	journal  *Journal                // nil = none
	profile  atomic.Pointer[profile] // the numbers it runs by
	phase    atomic.Pointer[phase]
	window   atomic.Pointer[window] // nil before the first end
	baseline baseline

	mu       sync.Mutex // transitions and everything below
	rng      *rand.Rand
	step     int       // of the ladder
	stepped  time.Time // start of the step
	stepGood int       // probes that ended well in this step
	good     int       // probes that ended well since half-open
	bad      int       // and that failed
	out      int       // probes under way
	due      time.Time // half-open: from then on the next request is a probe, whatever the dice say
	coolDown time.Duration
	retired  bool // dropped by its set: opens no more
}

// phase is a state with what Allow needs to know of it; immutable.
type phase struct {
	state  State
	level  State // Soft or Hard: where it opened, and where a failing probe leads
	since  time.Time
	until  time.Time // open: when half-open begins
	share  float64   // half-open: of requests that become probes
	spread float64   // dice of this open time, 0..1
	storm  bool      // opened by B7 before anything had failed
	hold   *hold     // nil = none

	seen  figures // evidence: what opened it
	cause Cause   // of the latest transition; 0 = none yet
	by    string
}

// figures are what a transition was decided by.
type figures struct {
	requests, failures int
	limit              float64
}

// New makes a closed breaker. Its transitions go to the journal, nil = nowhere.
// rng throws the half-open dice (B2) and the jitter; it is used under the
// breaker's lock and must not be shared; nil is a fixed seed. A Tenant breaker
// takes its thresholds and cool-downs from c.Tenant.
func New(name string, kind Kind, c policy.Breaker, journal *Journal, rng *rand.Rand) *Breaker {
	if rng == nil {
		rng = rand.New(rand.NewPCG(1, 2))
	}
	b := &Breaker{name: name, journal: journal, rng: rng}
	b.profile.Store(profileOf(kind, c))
	b.phase.Store(&phase{})
	return b
}

// Name is the pool's or tenant's.
func (b *Breaker) Name() string { return b.name }

// Configure changes the kind and the numbers; the state stays, but for a
// breaker that is switched off: it is closed. A new Window starts to count
// anew.
func (b *Breaker) Configure(now time.Time, kind Kind, c policy.Breaker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := profileOf(kind, c)
	old := b.profile.Swap(next)
	if next.Window != old.Window {
		b.window.Store(nil)
	}
	if p := b.phase.Load(); next.Off && (p.state != Closed || p.hold != nil) {
		b.enter(now, &phase{since: now, cause: ByPolicy}, b.figures(now))
	}
	if next.Off {
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
	if p.state != HalfOpen && (now.Before(p.until) && !now.Before(p.since) || p.held(now)) {
		return p.shed(class, b.left(p, now))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p = b.catchUp(now)
	switch p.state {
	case Closed:
		return Verdict{}
	case HalfOpen:
		if b.rng.Float64() < p.share || !now.Before(b.due) && !p.held(now) {
			b.out++
			b.due = now.Add(b.profile.Load().cool.First / 2)
			return Verdict{Probe: true, State: HalfOpen}
		}
		return p.shed(class, b.stepLeft(now, p))
	}
	return p.shed(class, b.left(p, now))
}

// Peek is what Allow would say, without taking a probe: where dice decide it
// says Admit. It takes no lock.
func (b *Breaker) Peek(now time.Time, class policy.Class) Verdict {
	p := b.phase.Load()
	switch {
	case p.state == Closed:
		return Verdict{}
	case p.state == HalfOpen || !now.Before(p.until) && !p.held(now):
		return Verdict{State: HalfOpen}
	}
	return p.shed(class, min(b.left(p, now), max(p.until.Sub(p.since), b.left(p, p.since))))
}

// shed is the verdict on a request that is no probe while not closed.
func (p *phase) shed(class policy.Class, retryAfter time.Duration) Verdict {
	v := Verdict{State: p.state}
	switch {
	case p.level == Hard || class >= policy.Batch:
		v.Action, v.RetryAfter = Shed, max(retryAfter, time.Millisecond)
	case class == policy.Standard:
		v.Action = Degrade
	}
	return v
}

// left is the time until an open breaker may admit. Of one that is held until
// it is reset nobody knows: an open time is as good as any other hint.
func (b *Breaker) left(p *phase, now time.Time) time.Duration {
	d := p.until.Sub(now)
	switch {
	case !p.held(now):
	case p.hold.until.IsZero():
		d = max(d, b.profile.Load().Open)
	default:
		d = max(d, p.hold.until.Sub(now))
	}
	return d
}

// Record counts one end (B6): failed or not, and whether it was a probe.
// What the caller did, client cancels and unknown ends are not recorded; a
// probe that ends so must be given back with Forget.
func (b *Breaker) Record(now time.Time, failed, probe bool) {
	if probe && b.recordProbe(now, failed) {
		return
	}
	s := b.profile.Load()
	if s.Off {
		return
	}
	p := b.phase.Load()
	if p.state != Closed && (p.state != Soft || probe || !now.Before(p.until)) {
		return // admitted under another state: says nothing of this one
	}
	w := b.counting(now, s)
	e := w.epoch(now)
	cell, fresh := w.add(e, failed)
	if fresh && w.whole(now) {
		total, _ := w.sum(e)
		b.baseline.observe(now, w.rate(now, total))
	}
	if w.clean(e) || p.held(now) {
		return
	}
	total, fails := w.with(e, cell)
	if level, _ := b.asks(w, now, s, total, fails); level > p.state {
		b.trip(now)
	}
}

// counting is the window, made at the first end.
func (b *Breaker) counting(now time.Time, s *profile) *window {
	for {
		if w := b.window.Load(); w != nil {
			return w
		}
		b.window.CompareAndSwap(nil, newWindow(now, s.Window))
	}
}

// asks is the state that the ratio in a window asks for: Closed, Soft or Hard,
// and the threshold that was reached.
func (b *Breaker) asks(w *window, now time.Time, s *profile, total, fails int) (level State, limit float64) {
	if fails == 0 || total < s.MinRequests {
		return Closed, 0
	}
	soft, hard := float64(s.Soft), float64(s.Hard)
	if s.DynamicThreshold {
		by := b.baseline.factor(w.rate(now, total), s.DynamicLiteral)
		soft, hard = moved(soft, by), moved(hard, by)
	}
	const eps = 1e-9 // 0.55*20 is a little more than 11
	switch n := float64(total); {
	case float64(fails) >= hard*n-eps:
		return Hard, hard
	case float64(fails) >= soft*n-eps:
		return Soft, soft
	}
	return Closed, 0
}

// trip opens a closed breaker, or a soft one harder, if the window still says
// so.
func (b *Breaker) trip(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, w, s := b.phase.Load(), b.window.Load(), b.profile.Load()
	if w == nil || s.Off || b.retired || p.held(now) || p.state != Closed && p.state != Soft {
		return
	}
	seen := b.figures(now)
	var level State
	level, seen.limit = b.asks(w, now, s, seen.requests, seen.failures)
	if level <= p.state {
		return
	}
	b.cool(now, p, s)
	b.open(now, &phase{level: level, seen: seen, cause: ByRatio}, b.coolDown, seen)
}

// cool chooses the open time of a breaker that is about to open from p: closed,
// or soft, whose open time goes on at the hard level unless it was a hand's.
// The caller holds the lock.
func (b *Breaker) cool(now time.Time, p *phase, s *profile) {
	switch {
	case p.state == Closed:
		b.coolDown = s.again(b.coolDown, now.Sub(p.since))
	case p.cause == ByHand || b.coolDown <= 0:
		b.coolDown = s.cool.First
	}
}

// open begins an open time, with its jitter on top, at the level that p says.
// The caller holds the lock.
func (b *Breaker) open(now time.Time, p *phase, d time.Duration, seen figures) {
	p.spread = b.rng.Float64()
	p.state, p.since, p.until = p.level, now, now.Add(p.jittered(d))
	b.enter(now, p, seen)
}

// jittered is a time with this open time's jitter on top.
func (p *phase) jittered(d time.Duration) time.Duration {
	return d + time.Duration(float64(d)*jitter*p.spread)
}

// enter makes p the present phase and notes the transition. The caller holds
// the lock.
func (b *Breaker) enter(now time.Time, p *phase, seen figures) {
	old := b.phase.Swap(p)
	t := Transition{
		Breaker: b.name, Kind: b.profile.Load().kind, From: old.state, To: p.state, At: now, Cause: p.cause,
		Requests: seen.requests, Failures: seen.failures, Limit: seen.limit, By: p.by,
	}
	if p.state == Soft || p.state == Hard {
		t.Open = p.until.Sub(now)
	}
	if b.journal != nil {
		b.journal.Add(t)
	}
}

// figures are those of the window.
func (b *Breaker) figures(now time.Time) (f figures) {
	if w := b.window.Load(); w != nil {
		f.requests, f.failures = w.sum(w.epoch(now))
	}
	return f
}
