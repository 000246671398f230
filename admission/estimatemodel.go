package admission

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

// models is what is taken of a model where a tenant has taught nothing yet:
// the medians of what its tenants are taken to be, each with one vote. A
// tenant that is odd, however often it calls, moves a median by one place
// among the votes.
type models struct {
	all atomic.Pointer[map[string]*model]
	mu  sync.Mutex // of writers of all
}

// electors is how many tenants must have voted before a model's medians count:
// of so many, two odd ones move a median only among what the others show.
const electors = 5

// maxVoted is how many models are kept; policies that come and go do not add up.
const maxVoted = 2000

// model counts the votes of its tenants.
type model struct {
	learnt

	mu       sync.Mutex
	overhead ballot
	perByte  ballot
	output   ballot
}

// vote is what a flow has in the ballots of its model; 0 = nothing.
type vote struct {
	overhead, perByte, output uint16
	gone                      bool
}

// ballot counts votes by their value, in buckets of a sixteenth of a doubling.
type ballot struct {
	of    [ballotSize]uint32
	votes uint32
}

const (
	ballotOctave = 16
	ballotLow    = 10 // doublings below 1 that are told apart
	ballotSize   = ballotOctave*(ballotLow+20) + 2
)

func (m *models) open() { m.all.Store(&map[string]*model{}) }

func (m *models) find(name string) *learnt {
	if found := (*m.all.Load())[name]; found != nil {
		return &found.learnt
	}
	return nil
}

// of gives the model of a name. Names are the policy's; those beyond maxVoted
// learn for nobody.
func (m *models) of(name string) *model {
	if found := (*m.all.Load())[name]; found != nil {
		return found
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.all.Load()
	if found := old[name]; found != nil {
		return found
	}
	if len(old) >= maxVoted {
		return &model{}
	}
	next, made := maps.Clone(old), &model{}
	next[name] = made
	m.all.Store(&next)
	return made
}

// count takes a tenant's vote, in place of the one it had.
func (m *model) count(v *vote, l *learnt) {
	next := vote{}
	if l.warm() {
		next.overhead = place(math.Float64frombits(l.overhead.Load()))
		next.perByte = place(math.Float64frombits(l.perByte.Load()))
	}
	if output := l.output.Load(); output > 0 {
		next.output = place(float64(output))
	}
	if next == *v {
		return
	}
	m.move(v, next)
}

// withdraw takes a vote back.
func (m *model) withdraw(v *vote) { m.move(v, vote{}) }

func (m *model) move(v *vote, next vote) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.overhead.move(v.overhead, next.overhead)
	m.perByte.move(v.perByte, next.perByte)
	m.output.move(v.output, next.output)
	*v = next
	overhead, _ := m.overhead.median()
	perByte, known := m.perByte.median()
	if !known {
		overhead, perByte = 0, 0
	}
	m.learnt.overhead.Store(math.Float64bits(overhead))
	m.learnt.perByte.Store(math.Float64bits(perByte))
	output, _ := m.output.median()
	m.learnt.output.Store(int64(math.Round(output)))
}

func (b *ballot) move(from, to uint16) {
	if from > 0 {
		b.of[from]--
		b.votes--
	}
	if to > 0 {
		b.of[to]++
		b.votes++
	}
}

// median is the lower one; false = too few have voted.
func (b *ballot) median() (float64, bool) {
	if b.votes < electors {
		return 0, false
	}
	sum := uint32(0)
	for i, n := range b.of {
		if sum += n; 2*sum >= b.votes {
			return value(uint16(i)), true
		}
	}
	return 0, false
}

// place is the bucket of a value, from 1 on, which is that of nothing.
func place(v float64) uint16 {
	if !(v > 0) {
		return 1
	}
	i := math.Round((math.Log2(v) + ballotLow) * ballotOctave)
	return uint16(min(max(i, 0), ballotSize-3)) + 2
}

// value is the middle of a bucket, in doublings.
func value(place uint16) float64 {
	if place <= 1 {
		return 0
	}
	return math.Exp2(float64(place-2)/ballotOctave - ballotLow)
}
