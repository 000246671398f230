// Package bustest is the inspection that every breaker.Bus passes: in memory,
// over Redis, over etcd (B3). It knows nothing of how a bus is made, only what
// it owes its listeners:
//
//   - a word arrives as it was said, at others and at home, in < 250 ms at the
//     99th percentile;
//   - words of one key come in the order of their Seq, and an older one never
//     replaces a newer one;
//   - who comes late, or was away, hears what stands, and nothing that is over;
//   - garbage, slow listeners, closed and cut-off replicas harm nobody else.
//
// It runs in real time, as servers do, and waits for events with deadlines.
package bustest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// Fixture is one empty bus under test.
type Fixture struct {
	// Open gives one more replica its bus to the same words. The suite closes
	// what it opened.
	Open func() breaker.Bus

	// Garbage puts what is no word where words are kept and, if that is
	// another place, where they are announced. nil = left out.
	Garbage func()

	// Cut breaks the connection of a bus and keeps it broken until mend. nil =
	// left out.
	Cut func(b breaker.Bus) (mend func())

	// Grain is how much later than at the end of its TTL a word may go, as
	// where leases last whole seconds. 0 = at the end.
	Grain time.Duration
}

// Run inspects the bus that open makes, anew for each test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *Fixture)
	}{
		{"ArrivesAsItWasSaid", arrivesAsItWasSaid},
		{"OrderOfEachKey", orderOfEachKey},
		{"OlderNeverWins", olderNeverWins},
		{"KeysAreApart", keysAreApart},
		{"LateJoiner", lateJoiner},
		{"TTL", ttl},
		{"TwoReplicasAtOnce", twoReplicasAtOnce},
		{"RefusesNonsense", refusesNonsense},
		{"Garbage", garbage},
		{"Gap", gap},
		{"SlowListener", slowListener},
		{"ContextEnds", contextEnds},
		{"Close", closes},
		{"Latency", latency},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t)
			c.run(t, &f)
		})
	}
}

const (
	patience = 10 * time.Second // for anything that must happen
	first    = 1_790_000_000_000_000
	longTTL  = time.Minute
)

// join opens a bus that is closed at the end of the test.
func (f *Fixture) join(t *testing.T) breaker.Bus {
	t.Helper()
	b := f.Open()
	t.Cleanup(func() { shut(t, b) })
	return b
}

func shut(t *testing.T, b breaker.Bus) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// word is a replica's n-th word of a pool.
func word(replica, pool string, n int) breaker.Opinion {
	return breaker.Opinion{
		Replica: replica, Breaker: pool, State: breaker.Hard, Level: breaker.Hard,
		Requests: 100 + n, Failures: n, Left: 5 * time.Second,
		Since: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC), Seq: first + uint64(n), TTL: longTTL,
	}
}

func publish(t *testing.T, b breaker.Bus, words ...breaker.Opinion) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, o := range words {
		if err := b.Publish(ctx, o); err != nil {
			t.Fatalf("publish %s of %s: %v", o.Breaker, o.Replica, err)
		}
	}
}

// ear keeps what one Listen heard, and holds it to what a bus promises of any
// two calls.
type ear struct {
	mu     sync.Mutex
	log    []breaker.Opinion
	last   map[breaker.Key]breaker.Opinion
	downs  []error
	bell   chan struct{} // closed and made anew by each call
	inside atomic.Int32
	gate   chan struct{} // heard waits for it, if not nil
	ended  chan struct{}
	stop   context.CancelFunc
}

// listen starts an ear; it is stopped at the end of the test.
func listen(t *testing.T, b breaker.Bus, gate chan struct{}) *ear {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e := &ear{
		last: make(map[breaker.Key]breaker.Opinion), bell: make(chan struct{}),
		ended: make(chan struct{}), stop: cancel, gate: gate,
	}
	go func() {
		defer close(e.ended)
		b.Listen(ctx, func(o breaker.Opinion) { e.heard(t, o) }, func(err error) {
			e.enter(t, func() { e.downs = append(e.downs, err) })
		})
	}()
	t.Cleanup(func() { e.end(t) })
	return e
}

// end cancels the ear and waits until Listen has returned.
func (e *ear) end(t *testing.T) {
	t.Helper()
	e.stop()
	e.wasEnded(t)
}

func (e *ear) wasEnded(t *testing.T) {
	t.Helper()
	select {
	case <-e.ended:
	case <-time.After(patience):
		t.Error("Listen does not return")
	}
}

func (e *ear) enter(t *testing.T, note func()) {
	if e.inside.Add(1) != 1 {
		t.Error("heard or down is called while one of them runs")
	}
	defer e.inside.Add(-1)
	e.mu.Lock()
	defer e.mu.Unlock()
	note()
	close(e.bell)
	e.bell = make(chan struct{})
}

func (e *ear) heard(t *testing.T, o breaker.Opinion) {
	if e.gate != nil {
		<-e.gate
	}
	e.enter(t, func() {
		if err := o.Check(); err != nil {
			t.Errorf("heard what is no word: %v", err)
		}
		if old, ok := e.last[o.Key()]; ok && o.Seq < old.Seq {
			t.Errorf("%v: heard seq %d after %d", o.Key(), o.Seq, old.Seq)
		}
		e.log = append(e.log, o)
		e.last[o.Key()] = o
	})
}

// until waits until the ear's notes satisfy ok, called with its lock held.
func (e *ear) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !e.within(patience, ok) {
		e.mu.Lock()
		defer e.mu.Unlock()
		t.Fatalf("%s: not within %v; %d words heard, down %v", what, patience, len(e.log), e.downs)
	}
}

func (e *ear) within(d time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for {
		e.mu.Lock()
		done, bell := ok(), e.bell
		e.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-bell:
		case <-deadline.C:
			return false
		}
	}
}

// hears waits until the latest word of o's key is o.
func (e *ear) hears(t *testing.T, o breaker.Opinion) {
	t.Helper()
	e.until(t, fmt.Sprintf("%s's word %d of %s", o.Replica, o.Seq-first, o.Breaker), func() bool {
		return e.last[o.Key()].Seq == o.Seq
	})
}

// same holds a heard word against the one that was said.
func same(t *testing.T, got, said breaker.Opinion) {
	t.Helper()
	if got.TTL <= 0 || got.TTL > said.TTL {
		t.Errorf("%s: ttl %v, want above 0, up to %v", said.Breaker, got.TTL, said.TTL)
	}
	if !got.Since.Equal(said.Since) {
		t.Errorf("%s: since %v, want %v", said.Breaker, got.Since, said.Since)
	}
	got.TTL, got.Since = said.TTL, said.Since
	if got != said {
		t.Errorf("heard %+v, want %+v", got, said)
	}
}

// standing is all that stands: what a listener hears before a word that was
// said after it had begun.
func (f *Fixture) standing(t *testing.T, round int) map[breaker.Key]breaker.Opinion {
	t.Helper()
	b := f.Open()
	defer shut(t, b)
	before, after := word("suite", "before", round), word("suite", "after", round)
	publish(t, b, before)
	e := listen(t, b, nil)
	e.hears(t, before)
	publish(t, b, after)
	e.hears(t, after)
	e.end(t)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.last, before.Key())
	delete(e.last, after.Key())
	return e.last
}

// p99 of what was measured.
func p99(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)*99/100]
}
