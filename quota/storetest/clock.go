package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// K: a refused claim fits exactly RetryAfter later, and not a tick before.
func exactWait(h *house) {
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 8 {
		tenant := fmt.Sprint("t", round)
		limits := []policy.Limit{
			tokens(1000, time.Duration(1+rng.IntN(90_000))*time.Millisecond),
			requests(40, time.Duration(1+rng.IntN(90_000))*time.Millisecond),
		}
		var at time.Duration
		for i := range 40 {
			at += time.Duration(rng.IntN(3_000)) * time.Millisecond
			h.retried(at, fmt.Sprint(i), in(tenant, "rule", claim(call(1+rng.Int64N(400)), limits...)))
		}
	}
}

func exactWaitOverSlots(h *house) {
	rng := rand.New(rand.NewPCG(5, 6))
	var at time.Duration
	for i := range 80 {
		at += time.Duration(rng.IntN(2_000)) * time.Millisecond
		c := claim(call(1+rng.Int64N(300)), tokens(1000, 10*time.Second))
		h.retried(at, fmt.Sprint(i), in("acme", "own", c), in(quota.Shared, "shared", claim(c.Amount, tokens(1500, 14*time.Second))))
	}
}

// retried reserves and gives refused claims a second try at their hint; that
// one is undone, so that time may go on from at.
func (h *house) retried(at time.Duration, id string, claims ...quota.Claim) {
	h.Helper()
	v := h.reserve(at, id, claims...)
	if v.Allowed {
		return
	}
	if v.RetryAfter <= 0 {
		h.Fatalf("at %v: %+v, want a wait", at, v)
	}
	h.refuse(at+v.RetryAfter-time.Millisecond, id, claims...)
	// The try itself would move the newest cell ahead of at; Usage does not.
	for _, c := range claims {
		for _, l := range c.Limits {
			if used := h.used(at+v.RetryAfter, c.Tenant, c.Key, l); used+c.Amount.Of(l.Unit) > l.Max {
				h.Fatalf("at %v, %v later: %d used and %d asked of %d", at, v.RetryAfter, used, c.Amount.Of(l.Unit), l.Max)
			}
		}
	}
}

// Instants between ticks count as the tick before; the hint leads to a tick.
func subMillisecond(h *house) {
	c := claim(call(100), tokens(100, time.Minute))
	h.admit(900*time.Microsecond, "a", c)
	v := h.refuse(999*time.Microsecond, "b", c)
	if want := 62*time.Second - 999*time.Microsecond; v.RetryAfter != want {
		h.Fatalf("wait %v, want %v", v.RetryAfter, want)
	}
	h.refuse(62*time.Second-1, "b", c)
	h.admit(62*time.Second, "b", c)
}

// K: time that goes back moves no cell back and frees nothing.
func clockBack(h *house) {
	limit := tokens(100, time.Minute)
	h.admit(10*time.Second, "a", claim(call(60), limit))
	h.admit(7*time.Second, "b", claim(call(40), limit))
	v := h.refuse(5*time.Second, "c", claim(call(40), limit))
	if want := 65*time.Second + 800*time.Millisecond; v.RetryAfter != want {
		h.Errorf("wait %v, want %v: both lie in the cell 10..12 s", v.RetryAfter, want)
	}
	h.wantUsed(69*time.Second, "acme", "rule", limit, 100)
	h.wantUsed(71*time.Second, "acme", "rule", limit, 50)
}

// A clock that was ahead by more than a window does not lock a tenant out.
func clockAhead(h *house) {
	limit := tokens(100, time.Minute)
	h.admit(24*time.Hour, "a", claim(call(100), limit))
	h.admit(0, "b", claim(call(80), limit))
	h.refuse(time.Second, "c", claim(call(40), limit))
	h.wantUsed(time.Second, "acme", "rule", limit, 80)
}

func ownClock(h *house) {
	limit := tokens(100, time.Hour)
	c := claim(call(80), limit)
	ctx := context.Background()
	v, err := h.store.Reserve(ctx, time.Time{}, "a", []quota.Claim{c})
	if err != nil || !v.Allowed {
		h.Fatalf("Reserve: %+v, %v", v, err)
	}
	v, err = h.store.Reserve(ctx, time.Time{}, "b", []quota.Claim{c})
	if err != nil || v.Allowed || v.RetryAfter < 59*time.Minute || v.RetryAfter > 63*time.Minute {
		h.Fatalf("Reserve: %+v, %v; want a wait of about an hour", v, err)
	}
	if err := h.store.Settle(ctx, time.Time{}, "a", []quota.Claim{c}, call(30)); err != nil {
		h.Fatal(err)
	}
	counters, err := h.store.Usage(ctx, time.Time{}, "acme")
	if err != nil || len(counters) != 1 || counters[0].Used != 30 {
		h.Fatalf("Usage: %+v, %v; want 30", counters, err)
	}
}

