package buswire

import (
	"context"
	"errors"
	"time"
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
		err := session(ready)
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
