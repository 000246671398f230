package admission

import (
	"sync"
	"time"

	"github.com/weirproxy/weir/quota"
)

// Visit is a request at the desk: settled at once, or waiting. Its methods
// are safe for concurrent use.
type Visit struct {
	desk    *Desk
	request *Request
	plan    *Plan // decided by one goroutine, read after it is decided
	ticket  Ticket

	mu       sync.Mutex
	state    visitState
	ready    chan struct{} // made by the first Ready of a visit that waits
	notified func()        // by Notify, until the decision stands
}

type visitState uint8

const (
	undecided visitState = iota
	decided              // and not yet told
	told
	left
)

// Waiting reports whether the request waits in a line.
func (v *Visit) Waiting() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state == undecided
}

// Longest is the longest time this request may still be held (its class's
// wait and the retry queue's limit where that follows, or P7's wait), at most
// the caller's own deadline.
func (v *Visit) Longest() time.Duration {
	d := v.plan.longest
	if at := v.request.Deadline; !at.IsZero() {
		d = min(d, max(time.Until(at), 0))
	}
	return d
}

// Ready is closed once the decision stands, or by Leave; closed already when
// not waiting.
func (v *Visit) Ready() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != undecided {
		return v.desk.ready
	}
	if v.ready == nil {
		v.ready = make(chan struct{})
	}
	return v.ready
}

// Notify has f called once the decision stands: at once where it does, never
// after Leave. f must not wait: others are decided after it.
func (v *Visit) Notify(f func()) {
	v.mu.Lock()
	stands := v.state == decided
	if v.state == undecided {
		v.notified = f
	}
	v.mu.Unlock()
	if stands {
		f()
	}
}

// Result is the decision and, when admitted, the ticket; only after Ready.
// After Leave there is no ticket and the reason is ClientGone.
func (v *Visit) Result() (*Ticket, Decision) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch v.state {
	case undecided:
		return nil, Decision{Reason: Queued}
	case left:
		return nil, Decide(ClientGone, "")
	}
	v.state = told
	if v.plan.refused {
		return nil, v.plan.Decision
	}
	return &v.ticket, v.plan.Decision
}

// Leave is for a caller that goes away before it was told the decision: the
// place in line or the seat is freed, the request unit stays charged. It may
// race with a grant: the seat is never lost. Safe to call at any time, also
// after Result (then a no-op if the ticket was taken).
func (v *Visit) Leave() {
	v.mu.Lock()
	was, ready := v.state, v.ready
	if was == undecided || was == decided {
		v.state, v.ready = left, nil
	}
	v.mu.Unlock()
	if was == undecided && ready != nil {
		close(ready)
	}
	switch {
	case was == undecided:
		v.cancel()
	case was == decided && !v.plan.refused:
		v.ticket.Done(unseen)
	}
}

// unseen is the end of a request that was admitted after its caller left:
// nothing ran, the request unit stays charged.
var unseen = End{Result: ResultCaller, GRPC: -1, Usage: Usage{Known: true, InputKnown: true}}

func (v *Visit) cancel() {
	now := time.Now()
	if !v.desk.core.Cancel(now, v.plan) {
		return // decided at this moment: decide ends it
	}
	v.desk.giveBack(v.plan, quota.Amount{Requests: 1})
	v.desk.tell(v.request, &v.plan.Decision, now)
}

// decide takes the plan's decision, once. Whoever decided calls it, without
// any lock.
func (v *Visit) decide(now time.Time) {
	d, p := v.desk, v.plan
	if !p.refused {
		v.ticket.open(v, now)
	}
	v.mu.Lock()
	gone := v.state == left
	if !gone {
		v.state = decided
	}
	ready, notified := v.ready, v.notified
	v.notified = nil
	v.mu.Unlock()
	if v.ticket.ghost == nil || v.ticket.ghost.settled() {
		d.tell(p.Request, &p.Decision, now)
	}
	if ready != nil {
		close(ready)
	}
	switch {
	case gone && !p.refused:
		v.ticket.Done(unseen)
	case !gone && notified != nil:
		notified()
	}
}

// deliver tells the owners of plans that a core decided.
func (d *Desk) deliver(now time.Time, plans []*Plan) {
	for _, p := range plans {
		switch owner := p.Owner.(type) {
		case *Visit:
			if p.refused {
				d.giveBack(p, p.unused())
			}
			owner.decide(now)
		case *ghost:
			owner.decide(now)
		}
		p.wake()
	}
}

// tell lets the observers hear of a decision.
func (d *Desk) tell(r *Request, dec *Decision, now time.Time) {
	for _, o := range d.observers {
		o.Decided(r, dec, now)
	}
}
