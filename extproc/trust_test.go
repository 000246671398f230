package extproc

import (
	"testing"

	"github.com/weirproxy/weir/policy"
)

// TestCallersAreNotTrusted: what only a proxy of ours may say goes no further
// and is not heeded, unless the policy trusts callers; what weir itself says in
// its place does go on.
func TestCallersAreNotTrusted(t *testing.T) {
	headers := []string{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate", "v=1", "baggage", "a=b",
		"b3", "1", "X-B3-Sampled", "1", "x-b3-traceid", "a", "x-envoy-attempt-count", "7", "x-stainless-retry-count", "2", "x-request-id", "r", "x-b30", "kept"}
	names := []string{"b3", "baggage", "traceparent", "tracestate", "x-b3-sampled", "x-b3-traceid", "x-envoy-attempt-count"}
	for _, tt := range []struct {
		trusted  bool
		attempts int
	}{{false, 2}, {true, 6}} {
		d := newTestDesk()
		h := openWith(t, d, rules(func(p *policy.Policy) { p.Envoy.TrustCallers = tt.trusted }))
		e := h.call()
		e.send(grpcHead(headers...))
		_, removed := mutations(e.next())
		for _, name := range names {
			if removed[name] == tt.trusted {
				t.Errorf("trusted %v: removed %v, %s", tt.trusted, removed, name)
			}
		}
		for _, name := range []string{"x-request-id", "x-stainless-retry-count", "x-b30"} {
			if removed[name] {
				t.Errorf("trusted %v: %s is removed", tt.trusted, name)
			}
		}
		_ = e.hangUp(true)
		if s := h.ended(); s.Request.Attempt != tt.attempts {
			t.Errorf("trusted %v: attempt %d, want %d", tt.trusted, s.Request.Attempt, tt.attempts)
		}
	}
}

// Where the policy does not enforce, a request that has trailers in place of a
// body passes; what is forged in its headers does not.
func TestTrailersInPlaceOfABodyCarryNothingForged(t *testing.T) {
	for _, mode := range []policy.Mode{policy.Shadow, policy.Pass} {
		h := openWith(t, newTestDesk(), rules(func(p *policy.Policy) {
			p.Mode = mode
			for i := range p.Classes {
				p.Classes[i].Mode = mode
			}
		}))
		e := h.call()
		e.send(chatHead("x-weir-tenant", "vip", "x-weir-pool", "chat-fp16", "traceparent", "00-1-2-01", "authorization", "Bearer x"))
		_, removed := mutations(e.next())
		for _, name := range []string{"x-weir-tenant", "x-weir-pool", "traceparent", "authorization"} {
			if !removed[name] {
				t.Errorf("%s: %s goes on", mode, name)
			}
		}
		e.send(reqTrailers())
		e.want("request_trailers")
		_ = e.hangUp(true)
		h.ended()
	}
}
