package admission

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Sampler says which refusals are recorded, in the log or for explain: whoever
// sends many must neither fill the log nor push out what is kept of others. Of
// callers without a verified identity a share is, and at most so many a second
// of each reason; of each tenant at most so many a second of each reason. A
// burst of five seconds' worth passes at once. Memory is fixed: tenants whose
// names fall on one place share its rate. Safe for concurrent use; refusals
// meet at a lock where they are of one tenant and reason alone.
type Sampler struct {
	seed      maphash.Seed
	anonymous [256]allowance
	tenants   [samplerPlaces]allowance
	total     [2]atomic.Uint64
	untold    [2][256]atomic.Uint64
}

const (
	samplerPlaces = 1024
	samplerBurst  = 5 // seconds
)

// Unrecorded counts refusals that were not recorded.
type Unrecorded struct{ Anonymous, Tenants uint64 }

// NewSampler makes a sampler that has seen nothing.
func NewSampler() *Sampler { return &Sampler{seed: maphash.MakeSeed()} }

// Keep says whether a refusal is recorded; tenant "" = nobody is known.
func (s *Sampler) Keep(now time.Time, c *policy.Refusals, tenant string, r Reason) bool {
	kind, rate, share, b := 0, c.PerSecond, float64(c.Share), &s.anonymous[r]
	if tenant != "" {
		var h maphash.Hash
		h.SetSeed(s.seed)
		_, _ = h.WriteString(tenant) // never fails
		_ = h.WriteByte(byte(r))
		kind, rate, share, b = 1, c.PerTenant, 1, &s.tenants[h.Sum64()%samplerPlaces]
	}
	if b.take(now, share, float64(rate)) {
		return true
	}
	s.total[kind].Add(1)
	s.untold[kind][r].Add(1)
	return false
}

// Total is how many were not recorded so far.
func (s *Sampler) Total() Unrecorded {
	return Unrecorded{Anonymous: s.total[0].Load(), Tenants: s.total[1].Load()}
}

// Untold tells each reason of which some were not recorded since it last did.
func (s *Sampler) Untold(tell func(anonymous bool, r Reason, n uint64)) {
	for kind := range s.untold {
		for r := range s.untold[kind] {
			if s.untold[kind][r].Load() == 0 {
				continue
			}
			tell(kind == 0, Reason(r), s.untold[kind][r].Swap(0))
		}
	}
}

// allowance is a token bucket; the zero value is full.
type allowance struct {
	mu   sync.Mutex
	due  float64 // of the share
	used float64
	last time.Time
}

func (b *allowance) take(now time.Time, share, rate float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.due += share; b.due < 1 {
		return false
	}
	b.due--
	if d := now.Sub(b.last); d > 0 {
		b.used, b.last = max(b.used-d.Seconds()*rate, 0), now
	}
	if b.used+1 > rate*samplerBurst {
		return false
	}
	b.used++
	return true
}
