package meter

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

const sse = "text/event-stream"

// The forms of lines that event streams may have (WHATWG HTML 9.2.6).
func TestLineForms(t *testing.T) {
	data := string(read(t, "streams/openai_chat_usage_final.sse"))
	want, _ := run(Options{ContentType: sse}, []byte(data))
	if want.Output != 11 || want.TextTokens < 6 {
		t.Fatalf("got %+v", want)
	}
	forms := map[string]string{
		"CRLF":              strings.ReplaceAll(data, "\n", "\r\n"),
		"CR":                strings.ReplaceAll(data, "\n", "\r"),
		"mixed":             strings.ReplaceAll(data, "}\n\n", "}\r\n\n"),
		"byte order mark":   "\xef\xbb\xbf" + data,
		"no space":          strings.ReplaceAll(data, "data: ", "data:"),
		"comments":          strings.ReplaceAll(data, "data: ", ": keep-alive\n:\ndata: "),
		"other fields":      strings.ReplaceAll(data, "data: ", "id: 7\nretry: 3\nevent: message\ndata: "),
		"two data lines":    strings.ReplaceAll(data, `"choices"`, "\ndata:\ndata: \"choices\""),
		"blank lines":       "\n\n" + strings.ReplaceAll(data, "\n\n", "\n\n\n\n"),
		"spaced JSON":       strings.ReplaceAll(data, `":`, `" : `),
		"no last blank":     strings.TrimRight(data, "\n"),
		"content type case": data,
	}
	for name, form := range forms {
		o := Options{ContentType: sse}
		if name == "content type case" {
			o.ContentType = "Text/Event-Stream;charset=UTF-8"
		}
		for how, chunks := range map[string][][]byte{"whole": {[]byte(form)}, "bytes": bytewise([]byte(form))} {
			got, on := run(o, chunks...)
			got.Bytes = want.Bytes
			if got != want {
				t.Errorf("%s, %s:\ngot  %+v\nwant %+v", name, how, got, want)
			}
			if string(on) != form {
				t.Errorf("%s, %s: bytes changed", name, how)
			}
		}
	}
}

// withoutUsageEvents is the reference for HideUsage: it drops the events that
// the fixtures end with.
func withoutUsageEvents(data []byte) []byte {
	var out [][]byte
	for _, event := range bytes.SplitAfter(data, []byte("\n\n")) {
		if bytes.Contains(event, []byte(`"choices":[],"usage":{`)) {
			continue
		}
		out = append(out, event)
	}
	return bytes.Join(out, nil)
}

// The chunk that we asked for is cut out by event, whatever the chunks.
func TestHideUsage(t *testing.T) {
	cut := 0
	for _, f := range fixtures(t) {
		o := f.options()
		plain, _ := run(o, f.data)
		o.HideUsage = true
		want := withoutUsageEvents(f.data)
		if len(want) < len(f.data) {
			cut++
		}
		check := func(how string, got Facts, on []byte) {
			t.Helper()
			if !bytes.Equal(on, want) {
				t.Fatalf("%s, %s:\ngot  %q\nwant %q", f.name, how, on, want)
			}
			if got != plain {
				t.Fatalf("%s, %s: facts %+v, want %+v", f.name, how, got, plain)
			}
		}
		got, on := run(o, f.data)
		check("whole", got, on)
		got, on = run(o, bytewise(f.data)...)
		check("byte by byte", got, on)
		for i := range f.data {
			if len(want) < len(f.data) {
				got, on = run(o, f.data[:i], f.data[i:])
				check(fmt.Sprint("cut at ", i), got, on)
			}
		}
	}
	if cut < 15 {
		t.Errorf("only %d fixtures have an event to cut", cut)
	}
}

