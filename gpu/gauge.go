package gpu

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Gauge smooths (Q2), ages (Q3) and blends (Q8) the samples of one pool. One
// writer at a time per source is assumed by nobody: Observe locks, Reading
// does not.
type Gauge struct{}

// NewGauge makes a gauge for the given sources (name → period, engine or
// not). start counts for Q4's literal form and for age before any sample.
func NewGauge(c policy.Gauge, q policy.Queue, sources []SourceInfo, start time.Time) *Gauge {
	panic("stub")
}

// SourceInfo describes a source to a gauge.
type SourceInfo struct {
	Name   string
	Engine bool
	Every  time.Duration
}

// Observe takes one sample and publishes a new reading.
func (g *Gauge) Observe(s Sample) { panic("stub") }

// Miss counts a failed sample.
func (g *Gauge) Miss(source string, at time.Time, err error) { panic("stub") }

// Reading is the latest picture: an atomic load, never nil, never blocks.
func (g *Gauge) Reading() *Reading { panic("stub") }

// Reading is an immutable picture of a pool's load.
type Reading struct {
	At    time.Time
	Parts []Part
	// further private fields of the author
}

// Part is one signal of one source, for explain and /debug.
type Part struct {
	Source   string
	Signal   string // util, kv, waiting
	Engine   bool
	Raw      Value
	Smoothed float64 // 0..1 of its target
	At       time.Time
	Used     bool // counted in the pressure
}

// Pressure is 0..1 at now, decayed toward neutral when stale (Q3, Q8).
func (r *Reading) Pressure(now time.Time) float64 { panic("stub") }

// Age is the time since the last sample that counts; stale = older than
// StalePeriods periods.
func (r *Reading) Age(now time.Time) (age time.Duration, stale bool) { panic("stub") }

// Length is the queue length at now: Q4 while cold, else Q1.
func (r *Reading) Length(now time.Time, q policy.Queue) int { panic("stub") }
