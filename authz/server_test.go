package authz

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// door is a Server behind real gRPC, with what its hooks saw.
type door struct {
	t         *testing.T
	policy    *policy.Policy
	key       pair
	client    authv3.AuthorizationClient
	overrides atomic.Int64
	misled    atomic.Pointer[policy.OverrideError]
	refused   atomic.Pointer[Refusal]
	panics    atomic.Int64
	codes     chan string
}

func newDoor(t *testing.T, change func(*policy.Policy)) *door {
	t.Helper()
	d := &door{t: t, key: keyPair(t, "EdDSA", "k"), policy: policy.Default(), codes: make(chan string, 1000)}
	d.policy.Identity = *identityPolicy(t, d.key.public)
	d.policy.Identity.MaxLifetime = 0
	d.policy.APIs = append(d.policy.APIs,
		policy.API{Method: "POST", Path: "/inference.v1.Model/Infer", Kind: policy.GRPC, Function: "infer"},
		policy.API{Method: "GET", Path: "/free", Kind: policy.Free})
	if change != nil {
		change(d.policy)
	}
	d.policy.Finish()
	v := newVerifier(t, &d.policy.Identity)
	s := NewServer(v, func() *policy.Policy { return d.policy }, ServerOptions{
		Observe:          func(code string, _ time.Duration) { d.codes <- code },
		OverrideRejected: func(err *policy.OverrideError) { d.overrides.Add(1); d.misled.Store(err) },
		Refused:          func(r Refusal) { d.refused.Store(&r) },
		Panicked:         func() { d.panics.Add(1) },
	})
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, s)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:door",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); server.Stop(); <-served })
	d.client = authv3.NewAuthorizationClient(conn)
	return d
}

// token is good now and for the next century.
func (d *door) token(change map[string]any) string {
	d.t.Helper()
	c := longClaims()
	for k, v := range change {
		c[k] = v
	}
	return d.key.sign(d.t, c)
}

// request is a chat call; each pair of headers is a name and a value.
func request(method, path string, headers ...string) *authv3.CheckRequest {
	h := &corev3.HeaderMap{}
	for i := 0; i < len(headers); i += 2 {
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: headers[i], RawValue: []byte(headers[i+1])})
	}
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{Method: method, Path: path, HeaderMap: h}},
	}}
}

const chatPath = "/v1/chat/completions"

func (d *door) chat(headers ...string) *authv3.CheckRequest {
	return request("POST", chatPath, headers...)
}

// check calls and holds what is true of every answer.
func (d *door) check(req *authv3.CheckRequest) *authv3.CheckResponse {
	d.t.Helper()
	resp, err := d.client.Check(d.t.Context(), req)
	if err != nil {
		d.t.Fatalf("gRPC error %v", err)
	}
	<-d.codes
	fields := resp.GetDynamicMetadata().AsMap()
	if resp.GetStatus().GetCode() == 0 {
		if resp.GetOkResponse() == nil || resp.GetDeniedResponse() != nil {
			d.t.Fatalf("OK without ok_response: %v", resp)
		}
		return resp
	}
	denied := resp.GetDeniedResponse()
	if denied == nil || denied.GetStatus().GetCode() < 400 || denied.GetBody() == "" {
		d.t.Fatalf("denial without a response: %v", resp)
	}
	if told := d.refused.Load(); told.ID == "" || told.ID != headerOf(resp, "x-weir-request-id") ||
		told.Reason != headerOf(resp, "x-weir-reason") || told.Detail == "" {
		d.t.Fatalf("told %+v of %v", told, resp)
	}
	if fields["denied"] != true || fields["tenant"] != nil || fields["v"] != 1.0 {
		d.t.Fatalf("metadata of a denial: %v", fields)
	}
	if id, err := identity.FromFields(fields); err == nil {
		d.t.Fatalf("the metadata of a denial is an identity: %+v", id)
	}
	return resp
}

func (d *door) status(req *authv3.CheckRequest) int {
	d.t.Helper()
	resp := d.check(req)
	if resp.GetOkResponse() != nil {
		return 200
	}
	return int(resp.GetDeniedResponse().GetStatus().GetCode())
}

func headerOf(resp *authv3.CheckResponse, name string) string {
	for _, h := range resp.GetDeniedResponse().GetHeaders() {
		if h.GetHeader().GetKey() == name {
			return h.GetHeader().GetValue()
		}
	}
	return ""
}

func TestCheckAllows(t *testing.T) {
	d := newDoor(t, nil)
	raw := d.token(map[string]any{"class": "critical", "tier": "gold", "scope": "llm_service chat_completion max_tokens<=1024"})
	resp := d.check(d.chat("authorization", "Bearer "+raw))
	id, err := identity.FromFields(resp.GetDynamicMetadata().AsMap())
	if err != nil {
		t.Fatal(err)
	}
	if id.Tenant != "acme" || id.User != "ann" || id.Class != policy.Critical || id.Tier != "gold" ||
		!id.HasScope("chat_completion") || len(id.Params) != 1 || id.Expires.Unix() != 4102444800 {
		t.Errorf("identity %+v", id)
	}
	if got := resp.GetOkResponse().GetHeadersToRemove(); !slices.Equal(got, []string{"authorization"}) {
		t.Errorf("removes %v", got)
	}
	if len(resp.GetOkResponse().GetHeaders()) != 0 {
		t.Error("sets headers")
	}
}

