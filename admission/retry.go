package admission

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Retry control (B9): who is refused at a pool that fails, and who gets its
// failure, is told how long to wait, longer with each failure of its tenant at
// that pool in a row, and in a storm not to try again at all. The form is
// gRPC's push-back (proposal A6) and what OpenAI's SDKs read.

// Pushback is what the caller of a failed request is told. The zero value is
// nothing.
type Pushback struct {
	After time.Duration // from now; 0 = no word
	Stop  bool          // not to try again by itself, neither then nor before
}

// Pushbacks count what callers were told.
type Pushbacks struct {
	Waits     uint64 // to try again at an instant
	Storms    uint64 // not to: too many failures in a row, or a storm of connections
	Deadlines uint64 // not to: the instant lies behind the caller's own deadline
}

// longestPatience is the longest hint that OpenAI's SDKs wait for; they take a
// longer one for none and try again within seconds.
const longestPatience = time.Minute

// retries are a pool's part in retry control. Safe for concurrent use.
type retries struct {
	storm   atomic.Bool // of GOAWAYs or resets, at its cluster
	streaks streaks
	outage  outage

	waits, storms, deadlines atomic.Uint64
}

func newRetries(now time.Time) *retries { return &retries{streaks: streaks{base: now}} }

func (r *retries) counts() Pushbacks {
	return Pushbacks{Waits: r.waits.Load(), Storms: r.storms.Load(), Deadlines: r.deadlines.Load()}
}

// stormy reports whether nobody is to try again.
func (r *retries) stormy(now time.Time, c *policy.RetryControl) bool {
	return r.storm.Load() || r.outage.is(now.Sub(r.streaks.base), c)
}

// strike counts a failure of the pool and gives how many the tenant has in a
// row.
func (r *retries) strike(now time.Time, tenant string, c *policy.RetryControl) int {
	r.outage.strike(now.Sub(r.streaks.base), remembered(c))
	return r.streaks.strike(now, tenant, remembered(c))
}

// refuse counts a refusal of the pool's open breaker and gives how many failures
// and refusals the tenant has in a row.
func (r *retries) refuse(now time.Time, tenant string, c *policy.RetryControl) int {
	r.outage.refuse(now.Sub(r.streaks.base))
	return r.streaks.strike(now, tenant, remembered(c))
}

// backOff is the wait after n failures in a row, n from 1: base, times factor
// for each further one, and by dice (0..1) up to jitter longer, at most max.
func backOff(c *policy.RetryControl, n int, dice float64) time.Duration {
	jitter := float64(c.Jitter)
	d := min(float64(c.Base)*math.Pow(c.Factor, float64(n-1)), float64(c.Max)/(1+jitter))
	return min(time.Duration(d*(1+jitter*dice)), c.Max)
}

// remembered is how long a streak is remembered without a failure.
func remembered(c *policy.RetryControl) time.Duration { return max(2*c.Max, time.Minute) }

// tenant is who asks; "" = nobody is known.
func (r *Request) tenant() string {
	if r.Identity == nil {
		return ""
	}
	return r.Identity.Tenant
}

// pushBack completes the hint of a refusal. A wait that is known stays, unless
// the failures in a row ask for a longer one. Refusals of an open breaker are
// failures in a row too, at either level: so a tenant that is only refused is
// told to wait longer each time, and at last to stop.
func (p *Plan) pushBack(now time.Time, by Advice) {
	d, r := &p.Decision, p.Request
	c := &r.Policy.Retry
	if c.Off || d.RetryAfter <= 0 {
		return
	}
	l, stop := p.pool, by == AdviceTenant && d.RetryAfter > longestPatience
	if l != nil && by != AdviceQuota {
		n := 0
		if (d.Reason == BreakerOpen || d.Reason == BreakerShed) && !l.echo {
			n = l.retries.refuse(now, r.tenant(), c)
		} else {
			n = l.retries.streaks.find(now, r.tenant(), remembered(c))
		}
		if n > 0 {
			d.RetryAfter = max(d.RetryAfter, backOff(c, n, l.dice()))
		}
		stop = stop || n >= c.Storm || l.retries.stormy(now, c)
	}
	// A gRPC deadline holds for all tries together; that of an HTTP call is
	// said anew with each, so what waits for its turn may come again.
	late := !r.Deadline.IsZero() && !now.Add(d.RetryAfter).Before(r.Deadline) && (r.GRPC || by == AdviceBreaker)
	d.NoRetry = stop || late
	if l != nil && !l.echo {
		l.retries.told(stop, late)
	}
}

// told counts what a caller was told.
func (r *retries) told(stop, late bool) {
	switch {
	case stop:
		r.storms.Add(1)
	case late:
		r.deadlines.Add(1)
	default:
		r.waits.Add(1)
	}
}

