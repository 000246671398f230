package extproc

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// state is where a conversation stands.
type state uint8

const (
	opening state = iota // no message seen
	reading              // headers answered, the body is still to be judged
	held                 // a request message waits at the desk
	running              // admitted: the answer is to come or on its way
	passing              // passes without a seat: free, preflight, shadowed refusal
	aside                // Envoy answered by itself: nothing to decide any more
	closed               // answered by us: nothing more to say
)

// judged reports whether the side stream may end without a word: a clean end
// means "go on" to Envoy, also where the filter fails closed.
func (s state) judged() bool { return s >= running }

// conversation is the core: it takes decoded messages with their instant and
// leaves replies in out, in the order in which they are to be sent. It knows
// no wire and no clock, starts no goroutine and waits for nothing but the
// desk's Submit. It is not safe for concurrent use.
//
// Invariants: at most one reply for a message, of the message's phase (an
// override may go ahead of it); nothing after an immediate answer; a ticket
// is ended exactly once, a visit without a ticket is left, and so
// is the place of a body that is awaited.
type conversation struct {
	o        *Options
	initial  policy.Overrides
	badStart error // of initial

	state    state
	out      []reply
	room     [2]reply // of out, as long as it suffices
	policy   *policy.Policy
	ctx      context.Context // the stream's, with the trace where there is one
	call     call
	pending  phase              // request message that waits for its reply
	backlog  []phase            // request messages that came while it waits
	trailing []string           // forged names among trailers that came while it waits
	awaited  *admission.Awaited // the body's place until it comes; nil = none
	visit    Visit
	ticket   Ticket
	decision admission.Decision
	answer   answer
	finished bool // the ticket was ended, or there is none to end
	end      admission.End
	messages int
	began    time.Time
}

// maxBacklog bounds what a hold at headers collects of a streamed upload.
const maxBacklog = 4096

// protocolError is a message that cannot come now. The stream ends with an
// error status: what cannot be understood is not let through.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "extproc: " + e.what }

func violation(format string, args ...any) error {
	return &protocolError{what: fmt.Sprintf(format, args...)}
}

// receive takes one message. An error ends the stream.
func (c *conversation) receive(now time.Time, m *message) error {
	c.messages++
	if c.state == closed {
		return nil // Envoy had sent it before our answer arrived
	}
	if m.observe {
		c.o.fault(c.ctx, FaultConfig, "ext_proc runs in observability_mode: nothing could be decided")
		return violation("observability_mode cannot admit")
	}
	switch m.phase {
	case requestHeaders:
		if c.state != opening {
			return violation("request_headers came twice or late")
		}
		c.began = now
		c.judgeHeaders(now, m)
		return nil
	case requestBody, requestTrailers:
		return c.receiveRequest(now, m)
	case responseHeaders:
		return c.receiveAnswer(now, m)
	case responseBody, responseTrailers:
		return c.receiveRest(now, m)
	}
	return violation("message without a phase")
}

// receiveRequest takes the request's body and trailers.
func (c *conversation) receiveRequest(now time.Time, m *message) error {
	switch c.state {
	case reading:
		c.awaited.Leave()
		if m.phase == requestTrailers {
			c.refuse(now, m.phase, refuse(admission.BodyMissing, ""))
			return nil
		}
		c.judgeBody(now, m)
		return nil
	case held:
		if c.pending != requestHeaders || len(c.backlog) >= maxBacklog {
			return violation("%s while %s waits for its reply", m.phase, c.pending)
		}
		c.backlog = append(c.backlog, m.phase)
		c.trailing = forged(m.header) // trailers are the last to come
		return nil
	case running:
		if c.call.bodyJudged && m.phase == requestBody {
			return violation("request_body came twice")
		}
		c.reply(reply{phase: m.phase, remove: forged(m.header)})
		return nil
	case passing:
		c.reply(reply{phase: m.phase, remove: forged(m.header)})
		return nil
	case opening:
		if m.phase == requestTrailers {
			c.startedLate(now, m)
			return nil
		}
	}
	return violation("%s without request_headers, or after Envoy's own answer", m.phase)
}

// late gives up a body that did not come to its end in time. Where the policy
// does not enforce, nothing is sent that Envoy does not wait for.
func (c *conversation) late(now time.Time) {
	if c.state != reading || c.mode() != policy.Enforce {
		return
	}
	within := c.policy.Server.BodyTimeout
	c.refuse(now, requestBody, refuse(admission.BodyTruncated, fmt.Sprintf("It did not come to its end within %v.", within)))
}

// reply adds a reply to be sent.
func (c *conversation) reply(r reply) {
	if c.out == nil {
		c.out = c.room[:0]
	}
	c.out = append(c.out, r)
}

// submit takes a request to the desk. When it has to wait, Envoy's timer is
// set once and at once to the longest hold.
func (c *conversation) submit(now time.Time, at phase, r *admission.Request) {
	c.call.request = r
	c.pending = at
	c.visit = c.o.Desk.Submit(c.ctx, r)
	if !c.visit.Waiting() {
		c.decide(now)
		return
	}
	c.state = held
	if longest := r.Policy.Envoy.MaxMessageTimeout; longest > 0 {
		c.reply(reply{phase: at, timeout: min(c.visit.Longest()+policy.HoldMargin, longest)})
	}
}

