package examples_test

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestThreeStages (E4): with a cluster that has a weir of its own, its
// back-pressure travels up through the region and the edge; it alone counts
// the refusal, and nobody waits for it.
func TestThreeStages(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		engine := newWitness(t, "chat-fp16")
		one := func(seats int, stage bool) envoytest.Tree {
			return envoytest.Tree{
				"pools":  []any{envoytest.Tree{"name": "chat-fp16", "variant": "fp16", "stage": stage, "seats": envoytest.Tree{"requests": seats}}},
				"models": []any{envoytest.Tree{"name": "deepseek-v4", "pools": []any{"chat-fp16"}}, envoytest.Tree{"name": "infer", "pools": []any{"chat-fp16"}}},
			}
		}
		cluster := newStage(t, b, "", stage{
			kind: "region", profile: "cluster", policy: one(1, false), pools: []string{}, next: map[string]string{"chat-fp16": engine.addr},
		})
		jwks := filepath.Join(cluster.dir, "jwks.json")
		between := one(2, true) // one more than the cluster takes
		between["identity"] = envoytest.Tree{"from": "extproc", "forward": true, "issuers": []any{envoytest.Tree{
			"issuer": issuer, "audiences": []any{"llm"}, "jwks": envoytest.Tree{"file": jwks},
		}}}
		region := newStage(t, b, jwks, stage{kind: "region", policy: between, pools: []string{}, next: map[string]string{"chat-fp16": cluster.envoy.Addr}})
		edge := newStage(t, b, jwks, stage{
			kind: "edge", pools: []string{}, next: map[string]string{"region": region.envoy.Addr},
			policy: envoytest.Tree{"models": []any{envoytest.Tree{"name": "deepseek-v4", "pools": []any{"region"}}, envoytest.Tree{"name": "infer", "pools": []any{"region"}}}},
		})
		edge.signer, region.signer = cluster.signer, cluster.signer

		leave := edge.occupy("standard")
		cluster.sees("it runs in the cluster", func(q queue) bool { return q.Running == 1 })
		a := edge.chat(edge.token(claims{"tenant": "unlucky"}), 2, false)
		isRefusal(t, a, http.StatusServiceUnavailable, "queue_full")
		if n := a.number("x-weir-waited-ms"); n > 0 {
			t.Errorf("it waited %v ms", n)
		}
		leave()
		for _, w := range []*world{edge, region, cluster} {
			w.idle(10 * time.Second)
		}
		if a = edge.chat(edge.token(claims{"tenant": "lucky"}), 2, false); a.code != http.StatusOK || a.servedBy() != "chat-fp16" {
			t.Errorf("with a free seat: %d %v %s", a.code, a.header, a.body)
		}
		if h := engine.last(t).header; h.Get("authorization") != "" || h.Get("x-weir-tenant") != "lucky" {
			t.Errorf("the engine got %v", h)
		}
		const refusals, ends = "weir_decisions_total", "weir_requests_ended_total"
		for name, w := range map[string]*world{"edge": edge, "region": region, "cluster": cluster} {
			w.idle(10 * time.Second)
			own, passed := w.metric(refusals, `reason="queue_full"`), w.metric(ends, `result="stage"`)
			if decides := name == "cluster"; (own == 1) != decides || (passed == 1) == decides || own+passed != 1 {
				t.Errorf("%s: %v refusals of its own, %v passed up", name, own, passed)
			}
			w.sound()
		}
		if u := edge.used("unlucky"); u["requests"] != 0 || u["tokens"] != 0 {
			t.Errorf("the edge charges %v for it", u)
		}
	})
}
