package extproc

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// These tests hold the hallway against what was reported of gateways of this
// kind. The numbers are issues of the repositories named.

const streamBody = `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"hello"}]}`

// begin is a chat call up to its admission.
func (h *house) begin(body string) *envoy {
	h.t.Helper()
	e := h.call()
	e.send(chatHead())
	e.want("request_headers")
	e.send(reqBody(body, true))
	e.want("request_body")
	return e
}

// answer begins the answer of an admitted call.
func (e *envoy) answer(status string, kv ...string) {
	e.t.Helper()
	e.send(answered(status, via, false, kv...))
	e.want("response_headers")
}

// pass sends one piece of the answer and returns what goes on to the client.
func (e *envoy) pass(piece string, end bool) string {
	e.t.Helper()
	e.send(chunk(piece, end))
	r := e.next()
	if kindOf(r) != "response_body" {
		e.t.Fatalf("reply %v", r)
	}
	if m := r.GetResponseBody().GetResponse().GetBodyMutation(); m != nil {
		return string(m.GetBody())
	}
	return piece
}

// TestDenyIsTheLastWord (envoyproxy/envoy#38553): a denial is an immediate
// answer in its own phase, and the side stream ends with it, so that nothing
// that is sent behind it can be answered by "go on".
func TestDenyIsTheLastWord(t *testing.T) {
	h := open(t, newTestDesk(verdict{reason: admission.QueueFull}))
	for name, first := range map[string]*extprocv3.ProcessingRequest{
		"identity": head(nil, false, ":method", "POST", ":path", "/v1/chat/completions"),
		"path":     post(caller(), "/nowhere"),
		"desk":     grpcHead(),
		"models":   head(caller(), false, ":method", "GET", ":path", "/v1/models"),
	} {
		e := h.call()
		e.send(first)
		e.want("immediate", "end")
		for range 3 {
			e.send(reqBody("x", false)) // the stream is gone: nobody hears it
		}
		if err := e.hangUp(true); err != nil {
			t.Errorf("%s: ended with %v", name, err)
		}
		h.ended()
	}
	h.desk.even(t)
}

// TestTrailersComeLast (envoyproxy/envoy#29327): pieces of a body and trailers,
// pipelined, are answered in their order.
func TestTrailersComeLast(t *testing.T) {
	h := open(t, newTestDesk())
	e := h.call()
	e.modes = bodies(filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_STREAMED)
	for _, m := range []*extprocv3.ProcessingRequest{
		post(caller(), "/v1/audio/transcriptions"), reqBody("a", false), reqBody("b", false), reqBody("c", false), reqTrailers(),
		answered("200", via, false), chunk("a", false), chunk("b", false), chunk("c", false), trailers("x", "1"),
	} {
		e.send(m)
	}
	e.want("request_headers", "request_body", "request_body", "request_body", "request_trailers",
		"response_headers", "response_body", "response_body", "response_body", "response_trailers")
	if err := e.hangUp(true); err != nil {
		t.Error(err)
	}
	h.ended()
	h.desk.even(t)
}

// TestChargedWithTheLastMessage (envoyproxy/go-control-plane#624,
// BerriAI/litellm#37539): end_of_stream books the charge at once, and what
// comes behind it (a repeated end, trailers, the stream's own end) books no more.
func TestChargedWithTheLastMessage(t *testing.T) {
	h, d, seen := openReal(t, rules())
	e := h.begin(chatBody)
	e.answer("200", "content-type", "application/json")
	e.pass(`{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`, true)
	if c := seen.charged.Load(); c != 11 {
		t.Errorf("charged %d with the last message, want 11", c)
	}
	busy(t, d, 0, 0)
	e.pass("", true)
	e.send(trailers("x", "1"))
	e.want("response_trailers")
	_ = e.hangUp(true)
	h.ended()
	if n, c := seen.ended.Load(), seen.charged.Load(); n != 1 || c != 11 {
		t.Errorf("ended %d times, charged %d; want once 11", n, c)
	}
}

