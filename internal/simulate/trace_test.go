package simulate

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// traceOf opens text as a trace.
func traceOf(t *testing.T, name, text string, skipBad bool, file TraceFile) (*TraceReader, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file.Name, file.Format = name, formatOf(name)
	r, err := (&Scenario{File: filepath.Join(dir, "s.yaml")}).OpenTrace(&file, skipBad)
	if err == nil {
		t.Cleanup(func() { r.Close() })
	}
	return r, err
}

func all(r *TraceReader) (calls []Call, err error) {
	for {
		c, err := r.Next()
		if errors.Is(err, io.EOF) {
			return calls, nil
		}
		if err != nil {
			return calls, err
		}
		calls = append(calls, c)
	}
}

func show(c Call) string {
	stream := "-"
	if c.Stream != nil {
		stream = fmt.Sprint(*c.Stream)
	}
	return fmt.Sprintf("%v %s/%s/%s/%s stream=%s %d+%d<=%d", c.At, c.Tenant, c.Class, c.Tier, c.Model, stream, c.Prompt, c.Output, c.MaxTokens)
}

const csvTrace = `at,tenant,class,tier,prompt_tokens,output_tokens,max_tokens,stream,model
100.5,acme,critical,gold,200,50,256,true,deepseek-v4
100.25,"beta, inc",2,,10,,,false,

102,,,,,,,,
`

