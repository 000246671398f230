package extproc

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/meter"
	"github.com/weirproxy/weir/policy"
)

// answer is what is known of the upstream's answer.
type answer struct {
	admitted  time.Time // when the request was let go on
	seen      bool      // headers came
	status    int
	empty     bool // the headers were all of it
	grpc      int  // status seen, with grpcSeen
	grpcSeen  bool
	begun     bool          // a piece of its body came
	firstByte time.Duration // until the headers; of a stream, until the first piece
	options   meter.Options
	meter     *meter.Meter // from the first piece of the body on
}

// receiveAnswer takes response_headers, which may come at any time: Envoy
// sends its own local replies too, from 1.37 on, also while a request message
// waits for its reply and as the first message of a stream.
func (c *conversation) receiveAnswer(now time.Time, m *message) error {
	details := codeDetails(m)
	switch c.state {
	case opening:
		c.startedLate(now, m)
		return nil
	case reading:
		c.awaited.Leave()
		if details == viaUpstream && c.mode() == policy.Enforce {
			// No body came (headers, then trailers that are not sent to us),
			// and the upstream answered what nobody judged.
			c.o.fault(c.ctx, FaultConfig, "a request without a body reached its pool unjudged: request_trailer_mode SEND is needed")
			c.refuse(now, responseHeaders, refuse(admission.BodyMissing, ""))
			return nil
		}
		c.abandon(admission.ClientGone)
		c.state, c.finished = aside, true
	case held:
		c.visit.Leave()
		c.visit, c.pending, c.backlog = nil, noPhase, nil
		c.abandon(admission.ClientGone)
		c.state, c.finished = aside, true
	case running:
		c.reply(c.takeAnswer(now, m, details))
		return nil
	case passing:
		c.reply(c.marked(m, true))
		return nil
	}
	c.reply(reply{phase: responseHeaders})
	return nil
}

// codeDetails is Envoy's word on where an answer comes from; "" where the
// filter does not ask for the attribute.
func codeDetails(m *message) string {
	details := ""
	for name, value := range m.attributes {
		if name == attrDetails {
			details = value
		}
	}
	return details
}

// takeAnswer takes the headers of an admitted request's answer.
func (c *conversation) takeAnswer(now time.Time, m *message, details string) reply {
	a := &c.answer
	status, _ := strconv.Atoi(m.header.get(":status"))
	local := details != "" && details != viaUpstream
	if !local && !a.seen && c.refusedBelow(m, status) {
		return c.passUp(m, status)
	}
	r := c.marked(m, !local && status < http.StatusBadRequest)
	if local {
		a.seen, a.status = true, status
		e := admission.LocalReply(&admission.Evidence{
			Details: details, Status: status,
			// Envoy says 408 where it still waited for the request; gRPC hides that.
			Uploading: status == http.StatusRequestTimeout || c.call.grpc,
		})
		e.GRPC = c.grpcStatus()
		if e.Failed || shedByEnvoy(m.header, status) {
			c.pushBack(now, &r, m.header, e.Failed)
		}
		c.finish(e)
		return r
	}
	c.hearLoad(m.header)
	if a.seen { // a second header block of one answer: nothing new to learn
		return r
	}
	a.seen, a.status = true, status
	a.firstByte = max(now.Sub(a.admitted), 1)
	if !c.call.request.Stream {
		c.answering(now)
	}
	c.noteGRPC(m.header)
	if c.failing() {
		c.pushBack(now, &r, m.header, true)
	}
	a.options = c.metering(m.header)
	if a.empty = m.endOfStream; a.empty {
		c.finishAnswer()
	}
	return r
}

// answering tells the desk that the model's answer began. Engines send the
// headers of a stream before its first token, and the first piece of its body
// with it; where the body passes without us, nobody knows when a stream began.
func (c *conversation) answering(now time.Time) {
	if c.ticket != nil && c.answer.status < http.StatusBadRequest {
		c.ticket.Answering(now)
	}
}

// marked tells the client how its request was decided, in place of whatever
// an upstream says in our name, and what precision serves it (V2): a notice
// stands on answers, not on errors.
func (c *conversation) marked(m *message, served bool) reply {
	d := &c.decision
	r := reply{phase: responseHeaders, set: make([]field, 0, 8)}
	r.set = append(r.set, field{headerRequestID, c.call.id}, field{headerReason, d.Reason.String()})
	if d.Variant != "" {
		variant, notice := c.precision(m.header)
		r.set = append(r.set, field{headerVariant, variant}, field{headerWaited, milliseconds(d.Waited)})
		if served && notice != "" {
			r.set = append(r.set, field{headerNotice, notice})
		}
	}
	r.set = appendQuota(r.set, d.Quota)
	for _, name := range forged(m.header) {
		if !sets(r.set, name) {
			r.remove = append(r.remove, name)
		}
	}
	return r
}

