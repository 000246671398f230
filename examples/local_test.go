package examples_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// Pools of TestLocalReplies: busy has one seat, hurried a route timeout,
// gone an address where nobody listens, empty no endpoints at all.
const localPools = wideQuotas + `
pools:
  - {name: chat-fp16, variant: fp16-dyn, seats: {requests: 1}}
  - {name: chat-dyn, variant: fp16-dyn, seats: {requests: 8}}
  - {name: chat-int8, variant: fp16-dyn, seats: {requests: 8}}
  - {name: infer, variant: fp16-dyn, seats: {requests: 8}}
models:
  - {name: busy, pools: [chat-fp16]}
  - {name: hurried, pools: [chat-dyn]}
  - {name: gone, pools: [chat-int8]}
  - {name: empty, pools: [infer]}
classes: [{name: standard, maxWait: 4s, onExpiry: drop}]
breaker: {minRequests: 4, hard: 50%, open: 1m}
apis:
  - {path: /v1/chat/completions, kind: openai.chat}
  - {path: /v1/completions, kind: openai.completions}
  - {path: /v1/audio/transcriptions, kind: opaque, model: busy, cost: 300}
`

// bufferLimit is the most that Envoy buffers of a body.
const bufferLimit = 64 << 10

// impatient changes the example so that Envoy answers by itself.
func impatient(tree envoytest.Tree) {
	limitBuffers(tree, bufferLimit)
	envoytest.Route(tree, "chat")["route"].(examples.Tree)["idle_timeout"] = "1s"
	envoytest.Route(tree, "chat-dyn")["route"].(examples.Tree)["timeout"] = "0.5s"
	envoytest.Route(tree, "completions")["route"].(examples.Tree)["cluster"] = "infer"
	uploads := envoytest.Route(tree, "uploads") // its body is buffered while the headers are held
	uploads["typed_per_filter_config"] = envoytest.Route(tree, "chat")["typed_per_filter_config"]
	for _, c := range examples.Get(tree, "static_resources", "clusters").([]any) {
		if c.(examples.Tree)["name"] == "infer" {
			examples.Set(c, []any{}, "load_assignment", "endpoints", 0, "lb_endpoints")
		}
	}
}

// TestLocalReplies: where Envoy answers by itself, in whatever phase, the
// client gets that answer as it is and at once, and nothing stays taken. From
// 1.37 on weir sees such an answer: all is given back, the breaker counts what
// is the pool's fault, and none of it is an answer of the model. On 1.36 the
// stream just ends, so that it looks like a client that left: the outcome is
// unknown and the prompt is charged. A runtime key shows them there too.
func TestLocalReplies(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		if b.Minor() >= 37 {
			localReplies(t, b, impatient, true)
			return
		}
		t.Run("unchanged", func(t *testing.T) { localReplies(t, b, impatient, false) })
		t.Run("shown", func(t *testing.T) {
			localReplies(t, b, func(tree envoytest.Tree) {
				impatient(tree)
				examples.Set(tree, false, "layered_runtime", "layers", 0, "static_layer", "envoy.reloadable_features.skip_ext_proc_on_local_reply")
			}, true)
		})
	})
}

func localReplies(t *testing.T, b envoytest.Binary, change func(envoytest.Tree), shown bool) {
	w := newWorld(t, b, setup{policy: localPools, envoy: change, pools: []string{"chat-fp16", "chat-dyn"}})
	deniedAtTheDoor(w, shown)
	localBeforeJudged(w)
	localInHold(w)
	localInsteadOfAnswer(w, shown)
	if n := w.metric("weir_first_byte_seconds_count"); n != 1 { // who held the seat
		t.Errorf("%v answers of a model were seen, want 1", n)
	}
	if n := w.metric("weir_faults_total"); n != 0 {
		t.Errorf("weir_faults_total is %v", n)
	}
	envoytest.Eventually(t, 5*time.Second, "no stream is open", func() bool { return w.metric("weir_extproc_streams") == 0 })
}

