package scrape

import (
	"bytes"
	"hash/maphash"
	"math"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// maxSeries bounds the series, engines, GPUs and CPUs that are remembered
// from one text to the next.
const maxSeries = 16384

// reader turns the series of one text into a sample. begin takes the instant
// at which the text was complete.
type reader interface {
	taker
	begin(now time.Time)
	end() (gpu.Sample, error)
}

// page is what every reader keeps of the text it reads.
type page struct {
	match   filter
	now     time.Time
	known   bool // a wanted metric was there
	faults  gpu.Faults
	seed    maphash.Seed
	seen    map[uint64]struct{} // series
	running map[string]struct{} // wanted metrics whose type says that they are totals
}

func newPage(match map[string]string) page {
	return page{match: newFilter(match), seed: maphash.MakeSeed(), seen: make(map[uint64]struct{}), running: make(map[string]struct{})}
}

func (p *page) begin(now time.Time) {
	p.now, p.known, p.faults = now, false, gpu.Faults{}
	clear(p.seen)
	clear(p.running)
}

// typed notes the metrics that are totals.
func (p *page) typed(name, kind []byte) {
	if bytes.EqualFold(kind, []byte("counter")) {
		p.running[string(name)] = struct{}{}
	}
}

// total says whether a metric is a running total: by its type, else by the
// ending that the format reserves for totals.
func (p *page) total(name []byte) bool {
	_, ok := p.running[string(name)]
	return ok || bytes.HasSuffix(name, []byte("_total"))
}

// fresh says whether a series passes the filter and was not there before: the
// first one counts, whatever the order of the labels.
func (p *page) fresh(s *series) bool {
	if !p.match.pass(s) {
		return false
	}
	p.known = true
	id := maphash.Bytes(p.seed, s.name) + p.labels(s, nil)
	if _, ok := p.seen[id]; ok || len(p.seen) >= maxSeries {
		p.faults[gpu.FaultDuplicate]++
		return false
	}
	p.seen[id] = struct{}{}
	return true
}

// labels is a number that stands for the labels of a series, in any order,
// without those that except names or has a value for. Empty labels are none.
func (p *page) labels(s *series, except filter) uint64 {
	var sum uint64
next:
	for _, l := range s.labels {
		for i := range except {
			if except[i].name == string(l.name) {
				continue next
			}
		}
		if len(l.value) > 0 {
			sum += maphash.Bytes(p.seed, l.name) * (maphash.Bytes(p.seed, l.value) | 1)
		}
	}
	return sum
}

// plausible says whether a value is in 0..top, and counts it where not.
func (p *page) plausible(v, top float64) bool {
	switch {
	case v >= 0 && v <= top:
		return true
	case math.IsNaN(v) || math.IsInf(v, 0):
		p.faults[gpu.FaultNumber]++
	case blank(v):
		p.faults[gpu.FaultBlank]++
	default:
		p.faults[gpu.FaultRange]++
	}
	return false
}

// blank says whether v is one of DCGM's sentinels: of 64 bit integers and of
// floats, of 32 bit integers, and -1 as an unsigned one.
func blank(v float64) bool {
	return v >= 1<<47 || (v >= 0x7ffffff0 && v <= 0x7fffffff) || v == 0xffffffff
}

// sample is what the page says of itself.
func (p *page) sample() gpu.Sample {
	s := gpu.Sample{Faults: p.faults}
	for _, n := range p.faults {
		s.Dropped += int(n)
	}
	return s
}
