package admission

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Ticket is the right to run. Done must be called exactly once; later calls
// do nothing and report false. It lives in the desk's registry under its ID.
// A ticket not ended within its pool's maxHold is ended by the desk, with
// ResultUnknown.
type Ticket struct {
	ID string

	visit *Visit
	ghost *ghost // its shadow; nil without one
	since time.Time
	first atomic.Int64 // time until the answer began; 0 = not yet
	done  atomic.Bool
}

func (t *Ticket) open(v *Visit, now time.Time) {
	t.ID, t.visit, t.since = v.request.ID, v, now
	d := v.desk
	if t.ghost == nil && d.mirror.Load() {
		t.ghost = d.mirrored(now, v.plan)
	}
	d.tickets.add(t)
}

// Done frees the seat, settles the reservation, feeds breaker and estimator.
func (t *Ticket) Done(e End) bool {
	if !t.done.CompareAndSwap(false, true) {
		return false
	}
	v := t.visit
	d, p, now := v.desk, v.plan, time.Now()
	if e.FirstByte == 0 {
		e.FirstByte = time.Duration(t.first.Load())
	}
	final, decided := d.core.Done(now, p, &e)
	d.deliver(now, decided)
	p.wake()
	d.giveBack(p, final)
	if t.ghost != nil {
		t.ghost.end(now, &e)
	}
	for _, o := range d.observers {
		o.Ended(p.Request, &p.Decision, &e, final.Input+final.Output, now.Sub(t.since), now)
	}
	if d.tickets.remove(t) == 0 && d.draining.Load() {
		d.tickets.noteEmpty()
	}
	return true
}

// Answering marks the moment when an answer of the model began: the first
// piece of a stream, which engines send with its first token, or the headers.
// Only the first call counts.
func (t *Ticket) Answering(now time.Time) {
	if t.first.CompareAndSwap(0, max(int64(now.Sub(t.since)), 1)) {
		t.visit.desk.core.First(now, t.visit.plan)
	}
}

// Failing says that the answer is a failure, as its headers or trailers tell,
// and gives what the caller is to be told beside them (B9). counts false: Envoy
// shed the request, which counts as nobody's failure.
func (t *Ticket) Failing(now time.Time, counts bool) Pushback {
	return t.visit.desk.core.Failing(now, t.visit.plan, counts)
}

// Estimate is what was reserved, for answers without a count.
func (t *Ticket) Estimate() (input, output int64) { return t.visit.plan.Input, t.visit.plan.Output }

// End ends a ticket by its id (another stream, an access log): exactly once.
// It reports false for a ticket that has ended or is not known.
func (d *Desk) End(id string, e End) bool {
	t := d.tickets.find(id)
	return t != nil && t.Done(e)
}

// registry holds the running tickets by id, in shards: no lock is shared by
// all requests.
type registry struct {
	seed   maphash.Seed
	count  atomic.Int64
	empty  chan struct{}
	once   sync.Once
	shards [registryShards]registryShard
}

const registryShards = 64

type registryShard struct {
	mu      sync.Mutex
	tickets map[string]*Ticket
}

func (g *registry) open() {
	g.seed = maphash.MakeSeed()
	g.empty = make(chan struct{})
	for i := range g.shards {
		g.shards[i].tickets = make(map[string]*Ticket)
	}
}

func (g *registry) shard(id string) *registryShard {
	return &g.shards[maphash.String(g.seed, id)%registryShards]
}

func (g *registry) add(t *Ticket) {
	g.count.Add(1)
	s := g.shard(t.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets[t.ID] = t
}

func (g *registry) find(id string) *Ticket {
	s := g.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tickets[id]
}

// remove gives the number of tickets that are left.
func (g *registry) remove(t *Ticket) int64 {
	s := g.shard(t.ID)
	s.mu.Lock()
	if s.tickets[t.ID] == t {
		delete(s.tickets, t.ID)
	}
	s.mu.Unlock()
	return g.count.Add(-1)
}

// noteEmpty wakes Drain: nothing runs, nothing is admitted any more.
func (g *registry) noteEmpty() { g.once.Do(func() { close(g.empty) }) }
