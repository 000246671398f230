package link

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/gpu"
)

// stream is a watch that does what a test says: it takes what comes on heard,
// and ends with what comes on broken.
type stream struct {
	inbox   *Inbox[[]int]
	heard   chan int // below 0: no news
	broken  chan error
	streams atomic.Int32
}

func newStream(t *testing.T) *stream {
	t.Helper()
	s := &stream{heard: make(chan int), broken: make(chan error)}
	l, err := New(Config{Address: "unix:/none", Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("nobody dials") }})
	if err != nil {
		t.Fatal(err)
	}
	s.inbox = NewInbox[[]int](l, s.watch, "no number")
	t.Cleanup(s.inbox.Close)
	return s
}

func (s *stream) watch(ctx context.Context, _ *grpc.ClientConn) (heard bool, err error) {
	s.streams.Add(1)
	for {
		select {
		case n := <-s.heard:
			heard = true
			if n < 0 {
				s.inbox.Up()
				continue
			}
			s.inbox.Put(func(untaken []int) []int { return append(untaken, n) })
		case err := <-s.broken:
			return heard, err
		case <-ctx.Done():
			return heard, ctx.Err()
		}
	}
}

func (s *stream) take(t *testing.T, want ...int) {
	t.Helper()
	if got, err := s.inbox.Take(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("Take = %v, %v; want %v", got, err, want)
	}
}

// Nothing listens before the first Take; a word is handed out once, and is
// made of what nobody has taken.
func TestInboxHandsOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t)
		time.Sleep(time.Hour)
		if n := s.streams.Load(); n != 0 {
			t.Errorf("%d streams before anybody looked", n)
		}
		go func() { s.heard <- 1 }()
		s.take(t, 1) // waits for it
		s.heard <- 2
		s.heard <- 3
		synctest.Wait()
		s.take(t, 2, 3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := s.inbox.Take(ctx); !errors.Is(err, context.DeadlineExceeded) || err.Error() != "no number: context deadline exceeded" {
			t.Errorf("Take = %v, %v: the same word again", got, err)
		}
		cancel()
		began := time.Now()
		if _, err := s.inbox.Take(ctx); err == nil || time.Since(began) != 0 {
			t.Errorf("with an ended context: %v after %v", err, time.Since(began))
		}
		s.heard <- 4
		synctest.Wait()
		s.take(t, 4) // which the Takes that ended have not lost
		if n := s.streams.Load(); n != 1 {
			t.Errorf("%d streams, want 1", n)
		}
	})
}

// One word goes to one of the Takes that wait.
func TestInboxOneWordOneTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got, none atomic.Int32
		for range 8 {
			go func() {
				if _, err := s.inbox.Take(ctx); err == nil {
					got.Add(1)
				} else {
					none.Add(1)
				}
			}()
		}
		s.heard <- 1
		time.Sleep(2 * time.Minute)
		if got.Load() != 1 || none.Load() != 7 {
			t.Errorf("%d got the one word, %d none; want 1 and 7", got.Load(), none.Load())
		}
	})
}

// Without a stream a Take fails at once and says why; a word that came before
// is handed out first; the next stream ends that, with a word or without news.
func TestInboxWithoutAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t)
		gone := errors.New("gone")
		go func() { s.heard <- 1 }()
		s.take(t, 1)
		s.heard <- 2
		s.broken <- gone
		synctest.Wait()
		s.take(t, 2)
		for range 3 {
			began := time.Now()
			if got, err := s.inbox.Take(t.Context()); !errors.Is(err, gone) || gpu.FaultOf(err) != gpu.FaultConnect || time.Since(began) != 0 {
				t.Errorf("Take = %v, %v after %v", got, err, time.Since(began))
			}
		}
		time.Sleep(maxPause)
		if n := s.streams.Load(); n != 2 {
			t.Fatalf("%d streams, want another one", n)
		}
		s.heard <- -1
		synctest.Wait()
		go func() { time.Sleep(time.Second); s.heard <- 3 }()
		s.take(t, 3)
	})
}

// Close ends the stream and what waits; a closed inbox never listens.
func TestInboxClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t)
		ended := make(chan error)
		go func() { _, err := s.inbox.Take(t.Context()); ended <- err }()
		synctest.Wait()
		s.inbox.Close()
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("a Take under way: %v", err)
		}
		s.inbox.Close()
		if _, err := s.inbox.Take(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("a later Take: %v", err)
		}
		fresh := newStream(t)
		fresh.inbox.Close()
		if _, err := fresh.inbox.Take(t.Context()); !errors.Is(err, ErrClosed) || fresh.streams.Load() != 0 {
			t.Errorf("closed before the first Take: %v, %d streams", err, fresh.streams.Load())
		}
	})
}
