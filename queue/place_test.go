package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// The place told is the turn in which a seat comes, by the shares, weights and
// rights of those who wait, while nobody else comes; later rather than sooner,
// as tenants are taken together, those who bring few with those who bring many.
func TestPlaceIsTheTurn(t *testing.T) {
	var off []float64
	for seed := range uint64(300) {
		r := dice(seed)
		cfg := tiers(policy.Seats{Requests: 20}, Shares{Priority: policy.Ratio(r.IntN(2)) / 10})
		if r.IntN(3) == 0 {
			cfg.Shares.Streaming = 0.5
		}
		l, tenants := New(cfg, nil), 1+r.IntN(8)
		draw := func() *Waiter {
			w := of(r.IntN(3))
			w.Class, w.Stream = policy.Class(r.IntN(3)), r.IntN(2) == 0
			w.Tenant, w.Weight = fmt.Sprint(r.IntN(1+r.IntN(tenants))), 1
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
	if off[len(off)/10] < -0.08 || off[len(off)*9/10] > 0.12 || off[len(off)/2] < -0.02 || off[len(off)/2] > 0.02 {
		t.Error("the places told are not the turns that come")
	}
}

// By example: 100 silver ones wait.
func TestPlaceByShares(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 20}, Shares{Priority: 0.1, Groups: []Group{{Share: 0.2}, {Share: 0.8}, {Share: 0}}}), nil)
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

// Whose own deadline comes before its turn is refused at once: its turn by
// tenant, class and tier, however many of others wait.
func TestDeadlineByTurn(t *testing.T) {
	c := tiers(policy.Seats{Requests: 10}, Shares{Priority: 0.1})
	l := New(c, nil)
	running := bring(t, l, 10, func() *Waiter { w := of(1); w.Tenant = "flood"; return w })
	for i, w := range running { // a seat takes a second: ten a second come free
		l.Release(at(time.Second), w)
		running[i] = long(waiter(policy.Standard, "flood"))
		running[i].Group = 1
		l.Offer(at(time.Second), running[i], endless)
	}
	for range 100 {
		w := long(waiter(policy.Standard, "flood"))
		w.Group = 1
		mustWait(t, l, at(time.Second), w, endless)
	}
	by := func(tenant string, class policy.Class, group int, left time.Duration) *Waiter {
		w := long(waiter(class, tenant))
		w.Group, w.Deadline = group, at(time.Second+left)
		return w
	}
	lane := by("flood", policy.Standard, 1, 150*ms)
	lane.Priority = true
	for name, w := range map[string]*Waiter{
		"another tenant": by("small", policy.Standard, 1, 300*ms),
		"another class":  by("flood", policy.Critical, 1, 300*ms),
		"another tier":   by("flood", policy.Standard, 0, 600*ms),
		"the lane":       lane,
	} {
		if o := l.Offer(at(time.Second), w, endless); o.Refusal != Taken {
			t.Errorf("%s: %+v", name, o)
		}
		l.Cancel(at(time.Second), w)
	}
	for _, left := range []time.Duration{300 * ms, 9 * time.Second} {
		o := mustRefuse(t, l, at(time.Second), by("flood", policy.Standard, 1, left), endless, CannotMeet)
		if o.Hint < 10*time.Second {
			t.Errorf("told to come back after %v, 101 wait", o.Hint)
		}
	}
	mustWait(t, l, at(time.Second), by("flood", policy.Standard, 1, 11*time.Second), endless)
}
