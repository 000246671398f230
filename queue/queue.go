// Package queue is the waiting room: the line of one pool, with its seats.
//
// A [Line] gives out the seats of a pool (Q9) in two currencies, requests and
// KV tokens, and keeps those who have to wait: bounded in number (Q1, Q4-Q6),
// bounded in time (P3), and in fair order (P1, P2). It is a core: a state
// machine whose methods take now and return what follows. It starts no timer
// and no goroutine; the desk locks it, tells it the time, and wakes it at
// [Line.Next].
//
// # Order
//
// Red waiters are a strict lane before all others. The others wait in leaves:
// one for each group of the shares, two where streaming is bounded. In each of
// these lines the order is hierarchical fair queuing by start tags: classes by
// weight, tenants by weight inside their class. Both storeys are the same
// algorithm, "fair queuing based on start-time" (FQS: A. Greenberg and
// N. Madras, How fair is fair queuing, JACM 39(3), 1992; hierarchy and variable
// rate as in P. Goyal, H. Vin and H. Cheng, Start-time Fair Queuing, SIGCOMM
// 1996): a flow's next request carries the start tag max(v, finish tag of the
// one before), a request's finish tag is its start tag plus cost/weight, and
// the least start tag goes first. v is the virtual time of the fluid server
// (GPS: A. Parekh and R. Gallager, 1993) that does the same work, driven by the
// work handed out and not by a clock, so the pool may be as fast or slow as it
// likes. Each leaf has accounts of its own for the classes: one that is served
// much in one leaf is not made to pay for it in another, where it would starve.
//
// A tenant has one account in each class of a group, over both leaves: what it
// is given in one is counted in the other too. So tenants get weighted max-min
// parts of what their class gets in the group, whatever they mix: nobody is
// given more in a leaf as long as somebody who waits there has less by weight in
// both together. Who is served in one leaf faster than anybody is in the other
// may have nothing there. (The rule is that of Kok-Kiong Yap et al., Scheduling
// packets over multiple interfaces while respecting user preferences, CoNEXT
// 2013, who bound by one packet what is remembered of another interface, where
// this takes leeway requests.) Groups have accounts of their own: who has tokens
// of two tiers is one of the tenants of each. Where tiers are one group, a
// tenant weighs what the tier of its next request does.
//
// Bound: count the cost handed out to each flow of a level, whose largest
// requests are L. While flows have waiters, the line is ahead of the fluid
// server for no flow i by more than L_i + e_i, and behind it for none by more
// than the sum of the others' L + e_i. e_i, the sum over the others j of
// L_j*w_i/(w_i+w_j), is there because v still counts a flow that the fluid
// server has finished and the line has not. For two flows that wait all the
// time, handed-out cost per weight differs by at most max1/w1 + max2/w2. The
// number of seats does not matter to what is handed out; what is done for a
// flow lags behind it by what its requests in seats still have to do.
//
// Idle time brings no credit. Without anybody waiting nobody competes: seats
// are then given at once, uncharged.
//
// [Line.Settle] corrects the accounts by what a request really cost, as more
// work handed out late, or as work given back. As max(v, finish tag) is for a
// flow that begins to wait, a refund brings one that waits before v: it is served
// next, and v stands still until as much was handed out again. What a flow has
// to come when its last waiter leaves is lost, and for a request from before its
// first came it starts no earlier than v stood then. So over time flows that wait
// get their parts of the real cost, however wrong the predictions; M, the most
// that requests in seats were wrong by together, at most seats times the largest,
// is how far that may be put off: the bounds above hold for real cost with M
// added, and a newcomer waits for no more than M beside the others' L. Nobody
// gains: what a refund brings was held back before.
//
// Inside a flow (tenant and class) the order is by arrival and Handicap (P4,
// P6): a request counts as come by so much later. With handicaps of at most A
// nobody is overtaken in his flow by one who came A later or more. Other flows
// are not concerned.
//
// With policy.ByRequests every request costs 1 and a class is one FIFO over
// its tenants: the literal three FIFOs, 3:2:1 requests a round. The order inside
// a flow is kept: who goes first there takes the place of its flow's first in
// the FIFO and leaves it the own one, so that no other tenant is concerned.
//
// Each operation is O(log n) in the number of waiters and looks at each group
// once; waiting allocates only the flow of a tenant that has none; a flow is
// forgotten when its tenant has no waiters and the fluid server has caught up
// with it.
//
// # Seats
//
// A seat is free when one request and its tokens fit. When the next in order
// of a leaf does not fit in tokens, those behind it wait too: a large request
// is not overtaken for ever by small ones. A request larger than the whole pool
// is refused; one larger than what is usable takes all tokens that there are when
// it gets its seat. Shrinking revokes nothing.
//
// # Shares
//
// Off the top comes the headroom (T13); what is left is usable. Of that the
// priority lane is guaranteed its part (P8), the groups the rest by their
// shares (P9), in requests by largest remainder and at least one seat, in
// tokens exactly. The lane never has the only seat. A free seat goes, after
// red, to:
//
//   - the first with Priority in a fair order of their own, while the lane
//     holds less than its guarantee in both currencies; that seat counts to
//     the lane, every other one to its waiter's group;
//   - the group that holds less than its guarantee, then one beyond it, then
//     one that has none; among these the one whose dominant share (the larger
//     of requests and tokens, of the usable) is least by its share: weighted
//     max-min by progressive filling (DRF: A. Ghodsi et al., Dominant Resource
//     Fairness, NSDI 2011). Who holds nothing comes first: a guarantee below
//     one seat is the next free one, and no group that has a share waits for
//     more freed seats than there are groups;
//   - inside the group, by the same rule, to streaming requests or the others,
//     whose shares are Streaming and the rest of it (P6).
//
// Nothing is revoked: an idle share is lent at once and comes back with the
// next freed seats. Half of the request asked for counts as held, which rounds
// to the nearest. Bound, when all seats have changed hands under a steady
// demand: no group is further from the exact allocation than half a largest
// request, and of half of one for each group that waits (and of the tokens
// left over) its share among them; one request in all but rare cases. One
// group, no lane and no bound on streaming is one line.
//
// When the next in order of the leaf whose turn it is does not fit, others go
// past it only as far as their group is short of its own guarantee, and until
// they have taken as many tokens as it needs; then all wait for it. So nobody
// waits who fits, except behind a red one, behind one of his own leaf, or
// behind one with a better claim who does not fit.
//
// # Hints
//
// Who is refused, or leaves without a seat, is given a slot in the line's book,
// and the hint says when it begins (Q5-Q7; see book). Who comes back in its slot
// is taken as long as fewer than Length wait, and the newcomers of a class that
// has bookings leave it the places. Who says that it comes back and comes before its
// slot is refused, and gains nothing. A slot ends in a seat if the pool frees some
// within the class's MaxWait; without Config.Booking the hint is position /
// drain rate. Where Length is 0 nobody waits, so no seat is held for a slot: a
// hint says when one is likely, and over half of those who come find one.
//
// # How many seats
//
// The line is told how many there are ([Line.Configure]). Two more cores, which
// look at the pool about once a second, find that number where it follows the
// engine (Q9): a [Tuner] seeks as many seats as the engine serves well, and a
// [Watchdog] adds some when requests wait though the engine is idle.
//
// # Instants
//
// A waiter's time ends exactly MaxWait after the Offer, or at its own
// deadline if that is earlier. A seat freed at that very instant is still
// granted ([Line.Release] with now equal to it), unless [Line.Advance] came
// before; nobody is granted a seat after it.
//
// # Invariants
//
//   - Seats in use never exceed the usable, except after they shrank.
//   - Every waiter leaves exactly once: granted, expired, cancelled or drained.
//   - After every call no waiter is left whose turn it is and who fits.
//   - After Advance(now), Next is later than now.
package queue

