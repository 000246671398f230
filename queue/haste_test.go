package queue

import (
	"fmt"
	"testing"
	"time"
)

// hastes are ways not to obey a hint, which half of the tenants have. The
// callers of all of them say that they come back, and never give up.
var hastes = []struct {
	name  string
	early float64
	every time.Duration
}{
	{"at 0.3 of the hint", 0.3, 0},
	{"at 0.5 of the hint", 0.5, 0},
	{"at 0.9 of the hint", 0.9, 0},
	{"every 100 ms", 0, 100 * ms},
}

// gain is how much more seats than the obedient tenants the hasty ones got
// within a span of time.
func (o *outcome) gain(from, to time.Duration) float64 {
	within := func(seats []time.Duration) (n float64) {
		for _, at := range seats {
			if at >= from && at < to {
				n++
			}
		}
		return n
	}
	return within(o.hasty)/within(o.calm) - 1
}

// Q5: a tenant whose callers come back early gets no more seats by it than one
// that obeys, neither in the burst nor after it, however short the while.
// That holds before a pool that hardly anybody else asks for after the burst,
// too, where a third of the seats is idle.
func TestHasteGainsNothing(t *testing.T) {
	t.Parallel()
	seeds := Thorough(1, 10)
	for _, base := range []float64{10, 300} {
		for _, load := range []float64{2, 4} {
			for _, h := range hastes {
				if slow := h.every > 0 && load == 4; Thorough(0, 1) == 0 && (slow || h.every == 0 && (base == 10) == (load == 2)) {
					continue
				}
				t.Run(fmt.Sprintf("%g times the capacity, then %g/s, %s", load, base, h.name), func(t *testing.T) {
					t.Parallel()
					var means [2][4]float64
					for seed := range seeds {
						c := pulseOf(load*drains, 50)
						c.base, c.early, c.every, c.seed = base, h.early, h.every, 17*seed
						o := c.run()
						for i, from := range []time.Duration{burstFrom, burstFrom + c.lasts} {
							for j, lasts := range []time.Duration{5, 15, 30, 60} {
								gain := o.gain(from, from+lasts*time.Second)
								means[i][j] += gain / float64(seeds)
								if gain > 0.07 { // chance: five seconds are 3,000 seats of either
									t.Errorf("seed %d: %.3f more in %d s from %v on", seed, gain, lasts, from)
								}
							}
						}
					}
					t.Logf("more in 5, 15, 30 and 60 s from the start of the burst: %.3f; from its end: %.3f", means[0], means[1])
					for i := range means {
						for j, mean := range means[i] {
							if mean > 0.02 {
								t.Errorf("window %d, %d: %.3f more on average", i, j, mean)
							}
						}
					}
				})
			}
		}
	}
}
