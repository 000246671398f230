package examples_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// collector is an OTLP collector that keeps spans.
type collector struct {
	tracepb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*spanpb.Span
}

func (c *collector) Export(_ context.Context, r *tracepb.ExportTraceServiceRequest) (*tracepb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			c.spans = append(c.spans, ss.GetSpans()...)
		}
	}
	return &tracepb.ExportTraceServiceResponse{}, nil
}

// startCollector serves a collector on loopback.
func startCollector(t *testing.T) (*collector, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, s := &collector{}, grpc.NewServer()
	tracepb.RegisterTraceServiceServer(s, c)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(func() { s.Stop(); <-done })
	return c, l.Addr().String()
}

// TestTraceThroughEnvoy: the caller's trace goes on through weir to the model,
// and weir's span hangs under the caller's (O3).
func TestTraceThroughEnvoy(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, example := range []string{"two-filters.yaml", "one-filter.yaml"} {
		t.Run(example, func(t *testing.T) {
			spans, addr := startCollector(t)
			w := newWorld(t, newest(t), setup{example: example, policy: fmt.Sprintf(`
envoy: {trustCallers: true}
telemetry: {log: {level: debug}, otlp: {endpoint: %q, insecure: true, sample: 0}}
quotas: [{name: per-tenant, match: {tenant: "*"}, by: [tenant], limits: [{requests: 10, per: 1m}]}]
`, addr)})
			a := w.chat(w.token(nil), 5, true, "traceparent", "00-"+id+"-"+parent+"-01")
			if !a.done() {
				t.Fatalf("%d %v %s", a.code, a.err, a.body)
			}
			var span *spanpb.Span
			envoytest.Eventually(t, longest, "the span arrives", func() bool {
				spans.mu.Lock()
				defer spans.mu.Unlock()
				for _, s := range spans.spans {
					if s.GetName() == "weir.request" {
						span = s
					} else if got := fmt.Sprintf("%s %x", s.GetName(), s.GetTraceId()); got != "weir.check "+id {
						t.Errorf("a span %s", got)
					}
				}
				return span != nil && len(spans.spans) == map[string]int{"two-filters.yaml": 2, "one-filter.yaml": 1}[example]
			})
			if got := fmt.Sprintf("%x under %x", span.GetTraceId(), span.GetParentSpanId()); got != id+" under "+parent {
				t.Errorf("the span is of %s, want %s under %s", got, id, parent)
			}
			attrs := map[string]string{}
			for _, kv := range span.GetAttributes() {
				attrs[kv.GetKey()] = kv.GetValue().String()
			}
			for key, want := range map[string]string{"tenant": "acme", "weir.reason": "admitted", "tenant_quota_usage": "0.1", "gen_ai.usage.output_tokens": "5"} {
				if !strings.Contains(attrs[key], want) {
					t.Errorf("span attribute %s is %q, want %s", key, attrs[key], want)
				}
			}
			envoytest.Eventually(t, longest, "a log line with the trace id", func() bool {
				return strings.Contains(w.weir.Log(), `"trace_id":"`+id+`"`)
			})
		})
	}
}

// TestExplain: what each room saw of a refused request, by the id that the
// caller was given, on the command line and on the admin address.
func TestExplainOfARefusal(t *testing.T) {
	w := newWorld(t, newest(t), setup{policy: `
quotas: [{name: tiny, match: {tenant: "*"}, by: [tenant], limits: [{requests: 1, per: 1m}]}]
`})
	token := w.token(nil)
	w.chat(token, 3, false)
	a := w.chat(token, 3, false)
	id := a.header.Get("x-weir-request-id")
	if a.code != http.StatusTooManyRequests || id == "" {
		t.Fatalf("%d %s, id %q; want 429 with an id", a.code, a.body, id)
	}
	out, err := exec.Command(envoytest.Weir(t), "explain", id, "--admin", "unix:"+filepath.Join(w.dir, "admin.sock")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	var doc map[string]any
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, want := range []string{id, a.header.Get("x-weir-reason"), "acme", "tiny"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("explain misses %s: %s", want, out)
		}
	}
	if strings.Contains(string(out), "weir good for") {
		t.Error("explain shows the prompt")
	}
}

