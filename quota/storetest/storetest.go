// Package storetest is the conformance suite of quota.Store: every
// implementation runs it, and it compares each with an exact model.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// t0 is a border of the cells of every period used here.
var t0 = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

// Run holds stores to the contract. open gives a new, empty store that keeps
// unsettled reservations for quota.DefaultHold; it sees to its closing.
func Run(t *testing.T, open func(t *testing.T) quota.Store) {
	for _, c := range []struct {
		name string
		run  func(h *house)
	}{
		{"window slides by cells", slides},
		{"edge of a minute", edge},
		{"edge of a day", edgeOfDay},
		{"time zones", zones},
		{"several windows at once", severalWindows},
		{"units", units},
		{"no claims", noClaims},
		{"nothing asked", nothingAsked},
		{"never", never},
		{"tightest limit is named", tightest},
		{"two limits on one counter", sameCounter},
		{"all or none in one slot", allOrNone},
		{"all or none over slots", allOrNoneOverSlots},
		{"slots are apart", slotsApart},
		{"hostile names", hostileNames},
		{"reserve is idempotent", reserveTwice},
		{"settle is idempotent", settleTwice},
		{"late reserve of a settled id", reserveAfterSettle},
		{"refused id may ask again", refusedAgain},
		{"settle of unknown id", settleUnknown},
		{"refund goes to its own cell", refundCell},
		{"refund after the window", refundGone},
		{"refund reopens an exhausted counter", refundReopens},
		{"cancelled calls give their reserve back", cancelStorm},
		{"debt", debt},
		{"debt after the window", debtAfterWindow},
		{"settle in a cancelled context", settleCancelled},
		{"concurrency", concurrency},
		{"concurrency ends by itself", concurrencyExpires},
		{"expired reservation", reservationExpires},
		{"wait is exact", exactWait},
		{"wait is exact over slots", exactWaitOverSlots},
		{"wait below a millisecond", subMillisecond},
		{"large counts", largeCounts},
		{"saturated counter stays closed", saturated},
		{"huge limits and periods", hugeLimits},
		{"clock goes back", clockBack},
		{"clock was far ahead", clockAhead},
		{"store's own clock", ownClock},
		{"what is known to be refused", known},
		{"usage", usage},
		{"usage moves with a limit's period", moves},
		{"usage moves over several policies", movesAgain},
		{"usage stays with a rule's id", renames},
		{"parallel requests", parallel},
		{"parallel requests over slots", parallelOverSlots},
		{"parallel repeats of one id", parallelSameID},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(&house{T: t, store: open(t)}) })
	}
	t.Run("model", func(t *testing.T) { againstModel(t, open) })
}

// house is one store under test. Instants are given after t0.
type house struct {
	*testing.T
	store quota.Store
}

func (h *house) reserve(at time.Duration, id string, claims ...quota.Claim) quota.Verdict {
	h.Helper()
	v, err := h.store.Reserve(context.Background(), t0.Add(at), id, claims)
	if err != nil {
		h.Fatalf("Reserve(%v, %s): %v", at, id, err)
	}
	if v.RetryAfter < 0 || v.Used < 0 || v.Local {
		h.Fatalf("Reserve(%v, %s) = %+v: negative, or local", at, id, v)
	}
	return v
}

func (h *house) admit(at time.Duration, id string, claims ...quota.Claim) quota.Verdict {
	h.Helper()
	v := h.reserve(at, id, claims...)
	if !v.Allowed || v.RetryAfter != 0 || v.Never {
		h.Fatalf("Reserve(%v, %s) = %+v, want it allowed", at, id, v)
	}
	return v
}

func (h *house) refuse(at time.Duration, id string, claims ...quota.Claim) quota.Verdict {
	h.Helper()
	v := h.reserve(at, id, claims...)
	if v.Allowed {
		h.Fatalf("Reserve(%v, %s) = %+v, want it refused", at, id, v)
	}
	return v
}

func (h *house) settle(at time.Duration, id string, final quota.Amount, claims ...quota.Claim) {
	h.Helper()
	if err := h.store.Settle(context.Background(), t0.Add(at), id, claims, final); err != nil {
		h.Fatalf("Settle(%v, %s): %v", at, id, err)
	}
}

// used is what one counter of a slot counts; 0 when it is not listed.
func (h *house) used(at time.Duration, tenant, key string, l policy.Limit) int64 {
	h.Helper()
	counters, err := h.store.Usage(context.Background(), t0.Add(at), tenant)
	if err != nil {
		h.Fatalf("Usage(%v, %s): %v", at, tenant, err)
	}
	for _, c := range counters {
		if c.Key == key && c.Limit.Unit == l.Unit && c.Limit.Per == l.Per {
			return c.Used
		}
	}
	return 0
}

func (h *house) wantUsed(at time.Duration, tenant, key string, l policy.Limit, want int64) {
	h.Helper()
	if got := h.used(at, tenant, key, l); got != want {
		h.Fatalf("at %v %s/%s uses %d, want %d", at, tenant, key, got, want)
	}
}

func requests(n int64, per time.Duration) policy.Limit {
	return policy.Limit{Unit: policy.Requests, Max: n, Per: per}
}

func tokens(n int64, per time.Duration) policy.Limit {
	return policy.Limit{Unit: policy.Tokens, Max: n, Per: per}
}

func atOnce(n int64) policy.Limit { return policy.Limit{Unit: policy.Concurrency, Max: n} }

// claim asks one rule of the tenant "acme" for an amount.
func claim(a quota.Amount, limits ...policy.Limit) quota.Claim {
	return quota.Claim{Rule: "rule", Tenant: "acme", Key: "rule", Limits: limits, Amount: a}
}

// call is one request of n tokens, half in and half out.
func call(n int64) quota.Amount {
	return quota.Amount{Requests: 1, Input: n / 2, Output: n - n/2, Concurrency: 1}
}

// in moves a claim to another slot and rule.
func in(tenant, rule string, c quota.Claim) quota.Claim {
	c.Tenant, c.Rule, c.Key = tenant, rule, rule
	return c
}
