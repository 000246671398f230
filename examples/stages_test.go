package examples_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// stage is one Envoy and its weir in a chain (E4), by the example files of its
// kind.
type stage struct {
	kind    string               // edge or region: envoy/KIND.yaml, policies/KIND.yaml
	profile string               // other than the file's own
	policy  envoytest.Tree       // laid over the example policy, key by key
	pools   []string             // simulated here
	next    map[string]string    // Envoy clusters that lead elsewhere
	change  func(envoytest.Tree) // of the Envoy configuration
}

// said are the parts of a refusal that a client acts on, as the access log of
// the stages in these tests shows them.
var said = []string{"x-weir-reason", "retry-after", "retry-after-ms", "x-ratelimit-reset", "x-weir-waited-ms", "x-envoy-ratelimited", "x-should-retry", "grpc-status", "grpc-message", "grpc-retry-pushback-ms"}

// newStage starts a stage. All of a chain are given the signer of one, whose
// key set is the file jwks; "" = this one makes it.
func newStage(t *testing.T, b envoytest.Binary, jwks string, s stage) *world {
	t.Helper()
	dir := envoytest.Dir(t)
	if jwks == "" {
		jwks = filepath.Join(dir, "jwks.json")
	}
	return newWorld(t, b, setup{
		example: s.kind + ".yaml", dir: dir, policy: stagePolicy(t, s, jwks), pools: s.pools, sim: steady(2 * time.Millisecond),
		args: []string{"--file-flush-interval-msec", "20"},
		envoy: func(tree envoytest.Tree) {
			unhurried(tree)
			for cluster, addr := range s.next {
				pointAt(tree, cluster, addr)
			}
			if s.profile != "" {
				examples.Set(tree, s.profile, profilePath...)
			}
			examples.Set(envoytest.Route(tree, "grpc"), envoytest.Tree{"filter_metadata": envoytest.Tree{"weir.policy": envoytest.Tree{"models": "infer"}}}, "metadata")
			format := examples.Get(envoytest.HCM(tree), "access_log", 0, "typed_config", "log_format", "json_format").(envoytest.Tree)
			for _, name := range said {
				format[name] = "%RESP(" + name + ")%"
			}
			format["evil"], format["tenant"] = "%REQ(x-weir-evil)%", "%REQ(x-weir-tenant)%"
			if s.change != nil {
				s.change(tree)
			}
		},
	})
}

// profilePath is where the examples select a profile for a whole host.
var profilePath = []any{
	"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config", "route_config", "virtual_hosts", 0,
	"typed_per_filter_config", procFilter, "overrides", "grpc_initial_metadata", 0, "value",
}

