package breaker

import "time"

// View is a picture of a breaker.
type View struct {
	Name  string
	Kind  Kind
	State State
	Level State     // Soft or Hard: where it opened; Closed while closed
	Since time.Time // of the state; zero if it has been closed from the start

	Requests int     // in the window
	Failures int     // in the window
	Ratio    float64 // 0 when below MinRequests
	Release  float64 // share admitted while half-open, else 1 or 0

	Left      time.Duration // of the open time; 0 unless open
	Held      bool
	HeldUntil time.Time // zero while held = until it is reset
	HeldBy    string

	Cause    Cause  // of its latest transition; 0 = none yet
	By       string // who or what, as in Transition
	Evidence Evident
}

// Evident are the ends that an opinion rests on (B3): those that opened the
// breaker while it is open, those in the window while it is closed.
type Evident struct{ Requests, Failures int }

// View is a picture for metrics, /debug and other replicas; no lock on the
// reader's side.
func (b *Breaker) View(now time.Time) View {
	p, s := b.phase.Load(), b.profile.Load()
	v := View{Name: b.name, Kind: s.kind, State: p.state, Level: p.level, Since: p.since, Cause: p.cause, By: p.by}
	if p.held(now) {
		v.Held, v.HeldUntil, v.HeldBy = true, p.hold.until, p.hold.by
	}
	if w := b.window.Load(); w != nil {
		v.Requests, v.Failures = w.sum(w.epoch(now))
	}
	if v.Requests > 0 && v.Requests >= s.MinRequests {
		v.Ratio = float64(v.Failures) / float64(v.Requests)
	}
	switch {
	case p.state == Closed:
		v.Release = 1
		v.Evidence = Evident{v.Requests, v.Failures}
	case p.state == HalfOpen:
		v.Release = p.share
	case !now.Before(p.until) && !v.Held:
		v.State, v.Since, v.Release = HalfOpen, p.until, b.share(0)
	default:
		v.Evidence = Evident{p.seen.requests, p.seen.failures}
		v.Left = b.left(p, now)
	}
	return v
}

// Opinion is the word of a replica on a breaker that looks so.
func (v View) Opinion(replica string, seq uint64, ttl time.Duration) Opinion {
	return Opinion{
		Replica: replica, Breaker: v.Name, Kind: v.Kind, State: v.State, Level: v.Level,
		Requests: v.Evidence.Requests, Failures: v.Evidence.Failures,
		Since: v.Since, Left: v.Left, Seq: seq, TTL: ttl,
	}
}