// decide answers the pending request message with the desk's decision.
func (c *conversation) decide(now time.Time) {
	at := c.pending
	ticket, d := c.visit.Result()
	c.visit, c.pending = nil, noPhase
	c.decision = d
	if !d.Reason.Admits() {
		if ticket != nil { // never both; a seat must not be lost all the same
			ticket.Done(admission.End{Result: admission.ResultCaller, GRPC: -1, Usage: admission.Usage{Refund: true}})
		}
		c.backlog = nil
		c.close(now, at, &d, &refusal{})
		return
	}
	c.ticket = ticket
	c.state = running
	c.answer.admitted = now
	c.reply(c.admit(at, &d))
	for _, p := range c.backlog {
		r := reply{phase: p}
		if p == requestTrailers {
			r.remove = c.trailing
		}
		c.reply(r)
	}
	c.backlog = nil
}

// refuse answers with a refusal of the hallway's own. In shadow and pass the
// refusals that are not about identity are recorded and the request passes.
func (c *conversation) refuse(now time.Time, at phase, f *refusal) {
	d := admission.Decide(f.reason, f.detail)
	if p := c.call.effective; p != nil {
		d.Policy = p.ID()
	}
	shadowed := c.mode() != policy.Enforce && c.lifts(f)
	if shadowed {
		d.Shadow, d.Intended = true, f.reason
		d.Action, d.Reason = admission.Admit, admission.AdmittedPass
	}
	c.decision = d
	told := d
	if f.operator != "" {
		told.Detail = f.operator
	}
	c.o.Desk.Refused(c.about(), &told)
	if shadowed {
		c.pass(at, &d)
		return
	}
	c.close(now, at, &d, f)
}

// close sends the immediate answer: the last word of this stream.
func (c *conversation) close(now time.Time, at phase, d *admission.Decision, f *refusal) {
	s := scene{now: now, grpc: c.call.grpc, challenge: f.challenge, param: f.param}
	if c.policy != nil {
		s.hint = c.policy.RetryAfter
	}
	if e := c.call.effective; e != nil {
		s.hint = e.RetryAfter
	}
	about := c.about()
	s.id = about.ID
	c.closeWith(at, render(d, &s), record(about, d))
}

func (c *conversation) closeWith(at phase, im *immediate, log namespace) {
	c.awaited.Leave()
	c.reply(reply{phase: at, immediate: im, metadata: []namespace{log}})
	c.state = closed
	c.finished = true
}

// pass lets a request through without a seat and without metering.
func (c *conversation) pass(at phase, d *admission.Decision) {
	c.decision = *d
	c.state = passing
	c.finished = true
	r := reply{phase: at}
	if at != requestTrailers { // what is set there would be trailers
		r = c.upstream(at, d)
	}
	r.metadata = []namespace{record(c.about(), d)}
	c.reply(r)
}

// mode is the mode that the hallway's own refusals run in.
func (c *conversation) mode() policy.Mode {
	switch {
	case c.call.effective != nil:
		return c.call.effective.ModeOf(c.call.standing.class)
	case c.policy != nil:
		return c.policy.Mode
	}
	return policy.Enforce
}

// lifts says which of the hallway's refusals shadow and pass lift: what is
// asked and how, never who asks (O4). A key with parameter scopes passes only
// once its body was held against them: a mistake elsewhere must not be a way
// around them.
func (c *conversation) lifts(f *refusal) bool {
	k := &c.call
	if f.firm || k.identity != nil && len(k.identity.Params) > 0 && !k.paramsHeld && f.reason != admission.PathUnknown {
		return false
	}
	switch f.reason {
	case admission.ModelUnknown, admission.PathUnknown, admission.HeaderInvalid,
		admission.BodyMissing, admission.BodyInvalid, admission.BodyDuplicate, admission.BodyField,
		admission.BodyTruncated, admission.BodyTooLarge, admission.BodyType, admission.BodyEncoding,
		admission.UpgradeRefused, admission.OverrideInvalid:
		return true
	}
	return false
}

// ended is the end of the side stream, whatever ended it; safe to call more
// than once. undelivered says that our last replies did not go out. It
// returns an error where a clean end would let through what nobody judged.
func (c *conversation) ended(undelivered, drained bool) error {
	c.awaited.Leave()
	if c.state == held {
		c.state = opening
		if v := c.visit; v != nil {
			c.visit, c.pending = nil, noPhase
			v.Leave()
		}
	}
	if c.ticket != nil && !c.finished {
		c.finish(c.cut(undelivered, drained))
	}
	if !c.state.judged() {
		c.abandon(admission.ClientGone)
		return violation("the stream ended before the request was judged")
	}
	return nil
}

// abandon notes why a request that was seen is never judged.
func (c *conversation) abandon(r admission.Reason) {
	if c.policy == nil {
		return // nothing was asked
	}
	c.about()
	c.decision = admission.Decide(r, "")
}

// finish ends the ticket, exactly once.
func (c *conversation) finish(e admission.End) {
	if c.finished {
		return
	}
	c.finished, c.end = true, e
	if c.ticket != nil {
		c.ticket.Done(e)
	}
	if m := c.answer.meter; m != nil {
		m.Close()
	}
}

// summary is the conversation for the hooks.
func (c *conversation) summary(now time.Time, err error) Summary {
	s := Summary{Decision: c.decision, Admitted: c.ticket != nil, End: c.end, Request: c.call.request, Messages: c.messages, Err: err}
	if !c.began.IsZero() {
		s.Took = now.Sub(c.began)
	}
	return s
}
