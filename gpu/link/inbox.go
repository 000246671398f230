package link

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
)

// ErrClosed is the error of a look at an inbox, or a source, that is closed.
var ErrClosed = errors.New("telemetry source is closed")

// Inbox is where a listener's words lie until a look takes them. It listens
// over its Link from the first Take on, and keeps one word: what came since
// the last one, as Put makes it. A Take waits for a word where none lies there,
// and fails at once while there is no stream. It is safe for concurrent use
// and must be closed.
type Inbox[T any] struct {
	link   *Link
	watch  func(context.Context, *grpc.ClientConn) (heard bool, err error)
	none   string // that none came in time, for people
	life   context.Context
	end    context.CancelFunc
	listen sync.Once
	work   sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed at each change of what follows
	fresh   bool          // word was not taken yet
	word    T             // the zero value while it is not fresh
	down    error         // why there is no stream; nil = there is one, or none was tried yet
}

// NewInbox makes an inbox; nothing is connected yet. watch listens to one
// stream, as Link.Keep calls it, and calls Put and Up for what it hears. none
// begins the error of a Take whose context ends first.
func NewInbox[T any](l *Link, watch func(context.Context, *grpc.ClientConn) (heard bool, err error), none string) *Inbox[T] {
	b := &Inbox[T]{link: l, watch: watch, none: none, changed: make(chan struct{})}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Close ends the stream and waits for its end. Takes under way and later ones
// fail with ErrClosed.
func (b *Inbox[T]) Close() {
	b.listen.Do(func() {}) // never from now on
	b.end()
	b.work.Wait()
}

// Take is the word that lies there, as soon as there is one; nobody else gets
// it. A word that came before the stream broke is still handed out.
func (b *Inbox[T]) Take(ctx context.Context) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	b.listen.Do(func() { b.work.Go(func() { b.link.Keep(b.life, b.watch, b.fell) }) })
	for {
		b.mu.Lock()
		changed := b.changed
		switch {
		case b.life.Err() != nil:
			b.mu.Unlock()
			return zero, ErrClosed
		case b.fresh:
			word := b.word
			b.word, b.fresh = zero, false
			b.mu.Unlock()
			return word, nil
		case b.down != nil:
			err := b.down
			b.mu.Unlock()
			return zero, err
		}
		b.mu.Unlock()
		select {
		case <-changed:
		case <-b.life.Done():
		case <-ctx.Done():
			return zero, fmt.Errorf("%s: %w", b.none, ctx.Err())
		}
	}
}

// Put lays down what came: what next makes of the word that nobody has taken
// yet, the zero value where none lies there. next is called under the inbox's
// lock.
func (b *Inbox[T]) Put(next func(untaken T) T) {
	b.change(func() { b.word, b.fresh, b.down = next(b.word), true, nil })
}

// Up says that the stream stands, though it brought no news.
func (b *Inbox[T]) Up() { b.fell(nil) }

// fell tells waiting Takes why there is no stream; nil = there is one.
func (b *Inbox[T]) fell(err error) { b.change(func() { b.down = err }) }

// change tells waiting Takes that fn has changed something.
func (b *Inbox[T]) change(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn()
	close(b.changed)
	b.changed = make(chan struct{})
}
