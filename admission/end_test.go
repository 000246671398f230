package admission

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// T8: what is known is charged exactly, what was delivered otherwise, and the
// estimate where nothing is known; refunds only where nothing ran.
func TestCharge(t *testing.T) {
	const in, out = 100, 500
	amount := func(requests, input, output int64) quota.Amount {
		return quota.Amount{Requests: requests, Input: input, Output: output}
	}
	for _, c := range []struct {
		name string
		end  End
		want quota.Amount
	}{
		{"counted", End{Usage: Usage{Known: true, InputKnown: true, Input: 12, Output: 11}}, amount(1, 12, 11)},
		{"counted, nothing came out", End{Usage: Usage{Known: true, InputKnown: true, Input: 12}}, amount(1, 12, 0)},
		{"output counted, input not", End{Usage: Usage{Known: true, Output: 11}}, amount(1, in, 11)},
		{"total alone", End{Usage: Usage{Known: true, Total: 150}}, amount(1, in, 50)},
		{"total below the estimate of input", End{Usage: Usage{Known: true, Total: 30}}, amount(1, 30, 0)},
		{"no count, some delivered", End{Usage: Usage{Output: 40}}, amount(1, in, 40)},
		{"no count, unreadable answer", End{}, amount(1, in, out)},
		{"caller left in mid answer", End{Result: ResultCaller, Usage: Usage{Output: 7}}, amount(1, in, 7)},
		{"caller left before the answer", End{Result: ResultCaller}, amount(1, in, 0)},
		{"cut without a word", End{Result: ResultUnknown, Usage: Usage{Output: 7}}, amount(1, in, 7)},
		{"taken back after maxHold", End{Result: ResultUnknown}, amount(1, in, out)},
		{"upstream failed at once", End{Result: ResultFailed}, amount(1, 0, 0)},
		{"upstream failed in mid stream", End{Result: ResultFailed, Usage: Usage{Output: 7}}, amount(1, in, 7)},
		{"error inside a 200 stream", End{Result: ResultFailed, Usage: Usage{Refund: true}}, amount(0, 0, 0)},
		{"local reply", End{Result: ResultNoAnswer, Failed: true}, amount(0, 0, 0)},
		{"a stage below refused", End{Result: ResultStage, Usage: Usage{Known: true, InputKnown: true, Input: 5, Output: 5}}, amount(0, 0, 0)},
		{"never told", unseen, amount(1, 0, 0)},
		{"no sum overflows", End{Usage: Usage{Known: true, InputKnown: true, Input: math.MaxInt64, Output: math.MaxInt64}}, amount(1, mostTokens, mostTokens)},
		{"nor a total", End{Usage: Usage{Total: math.MaxInt64}}, amount(1, in, mostTokens)},
		{"a negative estimate is none", End{Usage: Usage{Output: math.MinInt64}, Result: ResultCaller}, amount(1, in, 0)},
		{"implausible: the estimate", End{Usage: Usage{Implausible: true}}, amount(1, in, out)},
		{"negative counts are none", End{Usage: Usage{Known: true, InputKnown: true, Input: -5, Output: -1}}, amount(1, 0, 0)},
	} {
		if got := c.end.charge(in, out); got != c.want {
			t.Errorf("%s: charged %+v, want %+v", c.name, got, c.want)
		}
	}
}

// B6: what counts for a breaker.
func TestCounted(t *testing.T) {
	for _, c := range []struct {
		end            End
		failed, counts bool
	}{
		{End{Result: ResultOK}, false, true},
		{End{Result: ResultFailed}, true, true},
		{End{Result: ResultCaller}, false, false},
		{End{Result: ResultUnknown}, false, false},
		{End{Result: ResultNoAnswer, Failed: true}, true, true},
		{End{Result: ResultNoAnswer}, true, false},
		{End{Result: ResultStage, Failed: true, Status: 503}, false, false},
	} {
		failed, counts := c.end.counted()
		if counts != c.counts || counts && failed != c.failed {
			t.Errorf("%s (failed %v): counted %v as failed %v", c.end.Result, c.end.Failed, counts, failed)
		}
	}
}