// TestNothingIsNotAnAnswer (envoyproxy/envoy#44201): an answer without a byte
// is charged the prompt and no output, whether Envoy shows it as a header
// block that ends the stream or as a chunked body of nothing. A redirect is
// given back.
func TestNothingIsNotAnAnswer(t *testing.T) {
	const prompt = 2 // "hello" at 4 bytes a token
	for _, tc := range []struct {
		name, status, contentType, body string
		eos                             bool
		charge                          int64
	}{
		{"headers only", "200", "", "", true, prompt},
		{"no content", "204", "", "", true, prompt},
		{"chunked JSON", "200", "application/json", "", false, prompt},
		{"chunked stream", "200", "text/event-stream", "", false, prompt},
		{"chunked, no type", "200", "", "", false, prompt},
		{"chunked, coded", "200", "application/json", "", false, prompt},
		{"redirect", "307", "text/html", "<a href=/x>moved</a>", false, 0},
		{"redirect, headers only", "308", "", "", true, 0},
		{"not modified", "304", "", "", true, 0},
		{"refused by the model", "422", "application/json", `{"detail":"no"}`, false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, d, seen := openReal(t, rules())
			e := h.begin(streamBody)
			var kv []string
			if tc.contentType != "" {
				kv = append(kv, "content-type", tc.contentType)
			}
			if strings.HasSuffix(tc.name, "coded") {
				kv = append(kv, "content-encoding", "gzip")
			}
			e.send(answered(tc.status, via, tc.eos, kv...))
			e.want("response_headers")
			if !tc.eos {
				e.pass(tc.body, true)
			}
			if c := seen.charged.Load(); c != tc.charge {
				t.Errorf("charged %d, want %d", c, tc.charge)
			}
			if seen.last.Result == admission.ResultFailed {
				t.Errorf("counted as a failure: %+v", seen.last)
			}
			busy(t, d, 0, 0)
			_ = e.hangUp(true)
			h.ended()
		})
	}
}

// TestPreflightsCostNothing (envoyproxy/envoy#14233, #6181): they take no seat,
// no place and no quota; an OPTIONS that is none is a call like any other.
func TestPreflightsCostNothing(t *testing.T) {
	p := rules(func(p *policy.Policy) { p.Identity.Preflight = true })
	h, d, seen := openReal(t, p)
	for range 200 {
		e := h.call()
		e.send(withMetadata(head(nil, true, ":method", "OPTIONS", ":path", "/v1/chat/completions",
			"origin", "https://evil.example", "access-control-request-method", "POST"), identity.PreflightFields()))
		e.want("request_headers")
		busy(t, d, 0, 0)
		_ = e.hangUp(true)
		h.ended()
	}
	if n := seen.decided.Load(); n != 0 {
		t.Errorf("the desk decided %d times", n)
	}
	for name, m := range map[string]*extprocv3.ProcessingRequest{
		"no origin": withMetadata(head(nil, true, ":method", "OPTIONS", ":path", "/v1/chat/completions"), identity.PreflightFields()),
		"a POST": withMetadata(head(nil, false, ":method", "POST", ":path", "/v1/chat/completions",
			"origin", "https://evil.example", "access-control-request-method", "POST"), identity.PreflightFields()),
	} {
		e := h.call()
		e.send(m)
		if im := e.next().GetImmediateResponse(); im.GetStatus().GetCode() != 403 {
			t.Errorf("%s passes as a preflight: %v", name, im)
		}
		_ = e.hangUp(true)
		h.ended()
	}
}

// figures are what are to be read out of a fixture of the meter.
type figures struct {
	API    string `json:"api"`
	Known  any    `json:"usage_known"`
	Input  int64  `json:"input_tokens"`
	Output int64  `json:"output_tokens"`
}

