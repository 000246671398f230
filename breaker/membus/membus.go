// Package membus is a notice board inside one process: a breaker.Bus for
// replicas that share it, as the simulator's and those of tests do, and the
// measure that buses over a network are held against (B3).
//
// The board keeps the latest word of each key until its TTL is over. A
// listener has a pigeon-hole with at most one word a key, the newest, so that
// one that is slow holds up nobody and keeps no more than what stands.
//
// Invariants: the words of a key come in the order of their Seq; a word whose
// TTL is over is given to nobody; nothing runs but what callers run.
package membus

import (
	"errors"
	"sync"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// ErrCut is what a bus that was cut off answers.
var ErrCut = errors.New("breaker bus is cut off")

// Board is where words hang. The zero value is empty and ready. Safe for
// concurrent use.
type Board struct {
	mu        sync.Mutex
	words     map[breaker.Key]word
	sweep     time.Time // of what is over
	listeners map[*listener]struct{}
	skipped   uint64
}

// word is what one replica said of one breaker last.
type word struct {
	breaker.Opinion
	over time.Time
}

// sweepEvery bounds how long a word that is over takes memory while others
// are published.
const sweepEvery = time.Minute

// Join gives one replica its bus.
func (b *Board) Join() *Bus { return &Bus{board: b, closed: make(chan struct{})} }

// Skipped is how many words on the board were no words.
func (b *Board) Skipped() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.skipped
}

// pin hangs a word, if it is newer than what hangs there, and tells those who
// listen. The lock is held.
func (b *Board) pin(now time.Time, o breaker.Opinion) {
	if b.words == nil {
		b.words = make(map[breaker.Key]word)
	}
	if now.After(b.sweep) {
		b.sweep = now.Add(sweepEvery)
		for k, w := range b.words {
			if !now.Before(w.over) {
				delete(b.words, k)
			}
		}
	}
	key := o.Key()
	if old, ok := b.words[key]; ok && now.Before(old.over) && o.Seq <= old.Seq {
		return
	}
	b.words[key] = word{o, now.Add(o.TTL)}
	for l := range b.listeners {
		l.put(key)
	}
}

// take is the word of a key with the TTL left of it; false if there is none,
// or none that anybody would say. The lock is held.
func (b *Board) take(now time.Time, key breaker.Key) (breaker.Opinion, bool) {
	w, ok := b.words[key]
	if !ok || !now.Before(w.over) {
		return breaker.Opinion{}, false
	}
	if w.Check() != nil {
		b.skipped++
		delete(b.words, key)
		return breaker.Opinion{}, false
	}
	w.TTL = w.over.Sub(now)
	return w.Opinion, true
}

// listener is the pigeon-hole of one Listen: which keys have a word for it.
type listener struct {
	waiting map[breaker.Key]struct{}
	order   []breaker.Key
	bell    chan struct{} // holds one ring
}

func (l *listener) put(key breaker.Key) {
	if _, ok := l.waiting[key]; !ok {
		l.waiting[key] = struct{}{}
		l.order = append(l.order, key)
	}
	l.ring()
}

func (l *listener) ring() {
	select {
	case l.bell <- struct{}{}:
	default:
	}
}

// stands puts all that hangs there into the pigeon-hole. The lock is held.
func (b *Board) stands(l *listener) {
	for key := range b.words {
		l.put(key)
	}
}
