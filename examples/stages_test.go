package examples_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// TestStages (E4): an edge with limits before a region with the queue, by the
// example files.
func TestStages(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		c := newChain(t, b)
		stagesAdmit(t, c)
		stagesVerify(t, c)
		stagesQueueOnce(t, c)
		stagesHint(t, c)
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
	if a = c.edge.chat(c.edge.token(claims{"tenant": "plain"}), 5, true); !a.done() || strings.Contains(a.body, `"usage":{`) || a.header.Get("x-weir-notice") != "" {
		t.Errorf("a stream through both: %d %v %s", a.code, a.header, a.body)
	}
	c.edge.idle(10 * time.Second)
	if out := c.region.sims["chat-dyn"].Totals().Tenants["plain"]; c.edge.used("plain")["tokens"] != 7+out.Prompt+out.Output || out.Output != 5 {
		t.Errorf("the edge charged %v, the engine counts %+v", c.edge.used("plain"), out)
	}
	if u := c.region.used("plain"); len(u) != 0 {
		t.Errorf("the region counts too: %v", u)
	}
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

// stagesHint (Q5): whom the region refuses has a slot there. It comes back to
// the edge when it was told, marked as stock clients do, and the region lets it
// in by its booking, before newcomers.
func stagesHint(t *testing.T, c *chain) {
	ended := func(result string) float64 {
		return c.region.metric("weir_bookings_ended_total", `pool="chat-fp16"`, `class="critical"`, `result="`+result+`"`)
	}
	token := c.edge.token(claims{"tenant": "obedient", "class": "critical"})
	for range 5 { // quick ones, so that the hint is short
		c.edge.chat(c.edge.token(claims{"tenant": "quick", "class": "critical"}), 2, false)
	}
	leave, claimed := c.hold("critical"), ended("claimed")
	a := c.edge.chat(token, 2, false)
	isRefusal(t, a, http.StatusServiceUnavailable, "expired_drop")
	slot := time.After(time.Duration(a.number("retry-after-ms") * float64(time.Millisecond)))
	leave()
	c.region.idle(10 * time.Second)
	<-slot
	if a = c.edge.chat(token, 2, false, "x-stainless-retry-count", "1"); a.code != http.StatusOK {
		t.Fatalf("in its slot: %d %v %s", a.code, a.header, a.body)
	}
	if n := ended("claimed") - claimed; n != 1 {
		t.Errorf("%v bookings claimed in the region, want 1", n)
	}
	below := c.region.logged(`"reason":"admitted","tenant":"obedient"`)
	var seen struct {
		Attempt int
		Trail   []struct{ What string }
	}
	c.region.adminJSON("/debug/explain?request="+text(below, "decision", "id"), &seen)
	if seen.Attempt != 1 || !slices.ContainsFunc(seen.Trail, func(s struct{ What string }) bool { return s.What == "booking" }) {
		t.Errorf("the region explains %+v", seen)
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
