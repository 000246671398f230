package meter

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

const (
	role  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	hello = `data: {"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}` + "\n\n"
	stop  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

// everyWay feeds the data whole, byte by byte, cut in two at each byte, and
// without an end, and holds the facts against one another.
func everyWay(t *testing.T, o Options, data string) Facts {
	t.Helper()
	whole, on := run(o, []byte(data))
	if !o.HideUsage && string(on) != data {
		t.Errorf("%.60q: bytes changed", data)
	}
	single, _ := run(o, bytewise([]byte(data))...)
	if single != whole {
		t.Errorf("%.80q, byte by byte:\ngot  %+v\nwant %+v", data, single, whole)
	}
	for i := 0; i < len(data); i += 1 + len(data)/400 {
		if two, _ := run(o, []byte(data[:i]), []byte(data[i:])); two != whole {
			t.Fatalf("%.80q, cut at %d:\ngot  %+v\nwant %+v", data, i, two, whole)
		}
	}
	return whole
}

// B6: errors inside an answer of status 200 that are no event of their own.
// They are failures, and given back where nothing was delivered.
func TestErrorsInside(t *testing.T) {
	errors := []struct{ name, body string }{
		{"no JSON under event: error", "event: error\ndata: upstream overloaded\n\n"},
		{"the type behind the data", "data: upstream overloaded\nevent: error\n\n"},
		{"nothing under event: error", "event: error\n\n"},
		{"Error", "event: Error\ndata: {\"message\":\"x\"}\n\n"},
		{"without a space", "event:error\ndata:x y\n\n"},
		{"CRLF", "event: error\r\ndata: overloaded\r\n\r\n"},
		{"several lines that are no JSON", "event: error\ndata: a\ndata: b\n\n"},
		{"[DONE] under event: error", "event: error\ndata: [DONE]\n\n"},
		{"[DONE] in the same event", "data: {\"error\":{\"message\":\"m\",\"code\":500}}\ndata: [DONE]\n\n"},
		{"[DONE] in the same event of type error", "event: error\ndata: {\"message\":\"m\"}\ndata: [DONE]\n\n"},
		{"[DONE] before it in the same event", "data: [DONE]\ndata: {\"error\":\"m\"}\n\n"},
		{"no blank line at the end", "event: error\ndata: overloaded"},
		{"a bare body", `{"error":{"message":"m","type":"server_error","code":500}}`},
		{"a bare body, printed over lines", "{\n  \"error\": {\n    \"message\": \"m\",\n    \"code\": 500\n  }\n}\n"},
		{"a bare body of vLLM", `{"object":"error","message":"m","type":"InternalServerError","code":500}` + "\n"},
		{"a bare body of FastAPI", `{"detail":"Internal"}`},
		{"a bare body of type error", `{"type":"error","message":"x"}` + "\n\n" + done},
		{"a field error", "error: {\"code\":500,\"message\":\"m\",\"type\":\"server_error\"}\n\n"},
		{"a field error that is no JSON", "error: overloaded\n\n"},
		{"a field error without a value", "error\n\n"},
		{"a field error without a value, before another", "error\ndata: {\"x\":1}\n\n"},
		{"a field error that is cut", "error: {\"code\":500"},
		{"base_resp", `data: {"choices":null,"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}` + "\n\n"},
		{"base_resp beside a role", `data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"base_resp":{"status_code":1002}}` + "\n\n"},
		{"groq", `data: {"choices":[],"x_groq":{"id":"r","error":"over capacity"}}` + "\n\n"},
	}
	const counted = `data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"usage":{"prompt_tokens":15,"completion_tokens":0,"total_tokens":15}}` + "\n\n"
	for _, tt := range errors {
		for before, delivered := range map[string]bool{"": false, role: false, counted: false, ": wait\n\n" + role: false, role + hello: true} {
			for _, after := range []string{"", done} {
				f := everyWay(t, Options{ContentType: sse, Status: 200, Kind: policy.OpenAIChat}, before+tt.body+after)
				u := f.Usage(15, 512)
				if f.End != Error || f.CallerFault || f.Delivered != delivered || u.Refund == delivered {
					t.Errorf("%s behind %q: end %d, caller's %t, delivered %t; %+v", tt.name, before, f.End, f.CallerFault, f.Delivered, u)
				}
			}
		}
	}
	whole := []struct {
		name, body string
		caller     bool
	}{
		{"base_resp", `{"id":"x","choices":null,"created":1,"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}`, false},
		{"base_resp and zeros", `{"choices":null,"usage":{"total_tokens":0},"base_resp":{"status_code":1013}}`, false},
		{"base_resp for the parameters", `{"choices":null,"base_resp":{"status_code":2013}}`, true},
	}
	for _, tt := range whole {
		f := everyWay(t, Options{ContentType: "application/json", Status: 200}, tt.body)
		if u := f.Usage(15, 512); f.End != Error || f.CallerFault != tt.caller || !u.Refund {
			t.Errorf("%s: %+v, %+v", tt.name, f, u)
		}
	}
	for _, body := range []string{`{"error":{"message":"m","code":500}}`, ` {"object":"error","message":"m"}` + "\n", `{"code":503,"message":"m"}`} {
		for _, media := range []string{"text/plain", "text/html; charset=utf-8", "application/octet-stream", sse, "application/json", ""} {
			f := everyWay(t, Options{ContentType: media, Status: 200}, body)
			if u := f.Usage(15, 512); f.End != Error || f.CallerFault || !u.Refund {
				t.Errorf("%s as %q: %+v, %+v", body, media, f, u)
			}
		}
	}
	// An upstream that began in its own way, and nothing delivered either.
	for _, begin := range []string{
		"event: message_start\n" + `data: {"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}` + "\n\n",
		`data: {"type":"response.created","response":{"usage":null}}` + "\n\n",
		`data: {"id":"x","object":"chat.completion.chunk","choices":[],"usage":null}` + "\n\n",
	} {
		f := everyWay(t, Options{ContentType: sse, Status: 200}, begin+"event: error\ndata: overloaded\n\n")
		if u := f.Usage(15, 512); f.End != Error || f.Delivered || !u.Refund {
			t.Errorf("behind %q: %+v, %+v", begin, f, u)
		}
	}
	fine := []string{
		role + hello + stop + done,
		role + "event: message\n" + hello + done,
		`data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}],"base_resp":{"status_code":0,"status_msg":""}}` + "\n\n",
		"event: error_free\n" + hello + stop + done,
	}
	for _, body := range fine {
		if f := everyWay(t, Options{ContentType: sse, Status: 200}, body); f.End == Error || !f.Delivered {
			t.Errorf("%q: %+v", body, f)
		}
	}
}

// Several documents in one event are each read; what is hidden stays whole.
func TestDocumentsInOneEvent(t *testing.T) {
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}` + "\n"
	line := strings.TrimSuffix(hello, "\n")
	for _, tt := range []struct{ in, want string }{
		{line + line + usage + "data: [DONE]\n\n", line + line + usage + "data: [DONE]\n\n"},
		{line + "\n" + usage + "data:\ndata:\n\n" + done, line + "\n" + done},
		{line + "\n" + usage + usage + "\n" + done, line + "\n" + done},
		{line + usage + "\n" + done, line + usage + "\n" + done},
		{line + "\n" + usage + line + "\n" + done, line + "\n" + usage + line + "\n" + done},
	} {
		o := Options{ContentType: sse, HideUsage: true}
		f := everyWay(t, o, tt.in)
		if f.Known != KnownAll || f.Input != 4 || f.Output != 2 || f.TextTokens < 1 || f.Unreadable {
			t.Errorf("%q: %+v", tt.in, f)
		}
		for i := range tt.in {
			if _, on := run(o, []byte(tt.in[:i]), []byte(tt.in[i:])); string(on) != tt.want {
				t.Fatalf("%q cut at %d: %q went on", tt.in, i, on)
			}
		}
	}
}

// What was delivered counts: an answer that is whole costs no more than the
// same one cut.
func TestNoText(t *testing.T) {
	nothing := admission.Usage{Known: true}
	for _, tt := range []struct {
		media, body string
		want        admission.Usage
	}{
		{sse, role, nothing},
		{sse, role + stop, nothing},
		{sse, role + stop + done, nothing},
		{sse, stop + done, nothing},
		{sse, done, nothing},
		{sse, ": ping\n\n" + done, nothing},
		{sse, `data: {"choices":[{"text":"","index":0,"finish_reason":"stop"}]}` + "\n\n" + done, nothing},
		{sse, "event: message_start\n" + `data: {"type":"message_start","message":{}}` + "\n\n" + `data: {"type":"message_stop"}` + "\n\n", nothing},
		{"application/json", `{"choices":[{"index":0,"message":{"role":"assistant","content":null},"finish_reason":"stop"}]}`, nothing},
		{"application/json", `{"choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}`, nothing},
		{sse, role + hello + stop + done, admission.Usage{Output: 1}},
		{"application/json", `{"result":"who knows"}`, admission.Usage{}}, // of no known API
	} {
		f := everyWay(t, Options{ContentType: tt.media, Status: 200, Kind: policy.OpenAIChat}, tt.body)
		if u := f.Usage(15, 512); u != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.body, u, tt.want)
		}
	}
}

