package extproc

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// attributes adds request attributes to a message.
func attributes(m *extprocv3.ProcessingRequest, kv ...string) *extprocv3.ProcessingRequest {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := 0; i+1 < len(kv); i += 2 {
		s.Fields[kv[i]] = structpb.NewStringValue(kv[i+1])
	}
	m.Attributes = map[string]*structpb.Struct{attributesOf: s}
	return m
}

// withMetadata replaces the metadata of a message.
func withMetadata(m *extprocv3.ProcessingRequest, f map[string]any) *extprocv3.ProcessingRequest {
	m.MetadataContext = nil
	if f != nil {
		m.MetadataContext = claims(f)
	}
	return m
}

// post is a chat call of the caller with other headers.
func post(id *identity.Identity, path string, kv ...string) *extprocv3.ProcessingRequest {
	return head(id, false, append([]string{":method", "POST", ":path", path}, kv...)...)
}

// TestRefusals: every refusal of the hallway's own, at the message where it
// stands, with the status and the reason of the table and OpenAI's shape.
func TestRefusals(t *testing.T) {
	narrow := func(edit func(*identity.Identity)) *identity.Identity {
		id := caller()
		edit(id)
		return id
	}
	big := strings.Repeat("x", 4<<20)
	cases := []struct {
		name   string
		head   *extprocv3.ProcessingRequest
		body   string // sent when the headers are answered
		md     []string
		modes  *extprocv3.ProtocolConfiguration
		reason admission.Reason
		param  string
	}{
		// K1: fail closed.
		{name: "no metadata at all", head: head(nil, false, ":method", "POST", ":path", "/v1/chat/completions"), reason: admission.IdentityMissing},
		{name: "ext_authz failed open", head: withMetadata(chatHead(), map[string]any{"ext_authz_duration": 1.0}), reason: admission.IdentityMissing},
		{name: "denied", head: withMetadata(chatHead(), identity.DeniedFields("token_expired")), reason: admission.IdentityMissing},
		{name: "denied beside a tenant", head: withMetadata(chatHead(), func() map[string]any { f := caller().Fields(); f["denied"] = true; return f }()), reason: admission.IdentityMissing},
		{name: "preflight that the policy does not let pass", head: withMetadata(chatHead(), identity.PreflightFields()), reason: admission.IdentityMissing},
		{name: "token ended meanwhile", head: chatHeadOf(narrow(func(id *identity.Identity) { id.Expires = at })), reason: admission.TokenExpired},
		{name: "function scope", head: chatHeadOf(narrow(func(id *identity.Identity) { id.Scopes = []string{"llm_service"} })), reason: admission.ScopeFunction},

		// Paths.
		{name: "unknown path", head: post(caller(), "/v1/unknown"), reason: admission.PathUnknown},
		{name: "unknown method", head: head(caller(), true, ":method", "DELETE", ":path", "/v1/chat/completions"), reason: admission.PathUnknown},
		{name: "dot segments", head: post(caller(), "/public/../v1/chat/completions"), reason: admission.HeaderInvalid},
		{name: "double slash", head: post(caller(), "//v1//chat/completions"), reason: admission.HeaderInvalid},
		{name: "encoded slash", head: post(caller(), "/v1%2Fchat/completions"), reason: admission.HeaderInvalid},
		{name: "no path", head: head(caller(), false, ":method", "POST"), reason: admission.HeaderInvalid},

		// Headers.
		{name: "bad deadline", head: chatHead("x-request-timeout", "soon"), reason: admission.HeaderInvalid},
		{name: "upgrade", head: chatHead("connection", "keep-alive, Upgrade", "upgrade", "websocket"), reason: admission.UpgradeRefused},
		{name: "extended CONNECT", head: chatHead(":protocol", "websocket"), reason: admission.UpgradeRefused},
		{name: "gRPC on a JSON path", head: post(caller(), "/v1/chat/completions", "content-type", "application/grpc"), reason: admission.BodyType},
		{name: "JSON on a gRPC path", head: post(caller(), "/inference.Service/Generate", "content-type", "application/json"), reason: admission.BodyType},
		{name: "form", head: post(caller(), "/v1/chat/completions", "content-type", "multipart/form-data"), reason: admission.BodyType},
		{name: "coded body", head: chatHead("content-encoding", "gzip"), reason: admission.BodyEncoding},
		{name: "announced too large", head: chatHead("content-length", "4194305"), reason: admission.BodyTooLarge},
		{name: "content-length of letters", head: chatHead("content-length", "many"), reason: admission.HeaderInvalid},

		// Bodies.
		{name: "too large", head: chatHead(), body: chatBody + big, reason: admission.BodyTooLarge},
		{name: "broken", head: chatHead(), body: `{"model":`, reason: admission.BodyInvalid},
		{name: "duplicate", head: chatHead(), body: `{"model":"deepseek-v4","model":"x","messages":[]}`, reason: admission.BodyDuplicate, param: "model"},
		{name: "model twice in other letters", head: chatHead(), body: `{"model":"deepseek-v4","Model":"x","messages":[]}`, reason: admission.BodyDuplicate},
		{name: "no messages", head: chatHead(), body: `{"model":"deepseek-v4"}`, reason: admission.BodyField, param: "messages"},
		{name: "unknown model", head: chatHead(), body: `{"model":"gpt-4","messages":[{"role":"user","content":"x"}]}`, reason: admission.ModelUnknown, param: "model"},
		{name: "model scope", head: chatHeadOf(narrow(func(id *identity.Identity) { id.Params = params("model=other") })), body: chatBody, reason: admission.ParameterDenied},
		{name: "parameter scope", head: chatHeadOf(narrow(func(id *identity.Identity) { id.Params = params("max_tokens<=16") })),
			body: `{"model":"deepseek-v4","max_tokens":17,"messages":[{"role":"user","content":"x"}]}`, reason: admission.ParameterDenied, param: "max_tokens"},

		// E2: loud.
		{name: "route profile unknown", head: attributes(chatHead(), cel("profile"), "nowhere"), reason: admission.OverrideInvalid},
		{name: "route key unknown", head: attributes(chatHead(), cel("maxwait"), "1s"), reason: admission.OverrideInvalid},
		{name: "route would loosen", head: attributes(chatHead(), cel("maxWait"), "1h"), reason: admission.OverrideInvalid},
		{name: "initial metadata key unknown", head: chatHead(), md: []string{"weir-klass", "batch"}, reason: admission.OverrideInvalid},
		{name: "initial metadata value unknown", head: chatHead(), md: []string{"weir-class", "vip"}, reason: admission.OverrideInvalid},
		{name: "route and initial metadata disagree", head: attributes(chatHead(), cel("function"), "chat_completion"), md: []string{"weir-function", "other"}, reason: admission.OverrideInvalid},
		{name: "handed on by ext_authz, unknown value", head: withMetadata(chatHead(), overridden(caller(), map[string]any{"class": "vip"})), reason: admission.OverrideInvalid},
		{name: "handed on by ext_authz, no string", head: withMetadata(chatHead(), overridden(caller(), map[string]any{"class": 2.0})), reason: admission.OverrideInvalid},
		{name: "a route does not loosen a function scope", head: attributes(chatHeadOf(narrow(func(id *identity.Identity) { id.Scopes = []string{"llm_service", "special"} })), cel("function"), "special"), reason: admission.ScopeFunction},
		{name: "a route adds a function scope", head: attributes(chatHead(), cel("function"), "special"), reason: admission.ScopeFunction},
		{name: "request body NONE", head: chatHead(), modes: bodies(filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_NONE), reason: admission.OverrideInvalid},
		{name: "request body STREAMED", head: chatHead(), modes: bodies(filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_NONE), reason: admission.OverrideInvalid},
		{name: "request body BUFFERED_PARTIAL", head: chatHead(), modes: bodies(filterv3.ProcessingMode_BUFFERED_PARTIAL, filterv3.ProcessingMode_NONE), reason: admission.OverrideInvalid},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			d := newTestDesk()
			h := open(t, d)
			e := h.call(tc.md...)
			if tc.modes != nil {
				e.modes = tc.modes
			}
			e.send(tc.head)
			r := e.next()
			if tc.body != "" {
				if kindOf(r) != "request_headers" {
					t.Fatalf("headers answered by %v", r)
				}
				e.send(reqBody(tc.body, true))
				r = e.next()
			}
			checkRefusal(t, r, tc.reason, tc.param)
			_ = e.hangUp(true)
			h.ended()
			if len(d.visits) != 0 {
				t.Error("the desk was asked")
			}
			if len(d.refused) != 1 || d.refused[0].Reason != tc.reason {
				t.Errorf("observers heard %v", d.refused)
			}
			if tc.reason == admission.OverrideInvalid {
				if len(h.faults)+len(h.misled) != 1 {
					t.Error("the operator was not told once")
				}
				detail := d.refused[0].Detail
				if detail == "" || strings.Contains(string(r.GetImmediateResponse().GetBody()), detail) {
					t.Errorf("for explain %q, for the caller %s", detail, r.GetImmediateResponse().GetBody())
				}
			}
		})
	}
}