func TestHealthAndAdminToken(t *testing.T) {
	dir := envoytest.Dir(t)
	secret := filepath.Join(dir, "admin.token")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := strings.Replace(envoytest.Server(dir), "drain:", fmt.Sprintf("adminToken: {file: %q}, drain:", secret), 1)
	s := envoytest.Serve(t, dir, "version: 1\n"+server+"identity: {from: metadata}\n"+defaultPools)
	get := func(path, auth string) int {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://weir"+path, http.NoBody)
		if auth != "" {
			req.Header.Set("Authorization", auth)
		}
		res, err := s.Admin.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	for _, path := range []string{"/metrics", "/debug/queue", "/debug/config", "/debug/pprof/"} {
		if none, wrong, right := get(path, ""), get(path, "Bearer nope"), get(path, "Bearer s3cret"); none != 401 || wrong != 401 || right != 200 {
			t.Errorf("%s: %d without a token, %d with a wrong one, %d with the right one; want 401 401 200", path, none, wrong, right)
		}
	}
	if code := get("/healthz", ""); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
	conn, err := grpc.NewClient("unix:"+s.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("gRPC health: %v %v", res, err)
	}
	if strings.Contains(s.Log(), "s3cret") {
		t.Error("the admin token is in the log")
	}
}

// TestReloadThroughTheFile: a new limit is in force at once, a broken file
// changes nothing.
func TestReloadThroughTheFile(t *testing.T) {
	w := newWorld(t, newest(t), setup{policy: `
quotas: [{name: per-tenant, match: {tenant: "*"}, by: [tenant], limits: [{requests: 1000, per: 10m}]}]
`})
	token := w.token(nil)
	if a := w.chat(token, 3, false); a.code != 200 {
		t.Fatalf("%d %s", a.code, a.body)
	}
	good, err := os.ReadFile(w.weir.Config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(w.weir.Config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(string(good), "requests: 1000,", "requests: 1.5,", 1))
	envoytest.Eventually(t, longest, "the broken file is reported", func() bool { return w.metric("weir_policy_last_reload_success") == 0 })
	if a := w.chat(token, 3, false); a.code != 200 {
		t.Errorf("under the last good policy: %d %s", a.code, a.body)
	}
	write(strings.Replace(string(good), "requests: 1000,", "requests: 2,", 1))
	envoytest.Eventually(t, longest, "the good file is in force", func() bool { return w.metric("weir_policy_last_reload_success") == 1 })
	if a := w.chat(token, 3, false); a.code != http.StatusTooManyRequests {
		t.Errorf("the third request under a limit of 2: %d, want 429 (what was used counts on)", a.code)
	}
}

// TestTLSBetweenEnvoyAndWeir: the gRPC port with TLS and client certificates.
func TestTLSBetweenEnvoyAndWeir(t *testing.T) {
	b := newest(t)
	dir := envoytest.Dir(t)
	ca := newAuthority(t)
	ca.write(dir, "ca.pem", "", nil)
	ca.write(dir, "weir.pem", "weir.key", ca.issue("weir"))
	ca.write(dir, "envoy.pem", "envoy.key", ca.issue("envoy"))
	port := envoytest.FreePort(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	w := newWorld(t, b, setup{
		server: fmt.Sprintf("server: {grpc: \"127.0.0.1:%d\", admin: %q, tls: {cert: %q, key: %q, clientCA: %q}}\n", port, "unix:"+file("admin.sock"), file("weir.pem"), file("weir.key"), file("ca.pem")),
		dir:    dir,
		envoy: func(tree envoytest.Tree) {
			for _, c := range examples.Get(tree, "static_resources", "clusters").([]any) {
				if cluster := c.(envoytest.Tree); cluster["name"] == "weir" {
					examples.Set(cluster, envoytest.Tree{"socket_address": envoytest.Tree{"address": "127.0.0.1", "port_value": port}},
						"load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address")
					cluster["transport_socket"] = envoytest.Tree{"name": "envoy.transport_sockets.tls", "typed_config": envoytest.Tree{
						"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
						"common_tls_context": envoytest.Tree{
							"tls_certificates":   []any{envoytest.Tree{"certificate_chain": envoytest.Tree{"filename": file("envoy.pem")}, "private_key": envoytest.Tree{"filename": file("envoy.key")}}},
							"validation_context": envoytest.Tree{"trusted_ca": envoytest.Tree{"filename": file("ca.pem")}},
						},
					}}
				}
			}
		},
	})
	if a := w.chat(w.token(nil), 5, true); !a.done() {
		t.Errorf("over TLS: %d %v %s", a.code, a.err, a.body)
	}
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err == nil {
		t.Error("the port answers without TLS")
	}
}
