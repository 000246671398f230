package queue

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Waiter is one request in front of a pool. The line owns it from Offer until
// it is returned in an Exit or by Cancel, or its seat is released; its fields
// are not to be changed meanwhile. After that it may be offered again, here or
// in another line.
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
	Deadline time.Time     // the caller's own; zero = none
	Tier     string        // names its group, also after a change of their order; unknown = the home (P9)
	Group    int           // index in Config.Shares.Groups; out of range = the last. Where groups have names the line sets it
	Stream   bool          // P6
	Priority bool          // P8: may use the priority lane
	Handicap time.Duration // P4, P6: how much later than it came it is taken to have come, among its flow
	Returns  bool          // the caller says that it comes back after a refusal (Q5)
	Owner    any           // the desk's entry; not looked at

	node // the line's own bookkeeping
}

// node is the line's private part of a waiter.
type node struct {
	line       *Line
	state      waiterState
	seq        uint64        // of arrival
	since      time.Duration // the Offer
	granted    time.Duration
	expires    time.Duration // from line or retry queue
	deadline   time.Duration // the caller's own, or never
	retryLimit time.Duration
	retryLen   int
	pos        int           // in the expiry heap
	came       time.Duration // since, or earlier: time waited before is credited inside the flow
	spots      [2]spot       // while waiting
	prev, next *Waiter       // in the retry queue
	tokens     int64         // taken with the seat
	group      *group        // whose share the seat counts to; nil = the priority lane's
	via        *lane         // where it was charged
	charged    float64       // in fair queuing; 0 = was not charged
	borne      float64       // of that, in its tenant's account in the other leaf
	given      uint64        // seats the line had given when it began to wait, then when it got its own
	settled    bool
}

func (n *node) place(i int) { n.pos = i }

type waiterState uint8

const (
	outside waiterState = iota
	waiting
	retrying
	seated
)

// never is an instant that does not come.
const never = time.Duration(1<<63 - 1)

// plus is t + d, or never when that is too large.
func plus(t, d time.Duration) time.Duration {
	if t > 0 && d > never-t {
		return never
	}
	return t + d
}

// fifo is a list of waiters, first come first served: the retry queue.
type fifo struct {
	head, tail *Waiter
	len        int
}

func (q *fifo) push(w *Waiter) {
	w.prev, w.next = q.tail, nil
	if q.tail != nil {
		q.tail.next = w
	} else {
		q.head = w
	}
	q.tail = w
	q.len++
}

func (q *fifo) remove(w *Waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.tail = w.prev
	}
	w.prev, w.next = nil, nil
	q.len--
}

// Bounds are the limits that hold for one Offer: they follow pressure and the
// request's policy, so the caller computes them (Q1, Q4, Q5).
type Bounds struct {
	Length     int           // Q1 or Q4: the line is full with so many waiting; <= 0 = no waiting
	Soft       int           // with so many waiting, refused softly (Q5), except the exempt; <= 0 = no soft limit
	Exempt     bool          // this waiter may use the rest
	PerTenant  policy.Ratio  // of its class cap, while others wait; outside 0..1 exclusive = no bound
	RetryLimit time.Duration // in the retry queue; <= 0 = no retry queue
	RetryLen   int           // the retry queue is full with so many
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
	Position int           // 1-based place in the fair order where it waits, by the weights of those who wait now
	Hint     time.Duration // when a refused caller would be let in: position / drain rate; within its slot
}

// Exit is a waiter that left the line.
type Exit struct {
	Waiter  *Waiter
	Granted bool          // else expired or drained
	Action  policy.Expiry // what its class wants on expiry; ExpireRetry here means: the retry queue ended too, or had no room
	Retried bool          // it was in the retry queue
	Drained bool
	Late    bool          // its own deadline came before its MaxWait; Action is ExpireDrop then
	Waited  time.Duration // since Offer
	Hint    time.Duration // as in Offered; 0 if granted. With ExpireDegrade nothing is booked: who finds no seat further down asks Book
}

// Stats is a picture of the line for metrics and /debug/queue.
type Stats struct {
	Waiting    [policy.NumClasses]int
	Retrying   int
	Running    [policy.NumClasses]int
	SeatsTotal policy.Seats
	SeatsUsed  policy.Seats
	HeldBytes  int64   // of bodies, by those who wait or retry
	DrainRate  float64 // seats freed per second while somebody waits, measured; 0 = not yet
	Tenants    int     // flows known: with waiters or a debt
	Bookings   [policy.NumClasses]Bookings
}

// Bookings are the slots that were given to callers of a class (Q5).
type Bookings struct {
	Outstanding int    // not yet due
	Due         int    // and not yet claimed
	Claimed     uint64 // since the line was made: by callers who came back in their slots,
	Lapsed      uint64 // or by nobody
}
