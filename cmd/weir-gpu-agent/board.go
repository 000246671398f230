package main

import (
	"sync"
	"time"

	"github.com/weirproxy/weir/gpu"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// seen is what one look came to. It does not change once it is on the board.
type seen struct {
	sequence uint64
	at       time.Time
	source   string
	cards    []gpu.Card // nil when err is not
	dropped  gpu.Faults
	err      error
	took     time.Duration
	wire     []*gpuv1.Card // cards, encoded once for all watchers
}

// totals are counted since the start.
type totals struct {
	looks, failed uint64
	dropped       gpu.Faults
}

// board holds the newest look for any number of readers. Nobody who reads
// slowly holds up whoever writes: he gets the newest one when he comes back.
type board struct {
	start  time.Time
	encode func([]gpu.Card) []*gpuv1.Card

	mu      sync.Mutex
	last    *seen // nil = none yet
	totals  totals
	changed chan struct{} // closed by the next put
}

func newBoard(encode func([]gpu.Card) []*gpuv1.Card) *board {
	return &board{start: time.Now(), encode: encode, changed: make(chan struct{})}
}

// put replaces the newest look.
func (b *board) put(s seen, now time.Time) {
	s.at = now
	s.wire = b.encode(s.cards)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.totals.looks++
	if s.err != nil {
		b.totals.failed++
	}
	for kind, n := range s.dropped {
		b.totals.dropped[kind] += n
	}
	s.sequence = b.totals.looks
	b.last = &s
	close(b.changed)
	b.changed = make(chan struct{})
}

// newest is the newest look, nil before the first; changed is closed when it
// is replaced.
func (b *board) newest() (s *seen, t totals, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.totals, b.changed
}
