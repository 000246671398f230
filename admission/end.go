package admission

import (
	"math"
	"time"

	"github.com/weirproxy/weir/quota"
)

// Result says how an admitted request ended (B6).
type Result uint8

// The results. Only ResultOK and ResultFailed are counted by the breaker.
const (
	ResultOK       Result = iota // the model answered
	ResultFailed                 // 429, 5xx of the upstream, reset, timeout, error inside a 200 stream
	ResultCaller                 // the caller left or was at fault (4xx included): never counted, as failure or success
	ResultUnknown                // cut without a word: never counted
	ResultNoAnswer               // local reply before the model saw it: full refund (counted when Failed is set)
	ResultStage                  // E4: a weir further down refused: full refund, never counted
)

// String is the result's name in metrics.
func (r Result) String() string {
	switch r {
	case ResultOK:
		return "ok"
	case ResultFailed:
		return "failed"
	case ResultCaller:
		return "caller"
	case ResultUnknown:
		return "unknown"
	case ResultNoAnswer:
		return "no_answer"
	case ResultStage:
		return "stage"
	}
	return "unknown"
}

// End is everything known at the end of an admitted request.
type End struct {
	Result    Result
	Failed    bool // with ResultNoAnswer: counts as a failure for the breaker (no upstream, reset, timeout)
	Status    int  // HTTP status seen; 0 = none
	GRPC      int  // gRPC status seen; -1 = none
	Usage     Usage
	FirstByte time.Duration // from admission; 0 = unknown
	Learn     bool          // usage is good enough for the estimator

	Used int64 // tokens that this is taken to have used, at no rate: the desk's word
}

// Usage is what the meter read. Known false: Output is an estimate from what
// was delivered and Input is 0 when unknown (the desk takes its own estimate).
type Usage struct {
	Known      bool
	InputKnown bool
	Input      int64 // whole input, cached part included
	Output     int64
	Cached     int64
	Reasoning  int64 // part of Output
	Total      int64 // only when the split is unknown; else 0
	Refund     bool  // nothing was delivered and nothing ran: charge nothing
	Choices    int64 // answers that were seen; ManyChoices = so many or more
	Capped     bool  // the upstream counted far more output than the caller's cap allows: Output is the cap, or the text delivered

	Implausible bool // the upstream counted what the model cannot have used: none of it is believed
	Unreadable  bool // the answer came in a coding or form that is not read
}

// ManyChoices is where Usage.Choices ends.
const ManyChoices = 64

// counted says whether a breaker counts the end, and as what (B6).
func (e *End) counted() (failed, ok bool) {
	switch e.Result {
	case ResultOK:
		return false, true
	case ResultFailed:
		return true, true
	case ResultNoAnswer:
		return true, e.Failed
	}
	return false, false
}

// charge is the final amount of a request that was estimated at in and out
// tokens (T8). What the meter does not know is charged by what was delivered
// and, where nothing says how much that was, by the estimate: never nothing.
func (e *End) charge(in, out int64) quota.Amount {
	a := e.amount(in, out)
	a.Input, a.Output = min(max(a.Input, 0), mostTokens), min(max(a.Output, 0), mostTokens)
	return a
}

// mostTokens bounds what one request can be charged of each kind, so that no
// sum or product of it overflows.
const mostTokens = 1 << 50

func (e *End) amount(in, out int64) quota.Amount {
	u := &e.Usage
	switch {
	case e.Result == ResultNoAnswer || e.Result == ResultStage || u.Refund:
		return quota.Amount{}
	case u.Total > 0:
		a := quota.Amount{Requests: 1, Input: min(in, u.Total)}
		a.Output = u.Total - a.Input
		return a
	case u.Known:
		a := quota.Amount{Requests: 1, Input: max(u.Input, 0), Output: max(u.Output, 0)}
		if !u.InputKnown && u.Input <= 0 {
			a.Input = in
		}
		return a
	case e.Result == ResultFailed && u.Output <= 0:
		return quota.Amount{Requests: 1}
	}
	a := quota.Amount{Requests: 1, Input: in, Output: max(u.Output, 0)}
	if u.InputKnown {
		a.Input = max(u.Input, 0)
	}
	if u.Output <= 0 && e.Result != ResultCaller {
		a.Output = out
	}
	return a
}

// bill is what an amount costs in quotas where it runs in the pool (V2): its
// tokens at the pool's rate, input and output each rounded up to a whole token,
// so that no rate makes a small answer free.
func (l *pool) bill(a quota.Amount) quota.Amount {
	rate := float64(l.spec.Load().Rate)
	if rate == 1 {
		return a
	}
	const fuzz = 1e-6 // of a product that is whole: 1.1 * 100 is 110
	a.Input = int64(math.Ceil(float64(a.Input)*rate - fuzz))
	a.Output = int64(math.Ceil(float64(a.Output)*rate - fuzz))
	return a
}