// precision is the variant that serves the request, and the notice where that
// is a lower one than its class's. Behind a stage (E4) the weir there knows.
func (c *conversation) precision(h header) (variant, notice string) {
	d := &c.decision
	variant = string(d.Variant)
	if d.Degraded {
		notice = c.call.effective.Variants.Notice
	}
	if c.stage() {
		variant, notice = cmp.Or(h.get(headerVariant), variant), cmp.Or(h.get(headerNotice), notice)
	}
	return variant, notice
}

// receiveRest takes the answer's body and trailers.
func (c *conversation) receiveRest(now time.Time, m *message) error {
	switch c.state {
	case aside, passing:
		c.reply(reply{phase: m.phase, remove: forged(m.header)})
		return nil
	case opening:
		c.startedLate(now, m)
		return nil
	case running:
	default:
		return violation("%s before the request was judged", m.phase)
	}
	if m.phase == responseTrailers {
		c.reply(c.takeTrailers(now, m))
		return nil
	}
	c.reply(c.takeChunk(now, m))
	return nil
}

// takeChunk meters one piece of the body; only the events that we asked for
// ourselves are taken out.
func (c *conversation) takeChunk(now time.Time, m *message) reply {
	r := reply{phase: responseBody}
	a := &c.answer
	if c.finished {
		return r // of a local reply, or behind the end
	}
	if !a.seen && a.meter == nil { // response_header_mode SKIP
		a.firstByte = max(now.Sub(a.admitted), 1)
		a.options = c.metering(nil)
	}
	if a.meter == nil {
		a.meter = meter.New(a.options)
	}
	if len(m.body) > 0 && !a.begun {
		a.begun = true
		if c.call.request.Stream {
			a.firstByte = max(now.Sub(a.admitted), 1)
			c.answering(now)
		}
	}
	out, changed := a.meter.Write(m.body, m.endOfStream)
	if changed {
		r.replace, r.body = true, out
		if k := c.call.modes; k != nil && k.response == modeBuffered {
			r.set = []field{{"content-length", strconv.Itoa(len(out))}}
		}
	}
	if m.endOfStream {
		c.finishAnswer()
	}
	return r
}

// metering describes the answer to the meter.
func (c *conversation) metering(h header) meter.Options {
	k := &c.call
	o := meter.Options{
		Kind: k.kind, Status: c.answer.status,
		ContentType:     h.get("content-type"),
		ContentEncoding: strings.Join(h.values("content-encoding"), ","),
		HideUsage:       k.edit.hideUsage,
		MaxEvent:        k.effective.Metering.MaxEvent,
		MaxOut:          k.request.MaxOut,
		Prompts:         k.request.Prompts,
	}
	if k.kind == policy.OpenAIChat || k.kind == policy.OpenAICompletions {
		o.Choices = k.request.Choices
	}
	if m, ok := k.effective.FindModel(k.request.Model); ok {
		o.ContextLimit, o.OutputLimit = m.ContextLimit, m.OutputLimit
	}
	return o
}

func (c *conversation) takeTrailers(now time.Time, m *message) reply {
	r := reply{phase: responseTrailers, remove: forged(m.header)}
	c.hearLoad(m.header)
	c.noteGRPC(m.header)
	if !c.finished && c.call.grpc && c.failing() {
		c.pushBack(now, &r, m.header, true)
	}
	if a := c.answer.meter; a != nil && !c.finished {
		a.Write(nil, true)
	}
	c.finishAnswer()
	return r
}

// noteGRPC reads grpc-status, in headers (trailers-only) or trailers.
func (c *conversation) noteGRPC(h header) {
	if v := h.get("grpc-status"); v != "" {
		if n, err := strconv.Atoi(v); err == nil && n >= 0 {
			c.answer.grpc, c.answer.grpcSeen = n, true
		}
	}
}

func (c *conversation) grpcStatus() int {
	if !c.answer.grpcSeen {
		return -1
	}
	return c.answer.grpc
}
