package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// known: what was refused for a limit without room is known to be refused, at
// the same limit and with a wait; what is given back is known no more; asking
// takes nothing, and makes no counter.
func known(h *house) {
	least := quota.Amount{Requests: 1, Input: 1, Concurrency: 1}
	for i, l := range []policy.Limit{
		requests(2, time.Minute), tokens(2, time.Minute), {Unit: policy.Concurrency, Max: 2},
	} {
		h.Run(l.Unit.String(), func(t *testing.T) {
			h := &house{T: t, store: h.store}
			c := in(fmt.Sprint("known", i), "rule", claim(least, l))
			at := t0.Add(time.Second)
			ask := func() (quota.Verdict, bool) { return h.store.Known(at, []quota.Claim{c}) }
			if v, refused := ask(); refused {
				t.Fatalf("an empty counter is known to refuse: %+v", v)
			}
			for n := range 2 {
				if v := h.reserve(time.Second, fmt.Sprint("k", i, n), c); !v.Allowed {
					t.Fatalf("%d: %+v", n, v)
				}
			}
			for range 10 {
				ask()
			}
			want := h.reserve(time.Second, "refused", c)
			got, refused := ask()
			if want.Allowed || !refused || got.Rule != want.Rule || got.Limit != want.Limit || got.Used != want.Used || got.RetryAfter != want.RetryAfter {
				t.Errorf("known %v %+v, want that of the refusal: %+v", refused, got, want)
			}
			if err := h.store.Settle(t.Context(), at, fmt.Sprint("k", i, 0), []quota.Claim{c}, quota.Amount{}); err != nil {
				t.Fatal(err)
			}
			if v, refused := ask(); refused {
				t.Errorf("known to be refused after one was given back: %+v", v)
			}
		})
	}
}
