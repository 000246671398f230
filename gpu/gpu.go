// Package gpu is the gauge: it turns looks at GPUs and engines into one
// number per pool, the pressure, and from that into a queue length.
//
// A Source looks (gpu/scrape, gpu/script), a Poller owns the goroutines that
// make sources look, a Gauge smooths (Q2), ages (Q3) and blends (Q8) what they
// saw and publishes an immutable Reading, from which the queue length follows
// (Q1, Q4).
//
// The gauge also keeps a book of the pool's cards: a GPU with a fatal XID and
// one that is missing lower the Reading's Capacity, and with it the pool's
// seats, and make the endpoint that they serve unhealthy; both come back by
// hysteresis. Words that contradict each other or stand still count only where
// nobody else's is fresh.
//
// Invariants: pressure and every smoothed value are finite and in 0..1
// whatever the sources say; an absent, blank or sentinel value is never read
// as a number; a value that is no longer confirmed decays toward neutral and
// is never shown as if it were new; reading takes no lock.
package gpu

import (
	"context"
	"errors"
	"time"
)

// Value is a reading that may be absent. The zero value is absent.
type Value struct {
	V  float64
	OK bool
}

// Some makes a present value.
func Some(v float64) Value { return Value{V: v, OK: true} }

// Sample is one look at one source. Ratios are 0..1. What a source does not
// know, or says with a sentinel or blank, is absent: never zero.
type Sample struct {
	Source  string
	At      time.Time
	Util    Value  // GPU utilisation, mean over the GPUs seen
	KV      Value  // KV-cache use, max over engines
	Waiting Value  // requests waiting in the engines, sum
	Running Value  // requests running, sum
	Active  Value  // time that the GPU's engines were active (profiling ratio), mean; checks Util, is no input
	GPUs    int    // seen, readable or not; 0 for engines
	Load    Value  // of a node's CPU (T4); no input of pressure
	Cards   []Card // each GPU or MIG instance seen, in a steady order
	Dropped int    // readings dropped as sentinel, blank, NaN or out of range
	Faults  Faults // of the readings dropped, as far as the source tells their kinds
}

// Source yields samples (Q3). Implementations: gpu/scrape, gpu/script. Sample
// blocks at most until ctx ends; an error is a missed sample, not a zero.
type Source interface {
	Name() string
	Engine() bool // an engine's word counts before the GPU's (Q8)
	Sample(ctx context.Context) (Sample, error)
}

// ErrQuiet is the error of a look at a source that only listens and has heard
// nothing since the last one: a missed sample, but nothing failed.
var ErrQuiet = errors.New("nothing was heard since the last look")