func chatHeadOf(id *identity.Identity) *extprocv3.ProcessingRequest {
	return withMetadata(chatHead(), id.Fields())
}

// overridden is an identity with what ext_authz read in context_extensions.
func overridden(id *identity.Identity, o map[string]any) map[string]any {
	f := id.Fields()
	f["overrides"] = o
	return f
}

func params(scopes ...string) []identity.Param {
	_, p, err := identity.ParseScopes(scopes)
	if err != nil {
		panic(err) // a test's own mistake
	}
	return p
}

func checkRefusal(t *testing.T, r *extprocv3.ProcessingResponse, want admission.Reason, param string) {
	t.Helper()
	im := r.GetImmediateResponse()
	if im == nil {
		t.Fatalf("reply %v, want a refusal", r)
	}
	row := want.Row()
	set, _ := mutations(r)
	if set[headerReason] != row.Name || int(im.GetStatus().GetCode()) != row.HTTP {
		t.Fatalf("%s %d, want %s %d: %s", set[headerReason], im.GetStatus().GetCode(), row.Name, row.HTTP, im.GetBody())
	}
	if im.GetGrpcStatus() != nil {
		return
	}
	var body struct {
		Error struct{ Message, Type, Code, Param string }
	}
	if err := json.Unmarshal(im.GetBody(), &body); err != nil || body.Error.Type != row.Type || body.Error.Code != row.Code {
		t.Errorf("body %s (%v), want type %s code %s", im.GetBody(), err, row.Type, row.Code)
	}
	if param != "" && body.Error.Param != param {
		t.Errorf("param %q, want %q", body.Error.Param, param)
	}
	if (set["www-authenticate"] != "") != (row.Action == admission.Challenge) {
		t.Errorf("challenge %q, action %v", set["www-authenticate"], row.Action)
	}
	if got := r.GetDynamicMetadata().GetFields()[decisionNamespace].GetStructValue().GetFields()["reason"].GetStringValue(); got != row.Name {
		t.Errorf("metadata says %q", got)
	}
}

