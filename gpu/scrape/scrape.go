// Package scrape reads the load of GPUs, engines and nodes from Prometheus
// text over HTTP (Q3, Q8, T4): of dcgm-exporter, of the engines that weir
// knows and those that policy names, of node-exporter and of cAdvisor. Which
// metric is which signal is data (table.go, fields.go); the text is read by a
// line scanner (text.go) that is checked against the reference parser by
// fuzzing.
//
// Invariants: an answer that is not a complete metrics text (status, type,
// size, form, end) is an error and thus a missed sample, never a number; a
// value that is a sentinel, not a number, out of range, a repeated series or
// a running total where a present value is wanted is dropped and counted by
// kind; a signal that is not in the text is absent, never zero.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// MaxText bounds one answer, after decompression.
const MaxText = 10 << 20

// keepBuffer is the largest buffer kept from one look to the next.
const keepBuffer = 1 << 20

// Errors of a look, wrapped with the source's name.
var (
	ErrTooLarge = errors.New("metrics text is larger than 10 MiB")
	ErrNoSignal = errors.New("no known metric in the text")

	errEmpty = gpu.Missed(gpu.FaultEmpty, ErrNoSignal)
)

// Source scrapes one URL. It is safe for concurrent use; looks are made one
// after the other. Close frees its connections.
type Source struct {
	name    string
	engine  bool
	client  *client
	buffers *Buffers

	mu      sync.Mutex
	reader  reader
	scanner scanner
}

var _ gpu.Source = (*Source)(nil)

// New makes a source with buffers of its own.
func New(name string, t policy.TelemetrySource, engines []policy.EngineMetrics) (*Source, error) {
	return new(Buffers).New(name, t, engines)
}

// newReader is the reader of a kind; engine says whether it reads an engine.
func newReader(t policy.TelemetrySource, engines []policy.EngineMetrics) (r reader, engine bool, err error) {
	switch t.Kind {
	case policy.KindNodeExporter:
		return newNode(t.Match), false, nil
	case policy.KindCAdvisor:
		return newContainers(t.Match), false, nil
	case policy.KindDCGMExporter:
		r, err := newGPUs(t, dcgmFields())
		return r, false, err
	}
	e, ok := builtIn(t.Kind)
	if !ok {
		i := slices.IndexFunc(engines, func(m policy.EngineMetrics) bool { return m.Name == t.Kind })
		if i < 0 {
			return nil, false, fmt.Errorf("unknown kind %q", t.Kind)
		}
		if e, err = newEngine(engines[i]); err != nil {
			return nil, false, err
		}
	}
	r = newEngines(t.Match, e)
	if t.Kind == policy.KindTriton || t.Kind == policy.KindTritonLLM {
		gpus, err := newGPUs(t, tritonFields())
		return &triton{engines: newEngines(t.Match, e), cards: gpus}, true, err
	}
	return r, true, nil
}

func newGPUs(t policy.TelemetrySource, fields map[string]field) (*cards, error) {
	p, err := NewPlaces(t.Endpoint, t.EndpointsFile)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	return newCards(t, fields, hostPort(u), p), nil
}

// Name is the configured name.
func (s *Source) Name() string { return s.name }

// Engine reports whether the text is an engine's.
func (s *Source) Engine() bool { return s.engine }

// Close frees the idle connection.
func (s *Source) Close() error {
	s.client.http.CloseIdleConnections()
	return nil
}

// Sample fetches and reads the text once. Its instant is the one at which the
// answer was complete.
func (s *Source) Sample(ctx context.Context) (gpu.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sample, err := s.look(ctx)
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", s.name, err)
	}
	sample.Source = s.name
	return sample, nil
}

// look fetches a text and reads it.
func (s *Source) look(ctx context.Context) (gpu.Sample, error) {
	resp, err := s.client.get(ctx)
	if err != nil {
		return gpu.Sample{}, gpu.Missed(gpu.FaultConnect, err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing was written
	switch c := resp.StatusCode; {
	case c/100 == 3:
		return gpu.Sample{}, gpu.Missed(gpu.FaultRedirect, fmt.Errorf("status %d: redirects are not followed", c))
	case c != http.StatusOK:
		return gpu.Sample{}, gpu.Missed(gpu.FaultStatus, fmt.Errorf("status %d", c))
	}
	if t := resp.Header.Get("Content-Type"); !plausible(t) {
		return gpu.Sample{}, gpu.Missed(gpu.FaultType, fmt.Errorf("content-type %.80q is no metrics text", t))
	}
	b := s.buffers.get()
	defer s.buffers.put(b)
	if err := b.fill(resp); err != nil {
		return gpu.Sample{}, err
	}
	now := time.Now()
	sample, err := s.parse(b.text.Bytes(), now)
	sample.At = now
	return sample, err
}

// plausible says whether a content type may be the text format. Absent and
// unknown ones may: the scanner judges the text.
func plausible(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return true
	}
	return t != "text/html" && t != "application/json"
}

// parse reads a whole text.
func (s *Source) parse(text []byte, now time.Time) (gpu.Sample, error) {
	s.reader.begin(now)
	if err := s.scanner.scan(text, s.reader); err != nil {
		return gpu.Sample{}, gpu.Missed(gpu.FaultForm, err)
	}
	return s.reader.end()
}