// V2: tokens are billed at the pool's rate, each kind rounded up; requests and
// concurrency are not.
func TestBill(t *testing.T) {
	for _, c := range []struct {
		rate            policy.Ratio
		in, out         int64
		wantIn, wantOut int64
	}{
		{1, 7, 11, 7, 11},
		{1, math.MaxInt64, 1 << 60, math.MaxInt64, 1 << 60},
		{0.5, 100, 7, 50, 4},
		{0.6, 100, 1, 60, 1},
		{0.01, 1, 0, 1, 0},
		{1.1, 100, 10, 110, 11}, // 110.00000000000001 in binary
		{0.07, 100, 300, 7, 21},
		{2, 3, 4, 6, 8},
	} {
		l := &pool{}
		l.spec.Store(&policy.Pool{Rate: c.rate})
		got := l.bill(quota.Amount{Requests: 1, Concurrency: 1, Input: c.in, Output: c.out})
		if want := (quota.Amount{Requests: 1, Concurrency: 1, Input: c.wantIn, Output: c.wantOut}); got != want {
			t.Errorf("%d and %d at %g: %+v, want %+v", c.in, c.out, c.rate, got, want)
		}
	}
}

// V2, T8: reserved at the rate of the pool that it is to run in, settled at
// that of the pool where it ran, told to observers as it was billed.
func TestBilledWhereItRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1, withQuotas(policy.Limit{Unit: policy.Tokens, Max: 1000, Per: time.Minute}), func(p *policy.Policy) {
			p.Pools[1].Rate, p.Pools[2].Rate = 0.9, 0.5 // dyn, int8
		})
		log := newLog()
		d := newTestDesk(t, p, log)
		e := effective(t, p)
		used := func(tenant string) int64 {
			var n int64
			for _, c := range usage(t, d, tenant) {
				n += c.Used
			}
			return n
		}
		first := admit(t, d, ask(e, "first", "a", policy.Standard)) // 100 in, 100 out
		if got := used("a"); got != 180 {
			t.Errorf("reserved %d tokens of dyn, want 200 * 0.9", got)
		}
		second := admit(t, d, ask(e, "second", "b", policy.Standard))
		if pool := second.visit.plan.Decision.Pool; pool != "chat-int8" {
			t.Fatalf("the second runs in %s, want a degraded seat", pool)
		}
		second.Done(fine(80, 41))
		first.Done(fine(80, 41))
		if a, b := used("a"), used("b"); a != 72+37 || b != 40+21 {
			t.Errorf("billed %d in dyn and %d in int8, want 109 and 61", a, b)
		}
		for id, want := range map[string]int64{"first": 109, "second": 61} {
			if end, charged, _ := log.end(id); charged != want || end.Used != 121 || end.Usage.Input != 80 || end.Usage.Output != 41 {
				t.Errorf("%s: observers hear %d charged and %d used of %+v, want %d and 121", id, charged, end.Used, end.Usage, want)
			}
		}
		quiet(t, d)
	})
}

// E4: what a weir further down refused is counted there: here it costs
// nothing, teaches nothing and decides no breaker.
func TestStageRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(40, withQuotas(policy.Limit{Unit: policy.Requests, Max: 100, Per: time.Minute}))
		d := newTestDesk(t, p)
		e := effective(t, p)
		for i := range 40 {
			ticket := admit(t, d, ask(e, name("r", i), "acme", policy.Critical))
			ticket.Done(End{Result: ResultStage, Failed: true, Learn: true, Status: 503, GRPC: -1, FirstByte: time.Millisecond, Usage: Usage{Known: true, Input: 1, Output: 1}})
		}
		for _, c := range usage(t, d, "acme") {
			if c.Used != 0 {
				t.Errorf("%d requests are charged", c.Used)
			}
		}
		s := d.Snapshot(time.Now()).Pools[0]
		if s.Breaker.State != breaker.Closed || s.Latency != 0 || s.Speeds != nil {
			t.Errorf("breaker %v, latency %s, speeds %v", s.Breaker.State, s.Latency, s.Speeds)
		}
		if in, out := d.core.estimates.Predict(ask(e, "a", "acme", policy.Critical), 0); in != 100 || out != 100 {
			t.Errorf("estimate %d in, %d out: learnt from a refusal", in, out)
		}
		quiet(t, d)
	})
}
