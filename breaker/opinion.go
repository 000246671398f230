package breaker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Opinion is what one replica says of one breaker: its state and the evidence
// it has seen itself (B3). The zero value says nothing; see Check.
type Opinion struct {
	Replica string // who says so; unique among the replicas of one policy
	Breaker string // name of the pool, or of the tenant
	Kind    Kind
	State   State
	Level   State // Soft or Hard: where it opened; of no meaning while closed

	// Requests and Failures are the evidence: of its window while closed, of
	// what opened it while open, none while half-open. An operator's trip and
	// a state taken over from others are no evidence.
	Requests, Failures int

	Since time.Time     // of the state, by the clock of who says it: for people, nothing is decided by it
	Left  time.Duration // of the open time when it was said; 0 unless open

	// Seq rises with each word of a replica, also over its restarts: an older
	// word never replaces a newer one. Below 2^53, so that a script that
	// counts in floats compares it rightly.
	Seq uint64

	// TTL is how long after it was heard it counts, unless renewed.
	TTL time.Duration
}

// The bounds of Check.
const (
	MaxName = 256       // bytes of a replica's or breaker's name
	MaxTTL  = time.Hour // of a word
	MaxSeq  = 1<<53 - 1
)

// Check refuses what no replica would say. A bus counts and skips such words.
func (o Opinion) Check() error {
	switch {
	case o.Replica == "" || len(o.Replica) > MaxName:
		return fmt.Errorf("opinion: replica has %d bytes, want 1..%d", len(o.Replica), MaxName)
	case o.Breaker == "" || len(o.Breaker) > MaxName:
		return fmt.Errorf("opinion: breaker has %d bytes, want 1..%d", len(o.Breaker), MaxName)
	case o.Kind > Tenant:
		return fmt.Errorf("opinion: kind %d, want 0..%d", o.Kind, Tenant)
	case o.State > HalfOpen:
		return fmt.Errorf("opinion: state %d, want 0..%d", o.State, HalfOpen)
	case o.State != Closed && o.Level != Soft && o.Level != Hard:
		return fmt.Errorf("opinion: level %d of a breaker that is %v, want soft or hard", o.Level, o.State)
	case o.Requests < 0 || o.Failures < 0 || o.Failures > o.Requests:
		return fmt.Errorf("opinion: %d failures of %d requests", o.Failures, o.Requests)
	case o.Left < 0:
		return fmt.Errorf("opinion: %v of the open time left", o.Left)
	case o.Seq == 0 || o.Seq > MaxSeq:
		return fmt.Errorf("opinion: seq %d, want 1..%d", o.Seq, uint64(MaxSeq))
	case o.TTL <= 0 || o.TTL > MaxTTL:
		return fmt.Errorf("opinion: ttl %v, want above 0, up to %v", o.TTL, MaxTTL)
	}
	return nil
}

// Open reports whether the word is that the breaker is open, soft or hard.
func (o Opinion) Open() bool { return o.State == Soft || o.State == Hard }

// Key is what a bus keeps the latest word of: a pool and a tenant may have the
// same name.
type Key struct {
	Replica string
	Tenant  bool
	Breaker string
}

// Key is the word's key.
func (o Opinion) Key() Key { return Key{o.Replica, o.Kind == Tenant, o.Breaker} }

// ErrClosed is what a closed bus answers.
var ErrClosed = errors.New("breaker bus is closed")

// Bus carries opinions between replicas. Implementations: memory, Redis, etcd;
// bustest is the suite that all of them run. Safe for concurrent use.
//
// A bus keeps the latest word of each Key until its TTL is over, so that a
// replica that was away or has just started takes over what stands. Garbage on
// the wire, words that fail Check included, is counted and skipped; it never
// ends a bus.
type Bus interface {
	// Publish makes a word known to all. It returns when the bus has it, or an
	// error: when ctx ends, when the word fails Check, when the bus cannot be
	// reached or is closed. What was not delivered is repeated by the caller's
	// next renewal. A word that is not newer than the one that stands is no
	// error and changes nothing.
	Publish(ctx context.Context, o Opinion) error

	// Listen calls heard with every word that stands when it begins, then with
	// each newer one, own words included, until ctx ends or the bus is closed.
	// Words of one Key come in the order of their Seq; of several that came
	// meanwhile it may give the latest alone. A word that stood already comes
	// with the TTL that is left of it, where the bus knows. It comes back from
	// lost connections by itself, and after a gap repeats what stands. down is
	// called with the error when the connection is lost, and with nil when it
	// is back. Neither is called concurrently with itself or with the other.
	Listen(ctx context.Context, heard func(Opinion), down func(error))

	// Close ends Listen and makes Publish fail. Words that stand stay for
	// their TTL. A second call does nothing.
	Close() error
}