// deniedAtTheDoor: ext_authz denies, and ext_proc's stream begins with that
// answer's headers.
func deniedAtTheDoor(w *world, shown bool) {
	w.t.Helper()
	a := w.do(w.request(w.t.Context(), http.MethodPost, chatPath, modelBody("busy", "")))
	if a.code != http.StatusUnauthorized || a.errorCode() != "missing_token" || a.header.Get("www-authenticate") == "" {
		w.t.Errorf("without a token: %d %v %s", a.code, a.header, a.body)
	}
	want := 0.
	if shown {
		want = 1
	}
	if n := w.metric("weir_message_seconds_count", `phase="response_headers"`); n != want {
		w.t.Errorf("%v streams began with the denial's headers, want %v", n, want)
	}
	if n := w.metric("weir_requests_ended_total"); n != 0 {
		w.t.Errorf("%v requests ended, none was admitted", n)
	}
}

// localBeforeJudged: the body is too large to be judged at all.
func localBeforeJudged(w *world) {
	w.t.Helper()
	seen := func() float64 { return w.metric("weir_message_seconds_count", `phase="request_headers"`) }
	before := seen()
	tenant := tooLarge(w, chatPath, modelBody("busy", strings.Repeat("x", 3*bufferLimit)), func() bool {
		if seen() == before {
			return false
		}
		before = seen()
		return true
	})
	w.settled(tenant, charge{})
}

// localInHold: Envoy loses patience with a request that waits for a seat, at
// its headers and at its body. The place is free; the request unit stays
// charged, as for everyone who leaves the line.
func localInHold(w *world) {
	w.t.Helper()
	first := w.start(w.client, "first", chatPath, `{"model":"busy","stream":true,"max_tokens":4000,"messages":[{"role":"user","content":"hi"}]}`, "slow=50ms")
	first.stream(w.t)
	gone := w.metric("weir_decisions_total", `reason="client_gone"`)

	a := w.call("idle", chatPath, modelBody("busy", ""), "")
	local(w, "idle", a, http.StatusGatewayTimeout, "stream timeout")
	if a.took < 900*time.Millisecond {
		w.t.Errorf("idle: Envoy's clock is 1 s, its answer came after %v", a.took)
	}
	upload := tooLarge(w, uploadPath, strings.Repeat("x", 3*bufferLimit), func() bool { return w.queue().Waiting == 1 })
	envoytest.Eventually(w.t, time.Second, "the line is empty and the first one runs on", func() bool {
		q := w.queue()
		return q.Waiting == 0 && q.Running == 1
	})
	if n := w.metric("weir_decisions_total", `reason="client_gone"`) - gone; n != 2 {
		w.t.Errorf("%v left the line, want 2", n)
	}
	w.freed("the seat", first, idleNow)
	w.settled("idle", charge{requests: 1})
	w.settled(upload, charge{requests: 1})
}

// tooLarge is the tenant of a call whose body grew too large for Envoy when
// ready said so. Once in a while Envoy only pauses such a body; then the hold
// or Envoy's patience goes on to its end, and the next call is tried.
func tooLarge(w *world, path, body string, ready func() bool) string {
	w.t.Helper()
	for i := range 5 {
		tenant := fmt.Sprintf("large-%s-%d", strings.ReplaceAll(path[1:], "/", "-"), i)
		a := w.callLate(tenant, path, body, ready)
		if paused := a.header.Get("x-weir-reason") == "expired_drop" || a.code == http.StatusRequestTimeout; !paused {
			local(w, tenant, a, http.StatusRequestEntityTooLarge, `{"error":{"code":"body_too_large"`)
			return tenant
		}
	}
	w.t.Fatal("Envoy refuses no body above its limit")
	return ""
}

