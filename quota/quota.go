package quota

import (
	"context"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Claim is what one request asks of one counter of one rule. Admission makes
// claims; a store takes all claims of a request or none (T8).
type Claim struct {
	Rule   string // policy rule's name
	Tenant string // the slot: all keys of a tenant live under one hash tag
	Key    string // counter key inside the slot: rule and "by" values, encoded
	Limits []policy.Limit
	Amount Amount
}

// Amount is a quantity in every unit (T7). Zero value: nothing.
type Amount struct {
	Requests    int64
	Input       int64 // tokens
	Output      int64 // tokens
	Concurrency int64 // 1 while waiting or running
}

// Of is the part of the amount that a unit counts; Tokens is the sum.
func (a Amount) Of(u policy.Unit) int64 {
	switch u {
	case policy.Requests:
		return a.Requests
	case policy.Tokens:
		return a.Input + a.Output
	case policy.InputTokens:
		return a.Input
	case policy.OutputTokens:
		return a.Output
	case policy.Concurrency:
		return a.Concurrency
	}
	return 0
}

// Verdict answers a Reserve.
type Verdict struct {
	Allowed    bool
	Rule       string        // the rule that refused, or the tightest one
	Limit      policy.Limit  // of that rule
	Used       int64         // in that limit's window, without this claim
	RetryAfter time.Duration // true wait until the claim fits (K); 0 when unknown (concurrency) or allowed
	Never      bool          // the claim is larger than the limit: no wait helps
	Local      bool          // decided by the local share: the store is away
}

// Store keeps counters. Implementations: memstore, redisstore. All methods
// are safe for concurrent use. now is the caller's clock; the zero time means
// the store's own clock (Redis TIME), which production uses with Redis.
type Store interface {
	// Reserve takes every claim or none. It is idempotent by id: the same id
	// again gives the same answer and takes nothing more. An error means that
	// the store could not decide within its time budget and has no local rule.
	Reserve(ctx context.Context, now time.Time, id string, claims []Claim) (Verdict, error)

	// Settle replaces what id holds by its final amount, exactly once: later
	// calls do nothing. A zero amount gives everything back. A refund goes to
	// the cell of the reservation and never below zero; what exceeds the
	// reservation is charged to the present cell (debt is carried over).
	// Concurrency always ends.
	Settle(ctx context.Context, now time.Time, id string, claims []Claim, final Amount) error

	// Usage lists the live counters of a tenant, sorted by rule and key.
	Usage(ctx context.Context, now time.Time, tenant string) ([]Counter, error)

	// Close ends background work and waits for it.
	Close() error
}

// Counter is one live counter for operators (/debug/quotas).
type Counter struct {
	Rule  string
	Key   string
	Limit policy.Limit
	Used  int64
}
