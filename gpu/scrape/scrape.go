// Package scrape reads the load of GPUs and engines from Prometheus text over
// HTTP: dcgm-exporter's and vLLM's. Which metric is which signal is a table
// (table.go); the text is read by a line scanner (text.go) that is checked
// against the reference parser by fuzzing.
//
// Invariants: an answer that is not a complete metrics text (status, type,
// size, form, end) is an error and thus a missed sample, never a number; a
// value that is a sentinel, not a number or out of range is dropped and
// counted; a signal that is not in the text is absent, never zero.
package scrape

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// MaxText bounds one answer, after decompression.
const MaxText = 10 << 20

// keepBuffer is the largest buffer kept from one look to the next.
const keepBuffer = 1 << 20

// The kinds of text.
const (
	KindDCGMExporter = "dcgm-exporter"
	KindVLLM         = "vllm"
)

// Errors of a look, wrapped with the source's name.
var (
	ErrTooLarge = errors.New("metrics text is larger than 10 MiB")
	ErrNoSignal = errors.New("no known metric in the text")
)

// Config describes a source.
type Config struct {
	Name  string            // as the gauge knows it
	Kind  string            // KindDCGMExporter or KindVLLM
	URL   string            // http or https
	Match map[string]string // labels a series must have with these values; empty = all series
}

// Source scrapes one URL. It is safe for concurrent use; looks are made one
// after the other. Close frees its connections.
type Source struct {
	cfg    Config
	engine bool
	client *http.Client

	mu      sync.Mutex
	reader  reader
	scanner scanner
	text    bytes.Buffer
	zip     gzip.Reader
}

var _ gpu.Source = (*Source)(nil)

// reader turns the series of one text into a sample.
type reader interface {
	begin()
	want(name []byte) bool
	take(s *series)
	end() (gpu.Sample, error)
}

// New makes a source. Nothing is fetched yet.
func New(cfg Config) (*Source, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("telemetry source %s: url: %w", cfg.Name, err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("telemetry source %s: url must be http or https with a host, got %q", cfg.Name, u.Redacted())
	}
	s := &Source{cfg: cfg}
	switch cfg.Kind {
	case KindDCGMExporter:
		s.reader = newCards(cfg.Match)
	case KindVLLM:
		s.reader, s.engine = newEngines(cfg.Match, vllm), true
	default:
		return nil, fmt.Errorf("telemetry source %s: unknown kind %q", cfg.Name, cfg.Kind)
	}
	s.client = &http.Client{
		// A redirect of a metrics address is a mistake, or an attempt to
		// make weir ask somebody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableCompression:     true, // done here, to bound what it grows to
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        2 * time.Minute,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
	return s, nil
}

// Name is the configured name.
func (s *Source) Name() string { return s.cfg.Name }

// Engine reports whether the text is an engine's.
func (s *Source) Engine() bool { return s.engine }

// Close frees idle connections.
func (s *Source) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Sample fetches and reads the text once. Its instant is the one at which the
// answer was complete.
func (s *Source) Sample(ctx context.Context) (gpu.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sample, err := s.sample(ctx)
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", s.cfg.Name, err)
	}
	sample.Source, sample.At = s.cfg.Name, time.Now()
	return sample, nil
}

func (s *Source) sample(ctx context.Context) (gpu.Sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, http.NoBody)
	if err != nil {
		return gpu.Sample{}, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4;q=1, text/plain;q=0.5")
	req.Header.Set("Accept-Encoding", "gzip")
	req.Header.Set("User-Agent", "weir")
	resp, err := s.client.Do(req)
	if err != nil {
		return gpu.Sample{}, err
	}
	defer func() { _ = resp.Body.Close() }() // nothing was written
	if resp.StatusCode != http.StatusOK {
		return gpu.Sample{}, fmt.Errorf("status %d", resp.StatusCode)
	}
	if t := resp.Header.Get("Content-Type"); !plausible(t) {
		return gpu.Sample{}, fmt.Errorf("content-type %.80q is no metrics text", t)
	}
	if err := s.fill(resp); err != nil {
		return gpu.Sample{}, err
	}
	return s.parse(s.text.Bytes())
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

// fill reads the body into the buffer.
func (s *Source) fill(resp *http.Response) error {
	if s.text.Cap() > keepBuffer {
		s.text = bytes.Buffer{}
	}
	s.text.Reset()
	var body io.Reader = resp.Body
	switch e := strings.ToLower(resp.Header.Get("Content-Encoding")); e {
	case "", "identity":
	case "gzip":
		if err := s.zip.Reset(resp.Body); err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		body = &s.zip
	default:
		return fmt.Errorf("content-encoding %.40q was not asked for", e)
	}
	n, err := s.text.ReadFrom(io.LimitReader(body, MaxText+1))
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if n > MaxText {
		return ErrTooLarge
	}
	return nil
}

// parse reads a whole text.
func (s *Source) parse(text []byte) (gpu.Sample, error) {
	s.reader.begin()
	if err := s.scanner.scan(text, s.reader); err != nil {
		return gpu.Sample{}, err
	}
	return s.reader.end()
}