// Failing notes that the answer of a running plan is a failure, as its head
// says, and gives what its caller is to be told. counts false: Envoy shed the
// request, which is nobody's failure. Where all pools of the model are open by
// now, no wait is shorter than theirs. Nothing is said where the policy is not
// enforced. Once for each plan; it may come before or after Done.
func (c *Core) Failing(now time.Time, p *Plan, counts bool) (b Pushback) {
	l, r := p.seat, p.Request
	control := &r.Policy.Retry
	if l == nil || l.echo || control.Off || p.Decision.Shadow || p.Decision.Reason == AdmittedPass {
		return b
	}
	var n int
	if counts && p.struck.CompareAndSwap(false, true) {
		n = l.retries.strike(now, r.tenant(), control)
	} else if n = l.retries.streaks.find(now, r.tenant(), remembered(control)); !counts {
		n++
	}
	b.After = backOff(control, max(n, 1), l.dice())
	if v, _, open := c.allOpen(now, r); open {
		b.After = max(b.After, v.RetryAfter)
	}
	b.Stop = n >= control.Storm || l.retries.stormy(now, control)
	late := !r.Deadline.IsZero() && !now.Add(b.After).Before(r.Deadline)
	l.retries.told(b.Stop, late)
	b.Stop = b.Stop || late
	return b
}

// strike counts an end for the streak of the tenant at the pool where it ran.
func (p *Plan) strike(now time.Time, failed bool) {
	r := p.seat.retries
	switch {
	case !failed:
		r.streaks.end(p.Request.tenant())
		r.outage.end()
	case p.struck.CompareAndSwap(false, true):
		r.strike(now, p.Request.tenant(), &p.Request.Policy.Retry)
	}
}

// streaks are the failures in a row of each tenant at one pool. Memory is
// bounded: a pool without failures has none, any other streakSets * streakWays
// of them; beyond that the one goes that was silent longest, of those that it
// might share a place with. A tenant that is forgotten begins anew. While
// nobody has a streak, a success costs one atomic load; else the lock of a set
// that few tenants share. The place is chosen by FNV-1a, the same in every
// run.
type streaks struct {
	base  time.Time
	known atomic.Int64
	sets  atomic.Pointer[[streakSets]streakSet]
}

const (
	streakSets = 256
	streakWays = 8
	streakMost = 1 << 20 // counted
)

type streakSet struct {
	mu   sync.Mutex
	ways [streakWays]streak
}

type streak struct {
	tenant string // "" = free
	n      int
	last   time.Duration // since base
}

// strike adds a failure and gives how many there are in a row now; 1 for who
// is not known.
func (s *streaks) strike(now time.Time, tenant string, quiet time.Duration) int {
	if tenant == "" {
		return 1
	}
	sets := s.sets.Load()
	if sets == nil {
		s.sets.CompareAndSwap(nil, new([streakSets]streakSet))
		sets = s.sets.Load()
	}
	at := now.Sub(s.base)
	set := &sets[setOf(tenant)]
	set.mu.Lock()
	defer set.mu.Unlock()
	w := set.find(tenant)
	if w == nil {
		if w = set.oldest(); w.tenant == "" {
			s.known.Add(1)
		}
		*w = streak{tenant: tenant}
	}
	if at-w.last > quiet {
		w.n = 0
	}
	w.n, w.last = min(w.n+1, streakMost), max(w.last, at)
	return w.n
}

// find is how many failures in a row a tenant has.
func (s *streaks) find(now time.Time, tenant string, quiet time.Duration) int {
	if s.known.Load() == 0 {
		return 0
	}
	set := &s.sets.Load()[setOf(tenant)]
	set.mu.Lock()
	defer set.mu.Unlock()
	if w := set.find(tenant); w != nil && now.Sub(s.base)-w.last <= quiet {
		return w.n
	}
	return 0
}

// end ends a tenant's streak: it had a success.
func (s *streaks) end(tenant string) {
	if s.known.Load() == 0 {
		return
	}
	set := &s.sets.Load()[setOf(tenant)]
	set.mu.Lock()
	defer set.mu.Unlock()
	if w := set.find(tenant); w != nil {
		*w = streak{}
		s.known.Add(-1)
	}
}

func (s *streakSet) find(tenant string) *streak {
	for i := range s.ways {
		if w := &s.ways[i]; w.tenant == tenant && tenant != "" {
			return w
		}
	}
	return nil
}

// oldest is a free place, else the one that was silent longest.
func (s *streakSet) oldest() *streak {
	best := &s.ways[0]
	for i := range s.ways {
		w := &s.ways[i]
		if w.tenant == "" {
			return w
		}
		if w.last < best.last {
			best = w
		}
	}
	return best
}

func setOf(tenant string) uint32 {
	h := uint32(2166136261)
	for i := range len(tenant) {
		h = (h ^ uint32(tenant[i])) * 16777619
	}
	return h % streakSets
}
