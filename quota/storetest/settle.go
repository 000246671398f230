package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/quota"
)

// T8.
func reserveTwice(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(600), limit, atOnce(5))
	first := h.admit(0, "a", c)
	h.admit(0, "b", claim(call(100), limit))
	for i := range 3 {
		if again := h.reserve(time.Duration(i)*time.Second, "a", c); again != first {
			h.Errorf("again: %+v, want the first answer %+v", again, first)
		}
	}
	h.wantUsed(0, "acme", "rule", limit, 700)
	h.wantUsed(0, "acme", "rule", atOnce(5), 1)
}

func settleTwice(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(600), limit, atOnce(5))
	h.admit(0, "a", c)
	h.settle(time.Second, "a", call(50), c)
	h.settle(time.Second, "a", quota.Amount{}, c)
	h.settle(3*time.Second, "a", call(900), c)
	h.wantUsed(3*time.Second, "acme", "rule", limit, 50)
	h.wantUsed(3*time.Second, "acme", "rule", atOnce(5), 0)
}

func reserveAfterSettle(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(600), limit)
	h.admit(0, "a", c)
	h.settle(time.Second, "a", call(50), c)
	h.admit(2*time.Second, "a", c)
	h.wantUsed(2*time.Second, "acme", "rule", limit, 50)
	h.settle(3*time.Second, "a", call(700), c)
	h.wantUsed(3*time.Second, "acme", "rule", limit, 50)
}

func refusedAgain(h *house) {
	limit := tokens(100, time.Minute)
	h.admit(0, "a", claim(call(100), limit))
	h.refuse(0, "b", claim(call(40), limit))
	h.settle(0, "a", call(60), claim(call(100), limit))
	h.admit(0, "b", claim(call(40), limit))
}

// H: a settle never brings a counter to life.
func settleUnknown(h *house) {
	c := claim(call(600), tokens(1000, time.Minute), atOnce(5))
	h.settle(0, "ghost", call(500), c)
	h.settle(0, "ghost", quota.Amount{}, c)
	if counters, err := h.store.Usage(context.Background(), t0, "acme"); err != nil || len(counters) != 0 {
		h.Errorf("counters %+v, %v; want none", counters, err)
	}
}

// H: reserve at second 58, settle at second 63: the new cell is untouched.
func refundCell(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(500), limit)
	h.admit(58*time.Second, "a", c)
	h.admit(63*time.Second, "b", claim(call(100), limit))
	h.settle(63*time.Second, "a", call(200), c)
	h.wantUsed(63*time.Second, "acme", "rule", limit, 300)
	// The cell of a (58..60 s) has gone at 120 s, with its 200.
	h.wantUsed(119*time.Second, "acme", "rule", limit, 200)
	h.wantUsed(120*time.Second, "acme", "rule", limit, 100)
}

// H: a refund for a cell that is gone changes nothing.
func refundGone(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(500), limit)
	h.admit(0, "a", c)
	h.admit(90*time.Second, "b", claim(call(300), limit))
	h.settle(90*time.Second, "a", quota.Amount{}, c)
	h.wantUsed(90*time.Second, "acme", "rule", limit, 300)
	h.admit(5*time.Minute, "c", c)
	h.settle(10*time.Minute, "c", quota.Amount{}, c)
	h.wantUsed(10*time.Minute, "acme", "rule", limit, 0)
}

// H: exhausted, 500 come back, the next call of 400 is admitted.
func refundReopens(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(1000), limit)
	h.admit(0, "a", c)
	h.refuse(time.Second, "b", claim(call(400), limit))
	h.settle(time.Second, "a", call(500), c)
	h.admit(time.Second, "c", claim(call(400), limit))
	h.refuse(time.Second, "d", claim(call(101), limit))
}

