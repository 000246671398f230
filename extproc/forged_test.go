package extproc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/weirproxy/weir/admission"
)

// TestForgedEachOnce: a caller who sends very many x-weir- headers costs no
// more than reading them does, and each name is removed once.
func TestForgedEachOnce(t *testing.T) {
	var h header
	for i := range 100_000 {
		h = append(h, field{fmt.Sprintf("x-weir-%d", i), "1"}, field{"x-weir-pool", "mine"}, field{"x-other", "1"})
	}
	start := time.Now()
	names := forged(h)
	if took := time.Since(start); took > 5*time.Second { // milliseconds; a minute where it is quadratic
		t.Errorf("took %v", took)
	}
	if len(names) != 100_001 || len(slices.Compact(slices.Clone(names))) != len(names) || slices.Contains(names, "x-other") {
		t.Errorf("%d names", len(names))
	}
}

// TestDetailIsNotSaidTwice: where the verifier has no more to say than the
// reason table, the caller reads it once.
func TestDetailIsNotSaidTwice(t *testing.T) {
	for reason, detail := range map[admission.Reason]string{
		admission.TokenMissing: admission.TokenMissing.Row().Message,
		admission.TokenExpired: "The token has expired.",
	} {
		d := admission.Decide(reason, detail)
		want := reason.Row().Message
		if detail != want {
			want += " " + detail
		}
		row := reason.Row()
		if got, want := string(render(&d, &scene{}).body), string(errorBody(want, row.Type, row.Code, "")); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestForgedTrailers: nobody speaks for us in a request's trailers either,
// wherever the request stands when they come.
func TestForgedTrailers(t *testing.T) {
	sent := func() *extprocv3.ProcessingRequest {
		m := reqTrailers()
		m.GetRequestTrailers().Trailers = pairs("x-weir-tenant", "other", "x-sum", "1", "X-Weir-Pool", "mine")
		return m
	}
	check := func(t *testing.T, r *extprocv3.ProcessingResponse) {
		t.Helper()
		got := r.GetRequestTrailers().GetHeaderMutation().GetRemoveHeaders()
		if want := []string{"x-weir-pool", "x-weir-tenant"}; !slices.Equal(got, want) {
			t.Errorf("removed %v, want %v", got, want)
		}
	}
	t.Run("running", func(t *testing.T) {
		e := open(t, newTestDesk()).call()
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(chatBody, false))
		e.want("request_body")
		e.send(sent())
		check(t, e.next())
		_ = e.hangUp(true)
	})
	t.Run("passing", func(t *testing.T) {
		e := open(t, newTestDesk()).call()
		e.send(post(caller(), "/health"))
		e.want("request_headers")
		e.send(sent())
		check(t, e.next())
		_ = e.hangUp(true)
	})
	t.Run("held", func(t *testing.T) {
		d := newTestDesk(verdict{wait: true})
		e := open(t, d).call()
		e.send(post(caller(), "/v1/audio/transcriptions"))
		e.want("override")
		e.send(reqBody("a", false))
		e.send(sent())
		d.last().settle(admission.Admitted)
		e.want("request_headers", "request_body")
		check(t, e.next())
		_ = e.hangUp(true)
	})
}
