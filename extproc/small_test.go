package extproc

import (
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

func TestStanding(t *testing.T) { // P1
	batch := policy.Batch
	tok := func(c policy.Class, col policy.Colour) standing { return standing{c, col} }
	cases := []struct {
		name   string
		token  standing
		route  *policy.Class
		header header
		want   standing
	}{
		{"nothing said", tok(policy.Standard, 0), nil, nil, tok(policy.Standard, 0)},
		{"lowered by number", tok(policy.Critical, 0), nil, header{{"x-deepseek-priority", "2"}}, tok(policy.Batch, 0)},
		{"lowered by name", tok(policy.Critical, 0), nil, header{{"x-deepseek-priority", "Standard"}}, tok(policy.Standard, 0)},
		{"never above the token", tok(policy.Standard, 0), nil, header{{"x-deepseek-priority", "0"}}, tok(policy.Standard, 0)},
		{"route caps", tok(policy.Critical, 0), &batch, nil, tok(policy.Batch, 0)},
		{"header does not undo the route", tok(policy.Critical, 0), &batch, header{{"x-deepseek-priority", "0"}}, tok(policy.Batch, 0)},
		{"red needs the token", tok(policy.Standard, 0), nil, header{{"x-traffic-color", "red"}}, tok(policy.Standard, 0)},
		{"red token stays red", tok(policy.Standard, policy.Red), nil, header{{"x-traffic-color", "red"}}, tok(policy.Standard, policy.Red)},
		{"red token asks for yellow", tok(policy.Standard, policy.Red), nil, header{{"x-traffic-color", "yellow"}}, tok(policy.Standard, policy.Yellow)},
		{"green for anybody", tok(policy.Standard, 0), nil, header{{"x-traffic-color", "green"}}, tok(policy.Standard, policy.Green)},
		{"green token stays green", tok(policy.Standard, policy.Green), nil, header{{"x-traffic-color", "yellow"}}, tok(policy.Standard, policy.Green)},
		{"two values: the lower", tok(policy.Critical, 0), nil, header{{"x-deepseek-priority", "0"}, {"x-deepseek-priority", "1"}}, tok(policy.Standard, 0)},
		{"unknown", tok(policy.Standard, 0), nil, header{{"x-deepseek-priority", "vip"}}, tok(policy.Standard, 0)},
		{"out of range", tok(policy.Batch, 0), nil, header{{"x-deepseek-priority", "3"}}, tok(policy.Batch, 0)},
		{"below zero", tok(policy.Batch, 0), nil, header{{"x-deepseek-priority", "-1"}}, tok(policy.Batch, 0)},
		{"P0", tok(policy.Batch, 0), nil, header{{"x-deepseek-priority", "P0"}}, tok(policy.Batch, 0)},
		{"a large number", tok(policy.Standard, 0), nil, header{{"x-deepseek-priority", "99999999999"}}, tok(policy.Standard, 0)},
		{"a list", tok(policy.Critical, 0), nil, header{{"x-deepseek-priority", "0,0"}}, tok(policy.Critical, 0)},
		{"unknown beside a known one", tok(policy.Critical, 0), nil, header{{"x-deepseek-priority", "vip"}, {"x-traffic-color", "batch"}}, tok(policy.Batch, 0)},
		{"another header", tok(policy.Standard, 0), nil, header{{"priority", "u=1"}}, tok(policy.Standard, 0)},
	}
	names := []string{"X-DeepSeek-Priority", "X-Traffic-Color"}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := judgeStanding(tc.token, tc.route, names, tc.header); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestCallerDeadline(t *testing.T) {
	cases := []struct {
		header header
		want   time.Duration // 0 = none
		bad    bool
	}{
		{nil, 0, false},
		{header{{"grpc-timeout", "200m"}}, 200 * time.Millisecond, false},
		{header{{"grpc-timeout", "99999999H"}}, longestDeadline, false},
		{header{{"grpc-timeout", "1S"}, {"x-request-timeout", "300"}}, 300 * time.Millisecond, false},
		{header{{"grpc-timeout", "100m"}, {"x-request-timeout", "300"}}, 100 * time.Millisecond, false},
		{header{{"x-request-timeout", "9223372036854775807"}}, longestDeadline, false},
		{header{{"grpc-timeout", "0n"}}, 1, false},
		{header{{"grpc-timeout", "123456789S"}}, 0, true},
		{header{{"grpc-timeout", "1.5S"}}, 0, true},
		{header{{"grpc-timeout", "-1S"}}, 0, true},
		{header{{"grpc-timeout", "S"}}, 0, true},
		{header{{"grpc-timeout", "10"}}, 0, true},
		{header{{"x-request-timeout", "0"}}, 0, true},
		{header{{"x-request-timeout", "2s"}}, 0, true},
	}
	for _, tc := range cases {
		got, err := callerDeadline(at, tc.header)
		if (err != nil) != tc.bad {
			t.Errorf("%v: error %v, want one: %v", tc.header, err, tc.bad)
			continue
		}
		want := time.Time{}
		if tc.want > 0 {
			want = at.Add(tc.want)
		}
		if err == nil && !got.Equal(want) {
			t.Errorf("%v: %v, want %v", tc.header, got, want)
		}
	}
}

// cel is the form of the expressions in the examples.
func cel(leaf string) string {
	return "'weir.policy' in xds.route_metadata.filter_metadata && has(xds.route_metadata.filter_metadata['weir.policy']." + leaf +
		") ? xds.route_metadata.filter_metadata['weir.policy']." + leaf + " : ''"
}

func TestOverrideLeaf(t *testing.T) { // E2
	for expression, want := range map[string]string{
		cel("maxWait"): "maxWait",
		"xds.route_metadata.filter_metadata['weir.policy']['profile']":   "profile",
		`xds.virtual_host_metadata.filter_metadata["weir.policy"].class`: "class",
		"weir.policy.models": "models",
		cel("maxwait"):       "maxwait",
	} {
		if leaf, ours := overrideLeaf(expression, "weir.policy"); !ours || leaf != want {
			t.Errorf("%s: %q, %v; want %q", expression, leaf, ours, want)
		}
	}
	if _, ours := overrideLeaf("xds.route_name", "weir.policy"); ours {
		t.Error("xds.route_name taken for an override")
	}
}

func TestRouteOverrides(t *testing.T) { // E2
	attrs := func(m map[string]string) *message {
		return &message{attribute: func(yield func(string, string) bool) {
			for k, v := range m {
				if !yield(k, v) {
					return
				}
			}
		}}
	}
	got, err := routeOverrides(attrs(map[string]string{
		"xds.route_name": "chat", "source.address": "10.0.0.1:1",
		cel("profile"): "", cel("function"): "chat_completion", cel("maxWait"): "100ms",
	}), "weir.policy")
	if want := (policy.Overrides{Function: "chat_completion", MaxWait: "100ms"}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := routeOverrides(attrs(map[string]string{cel("maxwait"): "1s"}), "weir.policy"); err == nil {
		t.Error("a misspelt leaf was accepted")
	}
	if _, err := routeOverrides(attrs(map[string]string{cel("nonsense"): ""}), "weir.policy"); err == nil {
		t.Error("an unknown leaf without a value was accepted")
	}
	if _, err := routeOverrides(attrs(map[string]string{cel("class"): "batch", "weir.policy.class": "critical"}), "weir.policy"); err == nil {
		t.Error("contradicting expressions were accepted")
	}
}

func TestInitialOverrides(t *testing.T) { // E2
	got, err := initialOverrides(map[string][]string{
		"weir-class": {"batch"}, "weir-maxwait": {"1s"}, "user-agent": {"envoy"}, ":authority": {"weir"},
	})
	if want := (policy.Overrides{Class: "batch", MaxWait: "1s"}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []map[string][]string{
		{"weir-klass": {"batch"}},
		{"weir-class": {"batch", "critical"}},
		{"weir-class": {""}},
		{"weir-": {"x"}},
	} {
		if _, err := initialOverrides(bad); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

// TestOverrideKeysAreAllKept: the closed list is the policy's.
func TestOverrideKeysAreAllKept(t *testing.T) {
	var o policy.Overrides
	for _, key := range policy.OverrideKeys() {
		if o.Field(key) == nil {
			t.Errorf("route override %s has no place", key)
		}
	}
}

// TestNeverJudged: a request that ends before it is judged is told to the
// hooks as what it was, never as admitted.
func TestNeverJudged(t *testing.T) {
	for name, c := range map[string]struct {
		moves  []*extprocv3.ProcessingRequest
		reason admission.Reason
		seen   bool
	}{
		"nothing came":           {nil, admission.Admitted, false},
		"denied by ext_authz":    {[]*extprocv3.ProcessingRequest{answered("401", "ext_authz_denied", true)}, admission.Admitted, false},
		"gone before its body":   {[]*extprocv3.ProcessingRequest{chatHead()}, admission.ClientGone, true},
		"413 of Envoy":           {[]*extprocv3.ProcessingRequest{chatHead(), answered("413", "request_payload_too_large", true)}, admission.ClientGone, true},
		"against the protocol":   {[]*extprocv3.ProcessingRequest{chatHead(), chatHead()}, admission.Internal, true},
		"a body without headers": {[]*extprocv3.ProcessingRequest{reqBody(chatBody, true)}, admission.Admitted, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, newTestDesk(verdict{}))
			e := h.call()
			for _, m := range c.moves {
				e.send(m)
				e.next()
			}
			_ = e.hangUp(true) // with an error or without
			s := h.ended()
			if s.Admitted || s.Decision.Reason != c.reason || (s.Request != nil) != c.seen {
				t.Errorf("told as %s of %v, admitted: %v; want %s", s.Decision.Reason, s.Request, s.Admitted, c.reason)
			}
		})
	}
}