// localInsteadOfAnswer: admitted, and no upstream answers.
func localInsteadOfAnswer(w *world, shown bool) {
	w.t.Helper()
	result, want, breaker := "unknown", charge{1, promptGuess, 0}, "closed"
	if shown {
		result, want, breaker = "no_answer", charge{}, "hard"
	}
	for _, c := range []struct {
		name, model, path, fault string
		times                    int
		code                     int
		body                     string
	}{
		{"empty", "empty", completionPath, "", 4, http.StatusServiceUnavailable, "no healthy upstream"},
		{"refused", "gone", chatPath, "", 4, http.StatusServiceUnavailable, "upstream connect error or disconnect/reset before headers"},
		{"reset", "hurried", chatPath, "reset", 2, http.StatusServiceUnavailable, "upstream connect error or disconnect/reset before headers"},
		{"timeout", "hurried", chatPath, "hang", 2, http.StatusGatewayTimeout, "upstream request timeout"},
	} {
		ended := w.metric("weir_requests_ended_total", `result="`+result+`"`)
		for i := range c.times {
			tenant := fmt.Sprintf("%s-%d", c.name, i)
			a := w.call(tenant, c.path, modelBody(c.model, ""), c.fault)
			local(w, tenant, a, c.code, c.body)
			if shown && a.header.Get("x-weir-reason") != "admitted" {
				w.t.Errorf("%s: x-weir-reason is %q", tenant, a.header.Get("x-weir-reason"))
			}
			w.settled(tenant, want)
		}
		if n := w.metric("weir_requests_ended_total", `result="`+result+`"`) - ended; n != float64(c.times) {
			w.t.Errorf("%s: %v ended as %s, want %d", c.name, n, result, c.times)
		}
	}
	for _, p := range w.queue().Pools {
		if p.Name != "chat-fp16" && p.Breaker != breaker {
			w.t.Errorf("the breaker of %s is %s, want %s (B6)", p.Name, p.Breaker, breaker)
		}
	}
}

// callLate makes a call whose body follows its headers only when ready says
// so. (A body that fills Envoy's buffer while a filter still thinks about the
// headers is not refused but paused.)
func (w *world) callLate(tenant, path, body string, ready func() bool) answer {
	w.t.Helper()
	pipe, feed := io.Pipe()
	req := w.request(w.t.Context(), http.MethodPost, path, body, "Authorization", "Bearer "+w.token(claims{"tenant": tenant}))
	req.Body = pipe
	var a answer
	var calling sync.WaitGroup
	calling.Go(func() { a = w.do(req) })
	envoytest.Eventually(w.t, 5*time.Second, tenant+" may send its body", ready)
	_, err := io.WriteString(feed, body)
	_ = feed.CloseWithError(err) // Envoy may have answered before it read all
	calling.Wait()
	return a
}

// local holds an answer against Envoy's own.
func local(w *world, what string, a answer, code int, body string) {
	w.t.Helper()
	if a.err != nil || a.code != code || !strings.HasPrefix(a.body, body) {
		w.t.Errorf("%s: %d %q %v, want Envoy's %d %q", what, a.code, a.body, a.err, code, body)
	}
	if a.took > 10*time.Second {
		w.t.Errorf("%s: took %v", what, a.took)
	}
}

// modelBody suits chats and completions; more lengthens it.
func modelBody(model, more string) string {
	if model == "empty" {
		return `{"model":"empty","max_tokens":4,"prompt":"` + prompt + more + `"}`
	}
	return `{"model":"` + model + `","max_tokens":4,"messages":[{"role":"user","content":"` + prompt + more + `"}]}`
}

// limitBuffers sets how much of a body Envoy buffers: of the connection, and
// where the release reads it of the request.
func limitBuffers(tree envoytest.Tree, n int) {
	examples.Set(tree, n, "static_resources", "listeners", 0, "per_connection_buffer_limit_bytes")
	examples.Set(envoytest.HCM(tree), n, "route_config", "virtual_hosts", 0, "request_body_buffer_limit")
}
