package admission

import (
	"math"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// tuneEvery is how often a pool's seats are looked after, while it has
// requests.
const tuneEvery = time.Second

// tuned is how the seats of a pool follow its engine (Q9). The pool's lock
// guards it.
type tuned struct {
	tuner    queue.Tuner
	watchdog queue.Watchdog
	plain    queue.Config    // the line as the policy has it
	bounds   policy.Adaptive // this replica's, as the policy has them
	adaptive bool
	watched  bool
	metered  bool    // the pool has telemetry, by which GPUs may be faulty or lost
	out      float64 // share of its GPUs that are
	replicas float64

	at       time.Duration // of the next look, since the pool's base; 0 = not set
	looked   time.Duration // at the last look, since the pool's base
	restless bool          // at the last look there was something for the watchdog
	silent   int64         // streaming requests with a seat whose answer has not begun
	began    uint64        // streamed answers that began
}

// configure takes the policy's word and gives the line's shape. Bounds are
// divided over the replicas as seats are. A pool that becomes adaptive starts
// with the seats that it has.
func (t *tuned) configure(p *policy.Policy, spec *policy.Pool, plain queue.Config) queue.Config {
	n := int64(max(p.Server.Replicas, 1))
	was := t.plain.Seats.Requests
	if t.adaptive {
		was = 0
	}
	t.plain, t.replicas = plain, float64(n)
	t.watched, t.adaptive = p.Queue.Watchdog.After > 0, spec.Adaptive != nil
	t.metered = len(spec.Telemetry) > 0
	t.watchdog.Configure(p.Queue.Watchdog)
	if t.adaptive {
		if was > 0 {
			t.tuner.Configure(policy.Adaptive{Min: t.usable(was), Max: t.usable(was)})
		}
		low := max(spec.Adaptive.Min/n, 1)
		t.bounds = policy.Adaptive{Min: low, Max: spec.Adaptive.Max / n, TTFT: spec.Adaptive.TTFT}
		t.bound()
	}
	return t.config()
}

// bound gives the tuner the bounds that the usable GPUs leave.
func (t *tuned) bound() {
	t.tuner.Configure(policy.Adaptive{Min: t.usable(t.bounds.Min), Max: t.usable(t.bounds.Max), TTFT: t.bounds.TTFT})
}

// usable is what the usable GPUs leave of seats or tokens: at least one; of no
// bound, none.
func (t *tuned) usable(n int64) int64 {
	if n <= 0 || t.out == 0 {
		return n
	}
	return max(int64((1-t.out)*float64(n)+1e-9), 1)
}

// follow takes the share of the pool's GPUs that are faulty or lost. Adaptive
// seats shrink with the GPUs at once and come back as the engine bears them.
func (t *tuned) follow(out float64) {
	before := t.out
	if t.out = out; out == before || !t.adaptive {
		return
	}
	if out > before {
		n := max(int64((1-out)/(1-before)*float64(t.tuner.Seats())), 1)
		t.tuner.Configure(policy.Adaptive{Min: n, Max: n})
	}
	t.bound()
}

// wanted is the number of seats without the watchdog's raise, and raised what
// that adds.
func (t *tuned) wanted() (wanted, raised int64) {
	wanted = t.usable(t.plain.Seats.Requests)
	if t.adaptive {
		wanted = t.tuner.Seats()
	}
	return wanted, int64(math.Ceil(t.watchdog.Raise()*float64(wanted) - 1e-9))
}

// config is the line's shape with the seats that there should be.
func (t *tuned) config() queue.Config {
	c := t.plain
	wanted, raised := t.wanted()
	c.Seats.Requests = wanted + raised
	c.Seats.Tokens = t.usable(c.Seats.Tokens)
	c.Seats.Tokens += int64(t.watchdog.Raise() * float64(c.Seats.Tokens))
	return c
}

// enter notes a request that got a seat.
func (t *tuned) enter(p *Plan) {
	if p.Request.Stream {
		p.silent = true
		t.silent++
	}
}

// begun notes that a request's answer began, or that none will; true = it had
// not yet.
func (t *tuned) begun(p *Plan) bool {
	was := p.silent
	if was {
		t.silent--
	}
	p.silent = false
	return was
}

func (t *tuned) show(s *PoolStats) {
	s.Wanted, s.Raised = t.wanted()
	s.Alarm, s.Alarms = t.watchdog.Alarm()
	if t.adaptive {
		s.Least, s.Most = t.tuner.Bounds()
		s.Late = t.tuner.Late()
	}
}

// First notes that the answer of a plan with a seat began. Answers that do not
// stream begin when they end, which says nothing about load.
func (c *Core) First(now time.Time, p *Plan) {
	l := p.seat
	if l == nil || !p.Request.Stream && p.begins.by.IsZero() {
		return
	}
	now = l.lock(now)
	defer l.unlock()
	l.begun(now, p)
	if l.tuned.begun(p) {
		l.tuned.began++
		l.tuned.tuner.First(now, now.Sub(p.since))
	}
}

// nextTune is when the pool's seats want to be looked after: adaptive ones, and
// those of a pool with telemetry, while it has requests; fixed ones while
// somebody wants one or they are not as many as the policy says. A pool with
// telemetry that was idle is looked after with its first request: its GPUs may
// have changed. The lock is held.
func (l *pool) nextTune() time.Duration {
	t := &l.tuned
	wanted := l.waiting.Load() > 0 || l.over.head != nil || l.meter.turned
	switch follows := t.adaptive || t.metered; {
	case follows && !l.empty(), t.watched && (wanted || t.restless), t.metered && t.restless:
	default:
		t.at = 0
		return never
	}
	if t.at == 0 {
		now := l.last.Sub(l.base)
		if t.at = now + tuneEvery; t.metered {
			t.at = max(min(t.looked+tuneEvery, t.at), now, 1)
		}
	}
	return t.at
}

// tune looks after the seats, when that is due. A shadow has the seats of the
// real pool. The lock is held.
func (c *Core) tune(now time.Time, l *pool) []queue.Exit {
	t := &l.tuned
	if t.at == 0 || now.Sub(l.base) < t.at {
		return nil
	}
	t.at, t.looked = 0, now.Sub(l.base)
	r := c.reading(l.name)
	look := l.look(now, r)
	config := t.plain
	if c.echo == nil {
		out := 0.0
		if r != nil {
			out = 1 - r.Capacity(now)
		}
		t.follow(out)
		if t.adaptive {
			before := t.tuner.Seats()
			look.Busy = t.tuner.Tune(now, look) > before || t.tuner.Late()
		}
		t.watchdog.Watch(now, look)
		config = t.config()
	} else if real := c.echo.floor.Load().pools[l.name]; real != nil {
		config.Seats = *real.seats.Load()
	}
	t.restless = look.Waiting > 0 || t.watchdog.Raise() > 0 || !t.adaptive && config.Seats != t.plain.Seats
	if config.Seats == *l.seats.Load() {
		return nil
	}
	exits := l.line.Configure(now, config)
	l.shape(&config)
	return exits
}

// look is what the pool shows. Whoever runs without a seat wants one, and so
// does who was turned away since the last look, if all are taken.
func (l *pool) look(now time.Time, r *gpu.Reading) queue.Look {
	t := &l.tuned
	look := l.line.Look()
	if l.over.head != nil || l.meter.turned && l.line.Taken() {
		look.Full, look.Waiting = true, max(look.Waiting, 1)
	}
	l.meter.turned = false
	look.Used = l.running.Load()
	look.Silent, look.Began, look.Ended = t.silent, t.began, l.meter.ended
	if r != nil {
		e := r.Engine(now)
		look.Engine = queue.Engine{At: e.At, Waiting: t.part(e.Waiting), Running: t.part(e.Running), KV: queue.Word(e.KV)}
	}
	return look
}

// part is this replica's part of what an engine says of all.
func (t *tuned) part(v gpu.Value) queue.Word { return queue.Word{V: v.V / t.replicas, OK: v.OK} }
