package queue_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// hears is what a tuner hears of.
var hears = []struct {
	name          string
	engine, first bool
}{{"both", true, true}, {"engine", true, false}, {"first", false, true}}

// TestTunerFindsTheBest holds the tuner against the best fixed number, found
// by trying all: from the least it is there within 60 s, stays there for the
// next 90 s, and 15 s after the engines' capacity was halved it is at the best
// number for what is left, and stays there.
func TestTunerFindsTheBest(t *testing.T) {
	for _, c := range trials() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			whole, half := best(c, c.engines), best(c, halved(c))
			t.Logf("best %v, of half the engines %v", whole, half)
			for _, h := range hears {
				for seed := range queue.Thorough(1, 4) {
					var tuner queue.Tuner
					tuner.Configure(c.bounds)
					p := newPlant(seed, c.draw, c.engines...)
					p.seats = tuner.Seats()
					if p.seats != c.bounds.Min {
						t.Errorf("starts at %d, want %d", p.seats, c.bounds.Min)
					}
					p.follow(&tuner, 59, h.engine, h.first)
					name := fmt.Sprintf("%s, seed %d: ", h.name, seed)
					c.judge(t, name+"whole: ", p, &tuner, whole, h.engine, h.first)
					for i, e := range halved(c) {
						p.batches[i].Configure(e)
					}
					p.follow(&tuner, 14, h.engine, h.first)
					c.judge(t, name+"half: ", p, &tuner, half, h.engine, h.first)
				}
			}
		})
	}
}

// judge looks at 90 s of a plant that should have settled, at once or a minute
// later; the swing is that after the next 15 s.
func (c *trial) judge(t *testing.T, name string, p *plant, tuner *queue.Tuner, b band, engine, first bool) {
	t.Helper()
	from, before := p.now, p.tokens()
	seats := p.follow(tuner, 90, engine, first)
	rate := float64(p.tokens()-before) / 90 / b.rate
	ttft := p.p95(from+10*time.Second, p.now)
	t.Logf("%s%d, then %d..%d (swing %.2f), rate %.2f, ttft %v", name, seats[0], slices.Min(seats), slices.Max(seats), swing(seats[15:]), rate, ttft.Round(time.Millisecond))
	most, free := 0.2, false
	if c.rough {
		most, free = 0.3, !engine || !first
	}
	if !free && !b.near(seats[0]) {
		t.Errorf("%s%d seats, best are %v", name, seats[0], b)
	}
	if d := swing(seats[15:]); d > most && d*float64(seats[0]) > 2 {
		t.Errorf("%sswings by %.0f %%", name, 100*d)
	}
	if rate < 0.9 {
		t.Errorf("%s%.2f of the best rate", name, rate)
	}
	if limit := time.Duration(max(c.slack, 1) * float64(c.bounds.TTFT)); first && !free && ttft > limit {
		t.Errorf("%sp95 of time to first token is %v, want at most %v", name, ttft, limit)
	}
	if slices.Min(seats) < c.bounds.Min || slices.Max(seats) > c.bounds.Max {
		t.Errorf("%sseats beyond %v", name, c.bounds)
	}
}

// swing is the largest distance from the mean, as a share of it.
func swing(seats []int64) float64 {
	sum := int64(0)
	for _, n := range seats {
		sum += n
	}
	mean := float64(sum) / float64(len(seats))
	return max(float64(slices.Max(seats))-mean, mean-float64(slices.Min(seats))) / mean
}

// near says that a number is within 15 % of one of the best.
func (b band) near(n int64) bool {
	return float64(n) >= 0.85*float64(b.least) && float64(n) <= 1.15*float64(b.most)
}

// TestTunerFollowsReturnedCapacity gives back what was lost.
func TestTunerFollowsReturnedCapacity(t *testing.T) {
	c := trials()[0]
	whole := best(c, c.engines)
	for _, h := range hears {
		var tuner queue.Tuner
		tuner.Configure(c.bounds)
		p := newPlant(1, c.draw, halved(c)...)
		p.seats = tuner.Seats()
		p.follow(&tuner, 100, h.engine, h.first)
		p.batches[0].Configure(c.engines[0])
		seats := p.follow(&tuner, 90, h.engine, h.first)
		if n := seats[89]; !whole.near(n) {
			t.Errorf("%s: %d seats 90 s after capacity came back, best are %v", h.name, n, whole)
		}
	}
}

