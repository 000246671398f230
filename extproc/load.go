package extproc

import (
	"slices"

	"github.com/weirproxy/weir/policy"
)

// The headers of ORCA's load reports. A pool whose telemetry listens to them
// is asked for one with each request; what comes, in headers or in gRPC's
// trailers, is handed on unread. They are between weir and the pool: a caller's
// own never reach a pool, and no caller sees a pool's, asked for or not.
const (
	headerLoad       = "endpoint-load-metrics"
	headerLoadBinary = headerLoad + "-bin"
	headerLoadFormat = headerLoad + "-format"

	loadFormat   = "text" // in lower case: vLLM takes any, Triton this one only
	binaryReport = "BIN " // begins a binary report in the plain header
)

// asksLoad reports a pool that is asked for its load.
func asksLoad(p *policy.Pool) bool {
	return slices.ContainsFunc(p.Telemetry, func(t policy.TelemetrySource) bool { return t.Kind == policy.KindORCA })
}

// hearLoad hands on what the request's pool says of its load.
func (c *conversation) hearLoad(h header) {
	hook := c.o.Hooks.Load
	if hook == nil {
		return
	}
	for i := range h {
		switch h[i].name {
		case headerLoad:
			hook(c.decision.Pool, h[i].value)
		case headerLoadBinary:
			hook(c.decision.Pool, binaryReport+h[i].value)
		}
	}
}