// H: 200 calls with a reserve of 4,000 each, cancelled at once.
func cancelStorm(h *house) {
	limit := tokens(6000, time.Minute)
	c := claim(call(4000), limit, requests(1000, time.Minute), atOnce(1))
	for i := range 200 {
		id := fmt.Sprint(i)
		h.admit(0, id, c)
		h.settle(0, id, quota.Amount{Requests: 1, Output: 5}, c)
	}
	h.wantUsed(0, "acme", "rule", limit, 1000)
	h.wantUsed(0, "acme", "rule", c.Limits[1], 200)
	h.admit(0, "next", c)
}

// I: a call that turns out larger finishes; its debt holds the next back.
func debt(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(600), limit)
	h.admit(0, "a", c)
	h.settle(20*time.Second, "a", call(1700), c)
	h.wantUsed(20*time.Second, "acme", "rule", limit, 1700)
	v := h.refuse(20*time.Second, "b", claim(call(1), limit))
	if v.Used != 1700 {
		h.Errorf("refused: %+v, want 1700 used", v)
	}
	// 600 lie in the cell 0..2 s, 1100 in the cell 20..22 s: 999 of the
	// second may stay, so the wait ends in the cell 80..82 s.
	if want := 60*time.Second + 184*time.Millisecond; v.RetryAfter != want {
		h.Errorf("wait %v, want %v", v.RetryAfter, want)
	}
	h.settle(25*time.Second, "a", quota.Amount{}, c)
	h.wantUsed(61*time.Second, "acme", "rule", limit, 1400)
}

func debtAfterWindow(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(600), limit)
	h.admit(0, "a", c)
	h.settle(10*time.Minute, "a", call(1600), c)
	h.wantUsed(10*time.Minute, "acme", "rule", limit, 1000)
	h.refuse(10*time.Minute, "b", claim(call(1), limit))
}

func settleCancelled(h *house) {
	limit := tokens(1000, time.Minute)
	c := claim(call(600), limit)
	h.admit(0, "a", c)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.store.Settle(ctx, t0, "a", []quota.Claim{c}, quota.Amount{}); err != nil {
		h.Fatalf("Settle in a cancelled context: %v", err)
	}
	h.wantUsed(0, "acme", "rule", limit, 0)
}

func concurrency(h *house) {
	limit := atOnce(2)
	c := claim(quota.Amount{Concurrency: 1}, limit)
	h.admit(0, "a", c)
	h.admit(0, "b", c)
	v := h.refuse(0, "c", c)
	if v.RetryAfter != 0 || v.Never || v.Used != 2 || v.Limit != limit {
		h.Errorf("full: %+v, want 2 used and no known wait", v)
	}
	h.settle(time.Second, "a", quota.Amount{Concurrency: 1}, c)
	h.wantUsed(time.Second, "acme", "rule", limit, 1)
	h.admit(time.Second, "c", c)
	h.settle(time.Second, "a", quota.Amount{}, c)
	h.refuse(time.Second, "d", c)
	for _, id := range []string{"b", "c", "c", "b"} {
		h.settle(time.Second, id, quota.Amount{}, c)
	}
	h.wantUsed(time.Second, "acme", "rule", limit, 0)
}

func concurrencyExpires(h *house) {
	c := claim(quota.Amount{Concurrency: 1}, atOnce(2))
	h.admit(0, "a", c)
	h.admit(time.Minute, "b", c)
	h.refuse(quota.DefaultHold-time.Millisecond, "c", c)
	h.admit(quota.DefaultHold, "c", c)
	h.refuse(quota.DefaultHold, "d", c)
	h.settle(quota.DefaultHold, "a", quota.Amount{}, c)
	h.wantUsed(quota.DefaultHold, "acme", "rule", atOnce(2), 2)
	h.wantUsed(quota.DefaultHold+time.Minute, "acme", "rule", atOnce(2), 1)
}

// An unsettled reservation stays charged, and a late settle does nothing.
func reservationExpires(h *house) {
	limit := tokens(1000, time.Hour)
	c := claim(call(600), limit)
	h.admit(0, "a", c)
	h.settle(quota.DefaultHold, "a", quota.Amount{}, c)
	h.wantUsed(quota.DefaultHold, "acme", "rule", limit, 600)
}
