package queue

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// The place told is the turn in which a seat comes, by the shares, weights and
// rights of those who wait, while nobody else comes.
func TestPlaceIsTheTurn(t *testing.T) {
	var off []float64
	for seed := range uint64(300) {
		r := dice(seed)
		cfg := tiers(policy.Seats{Requests: 20}, Shares{Priority: policy.Ratio(r.IntN(2)) / 10})
		if r.IntN(3) == 0 {
			cfg.Shares.Streaming = 0.5
		}
		l := New(cfg, nil)
		draw := func() *Waiter {
			w := of(r.IntN(3))
			w.Class, w.Stream = policy.Class(r.IntN(3)), r.IntN(2) == 0
			w.Tenant = fmt.Sprint(w.Class)
			if r.IntN(20) == 0 {
				w.Colour = policy.Red
			}
			w.Priority = r.IntN(10) == 0
			return w
		}
		running := bring(t, l, 20+r.IntN(200), draw)
		for i := 0; i < 60 && l.total > 0; i++ { // until the seats are where they belong
			_, ws := next(t, l, running[:1], groupNumber)
			running = append(running[1:], ws...)
		}
		if l.total == 0 {
			continue // nobody is left to wait behind
		}
		w := draw()
		place, waits := l.place(w), l.total
		mustWait(t, l, at(0), w, endless)
		turn := 0
		for w.state == waiting {
			turn++
			_, ws := next(t, l, running[:1], groupNumber)
			running = append(running[1:], ws...)
		}
		if place < 1 || place > waits+1 {
			t.Fatalf("seed %d: place %d of %d", seed, place, waits)
		}
		off = append(off, float64(place-turn)/float64(waits+1))
	}
	slices.Sort(off)
	t.Logf("%d places, off by parts of the line: %.2f %.2f %.2f %.2f %.2f", len(off), off[0], off[len(off)/10], off[len(off)/2], off[len(off)*9/10], off[len(off)-1])
	if off[len(off)/10] < -0.08 || off[len(off)*9/10] > 0.08 || off[len(off)/2] < -0.02 || off[len(off)/2] > 0.02 {
		t.Error("the places told are not the turns that come")
	}
}

// By example: 100 silver ones wait.
func TestPlaceByShares(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 20}, Shares{Priority: 0.1, Groups: []Group{{0.2}, {0.8}, {0}}}), nil)
	bring(t, l, 120, func() *Waiter { return of(1) })
	quick, red := of(1), of(2)
	quick.Priority, red.Colour = true, policy.Red
	for _, c := range []struct {
		w    *Waiter
		want int
	}{{of(1), 101}, {of(0), 5}, {of(2), 101}, {quick, 1}, {red, 1}} {
		if got := l.place(c.w); got != c.want {
			t.Errorf("group %d: place %d, want %d", c.w.Group, got, c.want)
		}
	}
}