// Running totals of the single choices: the answer's output is their sum.
func TestTotalsByChoice(t *testing.T) {
	chunk := func(index, prompt, output int) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":"a"}}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n",
			index, prompt, output, prompt+output)
	}
	o := Options{ContentType: sse, Kind: policy.OpenAIChat, Choices: 2, MaxOut: 4096}
	two := chunk(0, 20, 1) + chunk(1, 20, 1) + chunk(0, 20, 4) + chunk(1, 20, 3) + chunk(0, 20, 7) + chunk(1, 20, 5)
	f := everyWay(t, o, two)
	if u := f.Usage(99, 512); u.Input != 20 || u.Output != 12 || !u.Known || f.Terminal {
		t.Errorf("two choices: %+v", u)
	}
	f = everyWay(t, o, two+`data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":13,"total_tokens":33}}`+"\n\n"+done)
	if u := f.Usage(99, 512); u.Input != 20 || u.Output != 13 {
		t.Errorf("the count of the whole replaces them: %+v", u)
	}
	for _, n := range []int{1, 16, 128, 1024} {
		var b strings.Builder
		for round := 1; round <= 4; round++ {
			for i := range n {
				b.WriteString(chunk(i, 20, round*10))
			}
		}
		for _, asked := range []int64{0, int64(n)} {
			f, _ := run(Options{ContentType: sse, Choices: asked}, []byte(b.String()))
			if f.Input != 20 || f.Output != int64(n)*40 {
				t.Errorf("%d choices: %d and %d", n, f.Input, f.Output)
			}
		}
	}
	// One prompt of several is not the whole input: the estimate stands.
	f = everyWay(t, Options{ContentType: sse, Kind: policy.OpenAICompletions, Choices: 2, Prompts: 2}, chunk(0, 5, 3)+chunk(1, 9, 4))
	if u := f.Usage(14, 512); u.InputKnown || u.Output != 7 {
		t.Errorf("two prompts: %+v", u)
	}
	// An index beyond what was asked for adds up to nothing.
	f, _ = run(Options{ContentType: sse, Choices: 1}, []byte(chunk(0, 5, 3)+chunk(1, 5, 4)+chunk(2, 5, 5)))
	if f.Output != 5 {
		t.Errorf("an index that counts chunks: %d", f.Output)
	}
	m := New(Options{ContentType: sse})
	defer m.Close()
	for i := range 100 {
		fmt.Fprint(writer{m}, chunk(math.MaxInt-i, 5, 7))
	}
	if f := m.Facts(); f.Output != 7 || len(m.sum.each.rest) > maxChoices {
		t.Errorf("odd indices: %d in %d", f.Output, len(m.sum.each.rest))
	}
}

