package buswire

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/nopanic"
)

// ErrAgain is of a session that is to begin anew although nothing was lost.
var ErrAgain = errors.New("begin anew")

// Keep runs a listener's sessions one after the other, with pauses between,
// until ctx ends. A session calls ready once it has given all that stands, and
// returns why it ended. down hears of the first session that was lost and, with
// nil, of the first one that is ready again. It returns whether the listener
// was lost when ctx ended; of that down does not hear.
func Keep(ctx context.Context, pause *Backoff, session func(ready func()) error, down func(error)) (lost bool) {
	ready := func() {
		pause.Reset()
		if lost {
			lost = false
			down(nil)
		}
	}
	for {
		err := once(session, ready)
		if ctx.Err() != nil {
			return lost
		}
		if !lost && !errors.Is(err, ErrAgain) {
			lost = true
			down(err)
		}
		again := time.NewTimer(pause.Pause())
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return lost
		}
	}
}

func once(session func(ready func()) error, ready func()) (err error) {
	defer nopanic.Catch(&err)
	return session(ready)
}

// Losses counts the listeners of a bus that are away, and how often one was
// lost. The zero value is ready to use; safe for concurrent use.
type Losses struct {
	Away  atomic.Int64
	Total atomic.Uint64
}

// Listen keeps one listener, as Keep does, until ctx or life, that of the bus,
// ends. What down hears bears the name of the bus.
func (l *Losses) Listen(ctx, life context.Context, name string, pause *Backoff, session func(ctx context.Context, ready func()) error, down func(error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	lost := Keep(ctx, pause, func(ready func()) error {
		err := session(ctx, ready)
		if life.Err() != nil {
			cancel() // now, and not soon: nothing is lost
		}
		return err
	}, func(err error) {
		if err == nil {
			l.Away.Add(-1)
			down(nil)
			return
		}
		l.Total.Add(1)
		l.Away.Add(1)
		down(fmt.Errorf("%s: %w", name, err))
	})
	if lost {
		l.Away.Add(-1)
	}
}
