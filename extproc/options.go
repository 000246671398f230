package extproc

import (
	"context"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// Desk is the part of the admission desk that a conversation uses; NewDesk
// makes one of *admission.Desk.
type Desk interface {
	// Precheck makes the cheap refusals of request_headers, without side
	// effects; false means go on.
	Precheck(now time.Time, r *admission.Request) (admission.Decision, bool)
	// Await is Precheck of a request whose body, of at most n bytes, is still to
	// come, and counts it until it is left; the place may be nil.
	Await(now time.Time, r *admission.Request, n int64) (*admission.Awaited, admission.Decision, bool)
	// Submit asks for a seat; it blocks for the store's time budget at most.
	Submit(ctx context.Context, r *admission.Request) Visit
	// Refused hears of the refusals that the hallway makes by itself
	// (identity, path, body, configuration), of those it would have made in
	// shadow, and of known callers who need no seat. No field that r points to
	// is nil.
	Refused(r *admission.Request, d *admission.Decision)
}

// Visit is one request at the desk, as *admission.Visit.
type Visit interface {
	Waiting() bool
	Longest() time.Duration
	// Notify has f called once, without waiting, when the decision stands;
	// never after Leave.
	Notify(f func())
	// Result is the decision; the ticket is nil when it is a refusal.
	Result() (Ticket, admission.Decision)
	Leave()
}

// Ticket is the right to run, as *admission.Ticket.
type Ticket interface {
	Done(e admission.End) bool
	Answering(now time.Time)
	Failing(now time.Time, counts bool) admission.Pushback
	Estimate() (input, output int64)
}

// NewDesk hands the desk to conversations.
func NewDesk(d *admission.Desk) Desk { return desk{d} }

type desk struct{ *admission.Desk }

func (d desk) Submit(ctx context.Context, r *admission.Request) Visit {
	return visit{d.Desk.Submit(ctx, r)}
}

type visit struct{ *admission.Visit }

func (v visit) Result() (Ticket, admission.Decision) {
	t, d := v.Visit.Result()
	if t == nil {
		return nil, d
	}
	return t, d
}

// Verify reads the caller's identity from its headers, for the form in which
// ext_proc checks the token itself. values gives every value of a header
// (lower-case name). An error is a refusal; see identity's errors.
type Verify func(ctx context.Context, values func(name string) []string) (*identity.Identity, error)

// Options is what a Server needs. Desk and Policy are required.
type Options struct {
	Desk   Desk
	Policy func() *policy.Policy // in force now
	Verify Verify                // required where identity.from is extproc
	Hooks  Hooks
}

// Hooks tell what happens, for metrics, logs and traces. Each may be nil;
// they are called on the request's own goroutine and must not block. Nothing
// of a prompt, an answer or a token is ever handed to them.
type Hooks struct {
	// Begin hears of a stream's request headers and may return a context and
	// the W3C headers to hand on ("" = unchanged).
	Begin func(ctx context.Context, traceparent, tracestate string) (out context.Context, parent, state string)
	// Finished hears of the end of a stream, once. Err is nil for a clean end.
	Finished func(ctx context.Context, s Summary)
	// Fault hears of what an operator should know: a panic (stack without
	// values), a violation of the protocol, a configuration that cannot work.
	Fault func(ctx context.Context, kind Fault, detail string)
	// OverrideRejected hears of a call on a route whose overrides make no
	// sense (E2).
	OverrideRejected func(ctx context.Context, err *policy.OverrideError)
	// Load hears what a pool says of its load with an answer: the value of an
	// ORCA header or trailer as it came, that of the binary one behind "BIN ".
	Load func(pool, value string)
	// Observed times one message, from receipt to reply; holds excluded.
	Observed func(phase string, took time.Duration)
}

// Fault is a kind of trouble that is nobody's request.
type Fault uint8

// The faults.
const (
	FaultPanic    Fault = iota // recovered; the caller got an error answer
	FaultProtocol              // a message that cannot come now
	FaultConfig                // Envoy's configuration does not fit the policy
)

// String is the metric label.
func (f Fault) String() string {
	switch f {
	case FaultPanic:
		return "panic"
	case FaultProtocol:
		return "protocol"
	case FaultConfig:
		return "config"
	}
	return "unknown"
}

// Summary is one stream at its end.
type Summary struct {
	Request  *admission.Request // nil when none was seen (a stream that began with Envoy's own answer)
	Decision admission.Decision
	Admitted bool
	End      admission.End // with Admitted
	Messages int
	Took     time.Duration
	Err      error // what Process returns
}

func (o *Options) fault(ctx context.Context, kind Fault, detail string) {
	if o.Hooks.Fault != nil {
		o.Hooks.Fault(ctx, kind, detail)
	}
}