// Usage where Groq and Moonshot have it, also where nothing else has any.
func TestUsageBeside(t *testing.T) {
	const u = `{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}`
	const choice = `{"index":0,"delta":{},"finish_reason":"stop"}`
	for _, body := range []string{
		`{"choices":[` + choice + `],"x_groq":{"id":"r","usage":` + u + `}}`,
		`{"choices":[` + choice + `],"usage":null,"x_groq":{"usage":` + u + `}}`,
		`{"choices":[` + choice + `],"usage":` + u + `,"x_groq":{"usage":{}}}`,
		`{"choices":[` + choice + `],"x_groq":{"usage":{"prompt_tokens":0,"completion_tokens":0}},"usage":` + u + `}`,
		`{"choices":[` + choice + `],"usage":` + u + `,"x_groq":{"usage":` + u + `}}`,
		`{"choices":[{"index":0,"finish_reason":"stop","usage":` + u + `}]}`,
	} {
		for _, o := range []Options{{ContentType: sse}, {ContentType: "application/json"}} {
			data := body
			if o.ContentType == sse {
				data = role + hello + "data: " + body + "\n\n" + done
			}
			if f := everyWay(t, o, data); f.Known != KnownAll || f.Input != 9 || f.Output != 4 || f.End != Complete {
				t.Errorf("%s: %+v", data, f)
			}
		}
	}
}
