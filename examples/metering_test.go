package examples_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// wideQuotas count every unit and bind nothing.
const wideQuotas = `
quotas:
  - {name: per-tenant, match: {tenant: "*"}, by: [tenant], limits: [
      {requests: 1000000, per: 1h}, {tokens: 1000000000, per: 1h},
      {inputTokens: 1000000000, per: 1h}, {outputTokens: 1000000000, per: 1h}]}
`

// promptBytes is the prompt's length in every call of these tests; weir's own
// estimate of it is that over estimate.bytesPerToken (4).
const (
	prompt      = "What is a weir good for?"
	promptGuess = int64(len(prompt)) / 4
)

// charge is what a tenant's counters hold.
type charge struct{ requests, input, output int64 }

func (w *world) charged(tenant string) charge {
	w.t.Helper()
	u := w.used(tenant)
	if u["tokens"] != u["inputTokens"]+u["outputTokens"] {
		w.t.Errorf("%s: %d tokens are not %d of input and %d of output", tenant, u["tokens"], u["inputTokens"], u["outputTokens"])
	}
	return charge{u["requests"], u["inputTokens"], u["outputTokens"]}
}

// made is what the pools themselves counted for a tenant.
func (w *world) made(tenant string) (c modelsim.Count) {
	for _, s := range w.sims {
		t := s.Totals().Tenants[tenant]
		c.Started += t.Started
		c.Finished += t.Finished
		c.Aborted += t.Aborted
		c.Prompt += t.Prompt
		c.Output += t.Output
		c.Delivered += t.Delivered
	}
	return c
}

// settled waits until a tenant's counters hold want.
func (w *world) settled(tenant string, want charge) {
	w.t.Helper()
	w.idle(5 * time.Second)
	var got charge
	defer func() {
		if got != want {
			w.t.Logf("%s is charged %+v, want %+v", tenant, got, want)
		}
	}()
	envoytest.Eventually(w.t, 5*time.Second, "the charge of "+tenant+" is settled", func() bool {
		got = w.charged(tenant)
		return got == want
	})
}

// metered is one call whose usage the model tells.
type metered struct {
	name, path, body string
	fault            string
	usage            bool // the client sees a usage object
	coded            bool // the model answers gzip: what the client sees is not judged
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
	embeddingPath  = "/v1/embeddings"
)

// withOptions is a chat of 12 tokens with more fields.
func withOptions(fields string) string {
	return `{"model":"deepseek-v4","max_tokens":12,` + fields + `,"messages":[{"role":"user","content":"` + prompt + `"}]}`
}

var meteredCalls = []metered{
	{name: "json", path: chatPath, body: chatBody(12, false), usage: true},
	{name: "json-n", path: chatPath, body: withOptions(`"n":3`), usage: true},
	{name: "json-gzip", path: chatPath, body: chatBody(12, false), fault: "gzip", coded: true},
	{name: "json-chunked", path: chatPath, body: chatBody(12, false), fault: "no-length", usage: true},
	{name: "json-slow", path: chatPath, body: chatBody(12, false), fault: "slow=50ms", usage: true},
	{name: "sse", path: chatPath, body: chatBody(12, true)},
	{name: "sse-asked", path: chatPath, body: withOptions(`"stream":true,"stream_options":{"include_usage":true}`), usage: true},
	{name: "sse-refused", path: chatPath, body: withOptions(`"stream":true,"stream_options":{"include_usage":false}`)},
	{name: "sse-null", path: chatPath, body: withOptions(`"stream":true,"stream_options":null`)},
	{name: "sse-each", path: chatPath, body: withOptions(`"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`), usage: true},
	{name: "sse-slow", path: chatPath, body: chatBody(12, true), fault: "slow=20ms"},
	{name: "sse-n", path: chatPath, body: withOptions(`"stream":true,"n":2`)},
	{name: "sse-gzip", path: chatPath, body: chatBody(12, true), fault: "gzip", coded: true},
	{name: "sse-gzip-asked", path: chatPath, body: withOptions(`"stream":true,"stream_options":{"include_usage":true}`), fault: "gzip", coded: true},
	{name: "completion", path: completionPath, body: `{"model":"deepseek-v4","max_tokens":9,"prompt":"` + prompt + `"}`, usage: true},
	{name: "completion-list", path: completionPath, body: `{"model":"deepseek-v4","max_tokens":9,"n":2,"prompt":["` + prompt + `"]}`, usage: true},
	{name: "completion-sse", path: completionPath, body: `{"model":"deepseek-v4","max_tokens":9,"stream":true,"prompt":"` + prompt + `"}`},
	{name: "embedding", path: embeddingPath, body: `{"model":"deepseek-v4","input":"` + prompt + `"}`, usage: true},
	{name: "embedding-list", path: embeddingPath, body: `{"model":"deepseek-v4","input":["` + prompt + `","and more"]}`, usage: true},
	{name: "embedding-ids", path: embeddingPath, body: `{"model":"deepseek-v4","input":[1,2,3,4,5,6,7]}`, usage: true},
}