// TestFixturesThroughTheConversation: each answer of chat and completions,
// spread over five messages, goes on byte for byte and is charged once, as it
// says itself (ai-dynamo/dynamo#11868, spiceai/spiceai#12588,
// experientiallabs/experiential#758, vllm-project/vllm#9357).
func TestFixturesThroughTheConversation(t *testing.T) {
	raw, err := os.ReadFile("meter/testdata/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Fixtures map[string]figures }
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	h, d, seen := openReal(t, rules())
	tried := 0
	// The estimate of what is not believed comes first: it is learnt from the others.
	absurd := func(name string) int { return strings.Count(name, "over_int32") }
	for _, name := range slices.SortedFunc(maps.Keys(all.Fixtures), func(a, b string) int {
		return cmp.Or(absurd(b)-absurd(a), strings.Compare(a, b))
	}) {
		want := all.Fixtures[name]
		if want.Known != true || want.API != "chat" && want.API != "completions" {
			continue
		}
		tried++
		data, err := os.ReadFile(filepath.Join("meter/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		media := "application/json"
		if strings.HasSuffix(name, ".sse") {
			media = "text/event-stream"
		}
		before, ends := seen.charged.Load(), seen.ended.Load()
		e := h.begin(`{"model":"deepseek-v4","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}`)
		e.answer("200", "content-type", media)
		var on strings.Builder
		size := len(data)/5 + 1
		for piece := range slices.Chunk(data, size) {
			on.WriteString(e.pass(string(piece), false))
		}
		on.WriteString(e.pass("", true))
		if on.String() != string(data) {
			t.Errorf("%s: bytes changed", name)
		}
		if strings.HasSuffix(name, "over_int32.json") { // more than the model holds
			if c := seen.charged.Load() - before; c < 2 || c > 100 {
				t.Errorf("%s: charged %d, want an estimate", name, c)
			}
		} else if c := seen.charged.Load() - before; c != want.Input+want.Output || seen.ended.Load()-ends != 1 {
			t.Errorf("%s: charged %d, want %d + %d", name, c, want.Input, want.Output)
		}
		_ = e.hangUp(true)
		h.ended()
	}
	if tried < 20 {
		t.Errorf("only %d fixtures", tried)
	}
	busy(t, d, 0, 0)
}

// TestUsageMayBeLeftOffByRoute (BerriAI/litellm#35290): a backend that answers
// 400 to fields it does not know gets the body as it was sent; where usage is
// asked for, its 400 is given back and no breaker counts it.
func TestUsageMayBeLeftOffByRoute(t *testing.T) {
	p, err := policy.Load("weir.yaml", []byte(`
version: 1
identity: {from: authz, issuers: [{issuer: "https://id.example", audiences: [llm], jwks: {url: "https://id.example/keys"}}]}
models: [{name: deepseek-v4, pools: [chat-dyn]}]
pools: [{name: chat-dyn, variant: fp16-dyn, seats: {requests: 8}}]
profiles: {plain: {metering: {includeUsage: false}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for profile, changed := range map[string]bool{"plain": false, "": true} {
		h, _, seen := openReal(t, p)
		e := h.call()
		e.send(attributes(chatHead(), cel("profile"), profile))
		e.want("request_headers")
		e.send(reqBody(streamBody, true))
		if m := common(e.next()).GetBodyMutation(); (m != nil) != changed {
			t.Errorf("profile %q: body changed to %q", profile, m.GetBody())
		}
		e.answer("400", "content-type", "application/json")
		e.pass(`{"error":{"message":"Unknown field: stream_options","type":"invalid_request_error","code":400}}`, true)
		if c := seen.charged.Load(); c != 0 || seen.last.Result == admission.ResultFailed {
			t.Errorf("profile %q: charged %d, ended %v", profile, c, seen.last.Result)
		}
		_ = e.hangUp(true)
		h.ended()
	}
}

// TestChineseTextIsNotCheap (AstroVela/vane#95): half a token a character at
// least, of the prompt and of an answer without usage.
func TestChineseTextIsNotCheap(t *testing.T) {
	h, _, seen := openReal(t, rules())
	text := strings.Repeat("港口", 1500)
	e := h.begin(`{"model":"deepseek-v4","messages":[{"role":"user","content":"` + text + `"}]}`)
	e.answer("200", "content-type", "application/json")
	e.pass(`{"choices":[{"index":0,"message":{"content":"`+text+`"},"finish_reason":"stop"}]}`, true)
	if c := seen.charged.Load(); c < 3000 {
		t.Errorf("charged %d for 3,000 characters in and 3,000 out, want 3,000 or more", c)
	}
	_ = e.hangUp(true)
	h.ended()
}

// TestEventsCutAnywhere: events in every form of line end, a byte a message,
// with the usage that nobody asked for hidden.
func TestEventsCutAnywhere(t *testing.T) {
	h, _, seen := openReal(t, rules())
	for _, eol := range []string{"\n", "\r\n", "\r"} {
		line := func(s string) string { return s + eol + eol }
		shown := line(`data: {"choices":[{"index":0,"delta":{"content":"港"}}]}`) + line(": ping") + line("data: [DONE]")
		all := strings.Replace(shown, line(": ping"), line(": ping")+line(`data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`), 1)
		before := seen.charged.Load()
		e := h.begin(streamBody)
		e.answer("200", "content-type", "text/event-stream")
		var on strings.Builder
		for i := range len(all) {
			on.WriteString(e.pass(all[i:i+1], false))
		}
		on.WriteString(e.pass("", true))
		if on.String() != shown {
			t.Errorf("%q: goes on as %q, want %q", eol, on.String(), shown)
		}
		if c := seen.charged.Load() - before; c != 6 {
			t.Errorf("%q: charged %d", eol, c)
		}
		_ = e.hangUp(true)
		h.ended()
	}
}

// TestManyHeaders: what Envoy lets through in headers is read and answered.
func TestManyHeaders(t *testing.T) {
	h := open(t, newTestDesk())
	var kv []string
	for i := range 1000 {
		kv = append(kv, fmt.Sprintf("x-h%d", i), strings.Repeat("v", 60))
	}
	e := h.call()
	e.send(chatHead(append(kv, "x-huge", strings.Repeat("v", 1<<20), "traceparent", strings.Repeat("v", 1<<16))...))
	e.want("request_headers")
	e.send(reqBody(chatBody, true))
	e.want("request_body")
	e.answer("200", append(kv, "x-weir-evil", strings.Repeat("v", 1<<20))...)
	if err := e.hangUp(true); status.Code(err) != codes.OK {
		t.Error(err)
	}
	h.ended()
	h.desk.even(t)
}
