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
		{Options{ContextLimit: 100_000, OutputLimit: 10_000, MaxOut: math.MaxInt64}, usage("5", "100000", "100005")},
		{Options{}, usage("3000000000", "2500000000", "5500000000")},
	} {
		tt.o.ContentType = "application/json"
		if f := everyWay(t, tt.o, `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":`+tt.u+`}`); f.Absurd || f.Known != KnownAll {
			t.Errorf("%s: %+v", tt.u, f)
		}
	}
	// A cap of the caller's is no reason to believe more than the context.
	f := everyWay(t, Options{ContextLimit: 1000, OutputLimit: 100, MaxOut: math.MaxInt64, ContentType: sse}, "data: "+`{"choices":[{"index":0,"finish_reason":"stop"}],"usage":`+usage("5", "1001", "6")+"}\n\n")
	if !f.Absurd {
		t.Errorf("beyond the context: %+v", f)
	}
	// A sane count of the whole stands for running totals that were not.
	o.ContentType = sse
	f = everyWay(t, o, "data: "+`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":`+usage("5", "-1", "4")+"}\n\n"+
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
