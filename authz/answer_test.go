package authz

import (
	"encoding/json"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/codes"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// TestAnswersAreTheReasonTables: what callers see of a refusal at the front
// door is what the reason table says of the same refusal further inside.
func TestAnswersAreTheReasonTables(t *testing.T) {
	for _, c := range []struct {
		answer answer
		want   admission.Reason
	}{
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenMissing, "x")), admission.TokenMissing},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenDuplicate, "x")), admission.TokenMalformed},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenTooLarge, "x")), admission.TokenMalformed},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenMalformed, "x")), admission.TokenMalformed},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenAlgorithm, "x")), admission.TokenInvalid},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenIssuer, "x")), admission.TokenInvalid},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenAudience, "x")), admission.TokenInvalid},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenKey, "x")), admission.TokenInvalid},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenSignature, "x")), admission.TokenInvalid},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenClaims, "x")), admission.TokenInvalid},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenExpired, "x")), admission.TokenExpired},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenNotYet, "x")), admission.TokenExpired},
		{answerOf(identity.Unauthenticated("r", identity.CodeTokenLifetime, "x")), admission.TokenExpired},
		{answerOf(identity.MissingScope("r", "s")), admission.ScopeService},
		{answerOfFunction(identity.MissingScope("r", "s")), admission.ScopeFunction},
		{answerOf(identity.Unavailable("x")), admission.KeysUnavailable},
		{pathUnknown, admission.PathUnknown},
		{pathInvalid, admission.HeaderInvalid},
		{overrideInvalid, admission.OverrideInvalid},
	} {
		row := c.want.Row()
		a := c.answer
		if a.status != row.HTTP || int(a.grpc) != row.GRPC || a.reason != row.Name || a.kind != row.Type || a.code != row.Code {
			t.Errorf("%+v, the table says %+v", a, row)
		}
	}
}

// TestUnavailableIsRetried: the one refusal that is not the caller's.
func TestUnavailableIsRetried(t *testing.T) {
	resp := refuse(call{}, answerOf(identity.Unavailable("Try again.")))
	if headerOf(resp, "retry-after") != "1" || headerOf(resp, "x-should-retry") != "" || headerOf(resp, "www-authenticate") != "" ||
		resp.GetDeniedResponse().GetStatus().GetCode() != 503 || !strings.Contains(resp.GetDeniedResponse().GetBody(), "keys_unavailable") {
		t.Errorf("got %v", resp)
	}
}

// TestDenialShape: status, JSON body, content type and challenge are always
// there.
func TestDenialShape(t *testing.T) {
	d := newDoor(t, nil)
	expired := d.token(map[string]any{"exp": 1000000000})
	for _, c := range []struct {
		name                         string
		req                          *authv3.CheckRequest
		status                       int
		reason, kind, code, challeng string
	}{
		{"no token", d.chat(), 401, "token_missing", "authentication_error", "missing_token", `Bearer realm="weir"`},
		{"garbage", d.chat("authorization", "Bearer x"), 401, "token_malformed", "authentication_error", "invalid_token", `error="invalid_token"`},
		{"expired", d.chat("authorization", "Bearer "+expired), 401, "token_expired", "authentication_error", "token_expired", `error="invalid_token"`},
		{"forged", d.chat("authorization", "Bearer "+swapCase(d.token(nil))), 401, "token_invalid", "authentication_error", "invalid_token", `error="invalid_token"`},
		{"two headers", d.chat("authorization", "a", "authorization", "b"), 401, "token_malformed", "authentication_error", "invalid_token", `error="invalid_request"`},
		{"no service scope", d.chat("authorization", "Bearer "+d.token(map[string]any{"scope": "chat_completion"})), 403, "scope_service", "permission_error", "insufficient_scope", `scope="llm_service"`},
		{"no function scope", d.chat("authorization", "Bearer "+d.token(map[string]any{"scope": "llm_service"})), 403, "scope_function", "permission_error", "insufficient_scope", `scope="chat_completion"`},
		{"unknown path", request("POST", "/v2/none", "authorization", "Bearer "+d.token(nil)), 404, "path_unknown", "invalid_request_error", "unknown_url", ""},
		{"wrong method", request("GET", chatPath, "authorization", "Bearer "+d.token(nil)), 404, "path_unknown", "invalid_request_error", "unknown_url", ""},
		{"unclean path", request("POST", "/public/.."+chatPath, "authorization", "Bearer "+d.token(nil)), 400, "header_invalid", "invalid_request_error", "invalid_header", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := d.check(c.req)
			if got := resp.GetDeniedResponse().GetStatus().GetCode(); int(got) != c.status {
				t.Errorf("status %d, want %d", got, c.status)
			}
			if got := headerOf(resp, "content-type"); got != "application/json" {
				t.Errorf("content-type %q", got)
			}
			if got := headerOf(resp, "x-weir-reason"); got != c.reason {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
			if got := headerOf(resp, "www-authenticate"); !strings.Contains(got, c.challeng) || (got != "") != (c.challeng != "") {
				t.Errorf("challenge %q, want %q in it", got, c.challeng)
			}
			var body map[string]map[string]any
			if err := json.Unmarshal([]byte(resp.GetDeniedResponse().GetBody()), &body); err != nil {
				t.Fatal(err)
			}
			e := body["error"]
			if _, param := e["param"]; e["type"] != c.kind || e["code"] != c.code || e["message"] == "" || !param || e["param"] != nil || len(e) != 4 {
				t.Errorf("body %v", body)
			}
			for _, h := range resp.GetDeniedResponse().GetHeaders() {
				if h.GetAppend() != nil || h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
					t.Errorf("header %s: its way of appending is left open", h.GetHeader().GetKey())
				}
			}
		})
	}
}