import (
	"math/rand/v2"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Config is a line's shape. Seats are this replica's share.
type Config struct {
	Seats    policy.Seats
	Largest  int64                            // the most tokens of a request that is taken, more than there are here: those of all replicas; less than Seats.Tokens = these
	Weights  [policy.NumClasses]int           // P2; less than 1 counts as 1
	MaxWaits [policy.NumClasses]time.Duration // W of the class caps
	Price    policy.Price
	Shares   Shares
	Booking  Booking
}

// Shares divide the seats (P6, P8, P9, T13): Headroom off the top, Priority
// of the rest, Groups the remainder. The zero value is one group that has all.
type Shares struct {
	Headroom  policy.Ratio
	Priority  policy.Ratio // guaranteed to waiters with Priority set
	Groups    []Group      // the tiers; none = one group
	Streaming policy.Ratio // most of a group's seats that streaming waiters hold while others of the group wait; 0 or 1 = no bound
}

// Group is a tier's part of the seats that are left (P9).
type Group struct {
	Share policy.Ratio // guaranteed; 0 = only what others leave
	Name  string       // of the tier; all have names, or none has
	Home  bool         // of those, too, whose tier names no group; none = the last is
}

// Booking is how retry hints are made true (Q5). The zero value books nothing.
type Booking struct {
	Share policy.Ratio  // of the drain rate, given to callers who come back
	Grace time.Duration // how long a due booking waits for its caller
	Max   time.Duration // the longest hint
}

// Line is the waiting room of one pool: queue and seats. It is a core: not
// safe for concurrent use, no clock of its own; the desk locks it and passes
// now. A now before the latest one counts as the latest one.
//
// What a call without exits in its result brings about for others (an Offer
// that finds expired waiters, a Cancel that unblocks those behind) is kept
// for the next Advance, and Next is due at once. So after every call ask Next.
type Line struct {
	rng      *rand.Rand // nil = none
	cfg      Config
	base     time.Time // of all instants below
	started  bool
	now      time.Duration // the latest instant seen
	seq      uint64        // of arrivals
	draining bool
	paused   bool // the retry queue

	usable  policy.Seats // the seats without headroom
	used    policy.Seats
	running [policy.NumClasses]int
	given   uint64 // seats, ever

	red      leaf
	priority leaf // its waiters stand in their group too
	groups   []*group
	home     int     // index in groups: of those whose tier has none
	split    bool    // streaming requests wait apart in their group
	claims   []claim // for the next seat; only inside turn and dispatch
	total    int     // waiting
	waiting  [policy.NumClasses]int
	retry    fifo
	bytes    int64
	expiry   heap[time.Duration, *Waiter] // of all who wait or retry
	pending  []Exit                       // for the next call that returns exits

	caps  caps
	asks  [policy.NumClasses]asks
	drain drain
	book  book
}

// New makes an empty line. rng spreads hints within their slots; the line owns
// it from now on. nil = hints at the beginning of their slots.
func New(c Config, rng *rand.Rand) *Line {
	l := &Line{rng: rng}
	l.reshape(c)
	return l
}

// Configure changes the shape; waiting and running stay. Grants may follow.
// No seat is revoked: after shrinking, none is given until enough came back.
func (l *Line) Configure(now time.Time, c Config) []Exit {
	l.tick(now)
	repriced := c.Price != l.cfg.Price
	l.reshape(c)
	if repriced {
		for ln := range l.lines {
			ln.rebase(l.given)
		}
	}
	l.catchUp()
	return l.flush()
}

func (l *Line) reshape(c Config) {
	c.Seats.Requests = max(0, c.Seats.Requests)
	c.Seats.Tokens = max(0, c.Seats.Tokens)
	if old := l.cfg.Seats.Requests; old > 0 && c.Seats.Requests > 0 {
		l.drain.resize(float64(c.Seats.Requests) / float64(old))
	}
	l.cfg = c
	l.book.shape(c.Booking)
	l.caps = caps{}
	l.share(c)
}

// Pause closes or opens the retry queue (breaker open: closed). Those in it
// still expire. Opening may grant.
func (l *Line) Pause(now time.Time, retry bool) []Exit {
	l.tick(now)
	l.paused = retry
	l.catchUp()
	return l.flush()
}

// Drain empties the line: everybody who waits leaves with Drained set, and
// later Offers are refused as Draining (SIGTERM). Seats in use are freed by
// Release as ever.
func (l *Line) Drain(now time.Time) []Exit {
	l.tick(now)
	l.catchUp()
	l.draining = true
	l.book.clear()
	for l.expiry.len() > 0 {
		w := l.expiry.min().item
		e := Exit{Waiter: w, Action: w.OnExpiry, Retried: w.state == retrying, Drained: true, Waited: l.now - w.since, Hint: l.wait(l.total + 1)}
		l.takeOut(w)
		l.pending = append(l.pending, e)
	}
	return l.flush()
}

// Reopen ends a Drain: the line takes waiters again.
func (l *Line) Reopen() { l.draining = false }

// Next is the instant at which Advance wants to be called; false = none.
func (l *Line) Next() (time.Time, bool) {
	switch {
	case len(l.pending) > 0:
		return l.base.Add(l.now), true
	case l.expiry.len() > 0:
		return l.base.Add(l.expiry.min().key), true
	}
	return time.Time{}, false
}

// Predict is the wait that an Offer of w would see now: its place in the fair
// order / drain rate; 0 when a seat is free.
func (l *Line) Predict(now time.Time, w *Waiter) time.Duration {
	if l.total == 0 && l.free(0) {
		return 0
	}
	l.assign(w)
	d := l.drainAt(now)
	return d.wait(l.usable.Requests, l.place(w))
}

// Stats is a picture of the line.
func (l *Line) Stats(now time.Time) Stats {
	d := l.drainAt(now)
	l.book.pass(l.at(now))
	s := Stats{
		Bookings:   l.book.stats,
		Waiting:    l.waiting,
		Retrying:   l.retry.len,
		Running:    l.running,
		SeatsTotal: l.cfg.Seats,
		SeatsUsed:  l.used,
		HeldBytes:  l.bytes,
		DrainRate:  d.measured(),
	}
	for ln := range l.lines {
		s.Tenants += ln.tenants()
	}
	return s
}

// at turns an instant into the line's own: time since the first call, never
// going back.
func (l *Line) at(now time.Time) time.Duration {
	if !l.started {
		return 0
	}
	return max(l.now, now.Sub(l.base))
}

// tick moves the line's clock.
func (l *Line) tick(now time.Time) {
	if !l.started {
		l.base, l.started = now, true
	}
	t := l.at(now)
	l.drain.pass(t-l.now, l.total > 0)
	l.now = t
	l.book.pass(t)
}

// drainAt is the measurement as it stands at now.
func (l *Line) drainAt(now time.Time) drain {
	d := l.drain
	d.pass(l.at(now)-l.now, l.total > 0)
	return d
}

// flush hands out what is pending.
func (l *Line) flush() []Exit {
	exits := l.pending
	l.pending = nil
	return exits
}
