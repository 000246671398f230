package extproc

import (
	"fmt"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/extproc/body"
	"github.com/weirproxy/weir/policy"
)

// TestOfferedCodings: the model is offered only what the meter reads, whatever
// the caller accepts, and in every kind of call and mode.
func TestOfferedCodings(t *testing.T) {
	for _, tc := range []struct {
		accepted []string
		want     string
	}{
		{nil, "identity"}, {[]string{""}, "identity"}, {[]string{"br"}, "identity"}, {[]string{"br, zstd, deflate"}, "identity"},
		{[]string{"gzip"}, "gzip"}, {[]string{"x-gzip"}, "gzip"}, {[]string{"GZIP"}, "gzip"}, {[]string{"gzip, deflate, br"}, "gzip"},
		{[]string{"br", "gzip"}, "gzip"}, {[]string{"br;q=1.0, gzip;q=0.8, *;q=0.1"}, "gzip"}, {[]string{"*"}, "gzip"},
		{[]string{"*;q=0"}, "identity"}, {[]string{"gzip;q=0"}, "identity"}, {[]string{"gzip;q=0, *"}, "identity"},
		{[]string{"gzip; q = 0.5, identity;q=0.9"}, "identity"}, {[]string{"identity;q=0, br"}, "identity"},
		{[]string{"identity;q=0, gzip;q=0.1"}, "gzip"}, {[]string{"gzip;q=x"}, "identity"}, {[]string{"gzip;q=-1"}, "identity"},
		{[]string{"br, *;q=0.2"}, "gzip"}, {[]string{"gzip;q=NaN"}, "identity"}, {[]string{" , ;q, gzip"}, "gzip"},
	} {
		var h []string
		for _, v := range tc.accepted {
			h = append(h, "accept-encoding", v)
		}
		set, removed := mutations(admitted(t, rules(), chatBody, h...))
		if set["accept-encoding"] != tc.want || removed["accept-encoding"] {
			t.Errorf("%q: offered %q, want %q", tc.accepted, set["accept-encoding"], tc.want)
		}
	}
	shadow := rules(func(p *policy.Policy) {
		p.Mode = policy.Shadow
		for i := range p.Classes {
			p.Classes[i].Mode = policy.Shadow
		}
	})
	for name, tc := range map[string]struct {
		p     *policy.Policy
		first *extprocv3.ProcessingRequest
	}{
		"free":             {rules(), head(caller(), true, ":method", "GET", ":path", "/health", "accept-encoding", "br")},
		"opaque":           {rules(), post(caller(), "/v1/audio/transcriptions", "accept-encoding", "br")},
		"grpc":             {rules(), head(caller(), false, ":method", "POST", ":path", "/inference.Service/Generate", "content-type", "application/grpc", "accept-encoding", "br")},
		"lifted in shadow": {shadow, head(caller(), false, ":method", "POST", ":path", "/nowhere", "accept-encoding", "br")},
	} {
		h := openWith(t, newTestDesk(), tc.p)
		e := h.call()
		e.send(tc.first)
		if set, _ := mutations(e.next()); set["accept-encoding"] != "identity" {
			t.Errorf("%s: offered %q", name, set["accept-encoding"])
		}
		_ = e.hangUp(true)
		h.ended()
	}
}

// TestRoomForEdits: what weir sets in a body never makes it longer than
// server.maxBody: the usage of a stream is then not asked for, and a body
// without room for what a key or an engine demands is refused.
func TestRoomForEdits(t *testing.T) {
	const most = 2048
	small := func(p *policy.Policy) { p.Server.MaxBody = most }
	engine := func(p *policy.Policy) {
		small(p)
		for i := range p.Pools {
			p.Pools[i].Priority = policy.VLLMPriority
		}
	}
	padded := func(size int) string {
		const format = `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"%s"}]}`
		return fmt.Sprintf(format, strings.Repeat("a", size-len(format)+2))
	}
	usage := len(`,"stream_options":{"include_usage":true}`)
	for _, tc := range []struct {
		name  string
		rules func(*policy.Policy)
		spare int
		asked bool
		taken bool
	}{
		{"room", small, usage, true, true}, {"a byte short", small, usage - 1, false, true}, {"none", small, 0, false, true},
		{"room for both", engine, usage + len(`,"priority":1`), true, true},
		{"room for the priority", engine, usage + len(`,"priority":1`) - 1, false, true},
		{"no room for the priority", engine, len(`,"priority":1`) - 1, false, false},
	} {
		p := rules(tc.rules)
		sent := padded(most - tc.spare)
		h := openWith(t, newTestDesk(), p)
		e := h.call()
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(sent, true))
		r := e.next()
		if !tc.taken {
			checkRefusal(t, r, admission.BodyTooLarge, "")
		} else {
			out := string(common(r).GetBodyMutation().GetBody())
			if got := strings.Contains(out, "include_usage"); got != tc.asked || len(out) > most {
				t.Errorf("%s: usage asked %t, %d bytes; want %t", tc.name, got, len(out), tc.asked)
			}
		}
		_ = e.hangUp(true)
		h.ended()
	}
	b, bad := body.Parse(policy.OpenAIChat, []byte(padded(300)))
	if bad != nil {
		t.Fatal(bad)
	}
	for limit := int64(280); limit < 400; limit++ {
		if got, want := b.Fits(limit, body.IncludeUsage(), body.SetInt("n", 3)), int64(len(b.Rewrite(body.IncludeUsage(), body.SetInt("n", 3)))) <= limit; got != want {
			t.Errorf("fits %d bytes: %t", limit, got)
		}
	}
}