// TestDeniedGRPC: gRPC callers get a status of gRPC and plain words.
func TestDeniedGRPC(t *testing.T) {
	d := newDoor(t, nil)
	const path = "/inference.v1.Model/Infer"
	for _, c := range []struct {
		name, contentType, token, path string
		grpc                           codes.Code
	}{
		{"no token", "application/grpc", "", path, codes.Unauthenticated},
		{"with a codec", "application/grpc+proto", "", path, codes.Unauthenticated},
		{"upper case", "Application/GRPC; charset=x", "", path, codes.Unauthenticated},
		{"no function", "application/grpc", d.token(nil), path, codes.PermissionDenied},
		{"unknown method", "application/grpc", d.token(nil), "/inference.v1.Model/Other", codes.Unimplemented},
		{"grpc-web is not gRPC", "application/grpc-web", "", path, codes.OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			headers := []string{"content-type", c.contentType}
			if c.token != "" {
				headers = append(headers, "authorization", "Bearer "+c.token)
			}
			resp := d.check(request("POST", c.path, headers...))
			if c.grpc == codes.OK {
				if headerOf(resp, "grpc-status") != "" || headerOf(resp, "content-type") != "application/json" {
					t.Error("answered as gRPC")
				}
				return
			}
			if got, want := headerOf(resp, "grpc-status"), int(c.grpc); got != jsonOf(want) {
				t.Errorf("grpc-status %q, want %d", got, want)
			}
			if headerOf(resp, "content-type") != "" || strings.ContainsAny(resp.GetDeniedResponse().GetBody(), "{}") {
				t.Error("a JSON body for gRPC")
			}
		})
	}
	if got := d.status(request("POST", path, "content-type", "application/grpc", "authorization", "Bearer "+d.token(map[string]any{"scope": "llm_service infer"}))); got != 200 {
		t.Errorf("good call: %d", got)
	}
}

func jsonOf(v any) string { b, _ := json.Marshal(v); return string(b) }

// TestPreflight: let pass without identity only where the option is on and
// the request is a preflight.
func TestPreflight(t *testing.T) {
	preflight := []string{"origin", "https://evil.example", "access-control-request-method", "POST"}
	on := newDoor(t, func(p *policy.Policy) { p.Identity.Preflight = true })
	off := newDoor(t, nil)
	for range 200 { // no state is kept for them
		resp := on.check(request("OPTIONS", chatPath, preflight...))
		fields := resp.GetDynamicMetadata().AsMap()
		if resp.GetOkResponse() == nil || fields["preflight"] != true || fields["tenant"] != nil || fields["v"] != 1.0 {
			t.Fatalf("preflight: %v", resp)
		}
	}
	for _, c := range []struct {
		name string
		d    *door
		req  *authv3.CheckRequest
	}{
		{"option off", off, request("OPTIONS", chatPath, preflight...)},
		{"plain OPTIONS", on, request("OPTIONS", chatPath)},
		{"no origin", on, request("OPTIONS", chatPath, preflight[2:]...)},
		{"no method", on, request("OPTIONS", chatPath, preflight[:2]...)},
		{"POST with preflight headers", on, request("POST", chatPath, preflight...)},
		{"unclean path", on, request("OPTIONS", "//x", preflight...)},
	} {
		if got := c.d.status(c.req); got != 401 {
			t.Errorf("%s: %d", c.name, got)
		}
	}
}
