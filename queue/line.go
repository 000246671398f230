package queue

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Config is a line's shape. Seats are this replica's share.
type Config struct {
	Seats    policy.Seats
	Weights  [policy.NumClasses]int           // P2
	MaxWaits [policy.NumClasses]time.Duration // W of the class caps
	Price    policy.Price
}

// Line is the waiting room of one pool: queue and seats. It is a core: not
// safe for concurrent use, no clock of its own; the desk locks it and passes
// now, which never goes back.
type Line struct{}

// New makes an empty line.
func New(c Config) *Line { panic("stub") }

// Configure changes the shape; waiting and running stay. Grants may follow.
func (l *Line) Configure(now time.Time, c Config) []Exit { panic("stub") }

// Offer brings a waiter: seat at once, place in the line, or refusal.
func (l *Line) Offer(now time.Time, w *Waiter, b Bounds) Offered { panic("stub") }

// TryTake takes a free seat at once if nobody is ahead (waiting or retrying
// of any class): the way down on degrade (V2). It never queues.
func (l *Line) TryTake(now time.Time, w *Waiter) bool { panic("stub") }

// Cancel takes a waiter out that waits (true), or reports false when it has a
// seat already or left.
func (l *Line) Cancel(now time.Time, w *Waiter) (waited time.Duration, ok bool) { panic("stub") }

// Release frees a granted waiter's seat, exactly once (later calls return
// nothing), and grants what follows.
func (l *Line) Release(now time.Time, w *Waiter) []Exit { panic("stub") }

// Settle corrects the tenant's virtual time by the real cost (P2).
func (l *Line) Settle(w *Waiter, cost int64) { panic("stub") }

// Advance does everything that is due: expiries (P3), moves to the retry
// queue, grants from it.
func (l *Line) Advance(now time.Time) []Exit { panic("stub") }

// Pause keeps the retry queue and/or all grants from being served (breaker
// open: retry queue closed).
func (l *Line) Pause(now time.Time, retry bool) []Exit { panic("stub") }

// Drain empties the line: everybody who waits leaves with Drained set, and
// later Offers are refused as Draining (SIGTERM).
func (l *Line) Drain(now time.Time) []Exit { panic("stub") }

// Next is the instant at which Advance wants to be called; false = none.
func (l *Line) Next() (time.Time, bool) { panic("stub") }

// Predict is the wait that an Offer of this class would see now: position /
// drain rate; 0 when a seat is free.
func (l *Line) Predict(now time.Time, c policy.Class) time.Duration { panic("stub") }

// Stats is a picture of the line.
func (l *Line) Stats(now time.Time) Stats { panic("stub") }
