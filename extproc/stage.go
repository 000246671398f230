package extproc

import (
	"net/http"

	"github.com/weirproxy/weir/admission"
)

// A pool may be another weir (E4: edge, region, cluster). What it refuses
// travels up as it is: status, body, reason and hints are those of the weir
// that knows, and no other has anything to add. It is that weir's refusal: it
// ends the request here with all given back, and no breaker counts it. Only the
// operator's word makes a pool a stage; of any other, what it says in weir's
// name is taken out, and so is what callers send in either case.

// stage reports a request whose pool is another weir.
func (c *conversation) stage() bool {
	p := c.pool(c.decision.Pool)
	return p != nil && p.Stage
}

// refusedBelow reports the head of a refusal by the weir that is the pool: its
// reason stands in the reason table as a refusal, and its status is a
// refusal's. A failure of that weir itself is none.
func (c *conversation) refusedBelow(m *message, status int) bool {
	if !c.stage() {
		return false
	}
	reason, known := admission.ParseReason(m.header.get(headerReason))
	if !known || reason.Admits() || reason == admission.Internal {
		return false
	}
	if c.call.grpc {
		c.noteGRPC(m.header)
		return c.answer.grpcSeen && c.answer.grpc == reason.Row().GRPC
	}
	return status == reason.Row().HTTP || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// passUp lets a refusal of the weir below go on. The id is ours, so that each
// weir is asked by its own; the access log has both.
func (c *conversation) passUp(m *message, status int) reply {
	c.answer.seen, c.answer.status = true, status
	c.finish(admission.End{
		Result: admission.ResultStage, Status: status, GRPC: c.grpcStatus(), Usage: admission.Usage{Refund: true},
	})
	r := reply{phase: responseHeaders, set: []field{{headerRequestID, c.call.id}}}
	for _, name := range forged(m.header) {
		switch name {
		case headerReason, headerWaited, headerRequestID:
		default:
			r.remove = append(r.remove, name)
		}
	}
	r.metadata = []namespace{{name: decisionNamespace, fields: []datum{
		text("stage_reason", m.header.get(headerReason)),
		text("stage_id", clip(m.header.get(headerRequestID))),
	}}}
	return r
}
