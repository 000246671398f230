package admission

import (
	"context"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Result says how an admitted request ended (B6, design section 2).
type Result uint8

// The results. Only ResultOK and ResultFailed are counted by the breaker.
const (
	ResultOK       Result = iota // the model answered (caller's 4xx included)
	ResultFailed                 // 429, 5xx of the upstream, reset, timeout, error inside a 200 stream
	ResultCaller                 // the caller left or was at fault: never counted
	ResultUnknown                // cut without a word: never counted
	ResultNoAnswer               // local reply before the model saw it: full refund (counted when Failed is set)
)

// End is everything known at the end of an admitted request.
type End struct {
	Result    Result
	Failed    bool // with ResultNoAnswer: counts as a failure for the breaker (no upstream, reset, timeout)
	Status    int  // HTTP status seen; 0 = none
	GRPC      int  // gRPC status seen; -1 = none
	Usage     Usage
	FirstByte time.Duration // from admission; 0 = unknown
	Learn     bool          // usage is good enough for the estimator
}

// Usage is what the meter read. Known false: Output is an estimate from what
// was delivered and Input is 0 when unknown (the desk takes its own estimate).
type Usage struct {
	Known      bool
	InputKnown bool
	Input      int64 // whole input, cached part included
	Output     int64
	Cached     int64
	Reasoning  int64 // part of Output
	Total      int64 // only when the split is unknown; else 0
	Refund     bool  // nothing was delivered and nothing ran: charge nothing
}

// Visit is a request at the desk: settled at once, or waiting.
type Visit struct{}

// Submit asks the desk. It blocks at most for the store's time budget (10 ms,
// 0 in memory). The visit must be ended: by its ticket's Done, or by Leave.
func (d *Desk) Submit(ctx context.Context, r *Request) *Visit { panic("stub") }

// Waiting reports whether the request waits in a line.
func (v *Visit) Waiting() bool { panic("stub") }

// Longest is the longest time this request may still be held (its class's
// wait and the retry queue's limit where that follows).
func (v *Visit) Longest() time.Duration { panic("stub") }

// Ready is closed once the decision stands; closed already when not waiting.
func (v *Visit) Ready() <-chan struct{} { panic("stub") }

// Result is the decision and, when admitted, the ticket; only after Ready.
func (v *Visit) Result() (*Ticket, Decision) { panic("stub") }

// Leave is for a caller that goes away before it was told the decision: the
// place in line or the seat is freed, the request unit stays charged. It may
// race with a grant: the seat is never lost. Safe to call at any time, also
// after Result (then a no-op if the ticket was taken).
func (v *Visit) Leave() { panic("stub") }

// Admit is Submit, wait, and Leave when ctx ends.
func (d *Desk) Admit(ctx context.Context, r *Request) (*Ticket, Decision) { panic("stub") }

// Ticket is the right to run. Done must be called exactly once; later calls
// do nothing and report false. It lives in the desk's registry under its ID.
type Ticket struct{ ID string }

// Done frees the seat, settles the reservation, feeds breaker and estimator.
func (t *Ticket) Done(e End) bool { panic("stub") }

// Answering marks the moment when an answer's headers came (time to first
// byte), for metrics.
func (t *Ticket) Answering(now time.Time) { panic("stub") }

// Estimate is what was reserved, for answers without a count.
func (t *Ticket) Estimate() (input, output int64) { panic("stub") }

// Precheck makes the cheap refusals of request_headers (design section 2.1):
// tenant blocked, all reachable breakers open. No side effects.
func (d *Desk) Precheck(now time.Time, r *Request) (Decision, bool) { panic("stub") }

// End ends a ticket by its id (another stream, an access log): exactly once.
func (d *Desk) End(id string, e End) bool { panic("stub") }

// Observer hears of decisions and ends (telemetry, explain, audit). Methods
// must be fast and must not block; they are called without any line's lock.
type Observer interface {
	Decided(r *Request, d *Decision, now time.Time)
	Ended(r *Request, d *Decision, e *End, charged int64, seat time.Duration, now time.Time)
}

// Desk is the shell: it gives the core a clock, goroutines and the store.
type Desk struct{}

// Drain refuses newcomers and everybody who waits (503 draining) and then
// waits until running tickets are gone or ctx ends; it returns how many are
// left.
func (d *Desk) Drain(ctx context.Context) int { panic("stub") }

// Swap takes a new policy: pools, seats and rules change at once.
func (d *Desk) Swap(p *policy.Policy) { panic("stub") }
