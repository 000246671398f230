package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/gpu/library"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// player is a reader that does what a test says.
type player struct {
	look   func(ctx context.Context) ([]gpu.Card, error)
	closed atomic.Int32
}

func (p *player) Cards(ctx context.Context) ([]gpu.Card, error) { return p.look(ctx) }
func (p *player) Close() error                                  { p.closed.Add(1); return nil }

func steady(id string) *player {
	return &player{look: func(context.Context) ([]gpu.Card, error) {
		return []gpu.Card{{ID: id, Util: gpu.Some(0.5), Power: gpu.Some(math.NaN())}}, nil
	}}
}

// kept runs a keeper in the present bubble; the log is what it said.
func kept(t *testing.T, choices ...choice) (k *keeper, log *bytes.Buffer, ended chan error) {
	log, ended = new(bytes.Buffer), make(chan error, 1)
	k = &keeper{
		choices: choices, every: time.Second, host: "node", fields: agent.Fields(),
		board: newBoard(func([]gpu.Card) []*gpuv1.Card { return nil }), log: slog.New(slog.NewTextHandler(log, nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); ended <- k.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return k, log, ended
}

// at waits until a moment between looks, d after the start, and is what is on
// the board then.
func at(t *testing.T, k *keeper, d time.Duration) *seen {
	t.Helper()
	time.Sleep(time.Until(k.board.start.Add(d + time.Millisecond)))
	synctest.Wait()
	s, _, _ := k.board.newest()
	if s == nil {
		t.Fatalf("nothing on the board after %v", d)
	}
	return s
}

// auto: the second choice serves while the first cannot be opened, and gives
// way once it can; every reader is closed.
func TestBestReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second, first := steady("by second"), steady("by first")
		var there atomic.Bool
		k, _, _ := kept(t,
			choice{"first", func() (reader, error) {
				if !there.Load() {
					return nil, errors.New("libdcgm.so.4 cannot be loaded")
				}
				return first, nil
			}},
			choice{"second", func() (reader, error) { return second, nil }})
		if s := at(t, k, 0); s.source != "second" || s.err != nil || s.cards[0].ID != "by second" || s.cards[0].Host != "node" || s.dropped[gpu.FaultNumber] != 1 || s.cards[0].Power.OK {
			t.Errorf("%+v", s)
		}
		if s := at(t, k, 59*time.Second); s.source != "second" || s.sequence != 60 {
			t.Errorf("%+v", s)
		}
		there.Store(true)
		if s := at(t, k, 60*time.Second); s.source != "first" || s.cards[0].ID != "by first" || second.closed.Load() != 1 {
			t.Errorf("%+v, second closed %d times", s, second.closed.Load())
		}
	})
}

// While nothing can be opened each look says why, tries get rarer, the log has
// one line; what works then is used within the longest pause.
func TestNothingToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		var ready atomic.Bool
		open := func(name string) func() (reader, error) {
			return func() (reader, error) {
				tries.Add(1)
				if ready.Load() {
					return steady(name), nil
				}
				return nil, fmt.Errorf("%s is missing", name)
			}
		}
		k, log, _ := kept(t, choice{"dcgm", open("dcgm")}, choice{"nvml", open("nvml")})
		if s := at(t, k, time.Minute); s.err == nil || s.err.Error() != "dcgm is missing; nvml is missing" || s.cards != nil || s.sequence != 61 {
			t.Errorf("%+v", s)
		}
		if tries.Load() != 2*6 { // at 0, 1, 3, 7, 15, 31 s
			t.Errorf("%d tries in a minute", tries.Load())
		}
		ready.Store(true)
		if s := at(t, k, 91*time.Second); s.err != nil || s.source != "dcgm" {
			t.Errorf("%+v", s)
		}
		if said := log.String(); strings.Count(said, "GPUs cannot be read") != 1 || strings.Count(said, "GPUs are read again") != 1 {
			t.Error(said)
		}
	})
}

// A reader that fails is opened anew after some looks (the host engine was
// restarted), and its cards are not shown meanwhile.
func TestReaderFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Int32
		var gone atomic.Bool
		var first atomic.Pointer[player]
		k, _, _ := kept(t, choice{"dcgm", func() (reader, error) {
			opened.Add(1)
			p := &player{look: func(context.Context) ([]gpu.Card, error) {
				if gone.Load() {
					return nil, errors.New("the host engine is gone")
				}
				return []gpu.Card{{ID: "a"}}, nil
			}}
			first.CompareAndSwap(nil, p)
			return p, nil
		}})
		at(t, k, 2*time.Second)
		gone.Store(true)
		if s := at(t, k, 6*time.Second); s.err == nil || s.cards != nil || opened.Load() != 1 {
			t.Errorf("%+v, opened %d times", s, opened.Load())
		}
		if at(t, k, 8*time.Second); opened.Load() != 2 || first.Load().closed.Load() != 1 {
			t.Errorf("opened %d times, the first one closed %d times", opened.Load(), first.Load().closed.Load())
		}
		gone.Store(false)
		if s := at(t, k, 9*time.Second); s.err != nil || len(s.cards) != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A look that hangs for 30 s is an error on the board from its time limit on,
// no other reader is opened beside it, and it goes on when it comes back. One
// that hangs for good ends the agent, for only a new process can try again.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Int32
		var hang atomic.Bool
		p := &player{look: func(ctx context.Context) ([]gpu.Card, error) {
			if hang.Load() {
				<-ctx.Done()
				return nil, fmt.Errorf("dcgm: %w", library.ErrHung)
			}
			return []gpu.Card{{ID: "a"}}, nil
		}}
		k, _, ended := kept(t, choice{"dcgm", func() (reader, error) { opened.Add(1); return p, nil }})
		at(t, k, 9*time.Second)
		hang.Store(true)
		if s := at(t, k, 12*time.Second); s.err == nil || !strings.Contains(s.err.Error(), "does not come back") || s.cards != nil {
			t.Errorf("%+v", s)
		}
		at(t, k, 40*time.Second)
		hang.Store(false)
		if s := at(t, k, 43*time.Second); s.err != nil || opened.Load() != 1 || p.closed.Load() != 0 {
			t.Errorf("%+v, opened %d times, closed %d times", s, opened.Load(), p.closed.Load())
		}
		hang.Store(true)
		at(t, k, 43*time.Second+hungLimit-time.Second)
		select {
		case err := <-ended:
			t.Fatalf("ended early: %v", err)
		default:
		}
		at(t, k, 43*time.Second+hungLimit+10*time.Second)
		select {
		case err := <-ended:
			if !errors.Is(err, errHungForGood) {
				t.Error(err)
			}
		default:
			t.Error("still there")
		}
	})
}
