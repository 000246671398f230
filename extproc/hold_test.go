package extproc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// quiet checks that no reply is on its way.
func (e *envoy) quiet() {
	e.t.Helper()
	synctest.Wait()
	select {
	case r, open := <-e.in:
		e.t.Fatalf("unexpected %s (open %v)", kindOf(r), open)
	default:
	}
}

func (e *envoy) want(kinds ...string) {
	e.t.Helper()
	for _, k := range kinds {
		if got := kindOf(e.next()); got != k {
			e.t.Fatalf("reply %s, want %s", got, k)
		}
	}
}

// holds are the two places where a request is held.
var holds = map[string]func(e *envoy) (pending string){
	"headers": func(e *envoy) string { e.send(grpcHead()); return "request_headers" },
	"body": func(e *envoy) string {
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(chatBody, true))
		return "request_body"
	},
}

func eachHold(t *testing.T, f func(t *testing.T, h *house, e *envoy, pending string)) {
	for name, begin := range holds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDesk(verdict{wait: true})
				h := open(t, d)
				e := h.call()
				pending := begin(e)
				r := e.next()
				if kindOf(r) != "override" {
					t.Fatalf("a hold begins with %s, want an override", kindOf(r))
				}
				if got, want := r.GetOverrideMessageTimeout().AsDuration(), d.longest+500*time.Millisecond; got != want {
					t.Errorf("override %v, want %v", got, want)
				}
				if r.GetResponse() != nil || r.GetDynamicMetadata() != nil {
					t.Error("an override has company: Envoy ignores the rest")
				}
				e.quiet()
				f(t, h, e, pending)
				if v := d.last(); v == nil || d.waiting != 0 {
					t.Error("somebody still waits")
				}
				d.even(t)
			})
		})
	}
}

func TestHoldIsGranted(t *testing.T) {
	eachHold(t, func(t *testing.T, h *house, e *envoy, pending string) {
		time.Sleep(400 * time.Millisecond)
		h.desk.last().settle(admission.Admitted)
		e.want(pending)
		e.send(answered("200", via, true, "grpc-status", "0"))
		e.want("response_headers")
		if err := e.hangUp(true); err != nil {
			t.Errorf("ended with %v", err)
		}
		h.ended()
	})
}

func TestHoldIsRefused(t *testing.T) {
	eachHold(t, func(t *testing.T, h *house, e *envoy, _ string) {
		h.desk.last().settle(admission.ExpiredDrop)
		r := e.next()
		if im := r.GetImmediateResponse(); im == nil || im.GetStatus().GetCode() != 503 {
			t.Fatalf("got %v, want an immediate 503", r)
		}
		e.want("end")
		_ = e.hangUp(true)
		h.ended()
	})
}

// TestHoldSeesLocalReply: Envoy answers the client by itself while the request
// waits. The place is given up and the local reply answered at once; the
// request message stays unanswered.
func TestHoldSeesLocalReply(t *testing.T) {
	for _, details := range []string{"stream_idle_timeout", "request_overall_timeout", "max_duration_timeout", "request_payload_too_large", ""} {
		eachHold(t, func(t *testing.T, h *house, e *envoy, _ string) {
			e.send(answered("504", details, false))
			e.want("response_headers")
			if h.desk.last().Waiting() {
				t.Error("still in the line")
			}
			h.desk.last().settle(admission.Admitted) // a grant that comes too late
			e.send(chunk("timeout", true))
			e.want("response_body")
			e.quiet()
			if err := e.hangUp(true); err != nil {
				t.Errorf("ended with %v", err)
			}
			h.ended()
		})
	}
}

func TestHoldIsLeft(t *testing.T) {
	for _, graceful := range []bool{true, false} {
		eachHold(t, func(t *testing.T, h *house, e *envoy, _ string) {
			err := e.hangUp(graceful)
			if c := status.Code(err); c != codes.Canceled {
				t.Errorf("ended with %v: a clean end would mean go on", err)
			}
			h.ended()
			h.desk.last().settle(admission.Admitted)
		})
	}
}

// TestHoldRaces lets the grant and the caller's end meet: the seat is never
// lost.
func TestHoldRaces(t *testing.T) {
	for range 200 {
		d := newTestDesk(verdict{wait: true})
		h := open(t, d)
		e := h.call()
		e.send(grpcHead())
		e.want("override")
		granted := make(chan struct{})
		go func() {
			defer close(granted)
			d.last().settle(admission.Admitted)
		}()
		e.cancel()
		for range e.in {
		}
		h.ended()
		<-granted
		d.even(t)
	}
}

func TestHoldAtHeadersWithStreamedBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDesk(verdict{wait: true})
		h := open(t, d)
		e := h.call()
		e.send(grpcHead())
		e.want("override")
		e.send(reqBody("a", false)) // send_body_without_waiting_for_header_response
		e.send(reqBody("b", true))
		e.quiet()
		d.last().settle(admission.Admitted)
		e.want("request_headers", "request_body", "request_body")
		_ = e.hangUp(true)
		h.ended()
		d.even(t)
	})
}

func TestHoldDoubleBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDesk(verdict{wait: true})
		h := open(t, d)
		e := h.call()
		holds["body"](e)
		e.want("override")
		e.send(reqBody(chatBody, true))
		e.want("end")
		if status.Code(e.err) != codes.InvalidArgument {
			t.Errorf("ended with %v", e.err)
		}
		h.ended()
		d.even(t)
	})
}

// TestOverride: at most Envoy's maximum, and none where it takes none.
func TestOverride(t *testing.T) {
	for _, tc := range []struct{ limit, longest, want time.Duration }{
		{30 * time.Second, 500 * time.Millisecond, time.Second},
		{5 * time.Second, 6 * time.Second, 5 * time.Second},
		{0, 500 * time.Millisecond, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newTestDesk(verdict{wait: true})
			d.longest = tc.longest
			h := openWith(t, d, rules(func(p *policy.Policy) { p.Envoy.MaxMessageTimeout = tc.limit }))
			e := h.call()
			e.send(grpcHead())
			if tc.want > 0 {
				if got := e.next().GetOverrideMessageTimeout().AsDuration(); got != tc.want {
					t.Errorf("override %v, want %v", got, tc.want)
				}
			}
			e.quiet()
			d.last().settle(admission.Admitted)
			e.want("request_headers")
			_ = e.hangUp(true)
			h.ended()
			d.even(t)
		})
	}
}

// TestBodyThatNeverComes: the wait for a body is bounded, from the headers to
// its end; a hold, an answer and a shadowed call are not.
func TestBodyThatNeverComes(t *testing.T) {
	const limit = time.Minute
	synctest.Test(t, func(t *testing.T) {
		h := open(t, newTestDesk(verdict{wait: true}))
		e, held := h.call(), h.call()
		e.send(chatHead())
		e.want("request_headers")
		holds["body"](held)
		held.want("override")
		time.Sleep(limit - time.Millisecond)
		e.quiet()
		time.Sleep(time.Millisecond)
		checkRefusal(t, e.next(), admission.BodyTruncated, "")
		e.want("end")
		h.ended()
		held.quiet()
		h.desk.last().settle(admission.Admitted)
		held.want("request_body")
		time.Sleep(2 * limit)
		held.quiet()
		_ = held.hangUp(true)
		h.ended()
		h.desk.even(t)
	})
	synctest.Test(t, func(t *testing.T) {
		h := openWith(t, newTestDesk(), rules(func(p *policy.Policy) {
			p.Mode = policy.Pass
			for i := range p.Classes {
				p.Classes[i].Mode = policy.Pass
			}
		}))
		e := h.call()
		e.send(chatHead())
		e.want("request_headers")
		time.Sleep(2 * limit)
		e.quiet()
		e.cancel()
		h.ended()
	})
}

// TestShutdown: what is judged is let go of with OK and its answer runs on;
// what waits stays until the desk refuses it.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDesk(verdict{}, verdict{wait: true})
		h := open(t, d)
		running, waiting, fresh := h.call(), h.call(), h.call()
		running.send(grpcHead())
		running.want("request_headers")
		running.send(answered("200", via, false))
		running.want("response_headers")
		waiting.send(grpcHead())
		waiting.want("override")
		fresh.send(chatHead())
		fresh.want("request_headers")

		gone := make(chan error, 1)
		go func() { gone <- h.server.Shutdown(context.Background()) }()
		running.want("end")
		if err := running.hangUp(true); err != nil {
			t.Errorf("a running answer was cut: %v", err)
		}
		if s := h.ended(); s.End.Result != admission.ResultUnknown || s.End.Usage.Known || s.End.Usage.Output != 512 {
			t.Errorf("end %+v, want unknown, charged by the estimate", s.End)
		}
		waiting.quiet()
		fresh.quiet()
		d.last().settle(admission.Draining)
		waiting.want("immediate", "end")
		d.mu.Lock()
		d.script = []verdict{{reason: admission.Draining}}
		d.mu.Unlock()
		fresh.send(reqBody(chatBody, true))
		fresh.want("immediate", "end")
		if err := <-gone; err != nil {
			t.Error(err)
		}
		h.ended()
		h.ended()
		d.even(t)
	})
}

func TestShutdownGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, newTestDesk(verdict{wait: true}))
		e := h.call()
		e.send(grpcHead())
		e.want("override")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := h.server.Shutdown(ctx); err == nil {
			t.Error("no word of the stream that is left")
		}
		e.cancel()
		h.ended()
		h.desk.even(t)
	})
}