// TestPublicTraces: lines as Azure, BurstGPT and Mooncake publish them.
func TestPublicTraces(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"Azure":               {"a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:47.1805900,396,109", "0s 374+44, 500ms 396+109"},
		"BurstGPT":            {"b.csv", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n", "0s 472+18, 40s 1087+230"},
		"BurstGPT with times": {"b.csv", "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5.5,1,3.2,ChatGPT,472,18,490,Conversation log\n", "0s 472+18"},
		"Mooncake":            {"m.jsonl", `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}` + "\n" + `{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}` + "\n", "0s 6955+52, 3.053s 6472+26"},
	} {
		r, err := traceOf(t, c.file, c.text, false, TraceFile{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		calls, err := all(r)
		var got []string
		for _, c := range calls {
			got = append(got, fmt.Sprintf("%v %d+%d", c.At, c.Prompt, c.Output))
			if c.Model != "" {
				t.Errorf("%s: model %q", name, c.Model)
			}
		}
		if err != nil || strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func TestCSVTrace(t *testing.T) {
	r, err := traceOf(t, "a.csv", csvTrace, false, TraceFile{Speed: 2})
	if err != nil {
		t.Fatal(err)
	}
	calls, err := all(r)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{ // by time, from the earliest, at double speed
		"0s beta, inc/batch// stream=false 10+0<=0",
		"125ms acme/critical/gold/deepseek-v4 stream=true 200+50<=256",
		"875ms /// stream=- 0+0<=0",
	}
	if len(calls) != len(want) {
		t.Fatalf("%d calls, want %d", len(calls), len(want))
	}
	for i, c := range calls {
		if show(c) != want[i] {
			t.Errorf("call %d: %s, want %s", i, show(c), want[i])
		}
	}
}

// accessLog is what the examples' Envoy writes; only the values are invented.
const accessLog = `{"start":"2026-11-30T09:00:01.000Z","method":"POST","path":"/v1/chat/completions","bytes":402,"ms":900,"code":200,"details":"via_upstream","flags":"-","decision":{"reason":"admitted","action":"admit","id":"x","class":"critical","tenant":"acme","model":"deepseek-v4","policy":"1a","pool":"chat-fp16","variant":"fp16","waited_ms":0}}
{"start":"2026-11-30T09:00:00.250Z","method":"POST","path":"/v1/chat/completions","bytes":0,"ms":2000,"code":429,"details":"ext_proc","flags":"-","decision":{"reason":"soft_full","action":"reject","class":"batch","tenant":"beta","waited_ms":0}}
{"start":"2026-11-30T09:00:00.000Z","method":"POST","path":"/v1/chat/completions","bytes":0,"ms":1,"code":401,"details":"ext_authz_denied","flags":"UAEX","decision":null}
{"start":"2026-11-30T09:00:00.100Z","method":"GET","path":"/v1/models","bytes":0,"ms":1,"code":200,"details":"ext_proc","flags":"-","decision":{"reason":"admitted","tenant":"acme"}}
`

func TestAccessLogTrace(t *testing.T) {
	r, err := traceOf(t, "a.log", accessLog, false, TraceFile{})
	if err != nil {
		t.Fatal(err)
	}
	calls, err := all(r)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(calls))
	for i, c := range calls {
		got[i] = show(c)
	}
	want := "0s beta/batch// stream=- 0+0<=0|750ms acme/critical//deepseek-v4 stream=- 101+0<=0"
	if strings.Join(got, "|") != want {
		t.Errorf("got  %v\nwant %v", strings.Join(got, "|"), want)
	}
}

func TestAccessLogWithOtherFields(t *testing.T) {
	r, err := traceOf(t, "a.jsonl", `{"ts":1700000000.5,"auth.sub":"x","req":{"tokens":{"out":7}}}`+"\n"+`{"ts":1700000001.5}`, false,
		TraceFile{Fields: map[string]string{"at": "ts", "tenant": "auth.sub", "output_tokens": "req.tokens.out"}})
	if err != nil {
		t.Fatal(err)
	}
	calls, err := all(r)
	if err != nil || len(calls) != 2 || calls[0].Tenant != "x" || calls[0].Output != 7 || calls[1].At != time.Second {
		t.Errorf("%+v %v", calls, err)
	}
}

func TestGzipIsReadAsItIs(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, csvTrace)
	z.Close()
	r, err := traceOf(t, "a.csv.gz", b.String(), false, TraceFile{})
	if err != nil {
		t.Fatal(err)
	}
	if calls, err := all(r); err != nil || len(calls) != 3 {
		t.Errorf("%d calls, %v", len(calls), err)
	}
	r, err = traceOf(t, "b.csv.gz", b.String()[:b.Len()-12], true, TraceFile{})
	if err == nil {
		_, err = all(r)
	}
	if err == nil {
		t.Error("a gzip file cut short must not pass, not even with skipBad")
	}
}

// TestBadLines: a bad line ends the trace and is named, or is counted.
func TestBadLines(t *testing.T) {
	for _, c := range []struct{ file, good, bad, want string }{
		{"a.csv", "at,class\n1,batch\n", "soon,batch", "a.csv:3: at: must be seconds or a date"},
		{"a.csv", "at,class\n1,batch\n", "2", "a.csv:3: has 1 fields, the header has 2"},
		{"a.csv", "at,class\n1,batch\n", "2,vip", `a.csv:3: class: must be critical, standard or batch (got "vip")`},
		{"a.csv", "at,class\n1,batch\n", ",batch", "a.csv:3: at: is missing"},
		{"a.csv", "at,class\n1,batch\n", `2,"batch`, "a.csv:3: "},
		{"a.csv", "at,class\n1,batch\n", "2026-01-01T00:00:00Z,batch", "a.csv:3: at: dates and numbers are mixed"},
		{"a.csv", "at,stream\n1,true\n", "2,maybe", "a.csv:3: stream: must be true or false"},
		{"a.csv", "at,max_tokens\n1,5\n", "2,-5", "a.csv:3: max_tokens: must be a whole number between 0 and"},
		{"a.csv", "at,max_tokens\n1,5\n", "2," + strings.Repeat("9", maxLine), "a.csv:3: is longer than"},
		{"a.csv", "at,tenant\n1,a\n", "2,a\x00b", "a.csv:3: tenant: character U+0000"},
		{"a.csv", "at,model\n1,a\n", "2," + strings.Repeat("m", 1000), "a.csv:3: model: 1000 bytes, at most 256"},
		{"a.csv", "at,max_tokens\n1,5\n", "NaN,1", "a.csv:3: at: must be seconds"},
		{"a.log", `{"start": 1}` + "\n", "[2026-11-30 09:00:00][info] starting", "a.log:2: is not a JSON object"},
		{"a.log", `{"start": 1}` + "\n", `{"code": 200}`, "a.log:2: at: is missing"},
	} {
		text := c.good + c.bad + "\n" + strings.TrimPrefix(c.good, c.good[:strings.IndexByte(c.good, '\n')+1])
		r, err := traceOf(t, c.file, text, false, TraceFile{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := all(r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: got %v, want %s", c.bad, err, c.want)
		}
		r, err = traceOf(t, c.file, text, true, TraceFile{})
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if strings.HasSuffix(c.file, ".csv") {
			want = 2
		}
		if calls, err := all(r); err != nil || len(calls) != want || r.Skipped() != 1 {
			t.Errorf("%.40q: %d calls, %d skipped, %v", c.bad, len(calls), r.Skipped(), err)
		}
	}
}

func TestBadHeaders(t *testing.T) {
	for text, want := range map[string]string{
		"":                 "a.csv:1: has no header",
		"at,tenent\n":      `a.csv:1: unknown column "tenent"`,
		"at,at\n":          "a.csv:1: column at is there twice",
		"tenant,class\n":   "a.csv:1: column at is missing",
		"1,acme\n2,acme\n": `a.csv:1: unknown column "1"`,
	} {
		if _, err := traceOf(t, "a.csv", text, true, TraceFile{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// TestTraceIsInOrderAndBounded reads more lines than are held at once, each
// written up to 5,000 lines late.
func TestTraceIsInOrderAndBounded(t *testing.T) {
	const n = 3 * reorder
	var b strings.Builder
	b.WriteString("at\n")
	for i := range n {
		fmt.Fprintf(&b, "%d\n", i-i%7*700)
	}
	r, err := traceOf(t, "a.csv", b.String(), false, TraceFile{})
	if err != nil {
		t.Fatal(err)
	}
	last, got := time.Duration(-1), 0
	for {
		c, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.At < last {
			t.Fatalf("call %d is at %v, after %v", got, c.At, last)
		}
		if len(r.ahead) > reorder {
			t.Fatalf("%d lines are held", len(r.ahead))
		}
		last, got = c.At, got+1
	}
	first, latest := 0, 0
	for i := range n {
		first, latest = min(first, i-i%7*700), max(latest, i-i%7*700)
	}
	if want := time.Duration(latest-first) * time.Second; got != n || last != want {
		t.Errorf("%d calls, want %d; the last at %v, want %v", got, n, last, want)
	}
}

// TestHugeTimes plays a call of another century as far away, at any speed, and
// never as come already.
func TestHugeTimes(t *testing.T) {
	for _, text := range []string{"at\n-3999999999\n3999999999\n", "at\n1970-01-01T00:00:00Z\n2200-12-31T00:00:00Z\n"} {
		for _, speed := range []float64{0.001, 1} {
			r, err := traceOf(t, "a.csv", text, false, TraceFile{Speed: speed})
			if err != nil {
				t.Fatal(err)
			}
			if calls, err := all(r); err != nil || len(calls) != 2 || calls[1].At < 100*365*24*time.Hour {
				t.Errorf("%q at speed %v: %v, %v, want the second one more than a century later", text, speed, calls, err)
			}
		}
	}
}

// TestLongLinesAreNotKept holds many lines that are long for no good reason.
func TestLongLinesAreNotKept(t *testing.T) {
	const n, long = 200, 1 << 19
	text := "at,tenant\n" + strings.Repeat(strings.Repeat("0", long)+"1,acme\n", n)
	r, err := traceOf(t, "a.csv", text, false, TraceFile{})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if _, err := r.Next(); err != nil || len(r.ahead) != n-1 {
		t.Fatalf("%d lines are held, %v", len(r.ahead), err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > n*long/10 {
		t.Errorf("%d lines of %d bytes take %d bytes", n, long, grown)
	}
}

func FuzzTrace(f *testing.F) {
	f.Add(csvTrace, true)
	f.Add(accessLog, false)
	f.Fuzz(func(t *testing.T, text string, table bool) {
		name := "a.log"
		if table {
			name = "a.csv"
		}
		r, err := traceOf(t, name, text, true, TraceFile{Speed: 3})
		if err != nil {
			return
		}
		calls, err := all(r)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Fatalf("an error without its file: %v", err)
		}
		if n := strings.Count(text, "\n") + 1; len(calls)+r.Skipped() > n {
			t.Fatalf("%d calls and %d skipped of %d lines", len(calls), r.Skipped(), n)
		}
		for i := 1; i < len(calls); i++ {
			if calls[i].At < calls[i-1].At || calls[0].At != 0 {
				t.Fatalf("call %d goes back", i)
			}
		}
	})
}

// TestAccessLogIsWhatTheExamplesWrite holds the default fields against the
// examples' own log format.
func TestAccessLogIsWhatTheExamplesWrite(t *testing.T) {
	for _, name := range []string{"one-filter.yaml", "two-filters.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../examples/envoy", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`start: "%START_TIME%"`, `method: "%REQ(:METHOD)%"`, `bytes: "%BYTES_RECEIVED%"`, `code: "%RESPONSE_CODE%"`, `decision: "%DYNAMIC_METADATA(weir.decision)%"`} {
			key, _, _ := strings.Cut(want, ":")
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s does not log %s", name, want)
			}
			known := false
			for _, paths := range accessLogFields() {
				known = known || strings.HasPrefix(paths[0], key)
			}
			if !known {
				t.Errorf("no column is read from %s", key)
			}
		}
	}
}