func TestHideUsageForms(t *testing.T) {
	const one = `{"choices":[{"index":0,"delta":{"content":"a"}}]}`
	const usage = `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`
	tests := []struct{ name, in, want string }{
		{"LF", "data: " + one + "\n\ndata: " + usage + "\n\ndata: [DONE]\n\n", "data: " + one + "\n\ndata: [DONE]\n\n"},
		{"CRLF", "data: " + one + "\r\n\r\ndata: " + usage + "\r\n\r\ndata: [DONE]\r\n\r\n", "data: " + one + "\r\n\r\ndata: [DONE]\r\n\r\n"},
		{"CR", "data: " + one + "\r\rdata: " + usage + "\r\rdata: [DONE]\r\r", "data: " + one + "\r\rdata: [DONE]\r\r"},
		{"LF then CR", "data: " + usage + "\n\rdata: [DONE]\n\n", "data: [DONE]\n\n"},
		{"two lines", "data: {\"choices\":[],\ndata: \"usage\":{\"total_tokens\":2}}\n\ndata: [DONE]\n\n", "data: [DONE]\n\n"},
		{"first event", "data: " + usage + "\n\n: x\n\n", ": x\n\n"},
		{"spaced", "data: { \"usage\" : {\"total_tokens\" : 2}, \"choices\" : [ ] }\n\n", ""},
		{"zeros", "data: {\"choices\":[],\"usage\":{\"total_tokens\":0}}\n\n", ""},
		{"unfinished at the end", "data: " + usage, ""},
		{"usage is null", "data: {\"choices\":[],\"usage\":null}\n\n", "data: {\"choices\":[],\"usage\":null}\n\n"},
		{"no choices at all", "data: {\"usage\":{\"total_tokens\":2}}\n\n", "data: {\"usage\":{\"total_tokens\":2}}\n\n"},
		{"an error beside it", "data: {\"choices\":[],\"usage\":{\"total_tokens\":2},\"error\":{}}\n\n", "data: {\"choices\":[],\"usage\":{\"total_tokens\":2},\"error\":{}}\n\n"},
		{"not JSON", "data: " + usage + "x\n\n", "data: " + usage + "x\n\n"},
		{"half an event", "data: {\"choices\":[],\"usa", "data: {\"choices\":[],\"usa"},
		{"too large", "data: {\"choices\":[],\"usage\":{\"x\":\"" + strings.Repeat("y", 300) + "\"}}\n\n", "data: {\"choices\":[],\"usage\":{\"x\":\"" + strings.Repeat("y", 300) + "\"}}\n\n"},
	}
	for _, tt := range tests {
		o := Options{ContentType: sse, HideUsage: true, MaxEvent: 256}
		in := []byte(tt.in)
		_, on := run(o, in)
		if string(on) != tt.want {
			t.Errorf("%s, whole:\ngot  %q\nwant %q", tt.name, on, tt.want)
		}
		if _, on = run(o, bytewise(in)...); string(on) != tt.want {
			t.Errorf("%s, byte by byte:\ngot  %q\nwant %q", tt.name, on, tt.want)
		}
		for i := range in {
			if _, on = run(o, in[:i], in[i:]); string(on) != tt.want {
				t.Errorf("%s, cut at %d:\ngot  %q\nwant %q", tt.name, i, on, tt.want)
			}
		}
	}
	// Text is not held back: what begins with a choice goes on at once.
	m := New(Options{ContentType: sse, HideUsage: true})
	defer m.Close()
	part := []byte(`data: {"id":"x","choices":[{"index":0,"delta":{"content":"a`)
	if out, replaced := m.Write(part, false); replaced {
		t.Errorf("held back: %q goes on", out)
	}
}

// Random streams of known events in random chunks: what goes on is the stream
// without exactly the events that hold usage alone, and the facts are those
// of the text and of the last count.
func TestHideUsageRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for n := range 2000 {
		eol := []string{"\n", "\r\n", "\r"}[rng.IntN(3)]
		var in, want strings.Builder
		output, texts := int64(0), int64(0)
		for range rng.IntN(12) {
			lines, hide := "", false
			switch k := rng.IntN(6); k {
			case 0:
				lines = ": a comment" + eol
			case 1:
				output = 1 + rng.Int64N(99)
				lines = fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}%s`, output, eol)
				hide = true
			case 2:
				output = 1 + rng.Int64N(99)
				lines = fmt.Sprintf(`data: {"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":%d}}%s`, output, eol)
			default:
				lines = fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":"%s"}}],"usage":null}%s`, k%2,
					[]string{"a", "清", `\"`, `{\"choices\":[],\"usage\":{}}`}[rng.IntN(4)], eol)
				texts++
			}
			in.WriteString(lines + eol)
			if !hide {
				want.WriteString(lines + eol)
			}
		}
		data := []byte(in.String())
		var chunks [][]byte
		for rest := data; len(rest) > 0; {
			k := 1 + rng.IntN(min(len(rest), 150))
			chunks, rest = append(chunks, rest[:k]), rest[k:]
		}
		f, on := run(Options{ContentType: sse, HideUsage: true}, append(chunks, nil)...)
		if string(on) != want.String() {
			t.Fatalf("%d: %q\ngot  %q\nwant %q", n, data, on, want.String())
		}
		if f.Output != output || f.TextTokens < texts || f.Delivered != (texts > 0) {
			t.Fatalf("%d: %q: %+v; want output %d, %d texts", n, data, f, output, texts)
		}
	}
}

