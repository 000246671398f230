package gpu

import (
	"context"
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
	Util    Value // GPU utilisation, mean over the GPUs seen
	KV      Value // KV-cache use, max over engines
	Waiting Value // requests waiting in the engines, sum
	Running Value // requests running, sum
	GPUs    int   // seen; 0 for engines
	Dropped int   // readings dropped as sentinel, blank, NaN or out of range
}

// Source yields samples (Q3). Implementations: gpu/scrape, gpu/script. Sample
// blocks at most until ctx ends; an error is a missed sample, not a zero.
type Source interface {
	Name() string
	Engine() bool // an engine's word counts before the GPU's (Q8)
	Sample(ctx context.Context) (Sample, error)
}
