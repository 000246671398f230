package queue_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// reach is the fixed numbers that are as good as any, by several seeds taken
// together: one draw of uneven traffic moves tokens per second and the time to
// first token by more than seats do.
func reach(c *trial, engines []modelsim.EngineConfig, seeds uint64, share float64) (b band) {
	type try struct {
		n    int64
		rate float64
	}
	var tries []try
	step := int64(queue.Thorough(112, 106))
	for n := c.bounds.Min; n <= c.bounds.Max; n = max(n+1, n*step/100) {
		rate := 0.0
		var all plant
		for seed := range seeds {
			p, r := hold(c, 100+seed, n, engines)
			rate += r / float64(seeds)
			all.firsts = append(all.firsts, p.firsts...)
		}
		if all.p95(4*c.mean, time.Hour) > c.bounds.TTFT && n > c.bounds.Min {
			break // more seats do not bring it back
		}
		tries = append(tries, try{n, rate})
		b.rate = max(b.rate, rate)
	}
	for _, t := range tries {
		if t.rate >= share*b.rate {
			if b.least == 0 {
				b.least = t.n
			}
			b.most = t.n
		}
	}
	return b
}

// runs is what a tuner made of a trial, over several seeds.
type runs struct {
	seats []float64 // distance from the best fixed numbers, 0 = among them
	swing []float64
	rate  []float64 // of the best
	ttft  []float64 // p95 by the target
}

// beyond counts values over a limit.
func beyond(list []float64, limit float64) (n int) {
	for _, v := range list {
		if v > limit {
			n++
		}
	}
	return n
}

func (b band) off(n int64) float64 {
	return max(1-float64(n)/float64(b.least), float64(n)/float64(b.most)-1, 0)
}

// note looks at 90 s, as judge does. A move of two seats is no swing.
func (r *runs) note(c *trial, p *plant, tuner *queue.Tuner, b band) {
	from, before := p.now, p.tokens()
	seats := p.follow(tuner, 90, true, true)
	d := swing(seats[15:])
	if d*float64(slices.Min(seats[15:])) <= 2 {
		d = 0
	}
	r.seats = append(r.seats, b.off(seats[0]))
	r.swing = append(r.swing, d)
	r.rate = append(r.rate, float64(p.tokens()-before)/90/b.rate)
	r.ttft = append(r.ttft, p.p95(from+10*time.Second, p.now).Seconds()/c.bounds.TTFT.Seconds())
}

// TestTunerOverManySeeds: the letters of Q9 hold for one draw of the traffic as
// for the next: within 15 % of the best fixed number after 60 s and 15 s after
// capacity was halved, tokens per second of at least 90 % of the best, never
// more than 20 % from the mean, and time to first token within its target. The
// best numbers are those that give 98 % of the most tokens per second, in rough
// traffic 95 %.
//
// In very uneven traffic chance breaks a letter at times: the best fixed number
// itself is late in three windows of 90 s in ten, and what some hundred
// requests of half a minute hold in the mean is off by a tenth. There, and over
// many seeds, one run in ten may be beyond a letter.
func TestTunerOverManySeeds(t *testing.T) {
	seeds := queue.Thorough(4, 40)
	for _, c := range trials() {
		share, truths := 0.98, queue.Thorough(1, 4)
		if c.rough {
			share, truths = 0.95, queue.Thorough(4, 16)
		}
		if c.name == "fast" && seeds < 10 {
			continue // TestTunerFindsTheBest has it, and its seeds are alike
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			whole, half := reach(c, c.engines, truths, share), reach(c, halved(c), truths, share)
			var w, v runs
			for seed := range seeds {
				var tuner queue.Tuner
				tuner.Configure(c.bounds)
				p := newPlant(seed, c.draw, c.engines...)
				p.seats = tuner.Seats()
				p.follow(&tuner, 59, true, true)
				w.note(c, p, &tuner, whole)
				for i, e := range halved(c) {
					p.batches[i].Configure(e)
				}
				p.follow(&tuner, 14, true, true)
				v.note(c, p, &tuner, half)
			}
			c.bear(t, "whole", &w, whole)
			c.bear(t, "half", &v, half)
		})
	}
}

func (c *trial) bear(t *testing.T, name string, r *runs, b band) {
	t.Helper()
	n := len(r.seats)
	t.Logf("%s, best %v: off %.2f, swing %.2f, rate %.2f, ttft %.2f", name, b, r.seats, r.swing, r.rate, r.ttft)
	few := 0
	if c.rough || n > 10 {
		few = (n + 9) / 10
	}
	if k := beyond(r.seats, 0.15); k > few {
		t.Errorf("%s: %d of %d are not within 15 %% of %v", name, k, n, b)
	}
	if k := beyond(r.swing, 0.2); k > few {
		t.Errorf("%s: %d of %d swing by more than 20 %%", name, k, n)
	}
	if lo := slices.Min(r.rate); lo < 0.9 {
		t.Errorf("%s: %.2f of the best rate", name, lo)
	}
	late := few
	if c.slack > 0 { // few answers: chance makes one of them late
		late = (n + 4) / 5
	}
	if k := beyond(r.ttft, 1); k > late {
		t.Errorf("%s: p95 of time to first token is over its target in %d of %d", name, k, n)
	}
}

// TestTunerWithTokenSeats: with seats in tokens too, as many as the cache has,
// the line holds back the long prompts itself, and first tokens are in time in
// uneven traffic too, for every seed.
func TestTunerWithTokenSeats(t *testing.T) {
	all := trials()
	c := all[slices.IndexFunc(all, func(c *trial) bool { return c.name == "kv mixed" })]
	b := reach(c, c.engines, queue.Thorough(4, 16), 0.95)
	var r runs
	for seed := range queue.Thorough(5, 40) {
		var tuner queue.Tuner
		tuner.Configure(c.bounds)
		p := newPlant(seed, c.draw, c.engines...)
		p.seats, p.tokenSeats = tuner.Seats(), c.engines[0].KVTokens
		p.follow(&tuner, 59, true, true)
		r.note(c, p, &tuner, b)
	}
	c.bear(t, "tokens", &r, b)
	if late := slices.Max(r.ttft); late > 1 {
		t.Errorf("p95 of time to first token is %.2f of its target", late)
	}
}

// TestTunerLearnsTheCache: what requests hold of the cache bounds growth, and
// what an engine that lost half of its cache can no longer hold is cut, not only
// those that wait in it.
func TestTunerLearnsTheCache(t *testing.T) {
	share := 0.01 // of the cache, a request
	var tuner queue.Tuner
	tuner.Configure(policy.Adaptive{Min: 10, Max: 200, TTFT: time.Second})
	look := func(s int) {
		n := float64(tuner.Seats())
		running := min(n, math.Floor(0.98/share))
		e := queue.Engine{At: second(s), Waiting: word(n - running), Running: word(running), KV: word(share * running)}
		tuner.Tune(second(s), queue.Look{Used: tuner.Seats(), Full: true, Waiting: 9, Engine: e})
	}
	for s := range 60 {
		look(s)
	}
	if n := tuner.Seats(); n < 90 || n > 95 {
		t.Errorf("%d seats, want 90..95", n)
	}
	share = 0.02
	for s := range 15 {
		look(60 + s)
	}
	if n := tuner.Seats(); n < 42 || n > 50 {
		t.Errorf("%d seats where half of the cache is left, want 42..50", n)
	}
}

func (b band) String() string { return fmt.Sprintf("%d..%d (%.0f/s)", b.least, b.most, b.rate) }