func usage(h *house) {
	a := in("acme", "a", claim(call(10), tokens(100, time.Minute), requests(50, time.Hour), atOnce(3)))
	b := in("acme", "b", claim(call(10), tokens(200, time.Minute)))
	b2 := b
	b2.Key = "b/bob"
	h.admit(0, "x", b2, a, b)
	got, err := h.store.Usage(context.Background(), t0, "acme")
	want := []quota.Counter{
		{Rule: "a", Key: "a", Limit: requests(50, time.Hour), Used: 1},
		{Rule: "a", Key: "a", Limit: tokens(100, time.Minute), Used: 10},
		{Rule: "a", Key: "a", Limit: atOnce(3), Used: 1},
		{Rule: "b", Key: "b", Limit: tokens(200, time.Minute), Used: 10},
		{Rule: "b", Key: "b/bob", Limit: tokens(200, time.Minute), Used: 10},
	}
	if err != nil || !slices.Equal(got, want) {
		h.Errorf("Usage = %+v, %v\nwant %+v", got, err, want)
	}
	h.settle(0, "x", call(10), b2, a, b)
	got, _ = h.store.Usage(context.Background(), t0.Add(2*time.Minute), "acme")
	if want := want[:1]; !slices.Equal(got, want) {
		h.Errorf("two minutes later: %+v, want %+v", got, want)
	}
	// A limit that a new policy raised is the same counter.
	a.Limits = []policy.Limit{requests(70, time.Hour)}
	if v := h.admit(2*time.Minute, "y", a); v.Used != 1 {
		h.Errorf("raised limit: %+v, want 1 used", v)
	}
	got, _ = h.store.Usage(context.Background(), t0.Add(2*time.Minute), "acme")
	if len(got) != 1 || got[0].Limit.Max != 70 || got[0].Used != 2 {
		h.Errorf("raised limit: %+v, want 2 of 70", got)
	}
	if got, err := h.store.Usage(context.Background(), t0, "nobody"); err != nil || len(got) != 0 {
		h.Errorf("nobody: %+v, %v", got, err)
	}
}

// I: a budget of 1,000 and 100 parallel calls of 100.
func parallel(h *house) {
	limit := tokens(1000, time.Minute)
	if n := h.race(100, claim(call(100), limit)); n != 10 {
		h.Errorf("%d admitted, want exactly 10", n)
	}
	h.wantUsed(0, "acme", "rule", limit, 1000)
}

func parallelOverSlots(h *house) {
	own := in("acme", "own", claim(call(100), tokens(1000, time.Minute), atOnce(8)))
	shared := in(quota.Shared, "shared", claim(call(100), tokens(700, time.Minute)))
	n := h.race(60, own, shared)
	// A store that asks the slots one after the other may refuse a request
	// for what another one gives back; it never admits more.
	if n > 7 || n < 1 {
		h.Errorf("%d admitted, want at most 7", n)
	}
	h.wantUsed(0, "acme", "own", own.Limits[0], 100*n)
	h.wantUsed(0, "acme", "own", own.Limits[1], n)
	h.wantUsed(0, quota.Shared, "shared", shared.Limits[0], 100*n)
}

func (h *house) race(n int, claims ...quota.Claim) int64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			v, err := h.store.Reserve(context.Background(), t0, fmt.Sprint("race", i), claims)
			if err != nil {
				h.Error(err)
			}
			if v.Allowed {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}

func parallelSameID(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(100), limit, atOnce(1))
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			v, err := h.store.Reserve(context.Background(), t0, "one", []quota.Claim{c})
			if err != nil || !v.Allowed {
				h.Errorf("%+v, %v; want it allowed", v, err)
			}
		})
	}
	wg.Wait()
	h.wantUsed(0, "acme", "rule", limit, 100)
	for range 30 {
		wg.Go(func() {
			if err := h.store.Settle(context.Background(), t0, "one", []quota.Claim{c}, call(130)); err != nil {
				h.Error(err)
			}
		})
	}
	wg.Wait()
	h.wantUsed(0, "acme", "rule", limit, 130)
	h.wantUsed(0, "acme", "rule", atOnce(1), 0)
}
