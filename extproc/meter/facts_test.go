package meter

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// Whose fault an error inside an answer is (B6).
func TestErrors(t *testing.T) {
	tests := []struct {
		name      string
		status    int
		code      string
		number    int
		caller    bool
		delivered bool
	}{
		{"streams/openai_chat_error_first_event.sse", 200, "400", 400, true, false},
		{"streams/openai_chat_error_midway.sse", 200, "500", 500, false, true},
		{"streams/openai_chat_error_chunk_empty_choices.sse", 200, "502", 502, false, false},
		{"streams/vllm_error_in_stream.sse", 200, "500", 500, false, false},
		{"streams/anthropic_error_midway.sse", 200, "", 0, false, true},
		{"streams/responses_error_event.sse", 200, "server_is_overloaded", 0, false, true},
		{"streams/responses_failed_without_usage.sse", 200, "invalid_prompt", 0, true, false},
		{"streams/responses_failed_with_usage.sse", 200, "server_error", 0, false, true},
		{"streams/tgi_generate_stream_error.sse", 200, "", 0, false, true},
		{"streams/sglang_generate_abort.sse", 200, "500", 500, false, true},
		{"responses/error_inside_http_200.json", 200, "502", 502, false, false},
		{"responses/error_openai_400_context.json", 400, "context_length_exceeded", 0, true, false},
		{"responses/error_openai_429.json", 429, "rate_limit_exceeded", 0, false, false},
		{"responses/error_vllm_400.json", 400, "400", 400, true, false},
		{"responses/error_anthropic_529.json", 529, "", 0, false, false},
		{"responses/error_fastapi_detail.json", 422, "", 0, true, false},
		{"responses/error_problem_json.json", 429, "429", 429, false, false},
		{"responses/error_string.json", 0, "", 0, false, false},
	}
	for _, tt := range tests {
		o := Options{Status: tt.status}
		f, _ := run(o, read(t, tt.name))
		if f.End != Error || f.ErrorCode != tt.code || f.ErrorStatus != tt.number || f.CallerFault != tt.caller || f.Delivered != tt.delivered {
			t.Errorf("%s: got end %d, code %q (%d), caller %t, delivered %t; want %q (%d), %t, %t", tt.name,
				f.End, f.ErrorCode, f.ErrorStatus, f.CallerFault, f.Delivered, tt.code, tt.number, tt.caller, tt.delivered)
		}
		counted := f.Known != KnownNothing
		if u := f.Usage(10, 20); u.Refund != (!tt.delivered && !counted) {
			t.Errorf("%s: refund %t", tt.name, u.Refund)
		}
	}
}