// stagePolicy is the example policy of a stage without its server section,
// moved to this machine: no telemetry, since nobody serves it here.
func stagePolicy(t *testing.T, s stage, jwks string) string {
	t.Helper()
	raw, err := examples.Files.ReadFile(path.Join("policies", s.kind+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var tree envoytest.Tree
	if err := yaml.UnmarshalStrict(raw, &tree); err != nil {
		t.Fatal(err)
	}
	delete(tree, "version")
	delete(tree, "server")
	tree["envoy"] = envoytest.Tree{"messageTimeout": "30s", "maxMessageTimeout": "60s"} // as unhurried
	maps.Copy(tree, s.policy)
	examples.Set(tree, jwks, "identity", "issuers", 0, "jwks", "file")
	for _, p := range tree["pools"].([]any) {
		delete(p.(envoytest.Tree), "telemetry")
	}
	out, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// logged is the line of a stage's access log that matches.
func (w *world) logged(expression string) (line map[string]any) {
	w.t.Helper()
	find := regexp.MustCompile(`(?m)^\{.*` + expression + `.*\}$`)
	envoytest.Eventually(w.t, 10*time.Second, "a line of the access log has "+expression, func() bool {
		return json.Unmarshal([]byte(find.FindString(w.envoy.Log())), &line) == nil
	})
	return line
}

func text(line map[string]any, keys ...any) string {
	s, _ := examples.Get(line, keys...).(string)
	return s
}

// chain is an edge before a region. Both serve a chat model and a gRPC call.
type chain struct {
	edge, region *world
	engine       *witness // of class batch, and of what is degraded
}

const inferCost = 500

var stageAPIs = []any{
	envoytest.Tree{"path": chatPath, "kind": "openai.chat", "function": "chat_completion"},
	envoytest.Tree{"path": "/modelsim.v1.Inference/{method}", "kind": "grpc", "function": "infer", "cost": inferCost},
}

// newChain gives the region one seat a pool. The edge tries again what may be
// tried again, so that a refusal that looked like a failure would show.
func newChain(t *testing.T, b envoytest.Binary) *chain {
	t.Helper()
	c := &chain{engine: newWitness(t, "chat-int8")}
	pool := func(name, variant string, seats int) envoytest.Tree {
		return envoytest.Tree{"name": name, "variant": variant, "seats": envoytest.Tree{"requests": seats}}
	}
	c.region = newStage(t, b, "", stage{
		kind: "region", pools: []string{"chat-fp16", "chat-dyn", "infer"}, next: map[string]string{"chat-int8": c.engine.addr},
		policy: envoytest.Tree{
			"apis":  stageAPIs,
			"pools": []any{pool("chat-fp16", "fp16", 1), pool("chat-dyn", "fp16-dyn", 1), pool("chat-int8", "int8", 1), pool("infer", "fp16", 1)},
			"models": []any{
				envoytest.Tree{"name": "deepseek-v4", "pools": []any{"chat-fp16", "chat-dyn", "chat-int8"}},
				envoytest.Tree{"name": "infer", "pools": []any{"infer"}},
			},
			"classes": []any{ // standard as it comes: 500 ms, then int8
				envoytest.Tree{"name": "critical", "maxWait": "200ms", "onExpiry": "drop"},
				envoytest.Tree{"name": "batch", "maxWait": "20s", "onExpiry": "drop"},
			},
			"quotas": []any{envoytest.Tree{"name": "none", "match": envoytest.Tree{"tenant": "*"}, "by": []any{"tenant"}, "limits": []any{envoytest.Tree{"requests": 1, "per": "1h"}}}},
		},
	})
	c.edge = newStage(t, b, filepath.Join(c.region.dir, "jwks.json"), stage{
		kind: "edge", pools: []string{}, next: map[string]string{"region": c.region.envoy.Addr},
		policy: envoytest.Tree{
			"apis":    stageAPIs,
			"models":  []any{envoytest.Tree{"name": "deepseek-v4", "aliases": []any{"deepseek-*"}, "pools": []any{"region"}}, envoytest.Tree{"name": "infer", "pools": []any{"region"}}},
			"breaker": envoytest.Tree{"minRequests": 1, "soft": "90%", "hard": "95%", "window": "1m"}, // shows every failure, opens for none
		},
		change: func(tree envoytest.Tree) {
			for _, name := range []string{"chat", "grpc"} {
				examples.Set(envoytest.Route(tree, name), envoytest.Tree{
					"retry_on": "5xx,retriable-4xx,retriable-status-codes,resource-exhausted,unavailable", "retriable_status_codes": []any{429, 503}, "num_retries": 1,
				}, "route", "retry_policy")
			}
		},
	})
	c.edge.signer = c.region.signer
	return c
}

// retries is how often the edge tried again.
func (c *chain) retries() (n int64) {
	c.edge.t.Helper()
	for _, v := range c.edge.envoy.Stats(c.edge.t, `^cluster\.region\.upstream_rq_retry$`) {
		n += v
	}
	return n
}

// ended is how many requests that the edge let in ended as result.
func (c *chain) ended(result string) float64 {
	return c.edge.metric("weir_requests_ended_total", `result="`+result+`"`)
}

// refusedBelow holds what a caller of the edge was told against what the
// region's Envoy sent: they are the same, and only the region has decided so,
// once.
func (c *chain) refusedBelow(t *testing.T, reason string, told http.Header, before float64) {
	t.Helper()
	id := told.Get("x-weir-request-id")
	above := c.edge.logged(`"id":"` + id + `"`)
	if text(above, "decision", "stage_reason") != reason || text(above, "decision", "reason") != "admitted" {
		t.Errorf("%s: the edge logs %v", reason, above["decision"])
	}
	below := c.region.logged(`"id":"` + text(above, "decision", "stage_id") + `"`)
	for _, name := range said {
		if got, want := told.Get(name), text(below, name); got != want {
			t.Errorf("%s: the caller is told %s %q, the region said %q", reason, name, got, want)
		}
	}
	if told.Get("x-weir-reason") != reason {
		t.Errorf("x-weir-reason is %q, want %q", told.Get("x-weir-reason"), reason)
	}
	if n := c.region.metric("weir_decisions_total", `reason="`+reason+`"`) - before; n != 1 {
		t.Errorf("%s is counted %v times in the region", reason, n)
	}
	if n := c.edge.metric("weir_decisions_total", `reason="`+reason+`"`); n != 0 {
		t.Errorf("%s is counted %v times at the edge as well", reason, n)
	}
	if n := c.retries(); n != 0 {
		t.Errorf("%s: the edge tried %d times again", reason, n)
	}
}

// TestStages (E4): an edge with limits before a region with the queue, by the
// example files.
func TestStages(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		c := newChain(t, b)
		stagesAdmit(t, c)
		stagesVerify(t, c)
		stagesQueueOnce(t, c)
		stagesRefuse(t, c)
		stagesRefuseGRPC(t, c)
		stagesFail(t, c)
		c.edge.idle(10 * time.Second)
		c.region.idle(10 * time.Second)
		c.edge.sound()
		c.region.sound()
	})
}

// stagesAdmit: the region chooses the variant, the edge says it on; what a
// client writes in weir's name reaches nobody, and its token not the engine.
func stagesAdmit(t *testing.T, c *chain) {
	leave := c.hold("standard")
	a := c.edge.chat(c.edge.token(claims{"tenant": "plain"}), 2, false, "x-weir-evil", "1", "x-weir-tenant", "other", "x-weir-pool", "chat-fp16")
	leave()
	if a.code != http.StatusOK || a.header.Get("x-weir-variant") != "int8" || a.header.Get("x-weir-notice") == "" || a.header.Get("x-weir-reason") != "admitted" {
		t.Errorf("through both: %d %v %s", a.code, a.header, a.body)
	}
	if h := a.header; len(h.Values("x-weir-evil")) != 0 || strings.Contains(fmt.Sprint(h), "forged") {
		t.Errorf("the engine spoke in weir's name: %v", h)
	}
	sent := c.edge.logged(`"id":"` + a.header.Get("x-weir-request-id") + `"`)
	if sent["evil"] != nil || sent["tenant"] != "plain" {
		t.Errorf("the edge sent x-weir-evil %v, x-weir-tenant %v", sent["evil"], sent["tenant"])
	}
	h := c.engine.last(t).header
	if h.Get("authorization") != "" || h.Get("x-weir-evil") != "" || h.Get("x-weir-tenant") != "plain" || h.Get("x-weir-pool") != "chat-int8" {
		t.Errorf("the engine got %v", h)
	}
	c.edge.idle(10 * time.Second)
	if u := c.edge.used("plain"); u["requests"] != 1 || u["tokens"] != 7 {
		t.Errorf("the edge charged %v, want 1 request of 7 tokens", u)
	}
	if u := c.region.used("plain"); len(u) != 0 {
		t.Errorf("the region counts too: %v", u)
	}
}

// hold takes the seat of a class's pool in the region, through the edge.
func (c *chain) hold(class string) (leave func()) {
	c.edge.t.Helper()
	running := c.region.queue().Running
	leave = c.edge.occupy(class)
	c.region.sees("it runs in the region too", func(q queue) bool { return q.Running == running+1 })
	return leave
}

// stagesVerify: a token is verified at both.
func stagesVerify(t *testing.T, c *chain) {
	decided := func(w *world) float64 { return w.metric("weir_decisions_total") }
	region := decided(c.region)
	refused(t, c.edge.chat("", 2, false), http.StatusUnauthorized, "token_missing", "missing_token")
	expired := c.edge.token(claims{"iat": time.Now().Add(-2 * time.Hour).Unix(), "exp": time.Now().Add(-time.Hour).Unix()})
	refused(t, c.edge.chat(expired, 2, false), http.StatusUnauthorized, "token_expired", "token_expired")
	if n := decided(c.region) - region; n != 0 {
		t.Errorf("%v requests without a valid token reached the region", n)
	}
	a := c.region.chat("", 2, false, "x-weir-tenant", "acme", "x-weir-reason", "admitted")
	refused(t, a, http.StatusUnauthorized, "token_missing", "missing_token")
}

// stagesQueueOnce: who waits, waits in the region alone.
func stagesQueueOnce(t *testing.T, c *chain) {
	leave := c.hold("batch")
	get := c.edge.later("batch", 2)
	c.region.sees("it waits in the region", func(q queue) bool { return q.Waiting == 1 })
	if q := c.edge.queue(); q.Waiting != 0 || q.Running != 2 {
		t.Errorf("at the edge %d wait and %d run, want 0 and 2", q.Waiting, q.Running)
	}
	leave()
	if a := get(); a.code != http.StatusOK || a.servedBy() != "chat-int8" {
		t.Errorf("after the wait: %d %v %s", a.code, a.header, a.body)
	}
}

// stagesRefuse: 503 and 429 of the region travel up as they are.
func stagesRefuse(t *testing.T, c *chain) {
	leave := []func(){c.hold("critical"), c.hold("standard"), c.hold("batch")}
	stage, n := c.ended("stage"), 0
	for round := range 3 {
		for class, want := range map[string]struct {
			code   int
			reason string
		}{"critical": {http.StatusServiceUnavailable, "expired_drop"}, "standard": {http.StatusTooManyRequests, "expired_degrade"}} {
			before := c.region.metric("weir_decisions_total", `reason="`+want.reason+`"`)
			a := c.edge.chat(c.edge.token(claims{"tenant": "unlucky", "class": class}), 2, round == 1)
			isRefusal(t, a, want.code, want.reason)
			c.refusedBelow(t, want.reason, a.header, before)
			if n++; round > 0 {
				continue
			}
			if direct := c.region.chat(c.edge.token(claims{"tenant": "direct", "class": class}), 2, false); direct.code != a.code || direct.body != a.body {
				t.Errorf("%s: %d %s, the region itself says %d %s", want.reason, a.code, a.body, direct.code, direct.body)
			}
		}
	}
	for _, f := range leave {
		f()
	}
	c.uncounted(t, "unlucky", c.ended("stage")-stage, n)
}

// uncounted holds that n refusals of the region to a tenant were given back
// at the edge and are no failures there.
func (c *chain) uncounted(t *testing.T, tenant string, ended float64, n int) {
	t.Helper()
	if ended != float64(n) {
		t.Errorf("%v ended as stage at the edge, want %d", ended, n)
	}
	c.edge.idle(10 * time.Second)
	for unit, used := range c.edge.used(tenant) {
		if used != 0 {
			t.Errorf("the edge charges %s %d %s for what the region refused", tenant, used, unit)
		}
	}
	if ratio := c.edge.metric("weir_breaker_failure_ratio"); ratio != 0 {
		t.Errorf("%v of the requests are failures for the edge's breaker", ratio)
	}
}

// stagesRefuseGRPC: the same for a call that is decided at its headers.
func stagesRefuseGRPC(t *testing.T, c *chain) {
	client := newCaller(c.edge)
	if _, err := client.infer(client.as("grpc")); err != nil {
		t.Fatalf("through both: %v", err)
	}
	c.edge.idle(10 * time.Second)
	if u := c.edge.used("grpc"); u["requests"] != 1 || u["tokens"] != inferCost {
		t.Errorf("the edge charged %v", u)
	}
	seat, free := context.WithCancel(client.as("seat", "x-sim-fault", "slow=50ms"))
	defer free()
	client.stream(seat, 400)
	stage, before := c.ended("stage"), c.region.metric("weir_decisions_total", `reason="expired_drop"`)
	// By hand, for its headers as they are.
	req := c.edge.request(t.Context(), http.MethodPost, modelsim.InferMethod, "\x00\x00\x00\x00\x00",
		"Authorization", "Bearer "+c.edge.token(claims{"tenant": "grpc-2", "class": "critical"}), "TE", "trailers")
	req.Header.Set("Content-Type", "application/grpc")
	res, err := clients(t)["http2"].Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("grpc-status") != "8" || res.Header.Get("grpc-retry-pushback-ms") == "" {
		t.Errorf("gRPC: %d %v", res.StatusCode, res.Header)
	}
	c.refusedBelow(t, "expired_drop", res.Header, before)
	ended := c.ended("stage") - stage
	free()
	c.uncounted(t, "grpc-2", ended, 1)
}

// stagesFail: a failure of the engine is none of weir's refusals: the edge may
// try it again and counts it.
func stagesFail(t *testing.T, c *chain) {
	before := len(c.engine.seen())
	a := c.edge.chat(c.edge.token(claims{"class": "batch"}), 2, false, "X-Sim-Fault", "status=503")
	if a.code != http.StatusServiceUnavailable || a.header.Get("x-weir-reason") != "admitted" {
		t.Errorf("an engine's 503: %d %v", a.code, a.header)
	}
	if n := len(c.engine.seen()) - before; n != 2 || c.retries() != 1 {
		t.Errorf("the engine saw %d requests, the edge tried %d times again, want 2 and 1", n, c.retries())
	}
	c.edge.idle(10 * time.Second)
	if n := c.ended("failed"); n != 1 || c.edge.metric("weir_breaker_failure_ratio") == 0 {
		t.Errorf("%v failed at the edge, share %v of its breaker's window", n, c.edge.metric("weir_breaker_failure_ratio"))
	}
}
