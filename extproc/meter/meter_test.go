package meter

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// expected is what testdata/expected.json says of a fixture.
type expected struct {
	API        string          `json:"api"`
	UsageKnown json.RawMessage `json:"usage_known"`
	End        string          `json:"end"`
	Input      int64           `json:"input_tokens"`
	Output     int64           `json:"output_tokens"`
	Cached     int64           `json:"cached_input_tokens"`
	CacheWrite int64           `json:"cache_write_tokens"`
	Reasoning  int64           `json:"reasoning_tokens"`
	Total      int64           `json:"total_tokens"`
}

type fixture struct {
	name string
	data []byte
	want expected
}

func (f *fixture) options() Options {
	o := Options{Kind: policy.JSON, ContentType: "application/json"}
	switch f.want.API {
	case "chat", "error":
		o.Kind = policy.OpenAIChat
	case "completions":
		o.Kind = policy.OpenAICompletions
	case "embeddings":
		o.Kind = policy.OpenAIEmbeddings
	}
	if strings.HasSuffix(f.name, ".sse") {
		o.ContentType = "text/event-stream; charset=utf-8"
	}
	return o
}

func fixtures(tb testing.TB) []fixture {
	tb.Helper()
	raw, err := os.ReadFile("testdata/expected.json")
	if err != nil {
		tb.Fatal(err)
	}
	var all struct{ Fixtures map[string]expected }
	if err := json.Unmarshal(raw, &all); err != nil {
		tb.Fatal(err)
	}
	var out []fixture
	for name, want := range all.Fixtures {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, fixture{name, data, want})
	}
	if len(out) < 70 {
		tb.Fatalf("only %d fixtures", len(out))
	}
	return out
}

func read(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// run feeds the chunks and returns the facts and the bytes that went on.
func run(o Options, chunks ...[]byte) (Facts, []byte) {
	m := New(o)
	defer m.Close()
	var on []byte
	for i, c := range chunks {
		out, replaced := m.Write(c, i == len(chunks)-1)
		if !replaced {
			out = c
		}
		on = append(on, out...)
	}
	return m.Facts(), on
}

func bytewise(data []byte) [][]byte {
	chunks := make([][]byte, len(data))
	for i := range data {
		chunks[i] = data[i : i+1]
	}
	return chunks
}

func (f *fixture) check(t *testing.T, how string, got Facts) {
	t.Helper()
	w := &f.want
	end := map[string]End{"complete": Complete, "length": Length, "error": Error, "cut": Cut}[w.End]
	if got.End != end {
		t.Errorf("%s: end %d, want %d (%s)", how, got.End, end, w.End)
	}
	switch known := string(w.UsageKnown); known {
	case "true":
		want := Facts{Known: KnownAll, Input: w.Input, Output: w.Output, Cached: w.Cached,
			CacheWrite: w.CacheWrite, Reasoning: w.Reasoning, Total: w.Total}
		is := Facts{Known: got.Known, Input: got.Input, Output: got.Output, Cached: got.Cached,
			CacheWrite: got.CacheWrite, Reasoning: got.Reasoning, Total: got.Total}
		if is != want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", how, is, want)
		}
	case `"input_only"`:
		if got.Known != KnownInput || got.Input != w.Input || got.Cached != w.Cached {
			t.Errorf("%s: got %d in, %d cached (%d), want %d and %d", how, got.Input, got.Cached, got.Known, w.Input, w.Cached)
		}
	case "false":
		if strings.HasSuffix(f.name, "chat_total_only.json") {
			if got.Known != KnownTotal || got.Total != 77 {
				t.Errorf("%s: got total %d (%d), want 77", how, got.Total, got.Known)
			}
		} else if got.Known != KnownNothing {
			t.Errorf("%s: known %d, want nothing", how, got.Known)
		}
	default:
		t.Fatalf("usage_known %s", known)
	}
}

// T8: every fixture whole, cut at every byte, byte by byte, and coded.
func TestFixtures(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			o := f.options()
			whole, on := run(o, f.data)
			f.check(t, "whole", whole)
			if !bytes.Equal(on, f.data) {
				t.Error("bytes changed")
			}
			same := func(how string, got Facts, on []byte) {
				t.Helper()
				if got != whole {
					t.Fatalf("%s:\ngot  %+v\nwant %+v", how, got, whole)
				}
				if !bytes.Equal(on, f.data) {
					t.Fatalf("%s: bytes changed", how)
				}
			}
			for i := range f.data {
				got, on := run(o, f.data[:i], f.data[i:])
				same("cut", got, on)
			}
			got, on := run(o, bytewise(f.data)...)
			same("byte by byte", got, on)
			o.ContentType = ""
			got, on = run(o, f.data)
			same("without content type", got, on)
		})
	}
}

// gzipped codes data, flushed after each event.
func gzipped(data []byte) (whole []byte, pieces [][]byte) {
	var buf bytes.Buffer
	z, _ := gzip.NewWriterLevel(&buf, gzip.HuffmanOnly)
	for _, event := range bytes.SplitAfter(data, []byte("\n\n")) {
		z.Write(event)
		z.Flush()
		pieces = append(pieces, bytes.Clone(buf.Bytes()))
		buf.Reset()
	}
	z.Close()
	pieces = append(pieces, bytes.Clone(buf.Bytes()))
	return bytes.Join(pieces, nil), pieces
}

