package membus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/breaker/bustest"
)

// The board is a bus like any other.
func TestBoard(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bustest.Fixture {
		board := &Board{}
		return bustest.Fixture{
			Open: func() breaker.Bus { return board.Join() },
			Garbage: func() {
				board.mu.Lock()
				defer board.mu.Unlock()
				board.pin(time.Now(), breaker.Opinion{Replica: "x", Breaker: "garbage", State: 99, Seq: 1, TTL: time.Hour})
			},
			Cut: func(b breaker.Bus) (mend func()) {
				b.(*Bus).Cut()
				return b.(*Bus).Mend
			},
		}
	})
}

func opinion(name string, seq uint64, ttl time.Duration) breaker.Opinion {
	return breaker.Opinion{Replica: "a", Breaker: name, State: breaker.Hard, Level: breaker.Hard, Seq: seq, TTL: ttl}
}

// A word goes at its TTL to the instant, who joins hears what is left of it,
// and what is over takes no memory for longer than a sweep.
func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := &Board{}
		bus := board.Join()
		publish := func(name string, seq uint64, ttl time.Duration) {
			if err := bus.Publish(t.Context(), opinion(name, seq, ttl)); err != nil {
				t.Fatal(err)
			}
		}
		hears := func() (words []breaker.Opinion) {
			ctx, cancel := context.WithCancel(t.Context())
			go bus.Listen(ctx, func(o breaker.Opinion) { words = append(words, o) }, func(error) {})
			synctest.Wait()
			cancel()
			synctest.Wait()
			return words
		}
		publish("p", 7, 10*time.Second)
		time.Sleep(4 * time.Second)
		if w := hears(); len(w) != 1 || w[0].TTL != 6*time.Second {
			t.Fatalf("after 4s: %+v, want 6s left", w)
		}
		time.Sleep(6*time.Second - time.Nanosecond)
		if w := hears(); len(w) != 1 {
			t.Fatalf("a nanosecond before its end: %+v", w)
		}
		time.Sleep(time.Nanosecond)
		if w := hears(); len(w) != 0 {
			t.Fatalf("at its end: %+v", w)
		}
		publish("p", 3, time.Second) // of a new life whose clock was behind
		if w := hears(); len(w) != 1 || w[0].Seq != 3 {
			t.Fatalf("%+v, want the new word: the old one is over", w)
		}
		time.Sleep(2 * sweepEvery)
		publish("q", 1, time.Second)
		if n := len(board.words); n != 1 {
			t.Fatalf("%d words kept, want 1", n)
		}
	})
}

// What is no word is counted, and skipped.
func TestSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := &Board{}
		bus := board.Join()
		board.pin(time.Now(), breaker.Opinion{Replica: "x", Breaker: "y", Seq: 1, TTL: time.Second, Failures: 1})
		go bus.Listen(t.Context(), func(o breaker.Opinion) { t.Errorf("heard %+v", o) }, func(error) {})
		synctest.Wait()
		if n := board.Skipped(); n != 1 {
			t.Fatalf("%d skipped, want 1", n)
		}
		bus.Close()
		synctest.Wait()
	})
}
