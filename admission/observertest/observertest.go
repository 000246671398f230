// Package observertest is the conformance suite of admission.Observer: every
// implementation (telemetry, audit, explain) runs it.
package observertest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// bound is the longest that one call may take on a busy machine, as a mean
// over the suite: an observer that blocks is far above it.
const bound = 2 * time.Millisecond

// Run checks that an observer takes every decision and every end, also odd
// ones and from many goroutines, changes nothing, keeps no pointer, and does
// not block. open gives a new observer and may register clean-up.
func Run(t *testing.T, open func(t *testing.T) admission.Observer) {
	t.Helper()
	t.Run("every reason", func(t *testing.T) { everyReason(t, open(t)) })
	t.Run("odd values", func(t *testing.T) { oddValues(t, open(t)) })
	t.Run("changes nothing", func(t *testing.T) { changesNothing(t, open(t)) })
	t.Run("many goroutines", func(t *testing.T) { manyGoroutines(t, open(t)) })
	t.Run("ended without decided", func(t *testing.T) { endedAlone(t, open(t)) })
}

func request(id string) *admission.Request {
	return &admission.Request{
		ID:       id,
		Received: time.Unix(1_900_000_000, 0),
		Identity: &identity.Identity{Tenant: "acme", Class: policy.Standard},
		Policy:   &policy.Effective{Policy: &policy.Policy{Hash: "0123456789ab"}},
		API:      &policy.API{Method: "POST", Path: "/v1/chat/completions"},
		Model:    "deepseek-v4",
		Class:    policy.Standard,
		Prompt:   400,
	}
}

func end(r admission.Result) *admission.End {
	return &admission.End{Result: r, Status: 200, GRPC: -1, Usage: admission.Usage{Known: true, InputKnown: true, Input: 12, Output: 11}}
}

func everyReason(t *testing.T, o admission.Observer) {
	now, began := time.Unix(1_900_000_000, 0), time.Now()
	for i := range admission.NumReasons {
		r := request(fmt.Sprintf("every-%d", i))
		d := admission.Decide(admission.Reason(i), "detail")
		o.Decided(r, &d, now)
		d.Shadow, d.Intended = true, admission.Reason(i)
		o.Decided(r, &d, now)
		if !d.Reason.Admits() {
			continue
		}
		for result := admission.ResultOK; result <= admission.ResultNoAnswer; result++ {
			o.Ended(r, &d, end(result), 23, time.Second, now)
		}
	}
	if mean := time.Since(began) / time.Duration(2*admission.NumReasons); mean > bound {
		t.Errorf("a call takes %s, want less than %s: an observer must not block", mean, bound)
	}
}

// oddValues are legal, if rare: no identity (refused before), no API, values
// outside the enums, a trail that is full, no quota, negative times.
func oddValues(_ *testing.T, o admission.Observer) {
	r := &admission.Request{ID: ""}
	d := admission.Decision{Action: 200, Reason: 200, Intended: 200, Waited: -1, RetryAfter: -1}
	d.Trail.N = uint8(len(d.Trail.Steps))
	o.Decided(r, &d, time.Time{})
	o.Ended(r, &d, &admission.End{Result: 200}, -1, -1, time.Time{})
	r = request("odd")
	r.Class, r.Colour = 200, 200
	r.Identity = &identity.Identity{Tenant: "\x00\xff\n\"{}"}
	o.Decided(r, &d, time.Time{})
	o.Ended(r, &d, &admission.End{}, 0, 0, time.Time{})
}

func changesNothing(t *testing.T, o admission.Observer) {
	r, e := request("same"), end(admission.ResultOK)
	quota := admission.QuotaView{Rule: "per-tenant", Remaining: 5}
	d := admission.Decide(admission.Admitted, "")
	d.Quota = &quota
	r0, d0, e0, q0 := *r, d, *e, quota
	now := time.Unix(1_900_000_000, 0)
	o.Decided(r, &d, now)
	o.Ended(r, &d, e, 23, time.Second, now)
	if *r != r0 || d != d0 || *e != e0 || quota != q0 {
		t.Error("the observer changed what it was shown")
	}
}

// manyGoroutines changes the decision and the end right after each call: the
// race detector finds an observer that kept a pointer.
func manyGoroutines(_ *testing.T, o admission.Observer) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			var d admission.Decision
			var e admission.End
			var quota admission.QuotaView
			for i := range 200 {
				r := request(fmt.Sprintf("many-%d-%d", g, i%50))
				d = admission.Decide(admission.Reason(i%admission.NumReasons), "")
				quota = admission.QuotaView{Rule: "per-tenant", Remaining: int64(i)}
				d.Quota = &quota
				o.Decided(r, &d, time.Unix(int64(i), 0))
				e = *end(admission.Result(i % 5))
				o.Ended(r, &d, &e, int64(i), time.Second, time.Unix(int64(i), 1))
			}
		})
	}
	wg.Wait()
}

func endedAlone(_ *testing.T, o admission.Observer) {
	d := admission.Decide(admission.Admitted, "")
	o.Ended(request("never heard of"), &d, end(admission.ResultOK), 23, time.Second, time.Unix(1, 0))
}
