package extproc

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// at is an instant with a fraction, to see rounding.
var at = time.Date(2026, 3, 1, 12, 0, 0, 250_000_000, time.UTC)

func lookup(h []field, name string) (string, int) {
	value, n := "", 0
	for _, f := range h {
		if f.name == name {
			value, n = f.value, n+1
		}
	}
	return value, n
}

func TestRenderRetryHint(t *testing.T) { // Q7
	cases := []struct {
		name       string
		wait       time.Duration
		fractional bool
		grpc       bool
		want       map[string]string
	}{
		{"rounded up", 1500 * time.Millisecond, false, false, map[string]string{
			"retry-after": "2", "retry-after-ms": "1500", "x-ratelimit-reset": "1772366402"}},
		{"at least one second", 200 * time.Millisecond, false, false, map[string]string{
			"retry-after": "1", "retry-after-ms": "200", "x-ratelimit-reset": "1772366401"}},
		{"whole second", 3 * time.Second, false, false, map[string]string{
			"retry-after": "3", "retry-after-ms": "3000", "x-ratelimit-reset": "1772366404"}},
		{"literal form", 1500 * time.Millisecond, true, false, map[string]string{"retry-after": "1.5"}},
		{"exact", 1234567 * time.Microsecond, false, false, map[string]string{"retry-after": "2", "retry-after-ms": "1234.567"}},
		{"grpc", 1500 * time.Millisecond, false, true, map[string]string{"retry-after": "2", "grpc-retry-pushback-ms": "1500"}},
		{"long", 25 * time.Minute, false, false, map[string]string{"retry-after": "1500"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			d := admission.Decide(admission.QueueSoft, "")
			d.RetryAfter = tc.wait
			im := render(&d, &scene{now: at, grpc: tc.grpc, hint: policy.RetryAfter{Fractional: tc.fractional}})
			for name, want := range tc.want {
				if got, n := lookup(im.header, name); got != want || n != 1 {
					t.Errorf("%s = %q (%d times), want %q once", name, got, n, want)
				}
			}
			if _, n := lookup(im.header, "x-should-retry"); n != 0 {
				t.Error("x-should-retry beside a hint")
			}
		})
	}
}

// TestRenderEveryReason walks the enum to its end: status and words are the
// table's, the body is OpenAI's shape and nothing follows it.
func TestRenderEveryReason(t *testing.T) {
	for r := admission.Reason(0); int(r) < admission.NumReasons; r++ {
		if r.Admits() {
			continue
		}
		row := r.Row()
		d := admission.Decide(r, "")
		im := render(&d, &scene{now: at, id: "abc"})
		if im.status != row.HTTP || im.grpc != -1 {
			t.Errorf("%v: status %d grpc %d, want %d and unset", r, im.status, im.grpc, row.HTTP)
		}
		var body struct {
			Error struct {
				Message, Type, Code *string
				Param               any
			}
		}
		if err := json.Unmarshal(im.body, &body); err != nil || body.Error.Message == nil || body.Error.Type == nil || body.Error.Code == nil {
			t.Fatalf("%v: body %s: %v", r, im.body, err)
		}
		if *body.Error.Type != row.Type || *body.Error.Code != row.Code || *body.Error.Message != row.Message {
			t.Errorf("%v: body %s does not say the row's %+v", r, im.body, row)
		}
		if strings.HasSuffix(string(im.body), "\n") {
			t.Errorf("%v: body ends with a newline", r)
		}
		for name, want := range map[string]string{
			"content-type": "application/json", headerReason: row.Name, "x-envoy-ratelimited": "true", headerRequestID: "abc",
		} {
			if got, n := lookup(im.header, name); got != want || n != 1 {
				t.Errorf("%v: %s = %q (%d times), want %q once", r, name, got, n, want)
			}
		}
		retry, _ := lookup(im.header, "x-should-retry")
		if useless := row.Advice == admission.AdviceNone && r != admission.Internal; (retry == "false") != useless {
			t.Errorf("%v: x-should-retry %q, useless %v", r, retry, useless)
		}
		g := render(&d, &scene{now: at, grpc: true})
		if g.grpc != row.GRPC || g.grpc == 0 || strings.ContainsAny(string(g.body), "{\n") {
			t.Errorf("%v: grpc status %d body %q, want %d and plain words", r, g.grpc, g.body, row.GRPC)
		}
	}
}

// TestRenderWaited: a refusal tells the wait that went before it, if any.
func TestRenderWaited(t *testing.T) {
	for waited, want := range map[time.Duration]string{0: "", 200 * time.Millisecond: "200", 200*time.Millisecond + 1500*time.Nanosecond: "200.002"} {
		d := admission.Decide(admission.ExpiredDrop, "")
		d.Waited = waited
		if got, _ := lookup(render(&d, &scene{now: at}).header, headerWaited); got != want {
			t.Errorf("%s after %v: %q, want %q", headerWaited, waited, got, want)
		}
	}
}

func TestRenderQuota(t *testing.T) {
	d := admission.Decide(admission.QuotaTokens, "")
	d.Quota = &admission.QuotaView{Limit: policy.Limit{Unit: policy.Tokens, Max: 200000, Per: 5 * time.Minute}, Remaining: -3, Reset: 6 * time.Minute}
	im := render(&d, &scene{now: at})
	for name, want := range map[string]string{
		"x-ratelimit-limit-tokens": "200000", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s",
	} {
		if got, _ := lookup(im.header, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestRenderDetailCannotBreakOut(t *testing.T) {
	d := admission.Decide(admission.ModelUnknown, "model \"a\"}\r\nx: y \xff<")
	im := render(&d, &scene{now: at, challenge: "Bearer\r\nx-evil: 1"})
	if !json.Valid(im.body) {
		t.Fatalf("body is not JSON: %q", im.body)
	}
	out := unmarshal(t, encode(&reply{phase: requestHeaders, immediate: im}))
	for _, h := range out.GetImmediateResponse().GetHeaders().GetSetHeaders() {
		if strings.ContainsAny(string(h.GetHeader().GetRawValue()), "\r\n") {
			t.Errorf("%s = %q carries a line break", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
		}
		if h.GetHeader().GetValue() != "" {
			t.Errorf("%s is set through value", h.GetHeader().GetKey())
		}
	}
}
