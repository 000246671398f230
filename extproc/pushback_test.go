package extproc

import (
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// The reply to a head or to trailers, and what Failing heard.
func answerOf(t *testing.T, v verdict, grpc bool, m ...*extprocv3.ProcessingRequest) (set map[string]string, failing []bool) {
	t.Helper()
	d := newTestDesk(v)
	h := open(t, d)
	e := h.call()
	if grpc {
		e.send(grpcHead())
		e.want("request_headers")
	} else {
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(chatBody, true))
		e.want("request_body")
	}
	for i := range m {
		e.send(m[i])
		set, _ = mutations(e.next())
	}
	_ = e.hangUp(true)
	h.ended()
	d.even(t)
	last := d.last()
	d.mu.Lock()
	defer d.mu.Unlock()
	return set, last.failing
}

// B9: what failed upstream, or in Envoy, tells its caller when to try again, in
// the form that the caller's library reads; what did not fail says nothing.
func TestFailuresPushBack(t *testing.T) {
	wait, storm := admission.Pushback{After: 1500 * time.Millisecond}, admission.Pushback{After: 30 * time.Second, Stop: true}
	const none = "none"
	http := func(status, details string, kv ...string) []*extprocv3.ProcessingRequest {
		return []*extprocv3.ProcessingRequest{answered(status, details, true, kv...)}
	}
	rpc := func(status, details string, kv ...string) []*extprocv3.ProcessingRequest {
		return http("200", details, append(kv, "content-type", "application/grpc", "grpc-status", status)...)
	}
	stream := func(status string, kv ...string) []*extprocv3.ProcessingRequest {
		return []*extprocv3.ProcessingRequest{answered("200", via, false, "content-type", "application/grpc"), trailers(append(kv, "grpc-status", status)...)}
	}
	for _, c := range []struct {
		name    string
		says    admission.Pushback
		grpc    bool
		moves   []*extprocv3.ProcessingRequest
		failing int // how often Failing was asked; 2 = for what counts as nobody's failure
		want    map[string]string
	}{
		{"503", wait, false, http("503", via), 1, map[string]string{"retry-after": "2", "retry-after-ms": "1500", "x-should-retry": none}},
		{"500", wait, false, http("500", via), 1, map[string]string{"retry-after-ms": "1500"}},
		{"429 of the upstream", wait, false, http("429", via), 1, map[string]string{"retry-after-ms": "1500"}},
		{"nothing to say", admission.Pushback{}, false, http("503", via), 1, map[string]string{"retry-after": none, "retry-after-ms": none}},
		{"a storm", storm, false, http("503", via), 1, map[string]string{"retry-after": "30", "retry-after-ms": "30000", "x-should-retry": "false"}},
		{"no details", wait, false, http("502", ""), 1, map[string]string{"retry-after-ms": "1500"}},
		{"a longer hint of the upstream's", wait, false, http("503", via, "retry-after", "7"), 1, map[string]string{"retry-after": none, "retry-after-ms": none}},
		{"a shorter one", wait, false, http("429", via, "retry-after-ms", "20.5"), 1, map[string]string{"retry-after": "2", "retry-after-ms": "1500"}},
		{"one of both", wait, false, http("429", via, "retry-after", "1", "retry-after-ms", "1600"), 1, map[string]string{"retry-after": none}},
		{"a date to come", wait, false, http("503", via, "retry-after", "Fri, 31 Dec 2100 23:59:59 GMT"), 1, map[string]string{"retry-after": none}},
		{"a date that is past", wait, false, http("503", via, "retry-after", "Fri, 31 Dec 1999 23:59:59 GMT"), 1, map[string]string{"retry-after": "2"}},
		{"nonsense", wait, false, http("503", via, "retry-after", "soon", "retry-after-ms", "NaN"), 1, map[string]string{"retry-after": "2"}},
		{"the upstream says never", storm, false, http("503", via, "x-should-retry", "false", "retry-after", "3600"), 1, map[string]string{"retry-after": none, "x-should-retry": none}},
		{"the upstream says try", storm, false, http("503", via, "x-should-retry", "true"), 1, map[string]string{"x-should-retry": "false"}},
		{"200", wait, false, http("200", via), 0, map[string]string{"retry-after": none}},
		{"400", wait, false, http("400", via), 0, map[string]string{"retry-after": none}},
		{"no host", wait, false, http("503", "no_healthy_upstream"), 1, map[string]string{"retry-after-ms": "1500"}},
		{"a reset", storm, false, http("503", "upstream_reset_before_response_started{connection_termination}"), 1, map[string]string{"x-should-retry": "false"}},
		{"a timeout", wait, false, http("504", "response_timeout"), 1, map[string]string{"retry-after-ms": "1500"}},
		{"dropped for us", wait, false, http("503", "drop_overload"), 2, map[string]string{"retry-after-ms": "1500"}},
		{"overflow", wait, false, http("503", "upstream_reset_before_response_started{overflow}"), 2, map[string]string{"retry-after-ms": "1500"}},
		{"too large for Envoy", wait, false, http("413", "request_payload_too_large"), 0, map[string]string{"retry-after": none}},

		{"UNAVAILABLE", wait, true, rpc("14", via), 1, map[string]string{"grpc-retry-pushback-ms": "1500", "retry-after": none}},
		{"RESOURCE_EXHAUSTED in a storm", storm, true, rpc("8", via), 1, map[string]string{"grpc-retry-pushback-ms": "-1", "x-should-retry": none}},
		{"its own is longer", wait, true, rpc("14", via, "grpc-retry-pushback-ms", "1501"), 1, map[string]string{"grpc-retry-pushback-ms": none}},
		{"its own is shorter", wait, true, rpc("14", via, "grpc-retry-pushback-ms", "0"), 1, map[string]string{"grpc-retry-pushback-ms": "1500"}},
		{"its own says stop", wait, true, rpc("14", via, "grpc-retry-pushback-ms", "-1"), 1, map[string]string{"grpc-retry-pushback-ms": none}},
		{"its own is no number", wait, true, rpc("14", via, "grpc-retry-pushback-ms", "x"), 1, map[string]string{"grpc-retry-pushback-ms": none}},
		{"its own is longer in a storm", storm, true, rpc("14", via, "grpc-retry-pushback-ms", "99999"), 1, map[string]string{"grpc-retry-pushback-ms": "-1"}},
		{"NOT_FOUND", wait, true, rpc("5", via), 0, map[string]string{"grpc-retry-pushback-ms": none}},
		{"OK", wait, true, rpc("0", via), 0, map[string]string{"grpc-retry-pushback-ms": none}},
		{"no host, gRPC", wait, true, rpc("14", "no_healthy_upstream"), 1, map[string]string{"grpc-retry-pushback-ms": "1500"}},
		{"dropped for us, gRPC", wait, true, rpc("14", "drop_overload"), 2, map[string]string{"grpc-retry-pushback-ms": "1500"}},
		{"in trailers", wait, true, stream("13"), 1, map[string]string{"grpc-retry-pushback-ms": "1500"}},
		{"well in trailers", wait, true, stream("0"), 0, map[string]string{"grpc-retry-pushback-ms": none}},
		{"the caller's in trailers", wait, true, stream("3"), 0, map[string]string{"grpc-retry-pushback-ms": none}},
	} {
		set, failing := answerOf(t, verdict{pushback: c.says}, c.grpc, c.moves...)
		for name, want := range c.want {
			got, ok := set[name]
			if !ok {
				got = none
			}
			if got != want {
				t.Errorf("%s: %s = %q, want %q", c.name, name, got, want)
			}
		}
		switch {
		case c.failing == 0 && len(failing) != 0,
			c.failing > 0 && len(failing) != 1,
			c.failing > 0 && failing[0] != (c.failing == 1):
			t.Errorf("%s: Failing heard %v", c.name, failing)
		}
	}
}

// B9: who is told to stop is told the wait beside it.
func TestRenderNoRetry(t *testing.T) {
	d := admission.Decide(admission.BreakerOpen, "")
	d.RetryAfter, d.NoRetry = 5*time.Second, true
	for grpc, want := range map[bool]map[string]string{
		false: {"x-should-retry": "false", "retry-after": "5", "retry-after-ms": "5000", "grpc-retry-pushback-ms": ""},
		true:  {"grpc-retry-pushback-ms": "-1", "retry-after": "5", "x-should-retry": ""},
	} {
		im := render(&d, &scene{now: at, grpc: grpc, hint: policy.RetryAfter{}})
		for name, value := range want {
			if got, _ := lookup(im.header, name); got != value {
				t.Errorf("gRPC %v: %s = %q, want %q", grpc, name, got, value)
			}
		}
	}
}

// A push-back is whole milliseconds, never shorter than the wait.
func TestPushbackValue(t *testing.T) {
	for after, want := range map[time.Duration]string{time.Microsecond: "1", time.Millisecond: "1", time.Millisecond + 1: "2", 90 * time.Second: "90000"} {
		if got := pushbackValue(after, false); got != want {
			t.Errorf("%v: %s, want %s", after, got, want)
		}
	}
}
