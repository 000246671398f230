package simulate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// TraceFile is a recording that is played as a stream of arrivals.
type TraceFile struct {
	Name   string            // relative to the scenario's directory; gzip is seen by its first bytes
	Format TraceFormat       // default: CSV for *.csv and *.csv.gz, else AccessLog
	Speed  float64           // how many times faster than it was recorded; default 1
	Fields map[string]string // where a value stands, by its column's name; see columns and accessLogFields
}

// TraceFormat is the form of a recording.
type TraceFormat uint8

// The forms.
const (
	CSV TraceFormat = iota
	AccessLog
)

func formatOf(name string) TraceFormat {
	if strings.HasSuffix(strings.TrimSuffix(strings.ToLower(name), ".gz"), ".csv") {
		return CSV
	}
	return AccessLog
}

// columns are the values that a trace may hold; a CSV names them in its
// header, in any order, or as a public trace does. Only at must be there.
func columns() []string {
	return []string{"at", "tenant", "class", "tier", "model", "stream", "prompt_tokens", "output_tokens", "max_tokens", "bytes", "method", "code"}
}

// Call is one request as a trace tells it. What a trace does not say (empty,
// nil or zero) is drawn from the stream's Requests and Tenants.
type Call struct {
	At        time.Duration // from the trace's first, speed applied; never falls
	Tenant    string
	Class     string // critical, standard or batch
	Tier      string
	Model     string
	Stream    *bool
	Prompt    int64
	Output    int64
	MaxTokens int64
}

// Bounds of a trace in memory. A log is written in the order in which
// requests end; within reorder lines the order of their starts is restored.
// Of a line its values alone are kept.
const (
	maxLine   = 1 << 20
	reorder   = 1 << 15
	maxTokens = 10_000_000
	maxStamp  = 4e9     // seconds, either way: two such are less than a Duration apart
	farAway   = 1 << 62 // nanoseconds: later counts as this
)

// TraceReader reads a trace line by line. It is not safe for concurrent use.
type TraceReader struct {
	file    *os.File
	name    string
	lines   *bufio.Reader
	parse   func(line []byte, raw *rawCall) error
	line    int
	skipBad bool
	skipped int
	speed   float64

	ahead   callHeap
	ended   bool
	first   bool // a call has been read
	clock   bool // at is a date, not a number
	zero    time.Duration
	started bool
	last    time.Duration
}

// rawCall is a line as it was read.
type rawCall struct {
	Call
	stamp time.Duration // since 1970 or since the number 0
	clock bool
	order int  // of the file
	idle  bool // never asked for a seat: refused for who or what, or no call of a model
}

// OpenTrace opens a trace of this scenario. With skipBad a line that cannot
// be read is passed over and counted; else it ends the trace.
func (s *Scenario) OpenTrace(t *TraceFile, skipBad bool) (*TraceReader, error) {
	name := s.Path(t.Name)
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	r := &TraceReader{file: f, name: name, skipBad: skipBad, speed: t.Speed, lines: bufio.NewReaderSize(f, maxLine)}
	if r.speed <= 0 {
		r.speed = 1
	}
	if err := r.open(t); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

func (r *TraceReader) open(t *TraceFile) error {
	if magic, _ := r.lines.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r.lines)
		if err != nil {
			return fmt.Errorf("trace %s: %w", r.name, err)
		}
		r.lines = bufio.NewReaderSize(z, maxLine)
	}
	if t.Format == AccessLog {
		r.parse = accessLogParser(t.Fields)
		return nil
	}
	line, err := r.next()
	r.line = max(r.line, 1)
	if err != nil {
		return r.wrong(orEOF(err, "has no header"))
	}
	r.parse, err = csvParser(line, t.Fields)
	if err != nil {
		return r.wrong(err)
	}
	return nil
}

// orEOF says in words what the end of a file means here.
func orEOF(err error, message string) error {
	if errors.Is(err, io.EOF) {
		return errors.New(message)
	}
	return err
}

// Close gives the file back.
func (r *TraceReader) Close() error { return r.file.Close() }

// Skipped is how many lines could not be read so far.
func (r *TraceReader) Skipped() int { return r.skipped }

// Next is the next call; io.EOF after the last. An error names file and line.
func (r *TraceReader) Next() (Call, error) {
	for !r.ended && len(r.ahead) < reorder {
		if err := r.readOne(); err != nil {
			return Call{}, err
		}
	}
	if len(r.ahead) == 0 {
		return Call{}, io.EOF
	}
	raw := heap.Pop(&r.ahead).(*rawCall)
	if !r.started {
		r.started, r.zero = true, raw.stamp
	}
	at := time.Duration(min(float64(raw.stamp-r.zero)/r.speed, farAway))
	r.last = max(r.last, at)
	raw.At = r.last
	return raw.Call, nil
}