// TestHeaderForms: the three forms in which Envoy can send headers.
func TestHeaderForms(t *testing.T) {
	d := newDoor(t, nil)
	value := "Bearer " + d.token(nil)
	form := func(change func(*authv3.AttributeContext_HttpRequest)) *authv3.CheckRequest {
		r := d.chat()
		change(r.Attributes.Request.Http)
		return r
	}
	hv := func(key, value string, raw string) *corev3.HeaderValue {
		return &corev3.HeaderValue{Key: key, Value: value, RawValue: []byte(raw)}
	}
	for _, c := range []struct {
		name string
		req  *authv3.CheckRequest
		want int
	}{
		{"raw_value", d.chat("authorization", value), 200},
		{"value", form(func(h *authv3.AttributeContext_HttpRequest) {
			h.HeaderMap = &corev3.HeaderMap{Headers: []*corev3.HeaderValue{hv("authorization", value, "")}}
		}), 200},
		{"map", form(func(h *authv3.AttributeContext_HttpRequest) { h.Headers = map[string]string{"authorization": value} }), 200},
		{"both kinds of value", form(func(h *authv3.AttributeContext_HttpRequest) {
			h.HeaderMap = &corev3.HeaderMap{Headers: []*corev3.HeaderValue{hv("authorization", "Bearer x", value)}}
		}), 401},
		{"two raw values", d.chat("authorization", value, "authorization", value), 401},
		{"two raw values, one in another case", d.chat("authorization", value, "Authorization", value), 401},
		{"joined in the map", form(func(h *authv3.AttributeContext_HttpRequest) {
			h.Headers = map[string]string{"authorization": value + "," + value}
		}), 401},
		{"one in each form", form(func(h *authv3.AttributeContext_HttpRequest) {
			h.HeaderMap = d.chat("authorization", value).Attributes.Request.Http.HeaderMap
			h.Headers = map[string]string{"authorization": value}
		}), 401},
		{"none", d.chat(), 401},
	} {
		if got := d.status(c.req); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestPathsCannotBeSpelt: each spelling is guarded like the plain path, or
// refused.
func TestPathsCannotBeSpelt(t *testing.T) {
	d := newDoor(t, nil)
	good := "Bearer " + d.token(nil)
	free := "Bearer " + d.token(map[string]any{"scope": "llm_service"})
	for _, path := range []string{
		"/public/../v1/chat/completions", "//v1//chat/completions", "/v1/./chat/completions", "/v1/chat/completions/", "/v1/chat%2Fcompletions",
		"/v1/%63hat/completions", "/V1/chat/completions", "/v1/chat/completions;x=1", "/v1\\chat/completions", "/free/../v1/chat/completions",
		"v1/chat/completions", "", "*", "http://x/v1/chat/completions", "/v1/chat/completions#x", "/v1/chat/completions\x00", "/free%2e%2e/v1",
	} {
		for _, method := range []string{"POST", "GET"} {
			if got := d.status(request(method, path, "authorization", good)); got != 400 && got != 404 {
				t.Errorf("%s %q: %d", method, path, got)
			}
		}
		if got := d.status(request("POST", path)); got != 401 {
			t.Errorf("%q without a token: %d", path, got)
		}
	}
	if got := d.status(request("POST", chatPath+"?a=/../x", "authorization", good)); got != 200 {
		t.Errorf("with a query: %d", got)
	}
	if got := d.status(request("GET", "/free", "authorization", free)); got != 200 {
		t.Errorf("free API with identity: %d", got)
	}
	if got := d.status(request("GET", "/free")); got != 401 {
		t.Errorf("free API without identity: %d", got)
	}
	if got := d.status(request("GET", "/v1/models", "authorization", free)); got != 200 {
		t.Errorf("model list with identity: %d", got)
	}
	if got := d.status(request("GET", "/v1/models")); got != 401 {
		t.Errorf("model list without identity: %d", got)
	}
}

// TestForgedHeaders: what only weir may say is taken off; the token is, too,
// unless it is needed behind.
func TestForgedHeaders(t *testing.T) {
	forged := []string{"x-weir-tenant", "evil", "X-Weir-Pool", "int8", "x-weir-tenant", "again", "x-other", "1"}
	for _, c := range []struct {
		name   string
		change func(*policy.Policy)
		want   []string
	}{
		{"default", nil, []string{"authorization", "x-weir-pool", "x-weir-tenant"}},
		{"forwarded", func(p *policy.Policy) { p.Identity.Forward = true }, []string{"x-weir-pool", "x-weir-tenant"}},
		{"verified again behind", func(p *policy.Policy) { p.Identity.From = policy.FromExtProc }, []string{"x-weir-pool", "x-weir-tenant"}},
		{"a wish for priority", func(p *policy.Policy) { p.PriorityHeaders = []string{"x-weir-pool"} }, []string{"authorization", "x-weir-tenant"}},
	} {
		d := newDoor(t, c.change)
		resp := d.check(d.chat(append([]string{"authorization", "Bearer " + d.token(nil)}, forged...)...))
		got := slices.Sorted(slices.Values(resp.GetOkResponse().GetHeadersToRemove()))
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: removes %v, want %v", c.name, got, c.want)
		}
	}
}

// TestTenantIsTheTokens: headers that name tenants change nothing.
func TestTenantIsTheTokens(t *testing.T) {
	d := newDoor(t, nil)
	raw := d.token(nil)
	for range 1000 {
		resp := d.check(d.chat("authorization", "Bearer "+raw, "x-tenant-id", time.Now().String(), "x-weir-tenant", "evil"))
		if got := resp.GetDynamicMetadata().GetFields()["tenant"].GetStringValue(); got != "acme" {
			t.Fatalf("tenant %q", got)
		}
	}
}

// TestBodiesAreNotJudged: a body that Envoy cut off or never completed says
// nothing about who asks.
func TestBodiesAreNotJudged(t *testing.T) {
	d := newDoor(t, nil)
	req := d.chat("authorization", "Bearer "+d.token(nil), "x-envoy-auth-partial-body", "true")
	req.Attributes.Request.Http.Body = `{"model":"deepseek-v4","messages":[{"role":"user","content":"gr`
	req.Attributes.Request.Http.RawBody = []byte("{\"a\":\"\xc3")
	if got := d.status(req); got != 200 {
		t.Errorf("%d", got)
	}
}

// TestModesKeepIdentity (O4): neither shadow nor pass opens the front door.
func TestModesKeepIdentity(t *testing.T) {
	for _, mode := range []policy.Mode{policy.Enforce, policy.Shadow, policy.Pass} {
		d := newDoor(t, func(p *policy.Policy) { p.Mode = mode })
		if got := d.status(d.chat()); got != 401 {
			t.Errorf("mode %d without a token: %d", mode, got)
		}
		if got := d.status(d.chat("authorization", "Bearer "+d.token(nil))); got != 200 {
			t.Errorf("mode %d with a token: %d", mode, got)
		}
	}
}

// TestFaultsAreErrors: a bug of ours and a request that Envoy cannot have
// meant are gRPC errors, never an OK and never a denial.
func TestFaultsAreErrors(t *testing.T) {
	d := newDoor(t, nil)
	good := d.chat("authorization", "Bearer "+d.token(nil))
	d.policy = nil
	if _, err := d.client.Check(t.Context(), good); status.Code(err) != codes.Internal || d.panics.Load() != 1 || <-d.codes != "internal" {
		t.Errorf("panic: %v, %d counted", err, d.panics.Load())
	}
	d.policy = policy.Default()
	for name, req := range map[string]*authv3.CheckRequest{
		"empty": {}, "no request": {Attributes: &authv3.AttributeContext{}}, "no http": {Attributes: &authv3.AttributeContext{Request: &authv3.AttributeContext_Request{}}},
	} {
		if _, err := d.client.Check(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPanicIsLoggedWithoutItsValue: a panic's value can be made of what a
// caller sent.
func TestPanicIsLoggedWithoutItsValue(t *testing.T) {
	var log bytes.Buffer
	k := keyPair(t, "EdDSA", "k")
	raw := k.sign(t, goodClaims(nil))
	s := NewServer(newVerifier(t, identityPolicy(t, k.public)), func() *policy.Policy { panic("cannot read " + raw) },
		ServerOptions{Log: slog.New(slog.NewJSONHandler(&log, nil))})
	if _, err := s.Check(t.Context(), request("POST", chatPath, "authorization", "Bearer "+raw)); status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
	if !strings.Contains(log.String(), "panic in ext_authz") || !strings.Contains(log.String(), "server.go") || strings.Contains(log.String(), raw) {
		t.Errorf("the log is %s", log.String())
	}
}

// BenchmarkCheck is a whole answer less gRPC: 15 headers, a remembered token.
func BenchmarkCheck(b *testing.B) {
	k := keyPair(b, "EdDSA", "k")
	p := policy.Default()
	p.Identity = *identityPolicy(b, k.public)
	p.Identity.MaxLifetime = 0
	p.Finish()
	s := NewServer(newVerifier(b, &p.Identity), func() *policy.Policy { return p }, ServerOptions{})
	headers := []string{"authorization", "Bearer " + k.sign(b, longClaims())}
	for i := range 14 {
		headers = append(headers, "x-header-"+string(rune('a'+i)), "value")
	}
	req := request("POST", chatPath, headers...)
	b.ReportAllocs()
	for b.Loop() {
		if resp, err := s.Check(b.Context(), req); err != nil || resp.GetOkResponse() == nil {
			b.Fatal(resp, err)
		}
	}
}
