package examples_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
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
	pool := func(name, variant string) envoytest.Tree {
		return envoytest.Tree{"name": name, "variant": variant, "seats": envoytest.Tree{"requests": 1}}
	}
	c.region = newStage(t, b, "", stage{
		kind: "region", pools: []string{"chat-fp16", "chat-dyn", "infer"}, next: map[string]string{"chat-int8": c.engine.addr},
		policy: envoytest.Tree{
			"apis":  stageAPIs,
			"pools": []any{pool("chat-fp16", "fp16"), pool("chat-dyn", "fp16-dyn"), pool("chat-int8", "int8"), pool("infer", "fp16")},
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

// hold takes the seat of a class's pool in the region, through the edge.
func (c *chain) hold(class string) (leave func()) {
	c.edge.t.Helper()
	running := c.region.queue().Running
	leave = c.edge.occupy(class)
	c.region.sees("it runs in the region too", func(q queue) bool { return q.Running == running+1 })
	return leave
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