// TestTunerComesBackFromACollapse: a minute after an engine has all its places
// again, of which it lost seven in eight for half a minute, so has the pool.
func TestTunerComesBackFromACollapse(t *testing.T) {
	c := trials()[0]
	whole := best(c, c.engines)
	low := c.engines[0]
	low.Running /= 8
	for _, h := range hears {
		var tuner queue.Tuner
		tuner.Configure(c.bounds)
		p := newPlant(1, c.draw, c.engines...)
		p.seats = tuner.Seats()
		p.follow(&tuner, 60, h.engine, h.first)
		p.batches[0].Configure(low)
		if n := p.follow(&tuner, 30, h.engine, h.first)[29]; n > 16 {
			t.Errorf("%s: %d seats for an engine with %d places", h.name, n, low.Running)
		}
		p.batches[0].Configure(c.engines[0])
		if n := p.follow(&tuner, 60, h.engine, h.first)[59]; !whole.near(n) {
			t.Errorf("%s: %d seats a minute later, best are %v", h.name, n, whole)
		}
	}
}

// TestTunerDoesNotGrowIdle: seats that nobody wants are not added, whatever
// room the engine has.
func TestTunerDoesNotGrowIdle(t *testing.T) {
	c := trials()[0]
	for _, h := range hears {
		var tuner queue.Tuner
		tuner.Configure(policy.Adaptive{Min: 32, Max: 256, TTFT: 2 * time.Second})
		p := newPlant(1, c.draw, c.engines...)
		p.rate = 3 // of some 13 per second
		p.seats = tuner.Seats()
		seats := p.follow(&tuner, 600, h.engine, h.first)
		if hi := slices.Max(seats); hi > 32 {
			t.Errorf("%s: an idle pool grew to %d seats", h.name, hi)
		}
	}
}

// TestTunerHoldsBlind: without a fresh word of anybody the number stays.
func TestTunerHoldsBlind(t *testing.T) {
	c := trials()[0]
	for _, h := range hears {
		var tuner queue.Tuner
		tuner.Configure(c.bounds)
		p := newPlant(1, c.draw, c.engines...)
		p.seats = tuner.Seats()
		p.follow(&tuner, 60, h.engine, h.first)
		before := p.follow(&tuner, 20, false, false)[19] // the first tokens of late still count
		blind := p.follow(&tuner, 300, false, false)
		if lo, hi := slices.Min(blind), slices.Max(blind); lo != before || hi != before {
			t.Errorf("%s: %d seats moved to %d..%d without telemetry", h.name, before, lo, hi)
		}
	}
}

// TestTunerEachSignal: what one look does, by hand.
func TestTunerEachSignal(t *testing.T) {
	bounds := policy.Adaptive{Min: 10, Max: 100, TTFT: time.Second}
	full := queue.Look{Used: 40, Full: true, Waiting: 9}
	engine := func(s int, waiting, kv float64) queue.Engine {
		return queue.Engine{At: second(s), Waiting: word(waiting), KV: word(kv)}
	}
	for _, c := range []struct {
		name  string
		seats int64 // at the start
		look  func(s int, t *queue.Tuner) queue.Look
		lo    int64 // after ten looks
		hi    int64
	}{
		{"room in engine and cache", 40, func(s int, t *queue.Tuner) queue.Look {
			l := full
			l.Used, l.Engine = t.Seats(), engine(s, 0, 0.1)
			return l
		}, 80, 100},
		{"nobody wants a seat", 40, func(s int, _ *queue.Tuner) queue.Look {
			return queue.Look{Used: 20, Engine: engine(s, 0, 0.1)}
		}, 40, 40},
		{"cache full", 40, func(s int, _ *queue.Tuner) queue.Look {
			l := full
			l.Engine = engine(s, 0, 0.96)
			return l
		}, 40, 40},
		{"cache lets in some", 40, func(s int, t *queue.Tuner) queue.Look {
			l := full
			l.Used = t.Seats()
			l.Engine = engine(s, 0, 0.02*float64(t.Seats()))
			return l
		}, 46, 47},
		{"a few wait in the engine", 40, func(s int, _ *queue.Tuner) queue.Look {
			l := full
			l.Engine = engine(s, 4, 0.5)
			return l
		}, 40, 40},
		{"half of all wait in the engine", 40, func(s int, _ *queue.Tuner) queue.Look {
			l := full
			l.Engine = engine(s, 20, 0.5)
			return l
		}, 20, 24},
		{"all wait for one moment", 40, func(s int, _ *queue.Tuner) queue.Look {
			l := full
			l.Engine = engine(s, 3, 0.5)
			if s == 5 {
				l.Engine = engine(s, 40, 0.5)
			}
			return l
		}, 40, 40},
		{"first tokens in time, no telemetry", 40, func(s int, t *queue.Tuner) queue.Look {
			t.First(second(s).Add(-time.Millisecond), 100*time.Millisecond)
			l := full
			l.Used = t.Seats()
			return l
		}, 80, 100},
		{"first tokens at the target", 40, func(s int, t *queue.Tuner) queue.Look {
			for range 9 {
				t.First(second(s).Add(-time.Millisecond), 800*time.Millisecond)
			}
			return full
		}, 40, 40},
		{"first tokens late", 40, func(s int, t *queue.Tuner) queue.Look {
			for range 9 {
				t.First(second(s).Add(-time.Millisecond), 2*time.Second)
			}
			return full
		}, 20, 36},
		{"no first tokens at all", 40, func(s int, t *queue.Tuner) queue.Look {
			l := full
			l.Silent = 30
			return l
		}, 10, 12},
		{"no target: first tokens do not count", 40, func(s int, t *queue.Tuner) queue.Look {
			t.Configure(policy.Adaptive{Min: 10, Max: 100})
			t.First(second(s).Add(-time.Millisecond), time.Minute)
			l := full
			l.Used, l.Engine = t.Seats(), engine(s, 0, 0.1)
			return l
		}, 80, 100},
		{"an engine that stands still is no news", 40, func(s int, _ *queue.Tuner) queue.Look {
			l := full
			l.Engine = engine(1, 0, 0.1)
			return l
		}, 40, 40},
	} {
		var tuner queue.Tuner
		tuner.Configure(policy.Adaptive{Min: c.seats, Max: c.seats})
		tuner.Configure(bounds)
		for s := 1; s <= 10; s++ {
			tuner.Tune(second(s), c.look(s, &tuner))
		}
		if n := tuner.Seats(); n < c.lo || n > c.hi {
			t.Errorf("%s: %d seats, want %d..%d", c.name, n, c.lo, c.hi)
		}
	}
}

