package examples_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// Two models, each at three precisions: deepseek-v4 in clusters of their own,
// reached by the header route; shared in one cluster, reached by subset.
// Engines of the first take a priority. int8 is billed at half.
const variantPools = wideQuotas + `
pools:
  - {name: chat-fp16, variant: fp16, seats: {requests: 8}, engine: {priority: vllm}}
  - {name: chat-dyn, variant: fp16-dyn, seats: {requests: 8}, engine: {priority: vllm}}
  - {name: chat-int8, variant: int8, seats: {requests: 8}, engine: {priority: vllm}, rate: 50%}
  - {name: shared-fp16, variant: fp16, seats: {requests: 8}, envoy: {cluster: shared, subset: {variant: fp16}}}
  - {name: shared-dyn, variant: fp16-dyn, seats: {requests: 8}, envoy: {cluster: shared, subset: {variant: fp16-dyn}}}
  - {name: shared-int8, variant: int8, seats: {requests: 8}, envoy: {cluster: shared, subset: {variant: int8}}, rate: 50%}
models:
  - {name: deepseek-v4, pools: [chat-fp16, chat-dyn, chat-int8]}
  - {name: shared, pools: [shared-fp16, shared-dyn, shared-int8]}
variants: {sessionHeader: x-session-id}
`

// poolOf is the pool of a model's variant that a class runs on (V1).
func poolOf(model, class string) string {
	suffix := map[string]string{"critical": "-fp16", "standard": "-dyn", "batch": "-int8"}[class]
	return strings.Replace(model, "deepseek-v4", "chat", 1) + suffix
}

var variantOf = map[string]string{"critical": "fp16", "standard": "fp16-dyn", "batch": "int8"}

// precisions is a world of the two models, with an engine for each pool.
type precisions struct {
	*world
	engines map[string]*witness
}

func newPrecisions(t *testing.T, b envoytest.Binary, seats int) *precisions {
	t.Helper()
	p := &precisions{engines: map[string]*witness{}}
	for _, model := range []string{"deepseek-v4", "shared"} {
		for class := range variantOf {
			name := poolOf(model, class)
			p.engines[name] = newWitness(t, name)
		}
	}
	p.world = newWorld(t, b, setup{
		example: formOf(b), pools: []string{}, policy: patience + strings.ReplaceAll(variantPools, "requests: 8", fmt.Sprintf("requests: %d", seats)),
		args: []string{"--file-flush-interval-msec", "20"}, envoy: func(tree envoytest.Tree) { unhurried(tree); p.steer(tree) },
	})
	return p
}

// steer adds to the example what its way in, the route chat, needs to lead to
// either model: a route for the pool that was its own cluster, and the cluster
// of subsets in its place.
func (p *precisions) steer(tree envoytest.Tree) {
	for name, e := range p.engines {
		pointAt(tree, name, e.addr)
	}
	host := examples.Get(envoytest.HCM(tree), "route_config", "virtual_hosts", 0).(envoytest.Tree)
	fp16 := copyOf(envoytest.Route(tree, "chat-dyn"))
	fp16["name"] = "chat-fp16"
	examples.Set(fp16, "chat-fp16", "match", "headers", 0, "string_match", "exact")
	examples.Set(fp16, "chat-fp16", "route", "cluster")
	host["routes"] = append([]any{fp16}, host["routes"].([]any)...)
	examples.Set(envoytest.Route(tree, "chat"), "shared", "route", "cluster")

	endpoints := []any{}
	for class, variant := range variantOf {
		addr, port, _ := strings.Cut(p.engines[poolOf("shared", class)].addr, ":")
		endpoints = append(endpoints, envoytest.Tree{
			"endpoint": envoytest.Tree{"address": envoytest.Tree{"socket_address": envoytest.Tree{"address": addr, "port_value": json.Number(port)}}},
			"metadata": envoytest.Tree{"filter_metadata": envoytest.Tree{"envoy.lb": envoytest.Tree{"variant": variant}}},
		})
	}
	clusters := examples.Get(tree, "static_resources", "clusters").([]any)
	examples.Set(tree, append(clusters, envoytest.Tree{
		"name": "shared", "type": "STATIC", "connect_timeout": "30s",
		"lb_subset_config": envoytest.Tree{"fallback_policy": "NO_FALLBACK", "subset_selectors": []any{envoytest.Tree{"keys": []any{"variant"}}}},
		"load_assignment":  envoytest.Tree{"cluster_name": "shared", "endpoints": []any{envoytest.Tree{"lb_endpoints": endpoints}}},
	}), "static_resources", "clusters")
}

// body is a chat that brings a priority of its own.
func (p *precisions) body(model string) string {
	return fmt.Sprintf(`{"model":%q,"max_tokens":4,"priority":-99,"messages":[{"role":"user","content":%q}]}`, model, prompt)
}

// ask sends a chat of a class.
func (p *precisions) ask(ctx context.Context, client *http.Client, model, class, tenant string, headers ...string) answer {
	w := *p.world
	w.client = client
	headers = append(headers, "Authorization", "Bearer "+w.token(claims{"tenant": tenant, "class": class}))
	return w.do(w.request(ctx, http.MethodPost, chatPath, p.body(model), headers...))
}

