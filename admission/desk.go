package admission

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// Options make a Desk.
type Options struct {
	Policy    *policy.Policy
	Store     quota.Store
	Gauges    Gauges     // nil = no telemetry
	Rand      *rand.Rand // seeds dice; nil = from the system's randomness
	Observers []Observer

	// Journal hears of every transition of the breakers; nil = nobody does.
	// Council is what other replicas say of theirs (B3); nil = there are none.
	// It is configured anew with each Swap.
	Journal *breaker.Journal
	Council *breaker.Council

	// Settlers is how many goroutines settle with the store, for stores that
	// take round trips; 0 settles on the caller's goroutine.
	Settlers int
}

// Observer hears of decisions and ends (telemetry, explain, audit). Methods
// must be fast and must not block; they are called without any line's lock,
// from many goroutines. What the pointers show is valid and unchanged during
// the call alone, except the request, which never changes.
type Observer interface {
	// Decided is called once for each decision, when it stands. In shadow it
	// is called when the intended decision stands.
	Decided(r *Request, d *Decision, now time.Time)

	// Ended is called once for each admitted request at its end. charged is in
	// tokens at the pool's rate, as quotas count them (V2); e.Usage has those
	// that the meter read.
	Ended(r *Request, d *Decision, e *End, charged int64, seat time.Duration, now time.Time)
}

// Desk is the shell: it gives the core a clock, goroutines and the store. All
// methods are safe for concurrent use.
type Desk struct {
	core      *Core
	shadow    *Core // decides for requests in shadow mode and never holds (O4)
	store     quota.Store
	observers []Observer
	tickets   registry
	presence  presence
	settler   *settler
	ready     chan struct{} // closed: for visits that do not wait
	draining  atomic.Bool
	mirror    atomic.Bool // shadow decisions exist: enforced requests take seats there too

	mu      sync.Mutex // of Swap, Drain and Close
	closed  bool
	stop    chan struct{}
	keepers sync.WaitGroup
}

// New opens a desk. Close ends its goroutines.
func New(o Options) *Desk {
	now := time.Now()
	rng := o.Rand
	if rng == nil {
		rng = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	d := &Desk{
		store:     o.Store,
		observers: o.Observers,
		ready:     make(chan struct{}),
		stop:      make(chan struct{}),
	}
	close(d.ready)
	d.tickets.open()
	d.presence.open()
	d.settler = newSettler(o.Store, o.Settlers)
	d.core = newCore(now, o.Policy, o.Gauges, rng, o.Journal, o.Council)
	d.shadow = d.core.newEcho(now, o.Policy, rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())))
	d.mirror.Store(hasShadow(o.Policy))
	d.keepAll()
	return d
}

// Close ends the desk's goroutines and waits for them. Whoever still waits is
// refused as draining. Running tickets may still be ended.
func (d *Desk) Close() {
	d.draining.Store(true)
	d.deliver(time.Now(), d.core.Drain(time.Now()))
	d.deliver(time.Now(), d.shadow.Drain(time.Now()))
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.stop)
	}
	d.mu.Unlock()
	d.keepers.Wait()
	d.settler.close()
}

// Submit asks the desk. It blocks at most for the store's time budget (10 ms,
// 0 in memory). The visit must be ended: by its ticket's Done, or by Leave.
func (d *Desk) Submit(ctx context.Context, r *Request) *Visit {
	now := time.Now()
	v := &Visit{desk: d, request: r}
	switch mode := modeOf(r, d.draining.Load()); mode {
	case policy.Pass:
		v.plan = d.core.Pass(now, r, AdmittedPass)
	case policy.Shadow:
		v.plan = d.core.Pass(now, r, Admitted)
		v.ticket.ghost = d.haunt(ctx, now, v.plan)
	default:
		d.enforce(ctx, now, v)
		return v
	}
	v.plan.Owner = v
	v.plan.wake()
	v.decide(now)
	return v
}

// modeOf is the mode that holds for a request (O4). A process that goes away
// refuses in any mode.
func modeOf(r *Request, draining bool) policy.Mode {
	if draining {
		return policy.Enforce
	}
	return r.Policy.ModeOf(r.Class)
}

// enforce makes the three calls of a decision.
func (d *Desk) enforce(ctx context.Context, now time.Time, v *Visit) {
	p := d.core.Plan(now, v.request)
	v.plan, p.Owner = p, v
	outcome := Refused
	if !p.Refused() {
		var at time.Time
		outcome, at = d.enter(ctx, now, d.core, p)
		now = at
	}
	if outcome == InTheLine {
		p.where.Load().wake()
		return
	}
	v.decide(now)
	p.wake()
}

// enter reserves the plan's claims and enters with the verdict. Claims of a
// refused plan are given back here.
func (d *Desk) enter(ctx context.Context, now time.Time, c *Core, p *Plan) (Outcome, time.Time) {
	verdict := quota.Verdict{Allowed: true}
	if len(p.Claims) > 0 {
		var err error
		verdict, err = d.store.Reserve(ctx, time.Time{}, p.Request.ID, p.Claims)
		now = time.Now()
		if err != nil {
			reason := StoreUnavailable
			if ctx.Err() != nil {
				reason = ClientGone
			}
			c.Abandon(now, p, reason)
			d.giveBack(p, quota.Amount{}) // the store may have decided after all
			return Refused, now
		}
		if verdict.Allowed {
			d.presence.enter(p)
		}
	}
	outcome := c.Enter(now, p, verdict)
	if outcome == Refused && verdict.Allowed {
		d.giveBack(p, quota.Amount{})
	}
	return outcome, now
}

// giveBack settles a plan that does not run.
func (d *Desk) giveBack(p *Plan, final quota.Amount) {
	if len(p.Claims) > 0 {
		d.presence.leave(p)
		d.settler.settle(p.Request.ID, p.Claims, final)
	}
}

// Admit is Submit, wait, and Leave when ctx ends.
func (d *Desk) Admit(ctx context.Context, r *Request) (*Ticket, Decision) {
	v := d.Submit(ctx, r)
	select {
	case <-v.Ready():
	case <-ctx.Done():
		v.Leave()
	}
	return v.Result()
}
