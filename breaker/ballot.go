package breaker

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Ruling is what the council has found of one breaker.
type Ruling struct {
	// Elsewhere is Soft or Hard while it counts as open elsewhere, else Closed.
	// In the literal form it is that of the loudest word.
	Elsewhere State

	Votes, Open int  // fresh words with evidence, and those of them that say open
	Shouted     bool // literal: some pool is said to be open, not necessarily this
}

// Sheds reports whether a request of a class is to be shed for others' sake,
// where the own breaker is in a state: only batch, and only while the own one
// is closed. What is not closed decides by itself, from what it sees.
func (r *Ruling) Sheds(class policy.Class, own State) bool {
	return own == Closed && class >= policy.Batch && (r.Elsewhere != Closed || r.Shouted)
}

// Ballot holds the words on one breaker and the ruling that follows.
type Ballot struct {
	council *Council
	topic   topic
	kept    bool // somebody reads here; under the council's lock
	tally   atomic.Pointer[tally]
}

// tally is what stands; immutable.
type tally struct {
	words  []word // by replica
	ruling Ruling
	until  time.Time // when the ruling may change by a word that is over; zero = never
}

// word is an opinion and the end of its freshness, by the clock here.
type word struct {
	Opinion
	over time.Time
}

// Ruling is what is found at now.
func (b *Ballot) Ruling(now time.Time) Ruling {
	t := b.tally.Load()
	r := t.ruling
	if !t.until.IsZero() && !now.Before(t.until) {
		r, _ = b.find(now, t.words)
	}
	if loud := b.council.loud.Load(); loud != 0 && !b.topic.tenant {
		r.Shouted = now.UnixNano() < loud
	}
	return r
}

// OpenUntil is when the longest open time that a fresh word tells of is over,
// by the clock here; in the literal form of any pool. Zero while nobody says
// that it is open. It is a hint for who is shed: the ruling itself stands for
// as long as the words do. It takes no lock.
func (b *Ballot) OpenUntil(now time.Time) (until time.Time) {
	words := b.tally.Load().words
	for i := range words {
		if w := &words[i]; w.Open() && now.Before(w.over) {
			until = later(until, w.openUntil())
		}
	}
	if loud := b.council.loud.Load(); loud != 0 && now.UnixNano() < loud && !b.topic.tenant {
		until = later(until, time.Unix(0, b.council.loudOpen.Load()))
	}
	return until
}

// openUntil is when the open time that the word tells of is over.
func (w *word) openUntil() time.Time { return w.over.Add(w.Left - w.TTL) }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// fresh are the words that are not over, in a slice of their own.
func (b *Ballot) fresh(now time.Time) []word {
	var out []word
	for _, w := range b.tally.Load().words {
		if now.Before(w.over) {
			out = append(out, w)
		}
	}
	return out
}

// settle makes words what stands. The council's lock is held.
func (b *Ballot) settle(now time.Time, words []word) {
	t := &tally{words: words}
	t.ruling, t.until = b.find(now, words)
	b.tally.Store(t)
}

// find counts the votes at now, and says until when the result stands.
func (b *Ballot) find(now time.Time, words []word) (r Ruling, until time.Time) {
	literal := b.council.policy.Load().Cascade.Literal
	hard := 0
	for i := range words {
		w := &words[i]
		if !now.Before(w.over) {
			continue
		}
		if until.IsZero() || w.over.Before(until) {
			until = w.over
		}
		if literal && w.Open() {
			r.Elsewhere = max(r.Elsewhere, w.State)
		}
		if !b.council.votes(&w.Opinion) {
			continue
		}
		r.Votes++
		if w.Open() {
			r.Open++
		}
		if w.State == Hard {
			hard++
		}
	}
	switch {
	case literal:
	case 2*hard > r.Votes:
		r.Elsewhere = Hard
	case 2*r.Open > r.Votes:
		r.Elsewhere = Soft
	}
	return r, until
}
