package membus

import (
	"context"
	"sync"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// Bus is one replica's way to the board. Safe for concurrent use.
type Bus struct {
	board  *Board
	closed chan struct{}
	once   sync.Once

	cut bool // under the board's lock
}

var _ breaker.Bus = (*Bus)(nil)

// Publish hangs a word on the board.
func (b *Bus) Publish(ctx context.Context, o breaker.Opinion) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return err
	}
	b.board.mu.Lock()
	defer b.board.mu.Unlock()
	switch {
	case b.isClosed():
		return breaker.ErrClosed
	case b.cut:
		return ErrCut
	}
	b.board.pin(time.Now(), o)
	return nil
}

// Listen reads the board until ctx ends or the bus is closed.
func (b *Bus) Listen(ctx context.Context, heard func(breaker.Opinion), down func(error)) {
	l := &listener{waiting: make(map[breaker.Key]struct{}), bell: make(chan struct{}, 1)}
	b.board.mu.Lock()
	if b.board.listeners == nil {
		b.board.listeners = make(map[*listener]struct{})
	}
	b.board.listeners[l] = struct{}{}
	b.board.stands(l)
	b.board.mu.Unlock()
	defer func() {
		b.board.mu.Lock()
		delete(b.board.listeners, l)
		b.board.mu.Unlock()
	}()
	cut := false
	for ctx.Err() == nil && !b.isClosed() {
		o, some, now := b.next(l, cut)
		switch {
		case now != cut:
			cut = now
			if cut {
				down(ErrCut)
			} else {
				down(nil)
			}
		case some:
			heard(o)
		default:
			select {
			case <-l.bell:
			case <-ctx.Done():
			case <-b.closed:
			}
		}
	}
}

// next takes a word out of the pigeon-hole; cut says whether the bus is cut
// off now. What comes meanwhile is lost, and when the bus is back all that
// stands goes into the hole.
func (b *Bus) next(l *listener, before bool) (o breaker.Opinion, some, cut bool) {
	b.board.mu.Lock()
	defer b.board.mu.Unlock()
	if b.cut {
		l.order = nil
		clear(l.waiting)
		return o, false, true
	}
	if before {
		b.board.stands(l)
		return o, false, false
	}
	for len(l.order) > 0 {
		key := l.order[0]
		l.order = l.order[1:]
		delete(l.waiting, key)
		if o, some = b.board.take(time.Now(), key); some {
			return o, true, false
		}
	}
	l.order = nil
	return o, false, false
}

// Cut cuts this replica off from the board, as a network that breaks would,
// until Mend. Its words that hang there stay for their TTL.
func (b *Bus) Cut() { b.setCut(true) }

// Mend ends Cut.
func (b *Bus) Mend() { b.setCut(false) }

func (b *Bus) setCut(cut bool) {
	b.board.mu.Lock()
	defer b.board.mu.Unlock()
	b.cut = cut
	for l := range b.board.listeners {
		l.ring()
	}
}

// Close ends Listen and makes Publish fail.
func (b *Bus) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

func (b *Bus) isClosed() bool {
	select {
	case <-b.closed:
		return true
	default:
		return false
	}
}
