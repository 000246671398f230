package meter

import (
	"bytes"
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

// Counts that no model can have made are none: the estimate is charged.
func TestAbsurdUsage(t *testing.T) {
	o := Options{Kind: policy.OpenAIChat, Status: 200, ContextLimit: 100_000, OutputLimit: 10_000}
	usage := func(prompt, completion, total string) string {
		return `{"prompt_tokens":` + prompt + `,"completion_tokens":` + completion + `,"total_tokens":` + total + `}`
	}
	long := strings.Repeat("9", 70)
	absurd := []string{
		usage("9200000000000000000", "9200000000000000000", "9"), usage("9223372036854775807", "1", "1"),
		usage("1", "9223372036854775807", "1"), usage("1", "9223372036854775808", "1"), usage("100001", "5", "6"), usage("5", "10001", "6"),
		usage("5", "5", "110001"), usage("-1", "5", "6"), usage("5", "-5", "0"), usage("5", "1e30", "6"), usage("1e999", "5", "6"),
		usage("5", long, "6"), usage("5", "-0.5", "6"), usage("5", "10000.5", "6"), `{"total_tokens":9e18}`, `{"total_tokens":110001}`,
		`{"prompt_tokens":5,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":-3}}`,
		`{"prompt_tokens":5,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":1e40}}`,
		`{"input_tokens":5,"cache_read_input_tokens":9223372036854775807,"output_tokens":2}`,
		`{"input_tokens":5,"cache_read_input_tokens":9223372036854775807,"cache_creation_input_tokens":9223372036854775807,"output_tokens":2}`,
	}
	for _, u := range absurd {
		for _, text := range []string{"one two three", ""} {
			body := `{"choices":[{"index":0,"message":{"content":"` + text + `"},"finish_reason":"stop"}],"usage":` + u + `}`
			o.ContentType = "application/json"
			f := everyWay(t, o, body)
			o.ContentType = sse
			fs := everyWay(t, o, "data: "+body+"\n\n"+done)
			want := admission.Usage{Implausible: true}
			if text != "" {
				want.Output = 3
			}
			if got := f.Usage(20, 512); got != want || !f.Absurd {
				t.Errorf("%s: %+v, want %+v", u, got, want)
			}
			if got := fs.Usage(20, 512); got != want || !fs.Absurd {
				t.Errorf("%s in a stream: %+v, want %+v", u, got, want)
			}
		}
	}
	// At the bounds, and with more of everything, it is believed.
	for _, tt := range []struct {
		o Options
		u string
	}{
		{o, usage("100000", "10000", "110000")},
		{o, usage("5", "9999.5", "10005")},
		{o, usage("5", `"seven"`, "12")}, // a string is no count
		{Options{ContextLimit: 100_000, OutputLimit: 10_000, MaxOut: 50_000}, usage("5", "50000", "50005")},
		{Options{ContextLimit: 100_000, OutputLimit: 10_000, Choices: 8}, usage("5", "80000", "80005")},
		{Options{ContextLimit: 100_000, OutputLimit: 10_000, Choices: 4, Prompts: 4}, usage("400000", "40000", "440000")},
		{Options{}, usage("3000000000", "2500000000", "5500000000")},
	} {
		tt.o.ContentType = "application/json"
		if f := everyWay(t, tt.o, `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":`+tt.u+`}`); f.Absurd || f.Known != KnownAll {
			t.Errorf("%s: %+v", tt.u, f)
		}
	}
	// A sane count of the whole stands for running totals that were not.
	o.ContentType = sse
	f := everyWay(t, o, "data: "+`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":`+usage("5", "-1", "4")+"}\n\n"+
		"data: "+`{"choices":[],"usage":`+usage("5", "7", "12")+"}\n\n"+done)
	if u := f.Usage(20, 512); f.Absurd || u.Output != 7 || u.Input != 5 {
		t.Errorf("mended by the last count: %+v", f)
	}
}

// What never comes to the end of its line, or of its document, is charged by
// the bytes that passed.
func TestWithoutLineEnd(t *testing.T) {
	const size = 1 << 20
	fill := strings.Repeat("x ", size/2)
	for name, head := range map[string]string{
		"data":        "data: ",
		"JSON":        `data: {"choices":[{"index":0,"delta":{"content":"`,
		"other JSON":  `data: {"id":"`,
		"a comment":   ": ",
		"a name":      "",
		"other field": "id: ",
		"behind text": role + hello + `data: {"choices":[{"index":0,"delta":{"content":"`,
		"bare":        `{"error":{"message":"`,
	} {
		m := New(Options{ContentType: sse, Status: 200})
		fmt.Fprint(writer{m}, head)
		for chunk := range bytesOf(fill, 60_000) {
			m.Write(chunk, false)
		}
		f := m.Facts()
		if u := f.Usage(15, 512); u.Output < size/4 || u.Output > size || u.Refund {
			t.Errorf("%s: %d tokens for %d bytes", name, u.Output, size)
		}
		m.Write(nil, true)
		m.Close()
		if u := m.Facts().Usage(15, 512); u.Output < size/4 || u.Output > size || u.Refund {
			t.Errorf("%s, ended: %d tokens for %d bytes", name, u.Output, size)
		}
	}
	// The same of documents, and of events that hold nothing known.
	for name, tt := range map[string]struct{ media, body string }{
		"a document": {"application/json", `{"id":"` + fill},
		"its text":   {"application/json", `{"choices":[{"message":{"content":"` + fill},
		"a comment":  {sse, ": " + fill + "\n\n" + done},
		"an event":   {sse, `data: {"x":"` + fill + "\"}\n\n" + done},
		"a field":    {sse, "x: " + fill + "\r\n\r\n"},
	} {
		f, _ := run(Options{ContentType: tt.media, Status: 200}, []byte(tt.body))
		two, _ := run(Options{ContentType: tt.media, Status: 200}, []byte(tt.body[:len(tt.body)-3]), []byte(tt.body[len(tt.body)-3:]))
		if u := f.Usage(15, 512); u.Output < size/8 || u.Output > size || f != two {
			t.Errorf("%s: %d tokens for %d bytes\n%+v\n%+v", name, u.Output, size, f, two)
		}
	}
	// An ordinary event that is cut costs nothing yet.
	m := New(Options{ContentType: sse})
	defer m.Close()
	fmt.Fprint(writer{m}, role+hello+`data: {"choices":[{"index":0,"delta":{"content":"wor`)
	if u := m.Facts().Usage(15, 512); u.Output != 1 {
		t.Errorf("in the middle of an event: %+v", u)
	}
}

func bytesOf(s string, n int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(s) > 0 {
			k := min(n, len(s))
			if !yield([]byte(s[:k])) {
				return
			}
			s = s[k:]
		}
	}
}

