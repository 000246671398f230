package admission

import (
	"testing"

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
		{"never told", unseen, amount(1, 0, 0)},
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
	} {
		failed, counts := c.end.counted()
		if counts != c.counts || counts && failed != c.failed {
			t.Errorf("%s (failed %v): counted %v as failed %v", c.end.Result, c.end.Failed, counts, failed)
		}
	}
}