// TestTunerBounds: whatever it is told, the number is within the bounds, and
// no look moves it by more than half.
func TestTunerBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	odd := func() float64 {
		return []float64{0, 1, 3, 1e9, -1, math.NaN(), math.Inf(1), rng.Float64(), rng.Float64() * 100}[rng.IntN(9)]
	}
	for range 100 {
		var tuner queue.Tuner
		bounds := policy.Adaptive{Min: rng.Int64N(20) - 2, Max: rng.Int64N(300) - 2, TTFT: time.Duration(rng.Int64N(4)-1) * time.Second}
		tuner.Configure(bounds)
		lo := max(bounds.Min, 1)
		hi := max(bounds.Max, lo)
		now := epoch
		for range 200 {
			now = now.Add(time.Duration(rng.Int64N(3000)-200) * time.Millisecond)
			for range rng.IntN(20) {
				tuner.First(now, time.Duration(rng.Int64N(5000)-100)*time.Millisecond)
			}
			l := queue.Look{Used: rng.Int64N(300), Full: rng.IntN(2) == 0, Waiting: rng.IntN(9), Silent: rng.Int64N(300), Ended: rng.Uint64N(1e6)}
			if rng.IntN(4) > 0 {
				l.Engine = queue.Engine{At: now, Waiting: queue.Word{V: odd(), OK: rng.IntN(9) > 0}, KV: queue.Word{V: odd(), OK: rng.IntN(9) > 0}}
			}
			before := tuner.Seats()
			n := tuner.Tune(now, l)
			if n < lo || n > hi || n != tuner.Seats() {
				t.Fatalf("%d seats beyond %d..%d after %+v", n, lo, hi, l)
			}
			if float64(n) < 0.5*float64(before)-1 || float64(n) > 1.5*float64(before)+1 {
				t.Fatalf("from %d to %d seats in one look: %+v", before, n, l)
			}
		}
	}
}

// TestTunerConfigure: new bounds move the number only as far as they must.
func TestTunerConfigure(t *testing.T) {
	var tuner queue.Tuner
	if n := tuner.Seats(); n != 1 {
		t.Errorf("unconfigured: %d seats, want 1", n)
	}
	for _, c := range []struct{ low, high, want int64 }{
		{8, 64, 8}, {16, 64, 16}, {4, 64, 16}, {4, 10, 10}, {0, 0, 1}, {-5, -9, 1}, {9, 3, 9},
	} {
		tuner.Configure(policy.Adaptive{Min: c.low, Max: c.high})
		if n := tuner.Seats(); n != c.want {
			t.Errorf("%d..%d: %d seats, want %d", c.low, c.high, n, c.want)
		}
	}
}
