package breaker

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// The bounds of a council: what is beyond is not heard.
const (
	maxBallots = 20_000 // breakers spoken of
	maxWords   = 256    // replicas that speak of one
)

// Council is where the words of all replicas become what follows from them
// (B3). By default it is a quorum of fresh evidence: a word is fresh from when
// it was heard here until its TTL is over, and has a vote if it rests on at
// least MinRequests ends of its own. A breaker counts as open elsewhere while
// more than half of the votes say so, hard if more than half say hard. A
// half-open replica finds out and has no vote. Literal, any fresh word that a
// pool is open is enough, with or without evidence, and is meant for all pools.
//
// So a replica that is cut off from its pool is outvoted by those that are
// not; a dead one's word ends with its TTL; and peers' clocks decide nothing.
// The same word heard again, as after a lost connection, is not renewed by it.
//
// Safe for concurrent use. Rulings are read by one atomic load.
type Council struct {
	self   string
	policy atomic.Pointer[policy.Breaker]
	loud   atomic.Int64 // literal: Unix time in ns until which a pool is said to be open

	loudOpen atomic.Int64 // and when the longest of those open times is over

	mu      sync.Mutex
	ballots map[topic]*Ballot
	swept   time.Time
	refused uint64
}

// topic is what a ballot is about: a pool and a tenant may have one name.
type topic struct {
	tenant bool
	name   string
}

// NewCouncil makes one that has heard nothing. self is this replica's name.
func NewCouncil(self string, c policy.Breaker) *Council {
	co := &Council{self: self, ballots: make(map[topic]*Ballot)}
	co.policy.Store(&c)
	return co
}

// Configure changes the rule; what was heard is counted anew by it.
func (c *Council) Configure(now time.Time, p policy.Breaker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policy.Store(&p)
	for _, b := range c.ballots {
		b.settle(now, b.tally.Load().words)
	}
	c.listenForShouts(now)
}

// Hear takes a word that came at now, by this replica's clock. It reports
// whether it was news: not of a word that is no newer than the one that
// stands, nor of one that fails Check or for which there is no room.
func (c *Council) Hear(now time.Time, o Opinion) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Check() != nil {
		c.refused++
		return false
	}
	b := c.ballot(now, topic{o.Kind == Tenant, o.Breaker})
	if b == nil {
		c.refused++
		return false
	}
	words := b.fresh(now)
	at, known := slices.BinarySearchFunc(words, o.Replica, func(w word, r string) int { return cmp.Compare(w.Replica, r) })
	switch {
	case known && words[at].Seq >= o.Seq:
		return false
	case known:
		words[at] = word{o, now.Add(o.TTL)}
	case len(words) >= maxWords:
		c.refused++
		return false
	default:
		words = slices.Insert(words, at, word{o, now.Add(o.TTL)})
	}
	b.settle(now, words)
	if o.Kind != Tenant {
		c.listenForShouts(now)
	}
	return true
}

// ballot finds or makes the ballot of a topic; nil = no room. The lock is held.
func (c *Council) ballot(now time.Time, t topic) *Ballot {
	b := c.ballots[t]
	if b != nil {
		return b
	}
	if since := now.Sub(c.swept); len(c.ballots) >= maxBallots && (since >= time.Second || since < 0) {
		c.sweep(now)
	}
	if len(c.ballots) >= maxBallots {
		return nil
	}
	b = &Ballot{council: c, topic: t}
	b.tally.Store(&tally{})
	c.ballots[t] = b
	return b
}

// Ballot is where the rulings on a breaker are read. It may be kept: it is the
// same for good. Where there is no room for one more, it is one that nobody
// votes on.
func (c *Council) Ballot(now time.Time, name string, kind Kind) *Ballot {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := topic{kind == Tenant, name}
	b := c.ballot(now, t)
	if b == nil {
		b = &Ballot{council: c, topic: t}
		b.tally.Store(&tally{})
		return b
	}
	b.kept = true
	return b
}

// Ruling is that of a breaker which somebody has spoken of; the zero Ruling of
// any other.
func (c *Council) Ruling(now time.Time, name string, kind Kind) Ruling {
	c.mu.Lock()
	b := c.ballots[topic{kind == Tenant, name}]
	c.mu.Unlock()
	if b == nil {
		return Ruling{}
	}
	return b.Ruling(now)
}

// Advance drops what is over. Rulings do not wait for it.
func (c *Council) Advance(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep(now)
	c.listenForShouts(now)
}

// sweep drops what is over. The lock is held.
func (c *Council) sweep(now time.Time) {
	c.swept = now
	for t, b := range c.ballots {
		words := b.tally.Load().words
		left := b.fresh(now)
		if len(left) == 0 && !b.kept {
			delete(c.ballots, t)
		}
		if len(left) != len(words) {
			b.settle(now, left)
		}
	}
}

// listenForShouts notes until when some pool is said to be open, for the
// literal form. The lock is held.
func (c *Council) listenForShouts(now time.Time) {
	var until, open time.Time
	if c.policy.Load().Cascade.Literal {
		for t, b := range c.ballots {
			for _, w := range b.tally.Load().words {
				if !t.tenant && w.Open() && now.Before(w.over) {
					until, open = later(until, w.over), later(open, w.openUntil())
				}
			}
		}
	}
	if until.IsZero() {
		c.loud.Store(0)
		return
	}
	c.loudOpen.Store(open.UnixNano())
	c.loud.Store(until.UnixNano())
}

// Refused is how many words were not heard: nonsense, or no room.
func (c *Council) Refused() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// Words are the fresh words on a breaker, by replica, each with the TTL that
// is left of it: for /debug.
func (c *Council) Words(now time.Time, name string, kind Kind) []Opinion {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.ballots[topic{kind == Tenant, name}]
	if b == nil {
		return nil
	}
	var out []Opinion
	for _, w := range b.fresh(now) {
		w.TTL = w.over.Sub(now)
		out = append(out, w.Opinion)
	}
	return out
}

// TakeOver is what a replica that has just joined should open with Restore:
// what it said itself in an earlier life, else the word of the quorum that has
// the longest open time left. False if there is neither. Ask before speaking:
// the own new word replaces the old one.
func (c *Council) TakeOver(now time.Time, name string, kind Kind) (o Opinion, ok bool) {
	words := c.Words(now, name, kind)
	for _, w := range words {
		if w.Replica == c.self {
			return w, w.Open()
		}
	}
	level := c.Ruling(now, name, kind).Elsewhere
	if level == Closed {
		return o, false
	}
	for _, w := range words {
		if w.Open() && w.State >= level && w.Left > o.Left && c.votes(&w) {
			o, ok = w, true
		}
	}
	return o, ok
}

// votes reports whether a word rests on enough evidence.
func (c *Council) votes(o *Opinion) bool {
	if o.State == HalfOpen {
		return false
	}
	p := c.policy.Load()
	least := p.MinRequests
	switch {
	case o.Kind == GRPC && p.GRPC != nil:
		least = p.GRPC.MinRequests
	case o.Kind == Tenant:
		least = cmp.Or(p.Tenant.MinRequests, least)
	}
	return o.Requests >= max(1, least)
}
