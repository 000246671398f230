package admission

import "github.com/weirproxy/weir/breaker"

// Evidence is what was seen of one answer, for the breaker's rule on what
// counts (B6).
type Evidence = breaker.Evidence

// Judge says how an answer of the model's ended. What the caller did wrong
// and what was cut says nothing of the pool, good or bad.
func Judge(e *Evidence) Result {
	switch breaker.Classify(*e) {
	case breaker.Success:
		return ResultOK
	case breaker.Failure:
		return ResultFailed
	}
	// Unknown and data loss leave open whose fault it was.
	if e.Cut || e.GRPC && (e.GRPCStatus == grpcUnknown || e.GRPCStatus == grpcDataLoss) {
		return ResultUnknown
	}
	return ResultCaller
}

// LocalReply is the end of a request that Envoy answered by itself: all is
// given back, and the breaker counts it where Envoy's details blame the pool.
func LocalReply(e *Evidence) End {
	return End{
		Result: ResultNoAnswer, Failed: breaker.Classify(*e) == breaker.Failure,
		Status: e.Status, GRPC: -1, Usage: Usage{Refund: true},
	}
}
