// Package orca reads the load that engines and backends report by ORCA (Open
// Request Cost Aggregation; github.com/cncf/xds, xds.data.orca.v3): in the
// headers of their answers (Source), or out of band over gRPC (Remote).
//
// A report in a header has one of ORCA's three forms: "TEXT k=v, k=v",
// "JSON {...}" and "BIN base64". vLLM names kv_cache_usage_perc and
// num_requests_waiting among its named metrics, Triton with TensorRT-LLM
// kv_cache_utilization; which name is which signal is one table (report.go).
// An engine of several ranks names a metric once for each: KV-cache use is
// that of the fullest, waiting and running requests are sums.
//
// A header does not tell which endpoint of its pool it speaks of. So of all
// that was heard between two looks the most loaded word counts: the fullest
// cache, the longest line. For a pool of one endpoint that is at most one
// period too high; for a larger one it is the load of its worst endpoint, and
// never a sum. Out of band, where one stream is one server, the newest report
// counts.
//
// Invariants: a report that is larger than MaxReport or not well formed is
// dropped whole and counted; a value that is not a number, negative or out of
// range is dropped and counted, never read; a look that heard nothing is an
// error, never an idle engine; no report makes a panic.
package orca

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// Source hears reports and does nothing by itself. It is safe for concurrent
// use.
type Source struct {
	name string

	mu    sync.Mutex
	heard tally // since the last look
}

var _ gpu.Source = (*Source)(nil)

// New makes a source.
func New(name string) *Source { return &Source{name: name} }

// Name is the configured name.
func (s *Source) Name() string { return s.name }

// Engine is true: whoever reports is an engine.
func (s *Source) Engine() bool { return true }

// Offer hands over a header's value as it came; that of the binary header with
// "BIN " before it. It never blocks for long and keeps nothing of value.
func (s *Source) Offer(value string) {
	r, err := parse(value)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard.add(r, err, time.Now())
}

// Sample is what was heard since the last look, at the instant at which the
// newest of it came; gpu.ErrQuiet where nothing did.
func (s *Source) Sample(ctx context.Context) (gpu.Sample, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Sample{}, err
	}
	s.mu.Lock()
	heard := s.heard
	s.heard = tally{}
	s.mu.Unlock()
	sample, err := heard.sample(s.name)
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", s.name, err)
	}
	return sample, nil
}

// tally is what several reports say together.
type tally struct {
	reading
	at  time.Time // of the newest report that could be read; zero = none came
	err error     // of the newest one that could not; nil = none came
}

// add takes a report, or what is wrong with it.
func (t *tally) add(r reading, err error, at time.Time) {
	if err != nil {
		t.faults[gpu.FaultOf(err)]++
		t.err = err
		return
	}
	t.at = at
	t.known = t.known || r.known
	t.kv, t.load = larger(t.kv, r.kv), larger(t.load, r.load)
	t.waiting, t.running = larger(t.waiting, r.waiting), larger(t.running, r.running)
	for f, n := range r.faults {
		t.faults[f] += n
	}
}

// sample is the tally as one look.
func (t *tally) sample(name string) (gpu.Sample, error) {
	switch {
	case t.at.IsZero() && t.err != nil:
		return gpu.Sample{}, t.err
	case t.at.IsZero():
		return gpu.Sample{}, gpu.Missed(gpu.FaultEmpty, gpu.ErrQuiet)
	case !t.known:
		return gpu.Sample{}, gpu.Missed(gpu.FaultEmpty, ErrNoSignal)
	}
	s := gpu.Sample{
		Source: name, At: t.at, Faults: t.faults,
		KV: t.kv, Waiting: t.waiting, Running: t.running, Load: t.load,
	}
	for _, n := range t.faults {
		s.Dropped += int(n)
	}
	return s, nil
}

func larger(a, b gpu.Value) gpu.Value {
	if !a.OK || b.OK && b.V > a.V {
		return b
	}
	return a
}
