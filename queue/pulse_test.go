package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

type run struct {
	end time.Duration
	w   *Waiter
}

// pulse runs Q10's pulse over a pool of 60 seats, about 343 requests a second.
type pulse struct {
	l        *Line
	r        *rand.Rand
	running  []run // by end
	served   [policy.NumClasses]int
	offered  [policy.NumClasses]int
	refused  map[Refusal]int
	waits    [policy.NumClasses]time.Duration // the longest before a grant from the line
	hints    int
	hintTime time.Duration
}

func (p *pulse) start(now time.Duration, w *Waiter) {
	p.served[w.Class]++
	r := run{now + time.Duration(100+p.r.IntN(150))*ms, w}
	i, _ := slices.BinarySearchFunc(p.running, r, func(a, b run) int { return int(a.end - b.end) })
	p.running = slices.Insert(p.running, i, r)
}

func (p *pulse) exits(now time.Duration, xs []Exit) {
	for _, x := range xs {
		if !x.Granted {
			continue
		}
		if !x.Retried {
			p.waits[x.Waiter.Class] = max(p.waits[x.Waiter.Class], x.Waited)
		}
		p.start(now, x.Waiter)
	}
}

func (p *pulse) offer(now time.Duration) {
	w := waiter(policy.Class(p.r.IntN(3)), fmt.Sprint("t", p.r.IntN(30)))
	w.Cost = 100 + p.r.Int64N(900)
	p.offered[w.Class]++
	b := Bounds{Length: 200, Soft: 160, Exempt: w.Class == policy.Critical, PerTenant: 0.5, RetryLimit: 5 * time.Second, RetryLen: 200}
	o := p.l.Offer(at(now), w, b)
	p.refused[o.Refusal]++
	switch {
	case o.Granted:
		p.start(now, w)
	case o.Refusal != Taken:
		p.hints++
		p.hintTime += o.Hint
	}
}

// step is one millisecond.
func (p *pulse) step(now time.Duration, perSecond float64) {
	for len(p.running) > 0 && p.running[0].end <= now {
		w := p.running[0].w
		p.running = p.running[1:]
		p.exits(now, p.l.Release(at(now), w))
	}
	p.exits(now, p.l.Advance(at(now)))
	for arrivals := p.r.ExpFloat64(); arrivals < perSecond/1000; arrivals += p.r.ExpFloat64() {
		p.offer(now)
	}
}

// Q10, P1-P3: in a pulse of 3.5 times the capacity the important are served
// most, nobody waits longer than its class may, seats are never idle, and the
// hints tell about the time in which the line clears.
func TestPulse(t *testing.T) {
	p := &pulse{l: New(standardConfig(60, 0), nil), r: dice(11), refused: map[Refusal]int{}}
	for now := time.Duration(0); now < 60*time.Second; now += ms {
		rate := 300.0
		if now >= 20*time.Second && now < 30*time.Second {
			rate = 1200
		}
		p.step(now, rate)
		if s := p.l.Stats(at(now)); s.Waiting != [3]int{} && s.SeatsUsed.Requests != 60 {
			t.Fatalf("at %v a seat is idle while somebody waits: %+v", now, s)
		}
	}
	share := func(c policy.Class) float64 { return float64(p.served[c]) / float64(p.offered[c]) }
	if !(share(policy.Critical) > share(policy.Standard) && share(policy.Standard) > share(policy.Batch)) {
		t.Errorf("served shares %.2f %.2f %.2f: the order of importance is lost", share(0), share(1), share(2))
	}
	if share(policy.Critical) < 0.72 {
		t.Errorf("critical served %.2f", share(policy.Critical))
	}
	if n := p.refused[Full]; n > 0 {
		t.Errorf("%d met a full line: the last fifth is critical's", n)
	}
	for c, longest := range standardConfig(1, 0).MaxWaits {
		if p.waits[c] > longest {
			t.Errorf("class %d waited %v, may wait %v", c, p.waits[c], longest)
		}
	}
	if mean := p.hintTime / time.Duration(p.hints); mean < 300*ms || mean > 700*ms {
		t.Errorf("mean hint %v, want about 161 / 343 a second", mean)
	}
}

func dice(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
