package breaker

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	baselineMemory = 10 * time.Minute // time constant of the usual rate
	maxThreshold   = 0.99             // a threshold of all requests would never open
)

// baseline is the usual rate of ends, an exponentially weighted mean over
// time, for the dynamic threshold (B4). It is fed once a cell.
type baseline struct {
	bits atomic.Uint64 // of the rate, a float64; 0 = nothing seen

	mu   sync.Mutex // of feeding
	last time.Time
}

func (b *baseline) qps() float64 { return math.Float64frombits(b.bits.Load()) }

func (b *baseline) observe(now time.Time, qps float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.qps()
	if old > 0 {
		dt := max(0, now.Sub(b.last))
		qps = old + (qps-old)*(1-math.Exp(-dt.Seconds()/baselineMemory.Seconds()))
	}
	b.bits.Store(math.Float64bits(qps))
	b.last = now
}

// factor is how much a threshold is loosened at this rate: 1 up to the
// baseline, at most 2. Literal, it is below 1 under the baseline: at a tenth of
// the usual rate, a tenth of the threshold.
func (b *baseline) factor(qps float64, literal bool) float64 {
	usual := b.qps()
	if usual <= 0 {
		return 1
	}
	more := min(1, (qps-usual)/usual)
	if !literal {
		more = max(0, more)
	}
	return 1 + more
}

// moved is a threshold times that factor, below 1; a threshold that is set
// higher than that is not raised.
func moved(threshold, factor float64) float64 {
	return min(threshold*factor, max(threshold, maxThreshold))
}