// TestStatedCost: a call of a fixed cost reserves it and is charged it,
// whatever its answer counts; what was not delivered is given back.
func TestStatedCost(t *testing.T) {
	p := rules(func(p *policy.Policy) {
		for i := range p.APIs {
			if p.APIs[i].Path == "/v1/rerank" {
				p.APIs[i].Cost = 5
			}
		}
	})
	for _, tc := range []struct {
		name, status, answer string
		charge               int64
	}{
		{"usage", "200", `{"results":[],"usage":{"prompt_tokens":3000,"completion_tokens":1000,"total_tokens":4000}}`, 5},
		{"a total", "200", `{"results":[],"usage":{"total_tokens":4000}}`, 5},
		{"input alone", "200", `{"usage":{"prompt_tokens":4000}}`, 5},
		{"absurd usage", "200", `{"usage":{"prompt_tokens":9200000000000000000,"completion_tokens":9200000000000000000}}`, 5},
		{"no usage", "200", `{"results":[{"index":0}]}`, 5},
		{"no JSON", "200", `<html>`, 5},
		{"an error inside", "200", `{"error":{"message":"m","code":500}}`, 0},
		{"an error", "500", `{"error":{"message":"m"}}`, 0},
	} {
		h, d, seen := openReal(t, p)
		e := h.call()
		for _, m := range rerank(tc.answer) {
			if m.replies == "response_headers" {
				m.message = answered(tc.status, via, false, "content-type", "application/json")
			}
			e.send(m.message)
			e.want(m.replies)
		}
		_ = e.hangUp(true)
		h.ended()
		if c := seen.charged.Load(); c != tc.charge {
			t.Errorf("%s: charged %d, want %d", tc.name, c, tc.charge)
		}
		busy(t, d, 0, 0)
	}
}

// TestLateStart: a stream whose first message is of a later phase is answered
// in kind, charges nothing, and the next call is served.
func TestLateStart(t *testing.T) {
	for kind, first := range map[string]*extprocv3.ProcessingRequest{
		"response_headers":  answered("200", via, false),
		"response_body":     chunk(`{"usage":{"prompt_tokens":5,"completion_tokens":5}}`, true),
		"response_trailers": trailers("grpc-status", "0"),
		"request_trailers":  reqTrailers(),
	} {
		h, d, seen := openReal(t, rules())
		e := h.call()
		e.send(first)
		e.want(kind)
		if err := e.hangUp(true); err != nil {
			t.Errorf("%s: the stream ended with %v", kind, err)
		}
		h.ended()
		if n, c := seen.ended.Load(), seen.charged.Load(); n != 0 || c != 0 || seen.decided.Load() != 0 {
			t.Errorf("%s: %d ends, %d tokens", kind, n, c)
		}
		e = h.begin(chatBody)
		e.answer("200", "content-type", "application/json")
		e.pass(`{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`, true)
		_ = e.hangUp(true)
		h.ended()
		if c := seen.charged.Load(); c != 11 {
			t.Errorf("%s: the next call was charged %d", kind, c)
		}
		busy(t, d, 0, 0)
	}
}

// TestInsideAnAnswer: errors inside a 200, totals of single choices, absurd
// counts and answers without text, as they are charged and told to the breaker.
func TestInsideAnAnswer(t *testing.T) {
	const prompt, role = 2, `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	total := func(i, n int) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":"a"}}],"usage":{"prompt_tokens":20,"completion_tokens":%d}}`+"\n\n", i, n)
	}
	for _, tc := range []struct {
		name, ask, answer string
		cut               bool
		result            admission.Result
		charge            int64
	}{
		{"no JSON under event: error", "", role + "event: error\ndata: overloaded\n\n", false, admission.ResultFailed, 0},
		{"[DONE] in the same event", "", "data: {\"error\":{\"message\":\"m\"}}\ndata: [DONE]\n\n", false, admission.ResultFailed, 0},
		{"a bare body", "", role + `{"error":{"message":"m"}}`, false, admission.ResultFailed, 0},
		{"a field error", "", "error: {\"code\":500}\n\n", false, admission.ResultFailed, 0},
		{"base_resp", "", `data: {"choices":null,"base_resp":{"status_code":1008}}` + "\n\n", false, admission.ResultFailed, 0},
		{"whole without text", "", role + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n", false, admission.ResultOK, prompt},
		{"cut without text", "", role, true, admission.ResultUnknown, prompt},
		{"two choices, cut", `"n":2,`, total(0, 1) + total(1, 1) + total(0, 7) + total(1, 5), true, admission.ResultUnknown, 20 + 12},
		{"absurd", "", `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9200000000000000000,"completion_tokens":9200000000000000000}}` + "\n\ndata: [DONE]\n\n", false, admission.ResultOK, prompt + 1},
		{"x_groq", "", role + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"usage":{"prompt_tokens":9,"completion_tokens":4}}}` + "\n\ndata: [DONE]\n\n", false, admission.ResultOK, 13},
	} {
		h, d, seen := openReal(t, rules())
		e := h.begin(`{"model":"deepseek-v4","stream":true,` + tc.ask + `"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}`)
		e.answer("200", "content-type", "text/event-stream")
		for _, piece := range []string{tc.answer[:len(tc.answer)/2], tc.answer[len(tc.answer)/2:]} {
			e.pass(piece, false)
		}
		if !tc.cut {
			e.pass("", true)
		}
		_ = e.hangUp(!tc.cut)
		h.ended()
		if c := seen.charged.Load(); c != tc.charge || seen.last.Result != tc.result {
			t.Errorf("%s: charged %d, ended %s; want %d, %s", tc.name, c, seen.last.Result, tc.charge, tc.result)
		}
		busy(t, d, 0, 0)
	}
}