func TestFixturesGzip(t *testing.T) {
	for _, f := range fixtures(t) {
		plain, _ := run(f.options(), f.data)
		coded, pieces := gzipped(f.data)
		plain.Bytes = int64(len(coded))
		for _, coding := range []string{"gzip", "x-gzip", "GZIP", "identity, gzip"} {
			o := f.options()
			o.ContentEncoding, o.HideUsage = coding, true
			ways := map[string][][]byte{"by event": pieces, "whole": {coded}}
			if coding == "gzip" {
				ways["byte by byte"] = bytewise(coded)
			}
			for how, chunks := range ways {
				got, on := run(o, chunks...)
				if got != plain {
					t.Errorf("%s, %s, %s:\ngot  %+v\nwant %+v", f.name, coding, how, got, plain)
				}
				if !bytes.Equal(on, coded) {
					t.Errorf("%s, %s, %s: coded bytes changed", f.name, coding, how)
				}
			}
		}
	}
}

// With every flush the facts are those of the events sent so far.
func TestGzipFollowsTheStream(t *testing.T) {
	data := read(t, "streams/vllm_chat_continuous_usage.sse")
	_, pieces := gzipped(data)
	m := New(Options{ContentType: "text/event-stream", ContentEncoding: "gzip"})
	defer m.Close()
	for i, p := range pieces[:8] {
		m.Write(p, false)
		if f := m.Facts(); f.Output != int64(i) || f.Known != KnownAll {
			t.Errorf("after %d events: output %d, want %d", i+1, f.Output, i)
		}
	}
}

// What cannot be read is estimated, never charged as nothing.
func TestUnreadable(t *testing.T) {
	sse := read(t, "streams/openai_chat_usage_final.sse")
	answer := read(t, "responses/chat_basic.json")
	coded, _ := gzipped(sse)
	broken := bytes.Clone(coded)
	for i := 30; i < 60; i++ {
		broken[i] ^= 0xFF
	}
	tests := []struct {
		name string
		o    Options
		data []byte
	}{
		{"br", Options{ContentType: "text/event-stream", ContentEncoding: "br"}, coded},
		{"zstd", Options{ContentType: "application/json", ContentEncoding: "zstd"}, coded},
		{"deflate", Options{ContentType: "application/json", ContentEncoding: "deflate"}, coded},
		{"gzip twice", Options{ContentType: "application/json", ContentEncoding: "gzip, gzip"}, coded},
		{"unknown coding", Options{ContentType: "application/json", ContentEncoding: "b\x00r"}, coded},
		{"gzip that is none", Options{ContentType: "text/event-stream", ContentEncoding: "gzip"}, sse},
		{"gzip that breaks", Options{ContentType: "text/event-stream", ContentEncoding: "gzip"}, broken},
		{"stream as JSON", Options{ContentType: "application/json"}, sse},
		{"JSON as stream", Options{ContentType: "text/event-stream"}, answer},
		{"stream as text", Options{ContentType: "text/plain"}, sse},
		{"HTML", Options{ContentType: "text/html"}, read(t, "responses/error_html.json.txt")},
		{"HTML without a type", Options{}, read(t, "responses/error_html.json.txt")},
	}
	for _, tt := range tests {
		f, on := run(tt.o, tt.data)
		if !f.Unreadable || !f.Delivered || f.Known != KnownNothing {
			t.Errorf("%s: got %+v", tt.name, f)
		}
		if !bytes.Equal(on, tt.data) {
			t.Errorf("%s: bytes changed", tt.name)
		}
		if u := f.Usage(10, 500); u.Known || u.Refund || u.Output != 500 && f.End != Cut || u.Output < 1 || u.Output > 500 {
			t.Errorf("%s: usage %+v, want the estimate of 500", tt.name, u)
		}
		if u := f.Usage(0, 0); u.Output < 1 {
			t.Errorf("%s: usage %+v, want more than nothing", tt.name, u)
		}
	}
	// Cut after few bytes: no more tokens than bytes.
	m := New(Options{ContentType: "text/event-stream", ContentEncoding: "br"})
	m.Write(coded[:20], false)
	if u := m.Facts().Usage(10, 4000); u.Output != 20 {
		t.Errorf("cut: output %d, want 20", u.Output)
	}
}

// A decompression bomb costs neither memory nor much time, and is estimated.
func TestGzipBomb(t *testing.T) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	zeros := make([]byte, 1<<20)
	for range 24 {
		z.Write(zeros)
	}
	z.Close()
	m := New(Options{ContentType: "application/json", ContentEncoding: "gzip"})
	defer m.Close()
	if _, replaced := m.Write(buf.Bytes(), true); replaced {
		t.Error("bytes changed")
	}
	f := m.Facts()
	if u := f.Usage(1, 300); !f.Unreadable || u.Output != 300 {
		t.Errorf("got %+v, %+v", f, u)
	}
	if m.dec.decoded > ratioFrom+2*decodeStep+maxRatio*int64(buf.Len()) {
		t.Errorf("decoded %d bytes", m.dec.decoded)
	}
}