// TestGRPCRefusal: a gRPC caller gets the status of the table, never a bare
// 14 for a quota, and plain words.
func TestGRPCRefusal(t *testing.T) {
	for _, reason := range []admission.Reason{admission.QuotaRequests, admission.QueueFull, admission.BreakerOpen} {
		h := open(t, newTestDesk(verdict{reason: reason}))
		e := h.call()
		e.send(grpcHead())
		im := e.next().GetImmediateResponse()
		if im == nil || int(im.GetGrpcStatus().GetStatus()) != reason.Row().GRPC || strings.ContainsAny(string(im.GetBody()), "{\n") {
			t.Errorf("%v: %v", reason, im)
		}
		_ = e.hangUp(true)
		h.ended()
	}
}

// TestDeskRequest: what the desk is told of a call.
func TestDeskRequest(t *testing.T) {
	ask := func(t *testing.T, p *policy.Policy, head *extprocv3.ProcessingRequest, body string, md ...string) *admission.Request {
		t.Helper()
		d := newTestDesk()
		h := openWith(t, d, p)
		e := h.call(md...)
		e.send(head)
		r := e.next()
		if body != "" {
			e.send(reqBody(body, true))
			r = e.next()
		}
		if d.last() == nil {
			t.Fatalf("the desk was not asked: %v", r)
		}
		_ = e.hangUp(true)
		h.ended()
		d.even(t)
		return d.last().request
	}
	t.Run("capped by what ext_authz handed on", func(t *testing.T) { // E2
		r := ask(t, rules(), withMetadata(chatHead(), overridden(caller(), map[string]any{"class": "batch", "maxWait": "50ms"})), chatBody)
		if r.Class != policy.Batch || r.Policy.MaxWait[policy.Batch] != 50*time.Millisecond {
			t.Errorf("%v, waits %v", r.Class, r.Policy.MaxWait)
		}
	})
	t.Run("chat", func(t *testing.T) {
		r := ask(t, rules(), chatHead("x-deepseek-priority", "2", "x-request-timeout", "1500"),
			`{"model":"deepseek-chat","stream":true,"max_tokens":100,"n":2,"messages":[{"role":"user","content":"hello"}]}`)
		if r.Model != "deepseek-v4" || !r.Stream || r.MaxOut != 200 || r.Class != policy.Batch || r.Function != "chat_completion" ||
			r.Identity.Tenant != "acme" || r.Fixed != 0 || r.Prompt == 0 || r.Body == 0 || r.GRPC || len(r.ID) != 32 {
			t.Errorf("%+v", r)
		}
		if got := r.Deadline.Sub(r.Received).Milliseconds(); got != 1500 {
			t.Errorf("deadline after %d ms", got)
		}
	})
	t.Run("raw_value and value are one", func(t *testing.T) { // agentgateway#1775
		m := chatHead("x-deepseek-priority", "2")
		for i, kv := range m.GetRequestHeaders().GetHeaders().GetHeaders() {
			switch i % 3 {
			case 0:
				kv.Value, kv.RawValue = string(kv.RawValue), nil
			case 1:
				kv.Value = string(kv.RawValue)
			}
		}
		if r := ask(t, rules(), m, chatBody); r.Class != policy.Batch {
			t.Errorf("class %v", r.Class)
		}
	})
	t.Run("bytes that are not UTF-8 are ignored", func(t *testing.T) { // envoy#32607
		m := chatHead()
		hs := m.GetRequestHeaders().GetHeaders()
		hs.Headers = append(hs.Headers, &corev3.HeaderValue{Key: "x-trace", RawValue: []byte("\xe4\xb8")})
		ask(t, rules(), m, chatBody)
	})
	t.Run("clamped", func(t *testing.T) { // K1
		id := caller()
		id.Params = params("max_tokens<=16")
		if r := ask(t, rules(), chatHeadOf(id), chatBody); r.MaxOut != 16 {
			t.Errorf("MaxOut %d", r.MaxOut)
		}
	})
	t.Run("json", func(t *testing.T) {
		r := ask(t, rules(), post(caller(), "/v1/rerank"), `{"query":"x","documents":["a"]}`)
		if r.Fixed != 300 || r.Model != "deepseek-v4" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("grpc", func(t *testing.T) {
		r := ask(t, rules(), grpcHead("grpc-timeout", "2S"), "")
		if r.Fixed != 700 || !r.GRPC || r.Model != "deepseek-v4" || r.Deadline.Sub(r.Received).Seconds() != 2 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("upload", func(t *testing.T) {
		if r := ask(t, rules(), post(caller(), "/v1/audio/transcriptions"), ""); r.Fixed != 900 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("upgrade by policy", func(t *testing.T) {
		p := rules(func(p *policy.Policy) { p.Upgrade = policy.OpaqueUpgrade })
		if r := ask(t, p, head(caller(), false, ":method", "GET", ":path", "/socket", "upgrade", "websocket"), ""); r.Fixed != 50 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("route narrows", func(t *testing.T) { // E2
		r := ask(t, rules(), attributes(chatHead(), cel("class"), "standard", cel("maxWait"), "300ms", cel("models"), ""), chatBody,
			"weir-class", "batch", "weir-maxwait", "100ms")
		if r.Class != policy.Batch || r.Policy.MaxWait[policy.Batch].Milliseconds() != 100 {
			t.Errorf("class %v wait %v", r.Class, r.Policy.MaxWait)
		}
	})
	t.Run("tenant rule caps the class", func(t *testing.T) {
		low := policy.Batch
		p := rules(func(p *policy.Policy) {
			p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "acme"}, Class: &low}}
		})
		if r := ask(t, p, chatHead(), chatBody); r.Class != policy.Batch {
			t.Errorf("class %v", r.Class)
		}
	})
}
