// Package breaker is the fuse box: a circuit breaker for each pool and each
// tenant, which stops sending requests to what fails, and lets them back step
// by step; and the council, in which replicas tell each other of it.
//
// # The machine
//
// One machine for all kinds (M. Nygard, Release It!, "Circuit Breaker";
// mechanisms B1, B2, B4-B7); a kind is the numbers that it runs by:
//
//	closed ──soft ratio──▶ soft ──hard ratio──▶ hard
//	   │  └──hard ratio, GOAWAYs, overrun──────▶ │
//	   │                    │ open time over     │ open time over
//	   │                    ▼                    ▼
//	   ◀──last step good── half-open ──a probe fails──▶ soft or hard, as before
//
// Closed, it counts the ends of requests in a window of ten cells, so the
// window covers the last nine to ten tenths of its length. With MinRequests
// ends in the window it opens at the soft level (class batch is shed,
// standard degraded, critical admitted) or at the hard level (all shed). At
// the soft level ends are still counted and may lead to the hard level, once.
//
// The open time is the one set and, by dice, up to a fifth more, so that
// breakers that opened together do not try again together. Requests meanwhile
// do not prolong it. Then dice let the first share of the release
// ladder through as probes, and only probes decide: one that fails opens the
// breaker again. The first request is a probe whatever the dice say, and so is
// one that comes half the set open time after the latest probe: while requests
// come, none of two open times is without a probe. A step of the ladder lasts ReleaseStep; it is followed by the
// next if a probe ended well or none is under way, and without any verdict
// after six times as long, so that little traffic recovers too and a probe
// that hangs or got lost holds up nothing for ever. After the last step, and
// at least three good probes in all, the breaker is closed and starts to count
// anew.
//
// Thresholds may follow the load (B4): at twice the usual rate they are twice
// as high, at most 99 %. Literal, they also sink below the usual rate.
//
// A storm of GOAWAYs opens a gRPC breaker before its own ends do (PreTrip, B7).
// An operator may trip, reset and hold any breaker (hand.go). Tenants (B5, T2)
// is the bounded set of tenants' breakers. What counts at all is one table
// (Rules, B6; docs/reasons.md).
//
// # The council
//
// Every replica says what it thinks of each breaker (Opinion), with the ends
// that it thinks so by; a Bus carries the words; Voice decides when to speak,
// Council what follows (B3): a pool counts as open elsewhere while more than
// half of the fresh words that rest on enough ends say so. One replica that is
// cut off from a pool harms itself alone.
//
// # Invariants
//
// Only the transitions drawn above, for those causes (GOAWAYs and overrun lead
// from soft to hard too), but for an operator's, the policy's, and that a
// tenant silent for long is forgotten; each goes to the Journal with its cause
// and figures. The ratio is within
// 0..1. A closed breaker is read by one atomic load and fed without a lock.
// Nothing here reads a clock, sleeps, logs or starts a goroutine.
package breaker

import "time"

// State of the machine (B1).
type State uint8

// The states. Soft and Hard are the two open levels.
const (
	Closed State = iota
	Soft         // open at the soft level: class 2 shed, class 1 degraded
	Hard         // open at the hard level: all 503
	HalfOpen
)

// String is the name used in metrics and logs.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Soft:
		return "soft"
	case Hard:
		return "hard"
	case HalfOpen:
		return "half_open"
	}
	return "unknown"
}

// Verdict is what the breaker says of one request.
type Verdict struct {
	Action     Action
	Probe      bool // half-open: this request decides
	State      State
	RetryAfter time.Duration // until the breaker may admit; 0 if admitted
}

// Action on a request.
type Action uint8

// The actions.
const (
	Admit Action = iota
	Degrade
	Shed
)
