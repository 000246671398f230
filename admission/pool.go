package admission

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// never is the next instant of a pool that wants nothing.
const never = time.Duration(math.MaxInt64)

// pool is one pool at the desk: its line behind a lock, its breaker, its
// figures. spec is replaced by Swap.
type pool struct {
	name    string
	spec    atomic.Pointer[policy.Pool]
	seats   atomic.Pointer[policy.Seats] // this replica's share
	breaker *breaker.Breaker
	ballot  *breaker.Ballot // what peers say of theirs (B3); nil = there are none
	retries *retries
	echo    bool      // of the shadow core: it tells and counts nothing
	base    time.Time // next counts from here, on the monotonic clock
	waiting atomic.Int64
	running atomic.Int64           // over-runners included
	next    atomic.Int64           // time.Duration since base; never
	keeper  atomic.Pointer[keeper] // the shell's; not looked at
	lane    atomic.Int64           // seats that priority may hold past the breaker (P8)
	laned   atomic.Int64           // held so, or waited for
	speeds  *speeds
	losses  losses

	mu      sync.Mutex
	line    *queue.Line
	last    time.Time // now never goes back for the line
	paused  bool      // retry queue closed: the breaker is not closed
	gone    bool      // removed from the policy
	swapped uint64    // number of the floor that last looked at who waits here
	closed  bool      // gone, and nobody is left: it does not come back
	seated  chain     // by grant: the head is the first to reach maxHold
	over    chain     // running without a seat
	meter   meter
	tuned   tuned
	begins  begins // those whose answer is to begin

	diceMu sync.Mutex
	rng    *rand.Rand
}

// chain is a list of plans by the time since when they run.
type chain struct{ head, tail *Plan }

// push keeps the order of since; a plan almost always comes last.
func (c *chain) push(p *Plan) {
	after := c.tail
	for after != nil && after.since.After(p.since) {
		after = after.prev
	}
	p.listed, p.prev, p.next = c, after, c.head
	if after != nil {
		p.next = after.next
		after.next = p
	} else {
		c.head = p
	}
	if p.next != nil {
		p.next.prev = p
	} else {
		c.tail = p
	}
}

// remove does nothing for a plan that stands in no chain.
func (p *Plan) remove() {
	c := p.listed
	if c == nil {
		return
	}
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		c.head = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		c.tail = p.prev
	}
	p.listed, p.prev, p.next = nil, nil, nil
}

// lock takes the line and gives a now that never goes back.
func (l *pool) lock(now time.Time) time.Time {
	l.mu.Lock()
	if now.Before(l.last) {
		return l.last
	}
	l.last = now
	return now
}

// unlock publishes when the pool wants to be advanced, then lets the line go.
// It is deferred: a panic of one request must not keep the line locked.
func (l *pool) unlock() {
	defer l.mu.Unlock()
	next := never
	if at, ok := l.line.Next(); ok {
		next = at.Sub(l.base)
	}
	for _, c := range [2]*chain{&l.seated, &l.over} {
		if p := c.head; p != nil {
			next = min(next, p.since.Add(l.maxHold()).Sub(l.base))
		}
	}
	next = min(next, l.nextTune())
	if at, ok := l.begins.next(); ok {
		next = min(next, at.Sub(l.base))
	}
	if l.gone && l.empty() {
		next = 0 // its keeper may go
	}
	l.next.Store(int64(next))
}

// nextAt is the instant at which the pool wants to be advanced.
func (l *pool) nextAt() (time.Time, bool) {
	next := time.Duration(l.next.Load())
	if next == never {
		return time.Time{}, false
	}
	return l.base.Add(next), true
}

// maxHold is the longest a seat is held; unset means ten minutes.
func (l *pool) maxHold() time.Duration {
	if d := l.spec.Load().MaxHold; d > 0 {
		return d
	}
	return 10 * time.Minute
}

// deserted reports whether the pool is gone from the policy and nobody is
// left in it. Then it never comes back.
func (l *pool) deserted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = l.closed || l.gone && l.empty()
	return l.closed
}

// reopen takes a pool that is gone into the policy again; false = it is
// deserted.
func (l *pool) reopen(now time.Time) bool {
	l.lock(now)
	defer l.unlock()
	if l.closed || l.empty() {
		return false
	}
	l.gone = false
	l.line.Reopen()
	return true
}

func (l *pool) empty() bool { return l.running.Load() == 0 && l.waiting.Load() == 0 }

// load is waiting and running per seat; it chooses between equal pools.
func (l *pool) load() float64 {
	return float64(l.waiting.Load()+l.running.Load()) / float64(l.seats.Load().Requests)
}

// dice is in [0, 1).
func (l *pool) dice() float64 {
	l.diceMu.Lock()
	defer l.diceMu.Unlock()
	return l.rng.Float64()
}

// settlePause closes the retry queue while the breaker is not closed. The
// lock is held.
func (l *pool) settlePause(now time.Time) []queue.Exit {
	open := l.breaker.Peek(now, policy.Critical).State != breaker.Closed
	if open == l.paused {
		return nil
	}
	l.paused = open
	return l.line.Pause(now, open)
}

// meter counts what demand is made of. The pool's lock guards it.
type meter struct {
	refused  [demandCells]cell
	turned   bool    // somebody was turned away since the seats were looked after
	seatTime float64 // seconds, exponential mean
	ended    uint64
	degraded uint64 // entered here from a higher precision
	expired  [policy.NumClasses]uint64
	overdue  uint64
	late     uint64 // answers that began too late, or not
	lost     uint64 // answers that their host broke off
}

type cell struct {
	second int64
	n      int64
}

const (
	demandCells = 10 // one a second: the mean that demand takes
	seatStep    = 1.0 / 16
)

func (m *meter) refuse(since time.Duration) {
	m.turned = true
	s := int64(since / time.Second)
	c := &m.refused[((s%demandCells)+demandCells)%demandCells]
	if c.second != s {
		*c = cell{second: s}
	}
	c.n++
}

func (m *meter) end(seat time.Duration) {
	m.ended++
	step := max(seatStep, 1/float64(m.ended))
	m.seatTime += step * (seat.Seconds() - m.seatTime)
}

// refusedPerSecond is the mean over the last ten whole or begun seconds.
func (m *meter) refusedPerSecond(since time.Duration) float64 {
	s, n := int64(since/time.Second), int64(0)
	for _, c := range m.refused {
		if c.second > s-demandCells && c.second <= s {
			n += c.n
		}
	}
	return float64(n) / demandCells
}