// 1,000 seeded mutations: no panic, bytes as they came, facts that do not
// depend on the chunks.
func TestMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	all := fixtures(t)
	for n := range 1000 {
		f := all[n%len(all)]
		data := bytes.Clone(f.data)
		for range 1 + rng.IntN(4) {
			switch i := rng.IntN(len(data)); rng.IntN(4) {
			case 0:
				data[i] = byte(rng.Uint32())
			case 1:
				data = append(data[:i:i], data[i+1:]...)
			case 2:
				data = append(data[:i:i], append([]byte{data[rng.IntN(len(data))]}, data[i:]...)...)
			case 3:
				data = data[:max(i, 1)]
			}
			if len(data) == 0 {
				data = []byte{'x'}
			}
		}
		o := f.options()
		if n%3 == 0 {
			o.ContentEncoding = "gzip"
			coded, _ := gzipped(data)
			coded[rng.IntN(len(coded))] ^= byte(1 << rng.IntN(8))
			data = coded
		}
		whole, on := run(o, data)
		cut := rng.IntN(len(data))
		two, _ := run(o, data[:cut], data[cut:])
		single, _ := run(o, bytewise(data)...)
		if !bytes.Equal(on, data) || o.ContentEncoding == "" && (whole != single || whole != two) {
			t.Fatalf("%s, mutation %d: %q\n%+v\n%+v\n%+v", f.name, n, data, whole, two, single)
		}
		if u := whole.Usage(5, 50); (whole.TextBytes > 0 || whole.Unreadable) && whole.Known == KnownNothing && !u.Refund && u.Output < 1 {
			t.Fatalf("%s, mutation %d: delivered and free: %+v", f.name, n, whole)
		}
	}
}

func FuzzMeter(f *testing.F) {
	for _, x := range fixtures(f) {
		f.Add(x.data, uint16(7), x.options().ContentType == sse)
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint16, stream bool) {
		o := Options{ContentType: "application/json", Kind: policy.OpenAIChat, MaxEvent: 512}
		if stream {
			o.ContentType = sse
		}
		i := int(cut) % (len(data) + 1)
		whole, on := run(o, data)
		if !bytes.Equal(on, data) {
			t.Fatal("bytes changed without HideUsage")
		}
		two, _ := run(o, data[:i], data[i:])
		single, _ := run(o, append(bytewise(data), nil)...)
		if whole != two || whole != single {
			t.Fatalf("cut at %d:\nwhole  %+v\ntwo    %+v\nsingle %+v", i, whole, two, single)
		}
		o.HideUsage = true
		hidden, onWhole := run(o, data)
		_, onTwo := run(o, data[:i], data[i:])
		_, onSingle := run(o, append(bytewise(data), nil)...)
		if hidden != whole || !bytes.Equal(onWhole, onTwo) || !bytes.Equal(onWhole, onSingle) {
			t.Fatalf("cut at %d:\nwhole  %q\ntwo    %q\nsingle %q", i, onWhole, onTwo, onSingle)
		}
		if !subsequence(onWhole, data) {
			t.Fatalf("%q is not a part of %q", onWhole, data)
		}
		// What is left holds no usage event any more.
		if again, twice := run(o, onWhole); !bytes.Equal(twice, onWhole) || again.TextTokens != whole.TextTokens {
			t.Fatalf("hidden twice: %q, %q", onWhole, twice)
		}
	})
}

func subsequence(part, all []byte) bool {
	for _, c := range part {
		i := bytes.IndexByte(all, c)
		if i < 0 {
			return false
		}
		all = all[i+1:]
	}
	return true
}