// What the desk settles by.
func TestUsage(t *testing.T) {
	tests := []struct {
		name string
		o    Options
		want admission.Usage
	}{
		{"streams/openai_chat_usage_final.sse", Options{}, admission.Usage{Known: true, InputKnown: true, Input: 12, Output: 11}},
		{"responses/chat_cached_and_reasoning.json", Options{}, admission.Usage{Known: true, InputKnown: true, Input: 1200, Output: 310, Cached: 1024, Reasoning: 256}},
		{"responses/chat_total_only.json", Options{}, admission.Usage{Total: 77, Output: 67}},
		{"responses/embeddings_array.json", Options{Kind: policy.OpenAIEmbeddings}, admission.Usage{Known: true, InputKnown: true, Input: 21}},
		{"responses/anthropic_count_tokens.json", Options{}, admission.Usage{Refund: true}},
		{"streams/responses_failed_with_usage.sse", Options{}, admission.Usage{Known: true, InputKnown: true, Input: 30, Output: 7}},
		// booked at the cap where the count is far above it
		{"responses/chat_usage_over_int32.json", Options{MaxOut: 200}, admission.Usage{Known: true, InputKnown: true, Input: 3_000_000_000, Output: 200, Capped: true}},
		{"responses/chat_usage_over_int32.json", Options{MaxOut: 2_000_000_000}, admission.Usage{Known: true, InputKnown: true, Input: 3_000_000_000, Output: 2_500_000_000}},
		// estimated from the text
		{"streams/openai_chat_no_usage.sse", Options{}, admission.Usage{Output: 10}},
		{"streams/openai_chat_usage_asked_never_sent.sse", Options{}, admission.Usage{Output: 10}},
		{"streams/tgi_generate_stream_no_details.sse", Options{}, admission.Usage{Output: 6}},
		{"streams/triton_generate_stream.sse", Options{}, admission.Usage{Output: 3}},
	}
	for _, tt := range tests {
		f, _ := run(tt.o, read(t, tt.name))
		if got := f.Usage(10, 900); got != tt.want {
			t.Errorf("%s: got  %+v\nwant %+v", tt.name, got, tt.want)
		}
	}
	// A count beyond the cap that the text bears out: the engine did not obey.
	long := `{"choices":[{"message":{"content":"` + strings.Repeat("word ", 4000) + `"}}],"usage":{"prompt_tokens":9,"completion_tokens":4000}}`
	if f, _ := run(Options{MaxOut: 1}, []byte(long)); f.Usage(10, 1).Output < 3500 || f.Usage(10, 1).Output > 4000 {
		t.Errorf("4000 tokens were delivered, and %d are charged", f.Usage(10, 1).Output)
	}
	f, _ := run(Options{MaxOut: 200}, read(t, "responses/chat_usage_over_int32.json"))
	if !f.Implausible || f.Output != 2_500_000_000 {
		t.Errorf("facts must keep the count and flag it: %+v", f)
	}
}

// T8 on abort: the charge grows with what was delivered; text read to its end
// but for the usage chunk is charged at 80 % of the count or more.
func TestAborted(t *testing.T) {
	data := read(t, "streams/openai_chat_usage_final.sse")
	events := bytes.SplitAfter(data, []byte("\n\n"))
	m := New(Options{ContentType: sse})
	defer m.Close()
	last := int64(-1)
	for _, e := range events[1:8] { // up to the last text
		m.Write(e, false)
		f := m.Facts()
		if u := f.Usage(0, 4000); u.Known || u.Output < last || f.Terminal || f.End != Cut {
			t.Errorf("output %d after %d: %+v", u.Output, last, f)
		} else {
			last = u.Output
		}
	}
	if last*10 < 11*8 {
		t.Errorf("charged %d of 11", last)
	}
	// Cut before the first text: the input alone.
	m = New(Options{ContentType: sse})
	defer m.Close()
	m.Write(events[0], false)
	if u := m.Facts().Usage(10, 4000); !u.Known || u.InputKnown || u.Output != 0 || u.Refund {
		t.Errorf("nothing delivered yet: %+v", u)
	}
	// Reasoning counts, as do the arguments of tool calls.
	for _, name := range []string{"streams/openai_chat_reasoning_content.sse", "streams/openai_chat_tool_calls.sse", "streams/anthropic_thinking_and_tool.sse"} {
		d := read(t, name)
		f, _ := run(Options{ContentType: sse}, d[:bytes.LastIndex(d, []byte(`"usage":{`))])
		if f.TextTokens < 8 {
			t.Errorf("%s: %d tokens of text", name, f.TextTokens)
		}
	}
	// 500 running totals: the last one, plus the text that came after it.
	m = New(Options{ContentType: sse})
	defer m.Close()
	for i := range 500 {
		fmt.Fprintf(writer{m}, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d}}\n\n", i+1)
	}
	if u := m.Facts().Usage(0, 4000); u.Output != 500 || u.Input != 9 || !u.Known {
		t.Errorf("running totals: %+v", u)
	}
	fmt.Fprint(writer{m}, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
	if u := m.Facts().Usage(0, 4000); u.Output != 501 || u.Known {
		t.Errorf("text after the last total: %+v", u)
	}
	// A usage pause is no end: counts are taken when they come.
	m = New(Options{ContentType: sse})
	defer m.Close()
	at := bytes.LastIndex(data, []byte("data: {"))
	m.Write(data[:at], false)
	if f := m.Facts(); f.Known != KnownNothing || f.Terminal {
		t.Errorf("before the usage chunk: %+v", f)
	}
	m.Write(data[at:], false)
	if f := m.Facts(); f.Output != 11 || !f.Terminal || f.End != Complete {
		t.Errorf("after it: %+v", f)
	}
	// A JSON answer that is cut: its text so far.
	d := read(t, "responses/chat_basic.json")
	f, _ := run(Options{ContentType: "application/json"}, d[:len(d)/2+40])
	if f.End != Cut || !f.Delivered || f.TextTokens < 5 {
		t.Errorf("cut JSON: %+v", f)
	}
}