// readOne takes one line ahead.
func (r *TraceReader) readOne() error {
	line, err := r.next()
	if errors.Is(err, io.EOF) {
		r.ended = true
		return nil
	}
	if err == nil && len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	raw := &rawCall{order: r.line}
	if err == nil {
		err = r.parse(line, raw)
	}
	if err == nil && r.first && raw.clock != r.clock {
		err = errors.New("at: dates and numbers are mixed in this trace")
	}
	var broken *brokenFile
	switch {
	case errors.As(err, &broken), err != nil && !r.skipBad:
		return r.wrong(err)
	case err != nil:
		r.skipped++
		return nil
	}
	r.first, r.clock = true, raw.clock
	if !raw.idle {
		heap.Push(&r.ahead, raw)
	}
	return nil
}

// brokenFile is an error after which nothing more can be read.
type brokenFile struct{ error }

func (b *brokenFile) Unwrap() error { return b.error }

// next is the next line without its end, good until the call after.
func (r *TraceReader) next() ([]byte, error) {
	line, err := r.lines.ReadSlice('\n')
	if len(line) > 0 {
		r.line++
	}
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.lines.ReadSlice('\n')
		}
		return nil, fmt.Errorf("is longer than %d bytes", maxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, nil
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil:
		r.line++
		return nil, &brokenFile{err}
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

func (r *TraceReader) wrong(err error) error {
	return fmt.Errorf("trace %s:%d: %w", r.name, r.line, err)
}

// callHeap orders by start, then by place in the file.
type callHeap []*rawCall

func (h callHeap) Len() int { return len(h) }
func (h callHeap) Less(i, j int) bool {
	if h[i].stamp != h[j].stamp {
		return h[i].stamp < h[j].stamp
	}
	return h[i].order < h[j].order
}
func (h callHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *callHeap) Push(x any)   { *h = append(*h, x.(*rawCall)) }
func (h *callHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}

// set takes the value of a column; "" says nothing.
func (raw *rawCall) set(column, text string) (err error) {
	if text == "" || text == "-" {
		if column == "at" {
			return errors.New("at: is missing")
		}
		return nil
	}
	switch column {
	case "at":
		return raw.setAt(text)
	case "tenant":
		raw.Tenant, err = named(column, text)
	case "tier":
		raw.Tier, err = named(column, text)
	case "model":
		raw.Model, err = named(column, text)
	case "class":
		class, ok := policy.ParseClass(text)
		if !ok {
			return fmt.Errorf("class: must be critical, standard or batch (got %.64q)", text)
		}
		raw.Class = class.String()
	case "stream":
		on, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("stream: must be true or false (got %.64q)", text)
		}
		raw.Stream = &on
	case "prompt_tokens":
		raw.Prompt, err = tokens(column, text, raw.Prompt)
	case "output_tokens":
		raw.Output, err = tokens(column, text, 0)
	case "max_tokens":
		raw.MaxTokens, err = tokens(column, text, 0)
	case "bytes":
		var n int64
		if n, err = tokens(column, text, 0); err == nil && raw.Prompt == 0 {
			raw.Prompt = (n + bytesPerToken - 1) / bytesPerToken
		}
	case "method":
		raw.idle = raw.idle || text != "POST"
	case "code":
		raw.idle = raw.idle || denied(text)
	}
	return err
}

// named is a name that weir would take, without the line that it stands in.
func named(column, text string) (string, error) {
	return strings.Clone(text), identity.CheckName(column, text)
}

// bytesPerToken turns the length of a body into tokens where no count is
// known.
const bytesPerToken = 4

// denied says of a status that its request was refused for who or what.
func denied(code string) bool {
	return len(code) == 3 && code[0] == '4' && code != "408" && code != "429" && code != "499"
}

func tokens(column, text string, otherwise int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxTokens {
		return 0, fmt.Errorf("%s: must be a whole number between 0 and %d (got %.64q)", column, maxTokens, text)
	}
	if n == 0 {
		return otherwise, nil
	}
	return n, nil
}

// setAt takes seconds or an RFC 3339 date.
func (raw *rawCall) setAt(text string) error {
	if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(f) && math.Abs(f) < maxStamp {
		raw.stamp = time.Duration(f * float64(time.Second))
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t, err = time.Parse(time.DateTime, text) // of no zone: UTC; a fraction is read too
	}
	if err != nil || t.Year() < 1970 || t.Year() > 2200 {
		return fmt.Errorf("at: must be seconds or a date such as 2026-01-31T09:00:00.5Z or 2026-01-31 09:00:00.5 (got %.64q)", text)
	}
	raw.stamp, raw.clock = time.Duration(t.UnixNano()), true
	return nil
}
