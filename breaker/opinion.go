package breaker

import (
	"context"
	"time"
)

// Opinion is what one replica says of one breaker: its state and the evidence
// it has seen itself (B3). The zero value says nothing.
type Opinion struct {
	Replica  string // who says so
	Breaker  string // name of the pool, or of the tenant
	Kind     Kind
	State    State
	Level    State // Soft or Hard: where it opened; of no meaning while closed
	Requests int   // in its window
	Failures int   // in its window
	Since    time.Time
	Seq      uint64        // of this replica, rising: an older word never replaces a newer one
	TTL      time.Duration // how long after it was heard it counts, unless renewed
}

// Bus carries opinions between replicas. Implementations: memory, Redis, etcd;
// bustest is the suite that all of them run. Safe for concurrent use.
//
// A bus keeps the latest word of each (replica, breaker) until its TTL is
// over, so that a replica that was away or has just started takes over what
// stands. Garbage on the wire is counted and skipped; it never ends a bus.
type Bus interface {
	// Publish makes a word known to all. It returns when the bus has it, or an
	// error when ctx ends; what was not delivered is repeated by the caller's
	// next renewal.
	Publish(ctx context.Context, o Opinion) error

	// Listen calls heard with every word that stands when it begins, then with
	// each newer one, own words included, until ctx ends; it comes back from
	// lost connections by itself, and after a gap repeats what stands. down is
	// called with the error when the connection is lost, and with nil when it
	// is back. Neither is called concurrently with itself or with the other.
	Listen(ctx context.Context, heard func(Opinion), down func(error))

	Close() error
}
