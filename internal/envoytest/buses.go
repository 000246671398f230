package envoytest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// Word is what a replica says of a pool whose breaker is open.
func Word(replica, pool string, seq uint64) breaker.Opinion {
	return breaker.Opinion{
		Replica: replica, Breaker: pool, State: breaker.Hard, Level: breaker.Hard,
		Requests: 100, Failures: 60, Left: 5 * time.Second, Seq: seq, TTL: 15 * time.Second,
	}
}

// Ear keeps what one listener of a bus heard.
type Ear struct {
	mu    sync.Mutex
	last  map[breaker.Key]breaker.Opinion
	downs []error
}

// Listen listens to a bus until the test ends. Each word waits for the gate,
// if there is one.
func Listen(t testing.TB, b breaker.Bus, gate chan struct{}) *Ear {
	e := &Ear{last: map[breaker.Key]breaker.Opinion{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Listen(ctx, func(o breaker.Opinion) {
			if gate != nil {
				<-gate
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.last[o.Key()] = o
		}, func(err error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.downs = append(e.downs, err)
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return e
}

// Last is the newest word of a key; false = none was heard.
func (e *Ear) Last(k breaker.Key) (breaker.Opinion, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o, ok := e.last[k]
	return o, ok
}

// Words counts the keys of which a word was heard.
func (e *Ear) Words() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.last)
}

// Downs are the losses that the listener was told of; nil stands for a return.
func (e *Ear) Downs() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.downs)
}

// Has reports whether the word, or a newer one, was heard.
func (e *Ear) Has(o breaker.Opinion) bool {
	last, _ := e.Last(o.Key())
	return last.Seq >= o.Seq
}

// WasDown reports whether the listener was told of a loss and then, if back,
// of a return.
func (e *Ear) WasDown(back bool) bool {
	downs := e.Downs()
	n := len(downs)
	return n > 0 && (downs[n-1] == nil) == back
}

// Hears waits until the words were heard.
func (e *Ear) Hears(t testing.TB, words ...breaker.Opinion) {
	t.Helper()
	for _, o := range words {
		Eventually(t, 10*time.Second, fmt.Sprintf("word %d of %s is heard", o.Seq, o.Breaker), func() bool { return e.Has(o) })
	}
}
