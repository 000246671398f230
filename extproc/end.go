package extproc

import (
	"net/http"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/meter"
	"github.com/weirproxy/weir/policy"
)

// finishAnswer ends the ticket after an answer that came to its end.
func (c *conversation) finishAnswer() {
	if c.finished {
		return
	}
	e := c.collect()
	e.Result = c.verdict()
	e.Learn = e.Learn && e.Result == admission.ResultOK
	c.finish(e)
}

// verdict judges a complete answer (B6): by its HTTP status, its gRPC status
// wherever it stood, and by an error inside a 200 stream. An event stream
// without its last event was cut somewhere, and so was gRPC without a status.
func (c *conversation) verdict() admission.Result {
	a := &c.answer
	e := admission.Evidence{
		Status: a.status, GRPC: a.grpcSeen, GRPCStatus: a.grpc,
		Cut: c.call.grpc && !a.grpcSeen,
	}
	if a.meter != nil {
		f := a.meter.Facts()
		e.Error, e.CallersFault = f.End == meter.Error, f.CallerFault
		e.Cut = e.Cut || f.Stream && !f.Terminal
		if e.Status == 0 && !e.Cut { // its headers were not shown, its end was
			e.Status = http.StatusOK
		}
	}
	return admission.Judge(&e)
}

// cut is the end of a request whose side stream ended first: the caller went
// away, the upstream broke off, Envoy ended, or we let go of it. Nothing
// tells these apart, so the outcome is unknown and no breaker counts it,
// except where all that could be seen was seen.
func (c *conversation) cut(undelivered, drained bool) admission.End {
	a := &c.answer
	switch {
	case undelivered && !a.seen:
		return admission.End{Result: admission.ResultCaller, GRPC: -1, Usage: admission.Usage{Known: true, InputKnown: true}}
	case !a.seen && a.meter == nil:
		e := admission.End{Result: admission.ResultUnknown, GRPC: -1}
		// Nothing was delivered: the prompt is charged, and no output. What we
		// let go of ourselves runs on and is charged by the estimate.
		e.Usage.Known = !drained
		return e
	}
	e := c.collect()
	e.Learn = false
	e.Result = admission.ResultUnknown
	switch {
	case drained:
		_, output := c.reserved()
		e.Usage = admission.Usage{Output: max(e.Usage.Output, output)}
	case a.meter != nil && a.meter.Facts().Terminal: // the caller left after the last event
		e.Result = c.verdict()
	case c.bodiless():
		e.Result = c.verdict()
	}
	return e
}

// bodiless reports that Envoy does not show us the answer's body: its headers
// are all that there is to see. gRPC's last word stands in the trailers.
func (c *conversation) bodiless() bool { return c.unseen() && c.call.kind != policy.GRPC }

// unseen reports that the answer's body passes without us.
func (c *conversation) unseen() bool { return c.call.modes != nil && c.call.modes.response == modeNone }

// collect is what is known of the answer so far. A usage that is neither
// known nor has an output is charged by the estimate.
func (c *conversation) collect() admission.End {
	a := &c.answer
	e := admission.End{Status: a.status, GRPC: c.grpcStatus(), FirstByte: a.firstByte}
	if a.status >= 300 && a.status < 400 { // a redirect: the model has not run
		e.Usage.Refund = true
		return e
	}
	if a.meter == nil {
		e.Usage.Refund = a.status >= 400 || a.empty && a.grpcSeen && a.grpc != 0
		e.Usage.Known = !e.Usage.Refund && (a.empty || !c.unseen()) // nothing was delivered
		return e
	}
	f := a.meter.Facts()
	e.Usage = f.Usage(c.reserved())
	e.Usage.Choices = f.Choices
	if u := &e.Usage; c.call.request.Fixed > 0 && !u.Refund {
		// The API's stated cost, whatever was delivered and counted.
		*u = admission.Usage{Implausible: u.Implausible, Unreadable: u.Unreadable}
	}
	e.Learn = f.Known == meter.KnownAll && !f.Absurd && (f.End == meter.Complete || f.End == meter.Length)
	return e
}

// reserved is what the desk reserved.
func (c *conversation) reserved() (input, output int64) {
	if c.ticket == nil {
		return 0, 0
	}
	return c.ticket.Estimate()
}