// TestMeteringEqualsThePoolsCount holds what tenants are charged against what
// the pools counted themselves (T8).
func TestMeteringEqualsThePoolsCount(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: "one-filter.yaml", policy: wideQuotas, sim: modelsim.Config{Speed: 10}})
		for _, c := range meteredCalls {
			a := w.call(c.name, c.path, c.body, c.fault)
			if a.err != nil || a.code != http.StatusOK {
				t.Fatalf("%s: %d %v %s", c.name, a.code, a.err, a.body)
			}
			if seen := strings.Contains(a.body, `"usage":{`); seen != c.usage && !c.coded {
				t.Errorf("%s: the client sees usage: %v, want %v: %s", c.name, seen, c.usage, a.body)
			}
			if strings.Contains(c.body, `"stream":true`) != a.done() {
				t.Errorf("%s: ends with [DONE]: %v: %s", c.name, a.done(), a.body)
			}
			m := w.made(c.name)
			if m.Finished != 1 || m.Prompt == 0 || m.Output == 0 != strings.HasPrefix(c.name, "embedding") {
				t.Fatalf("%s: the pool counted %+v", c.name, m)
			}
			w.settled(c.name, charge{1, m.Prompt, m.Output})
		}
		if n := w.metric("weir_usage_missing_total"); n != 0 {
			t.Errorf("weir_usage_missing_total is %v, every answer told its usage", n)
		}
		if n := w.metric("weir_requests_ended_total", `result="ok"`); int(n) != len(meteredCalls) {
			t.Errorf("%v requests ended ok, want %d", n, len(meteredCalls))
		}
	})
}

// call makes a call of a tenant of its own.
func (w *world) call(tenant, path, body, fault string) answer {
	w.t.Helper()
	headers := []string{"Authorization", "Bearer " + w.token(claims{"tenant": tenant})}
	if fault != "" {
		headers = append(headers, "X-Sim-Fault", fault)
	}
	return w.do(w.request(w.t.Context(), http.MethodPost, path, body, headers...))
}

// estimated is one call whose answer is broken or keeps its usage to itself.
type estimated struct {
	name   string
	stream bool
	fault  string
	whole  bool // the client gets the answer to its end
	result string
	// Of the charge: request unit, prompt (by weir's estimate), output as
	// delivered. A refund has none of them.
	refund bool
	output int64 // tokens that reached the client
	miss   bool  // counted in weir_usage_missing_total
}

var estimatedCalls = []estimated{
	{name: "json-silent", fault: "no-usage", whole: true, result: "ok", output: 12, miss: true},
	{name: "sse-silent", stream: true, fault: "no-usage", whole: true, result: "ok", output: 12, miss: true},
	{name: "sse-silent-gzip", stream: true, fault: "no-usage,gzip", whole: true, result: "ok", output: 12, miss: true},
	// B6: an error inside an answer of status 200 is the pool's failure. What
	// was delivered before it is charged; where nothing was, nothing is.
	{name: "sse-error", stream: true, fault: "error-in-stream", whole: true, result: "failed", output: 6, miss: true},
	{name: "json-error", fault: "error-in-stream", whole: true, result: "failed", refund: true},
	{name: "status-500", fault: "status=500", whole: true, result: "failed", refund: true},
	{name: "status-429", fault: "status=429", whole: true, result: "failed", refund: true},
	// Cut without a word: unknown to all, charged by what passed.
	{name: "sse-cut", stream: true, fault: "cut", whole: true, result: "unknown", output: 6, miss: true},
	{name: "sse-reset", stream: true, fault: "reset-mid", result: "unknown", output: 6, miss: true},
}

// TestMeteringWithoutUsage estimates what the model does not tell, and never
// charges an answer that was delivered at nothing.
func TestMeteringWithoutUsage(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: "one-filter.yaml", policy: wideQuotas, sim: modelsim.Config{Speed: 10, Text: "one two six ten"}})
		for _, c := range estimatedCalls {
			missing, ended := w.metric("weir_usage_missing_total"), w.metric("weir_requests_ended_total", `result="`+c.result+`"`)
			a := w.call(c.name, chatPath, chatBody(12, c.stream), c.fault)
			if (a.err == nil) != c.whole {
				t.Errorf("%s: the answer came whole: %v, want %v (%v)", c.name, a.err == nil, c.whole, a.err)
			}
			want := charge{1, promptGuess, c.output}
			if c.refund {
				want = charge{}
			}
			w.settled(c.name, want)
			if n := w.metric("weir_requests_ended_total", `result="`+c.result+`"`) - ended; n != 1 {
				t.Errorf("%s: %v ended as %s, want 1", c.name, n, c.result)
			}
			if n := w.metric("weir_usage_missing_total") - missing; n != map[bool]float64{true: 1}[c.miss] {
				t.Errorf("%s: weir_usage_missing_total rose by %v, missing is %v", c.name, n, c.miss)
			}
		}
	})
}

// TestErrorInsideA200OpensTheBreaker shows that such answers count (B6, B1).
func TestErrorInsideA200OpensTheBreaker(t *testing.T) {
	const failures = 4
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: "one-filter.yaml", sim: modelsim.Config{Speed: 10}, policy: fmt.Sprintf(`
breaker: {minRequests: %d, hard: 50%%, open: 1m}
pools: [{name: chat-dyn, variant: fp16-dyn, seats: {requests: 8}}]
models: [{name: deepseek-v4, pools: [chat-dyn]}]
`, failures)})
		for i := range failures {
			if a := w.call("acme", chatPath, chatBody(12, true), "error-in-stream"); a.code != http.StatusOK || a.err != nil {
				t.Fatalf("call %d: %d %v", i, a.code, a.err)
			}
			w.idle(5 * time.Second)
		}
		a := w.call("acme", chatPath, chatBody(12, true), "")
		if a.code != http.StatusServiceUnavailable || a.header.Get("x-weir-reason") != "breaker_open" {
			t.Errorf("after %d errors inside good answers: %d %s, want 503 breaker_open", failures, a.code, a.header.Get("x-weir-reason"))
		}
	})
}
