// Package quota is the ledger: how much each tenant, key, user or model may
// use in a time, counted before a request runs and corrected after it.
//
// A rule of the policy becomes a Claim on one counter; a Store takes all
// claims of a request or none, and later settles them to what was really used
// (T8). Windows slide in 30 cells (T1), in several units and over several
// periods at once (T7). This package holds the arithmetic and the contract;
// memstore and redisstore keep the counters, and storetest holds both to the
// same behaviour.
//
// What always holds, in every store:
//   - parallel requests never pass a limit together;
//   - a counter is never negative, and debt stays until it has aged out;
//   - an id is charged once, however often it is reserved or settled;
//   - counts saturate at MaxCount and never wrap;
//   - a reservation that nobody settles ends by itself: its concurrency is
//     freed after the store's hold time, or as soon as the replica that took it
//     is gone; its other amounts stay charged until they leave their windows.
package quota

import (
	"cmp"
	"context"
	"errors"
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

// Of is the part of the amount that a unit counts, within 0..MaxCount: Tokens
// is the sum of input and output, and concurrency is 0 or 1.
func (a Amount) Of(u policy.Unit) int64 {
	switch u {
	case policy.Requests:
		return Count(a.Requests)
	case policy.Tokens:
		return Count(Count(a.Input) + Count(a.Output))
	case policy.InputTokens:
		return Count(a.Input)
	case policy.OutputTokens:
		return Count(a.Output)
	case policy.Concurrency:
		return min(max(a.Concurrency, 0), 1)
	}
	return 0
}

// Verdict answers a Reserve. Without limits to look at it is just Allowed.
type Verdict struct {
	Allowed    bool
	Rule       string        // the rule that refused, or the tightest one
	Limit      policy.Limit  // of that rule
	Used       int64         // in that limit's window, without this claim
	RetryAfter time.Duration // wait until the claims fit if nothing else is taken, exact to 1 ms; 0 when allowed or unknown (concurrency)
	Never      bool          // the claim is larger than the limit: no wait helps
	Local      bool          // decided by the local share: the store is away
}

// DefaultHold is how long a reservation that nobody settles lasts: longer
// than any seat may be held by default (10 minutes) and any wait before it.
const DefaultHold = 15 * time.Minute

// KeepSettled is how long stores remember a settled id, so that a reservation
// that arrives late or again takes nothing.
const KeepSettled = 2 * time.Minute

// ErrFull says that a store of bounded memory has no room for another tenant
// or counter, and none is idle. Nothing was taken.
var ErrFull = errors.New("quota: no room for another counter")

// Store keeps counters. Implementations: memstore, redisstore. All methods
// are safe for concurrent use. now is the caller's clock, counted in whole
// milliseconds; the zero time means the store's own clock (Redis TIME), which
// production uses with Redis.
type Store interface {
	// Reserve takes every claim or none. It is idempotent by id: an id that
	// holds something gets the same answer again and takes nothing more, also
	// for KeepSettled after it was settled. An id that was refused holds nothing
	// and may ask anew. An error means that the store could not decide within
	// its time budget and has no local rule, or ErrFull; nothing is held then.
	Reserve(ctx context.Context, now time.Time, id string, claims []Claim) (Verdict, error)

	// Settle replaces what id holds by its final amount, exactly once: later
	// calls, and calls for an id that holds nothing, do nothing. claims are
	// those of the Reserve. A zero amount gives everything back. A refund goes
	// to the cell of the reservation and never below zero; what exceeds the
	// reservation is charged to the present cell (debt is carried over).
	// Concurrency always ends. It works also when ctx has ended.
	Settle(ctx context.Context, now time.Time, id string, claims []Claim, final Amount) error

	// Known reports that the claims would be refused now, by what this process
	// knows without asking anybody, and how. It takes nothing and blocks for no
	// answer; false means that they may fit.
	Known(now time.Time, claims []Claim) (Verdict, bool)

	// Usage lists the counters of a tenant, or of the slot Shared, that count
	// anything now, sorted by rule, key, unit and period.
	Usage(ctx context.Context, now time.Time, tenant string) ([]Counter, error)

	// Close ends background work and waits for it.
	Close() error
}

// Counter is one live counter for operators (/debug/quotas).
type Counter struct {
	Rule  string
	Key   string
	Limit policy.Limit // as last seen in a claim
	Used  int64
}

// Compare orders counters by rule, key, unit and period.
func (c Counter) Compare(d Counter) int {
	return cmp.Or(
		cmp.Compare(c.Rule, d.Rule),
		cmp.Compare(c.Key, d.Key),
		cmp.Compare(c.Limit.Unit, d.Limit.Unit),
		cmp.Compare(c.Limit.Per, d.Limit.Per),
	)
}
