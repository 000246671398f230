package queue

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Waiter is one request in front of a pool. The line owns it from Offer until
// it is returned in Effects or by Cancel, or its seat is released.
type Waiter struct {
	Class    policy.Class
	Colour   policy.Colour
	Tenant   string
	Weight   float64       // of the tenant inside the class; <= 0 means 1
	Cost     int64         // predicted tokens: the price in fair queuing (P2); >= 1
	Tokens   int64         // KV tokens that the seat takes (Q9)
	Bytes    int64         // of body held while waiting
	MaxWait  time.Duration // in the line; 0 = do not wait
	OnExpiry policy.Expiry
	Deadline time.Time // the caller's own; zero = none
	Owner    any       // the desk's entry; not looked at

	node // the line's own bookkeeping
}

// node is private bookkeeping (the line's author fills it).
type node struct{}

// Bounds are the limits that hold for one Offer: they follow pressure and the
// request's policy, so the caller computes them (Q1, Q4, Q5).
type Bounds struct {
	Length     int           // Q1 or Q4; 0 = no waiting
	Soft       int           // positions from here on are refused softly (Q5), except for the exempt
	Exempt     bool          // this waiter may use the rest
	PerTenant  policy.Ratio  // of its class cap, while others wait
	RetryLimit time.Duration // of the retry queue
	RetryLen   int
}

// Refusal says why Offer did not take a waiter.
type Refusal uint8

// The refusals. Each names its reason in the admission table.
const (
	Taken      Refusal = iota // not refused
	SoftFull                  // Q5: 429
	Full                      // Q6: 503
	ClassFull                 // P2: 429
	TenantFull                // P2: 429
	CannotMeet                // own deadline before the predicted wait: 429
	TooLarge                  // needs more tokens than the pool has: never
	Draining                  // SIGTERM: 503
)

// Offered is the answer of Offer.
type Offered struct {
	Refusal  Refusal
	Granted  bool          // has a seat now
	Position int           // 1-based place in the line where it waits
	Hint     time.Duration // when a refused caller would be let in: position / drain rate; unjittered
}

// Exit is a waiter that left the line.
type Exit struct {
	Waiter  *Waiter
	Granted bool          // else expired or drained
	Action  policy.Expiry // what its class wants on expiry; ExpireRetry here means: the retry queue ended too
	Retried bool          // it was in the retry queue
	Drained bool
	Waited  time.Duration
	Hint    time.Duration
}

// Stats is a picture of the line for metrics and /debug/queue.
type Stats struct {
	Waiting    [policy.NumClasses]int
	Retrying   int
	Running    [policy.NumClasses]int
	SeatsTotal policy.Seats
	SeatsUsed  policy.Seats
	HeldBytes  int64
	DrainRate  float64 // seats freed per second, measured
	Tenants    int
}
