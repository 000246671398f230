package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// Buffers hold the texts of looks under way. Sources that share them need as
// many as look at once, and read into memory that is still in the CPU's cache.
// The zero value is ready; safe for concurrent use.
type Buffers struct{ pool sync.Pool }

// New makes a source of the text kinds and of those that engines names.
// Nothing is fetched yet.
func (b *Buffers) New(name string, t policy.TelemetrySource, engines []policy.EngineMetrics) (*Source, error) {
	s := &Source{name: name, buffers: b}
	var err error
	if s.client, err = newClient(t); err == nil {
		s.reader, s.engine, err = newReader(t, engines)
	}
	if err != nil {
		return nil, fmt.Errorf("telemetry source %s: %w", name, err)
	}
	return s, nil
}

func (b *Buffers) get() *buffer {
	if have, ok := b.pool.Get().(*buffer); ok {
		return have
	}
	return new(buffer)
}

func (b *Buffers) put(have *buffer) {
	if have.text.Cap() <= keepBuffer && have.packed.Cap() <= keepBuffer {
		b.pool.Put(have)
	}
}

// buffer holds one body.
type buffer struct {
	text, packed bytes.Buffer
	source       bytes.Reader // of packed
	zip          gzip.Reader
}

// fill reads a body into the buffer and unpacks it.
func (b *buffer) fill(resp *http.Response) error {
	switch e := strings.ToLower(resp.Header.Get("Content-Encoding")); e {
	case "", "identity":
		return take(&b.text, resp.Body)
	case "gzip":
	default:
		return gpu.Missed(gpu.FaultType, fmt.Errorf("content-encoding %.40q was not asked for", e))
	}
	if err := take(&b.packed, resp.Body); err != nil {
		return err
	}
	b.source.Reset(b.packed.Bytes())
	if err := b.zip.Reset(&b.source); err != nil {
		return gpu.Missed(gpu.FaultForm, fmt.Errorf("gzip: %w", err))
	}
	return take(&b.text, &b.zip)
}

// take reads all of from, which must not be larger than MaxText.
func take(to *bytes.Buffer, from io.Reader) error {
	to.Reset()
	n, err := to.ReadFrom(io.LimitReader(from, MaxText+1))
	switch {
	case errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum):
		return gpu.Missed(gpu.FaultForm, fmt.Errorf("body: %w", err))
	case err != nil:
		return gpu.Missed(gpu.FaultConnect, fmt.Errorf("body: %w", err))
	case n > MaxText:
		return gpu.Missed(gpu.FaultSize, ErrTooLarge)
	}
	return nil
}