// TestVariantSteering (V1): on one connection and by one route of the client's
// each class reaches the engines of its precision, by header route and by
// subset; where the policy says so the engine is told the class's priority,
// and never a caller's own.
func TestVariantSteering(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		p := newPrecisions(t, b, 8)
		one := &connections{seen: map[string]int{}}
		client := clients(t)["http2"]
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: one.got})
		const each = 4
		var all sync.WaitGroup
		for i := range each {
			for class, variant := range variantOf {
				for _, model := range []string{"deepseek-v4", "shared"} {
					call := func() {
						a := p.ask(ctx, client, model, class, "steered")
						if a.code != http.StatusOK || a.servedBy() != poolOf(model, class) || a.header.Get("x-weir-variant") != variant || a.header.Get("x-weir-notice") != "" {
							t.Errorf("%s for %s: %d by %q, %v %s", class, model, a.code, a.servedBy(), a.header, a.body)
						}
					}
					if i == 0 { // one by one, so that no second connection is dialled
						call()
					} else {
						all.Go(call)
					}
				}
			}
		}
		all.Wait()
		if len(one.seen) != 1 {
			t.Errorf("the calls went over %d connections", len(one.seen))
		}
		for class, number := range map[string]float64{"critical": 0, "standard": 1, "batch": 2} {
			for model, want := range map[string]any{"deepseek-v4": number, "shared": nil} { // the caller's own goes to no engine
				calls := p.engines[poolOf(model, class)].seen()
				if len(calls) != each {
					t.Errorf("%s saw %d requests, want %d", poolOf(model, class), len(calls), each)
				}
				for _, c := range calls {
					if c.body["priority"] != want {
						t.Errorf("%s was told priority %v, want %v", poolOf(model, class), c.body["priority"], want)
					}
				}
			}
		}
		p.idle(10 * time.Second)
		p.sound()
	})
}

// connections counts requests by connection.
type connections struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *connections) got(info httptrace.GotConnInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[info.Conn.LocalAddr().String()]++
}

// TestVariantDegrade (V2, V3): what runs below its class's precision says so
// to the client, in the log, in metrics and in the bill; its session stays
// there, others do not.
func TestVariantDegrade(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		p := newPrecisions(t, b, 1)
		for i, model := range []string{"deepseek-v4", "shared"} {
			session := []string{"x-session-id", "conversation-1"}
			ctx, leave := context.WithCancel(t.Context())
			var over sync.WaitGroup
			over.Go(func() { _ = p.ask(ctx, p.client, model, "standard", "hung", "X-Sim-Fault", "hang") }) // its end is ours
			p.sees("the seat of fp16-dyn is taken", func(q queue) bool { return q.Running == 1 })
			a := p.ask(t.Context(), p.client, model, "standard", "degraded", session...)
			leave()
			over.Wait()
			p.idle(10 * time.Second)
			p.degraded(t, a, model, "degraded_expiry")
			again := p.ask(t.Context(), p.client, model, "standard", "degraded", session...)
			p.degraded(t, again, model, "degraded_session")
			other := p.ask(t.Context(), p.client, model, "standard", "degraded", "x-session-id", "conversation-2")
			if other.code != http.StatusOK || other.servedBy() != poolOf(model, "standard") || other.header.Get("x-weir-notice") != "" {
				t.Errorf("another session: %d by %s, %v", other.code, other.servedBy(), other.header)
			}
			p.idle(10 * time.Second)
			calls := int64(i + 1)
			// Of 3 and 4 tokens: half, each rounded up, twice; and all of the third call.
			if got, want := p.charged("degraded"), (charge{3 * calls, (2 + 2 + 3) * calls, (2 + 2 + 4) * calls}); got != want {
				t.Errorf("charged %+v, want %+v", got, want)
			}
			ended := p.metric("weir_requests_ended_total", `class="standard"`, `variant="int8"`, `result="ok"`)
			if n := p.metric("weir_degraded_total", `class="standard"`); n != float64(2*calls) || ended != n {
				t.Errorf("weir_degraded_total is %v, ended by int8 %v, want %d", n, ended, 2*calls)
			}
		}
		p.sound()
	})
}

// degraded holds an answer of int8 for class standard, and its line in the
// access log.
func (p *precisions) degraded(t *testing.T, a answer, model, reason string) {
	t.Helper()
	if a.code != http.StatusOK || a.servedBy() != poolOf(model, "batch") {
		t.Errorf("%s: %d by %q: %s", reason, a.code, a.servedBy(), a.body)
	}
	sees(t, a, "x-weir-reason", reason, "x-weir-variant", "int8", "x-weir-notice", "served at lower precision: accuracy within 0.3 %, coherence 5-8 % lower")
	line := p.logged(`"id":"` + a.header.Get("x-weir-request-id") + `"`)
	if text(line, "decision", "variant") != "int8" || examples.Get(line, "decision", "degraded") != true || text(line, "decision", "reason") != reason {
		t.Errorf("the access log has %v", line["decision"])
	}
}