// An answer in a coding that is not read is charged by its bytes, and by the
// estimate at least.
func TestUnreadByBytes(t *testing.T) {
	data := bytes.Repeat([]byte{0x8b, 0x02, 0x80, 0x61}, 25_000)
	for coding, want := range map[string]int64{"br": 25_000, "zstd": 25_000, "deflate": 25_000, "gzip, br": 25_000, "gzip": (100_000 - DefaultMaxEvent) / 8} {
		f, _ := run(Options{ContentType: sse, ContentEncoding: coding, Status: 200}, data)
		if u := f.Usage(15, 512); u.Output != want || !u.Unreadable || u.Known {
			t.Errorf("%s: %+v, want %d", coding, u, want)
		}
		if u := f.Usage(15, 100_000); u.Output != 100_000 {
			t.Errorf("%s: %+v, want the estimate", coding, u)
		}
	}
}

// FuzzCharge: whatever an upstream says and however it is cut, what is charged
// is not negative, not above what the model and the bytes allow, and the same.
func FuzzCharge(f *testing.F) {
	for _, x := range fixtures(f) {
		f.Add(x.data, uint16(9), uint8(1), x.options().ContentType == sse)
	}
	f.Add([]byte(`data: {"choices":[{"index":5}],"usage":{"prompt_tokens":9e18,"completion_tokens":9e18}}`+"\n\n"), uint16(3), uint8(8), true)
	f.Add([]byte(`{"error":"x"}`), uint16(3), uint8(1), true)
	f.Add([]byte("data: {}\ndata: [DONE]\nevent: error\n\nerror: {\n"), uint16(3), uint8(2), true)
	f.Fuzz(func(t *testing.T, data []byte, cut uint16, choices uint8, stream bool) {
		o := Options{ContentType: "application/json", Kind: policy.OpenAIChat, Choices: int64(choices), ContextLimit: 1000, OutputLimit: 500}
		if stream {
			o.ContentType = sse
		}
		i := int(cut) % (len(data) + 1)
		whole, _ := run(o, data)
		two, _ := run(o, data[:i], data[i:])
		if whole != two {
			t.Fatalf("cut at %d:\n%+v\n%+v", i, whole, two)
		}
		u := whole.Usage(100, 512)
		most := max(500*max(int64(choices), 1), 512, 4*int64(len(data)))
		if u.Input < 0 || u.Output < 0 || u.Total < 0 || u.Cached < 0 || u.Reasoning < 0 ||
			u.Input > 1000 || u.Output > most || u.Total > 1000+most || u.Cached > u.Input || u.Reasoning > u.Output {
			t.Fatalf("%q: %+v", data, u)
		}
	})
}