type writer struct{ m *Meter }

func (w writer) Write(p []byte) (int, error) {
	w.m.Write(p, false)
	return len(p), nil
}

// The estimate of text: CJK at half a token or more a character, words and
// code near what vocabularies make of them.
func TestTextEstimate(t *testing.T) {
	tests := []struct {
		text     string
		min, max int64
	}{
		{"a", 1, 1},
		{" ", 1, 1},
		{"Because the cargo moved.", 5, 6},
		{"one, two, three, four, five.", 10, 11},
		{"internationalization", 2, 4},
		{"3.14159 and 2026", 6, 9},
		{`{"pier":9}`, 4, 7},
		{strings.Repeat("港", 3000), 1500, 3000},
		{"🚢🚢", 3, 6},
		{"\n\n\n", 1, 1},
		{strings.Repeat("=", 40), 10, 24},
	}
	for _, tt := range tests {
		var c textCount
		c.begin()
		c.add([]byte(tt.text))
		if got := c.tokens(); got < tt.min || got > tt.max {
			t.Errorf("%.20q: %d tokens, want %d to %d", tt.text, got, tt.min, tt.max)
		}
	}
	// Escapes count as the characters they stand for.
	var plain, escaped textCount
	plain.add([]byte("é港🚢\n\"x"))
	for _, u := range []rune{0xE9, 0x6E2F, 0xD83D, 0xDEA2, '\n', '"', 'x'} {
		escaped.addUnit(u)
	}
	if plain != escaped {
		t.Errorf("plain %+v, escaped %+v", plain, escaped)
	}
}

// Numbers as backends write them.
func TestNumber(t *testing.T) {
	tests := []struct {
		in   string
		want int64
		ok   bool
	}{
		{"0", 0, true}, {"12", 12, true}, {"12.0", 12, true}, {"1.5e1", 15, true}, {"1.2", 2, true},
		{"3000000000", 3_000_000_000, true}, {"9223372036854775807", 1<<63 - 1, true},
		{"-1", 0, false}, {"1e99", 0, false}, {"9223372036854775808", 0, false}, {"null", 0, false}, {"true", 0, false}, {"nan", 0, false}, {"-", 0, false},
	}
	for _, tt := range tests {
		if v, ok := number([]byte(tt.in)); ok != tt.ok || ok && v != tt.want {
			t.Errorf("%s: %d %t, want %d %t", tt.in, v, ok, tt.want, tt.ok)
		}
	}
}

// Close ends the decoder's coroutine in the middle of an answer (goleak).
func TestCloseInMidAnswer(t *testing.T) {
	_, pieces := gzipped(read(t, "streams/openai_chat_usage_final.sse"))
	for range 100 {
		m := New(Options{ContentType: sse, ContentEncoding: "gzip"})
		m.Write(pieces[0], false)
		m.Close()
		m.Close()
		m.Write(pieces[1], true)
		if f := m.Facts(); f.Events != 1 {
			t.Fatalf("got %+v", f)
		}
	}
}
