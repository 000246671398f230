// Package library keeps a C library that reads GPUs at arm's length.
//
// Such a library can hang in the kernel for as long as it likes (report
// gpu-monitoring-tools#46), and Go cannot take a thread back from it. So one
// goroutine on one thread owns all calls, and whoever wants GPUs waits for it
// no longer than his context and the look's timeout allow.
//
// Invariants: at most one call is under way, whatever the callers do: a hung
// library costs one thread; a look that came back late is thrown away, never
// shown as new; a library that failed is closed and opened again, with a pause
// that doubles from MinPause to MaxPause; an error is never a card with zeros.
package library

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/gpu"
)

// Driver is a C library (gpu/dcgm, gpu/nvml). Its methods are called by one
// goroutine, one at a time, always on the same thread: Open and Cards after
// each other, Close after either of them failed or at the end. They may hang.
type Driver interface {
	Open(now time.Time) error
	Cards(now time.Time) ([]gpu.Card, error)
	Close() error
}

// The bounds of a Reader.
const (
	DefaultTimeout = 5 * time.Second         // of a look
	CloseTimeout   = 1500 * time.Millisecond // of Close; an agent has 2 s after TERM
	MinPause       = time.Second             // between tries to open
	MaxPause       = 30 * time.Second
)

// The errors of a Reader.
var (
	ErrHung   = errors.New("the library does not come back from a call")
	ErrLate   = errors.New("the look took too long and was thrown away")
	ErrClosed = errors.New("the reader is closed")
)

// The errors of drivers, wrapped with the library's name and what was missing.
var (
	ErrNoCgo  = errors.New("this binary was built without cgo or not for Linux")
	ErrSymbol = errors.New("the library is too old")
	ErrNoGPU  = errors.New("no GPU is seen: the driver is not loaded or detached")
)

// Config of a Reader. The zero value is good.
type Config struct {
	Host    string        // of the cards; "" = the machine's name
	Timeout time.Duration // of one look; <= 0: DefaultTimeout
	Log     *slog.Logger  // nil: nowhere
}

// Filled is c with its defaults.
func (c Config) Filled() (Config, error) {
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Host == "" {
		var err error
		if c.Host, err = os.Hostname(); err != nil {
			return c, fmt.Errorf("host: %w", err)
		}
	}
	return c, nil
}

// Reader looks at the GPUs of this machine. It is safe for concurrent use and
// must be closed.
type Reader struct {
	name string // of the library, in errors and the log
	cfg  Config
	jobs chan *look    // holds at most the look under way
	done chan struct{} // closed once the library is closed

	mu     sync.Mutex
	look   *look // under way; nil = the library is idle
	closed bool
	err    error // of closing; read after done
}

// look is one call under way and what came of it.
type look struct {
	began time.Time
	done  chan struct{} // closed when cards and err are set
	cards []gpu.Card
	err   error
}

// Open opens the library of a name and looks once. It fails if that look does, with
// everything closed again. A library that hangs is no failure: the Reader
// comes back, says ErrHung, and reads as soon as it can.
func Open(name string, d Driver, cfg Config) (*Reader, error) {
	cfg, err := cfg.Filled()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r := &Reader{name: name, cfg: cfg, jobs: make(chan *look, 1), done: make(chan struct{})}
	go r.work(d)
	if _, err := r.Cards(context.Background()); err != nil && !errors.Is(err, ErrHung) {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Cards looks at every GPU and MIG instance, or joins the look under way. It
// returns when the look ends, ctx ends, or the look is older than the timeout.
func (r *Reader) Cards(ctx context.Context) ([]gpu.Card, error) {
	l, err := r.begin()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	patience := time.NewTimer(time.Until(l.began.Add(r.cfg.Timeout)))
	defer patience.Stop()
	select {
	case <-l.done:
		if l.err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, l.err)
		}
		return slices.Clone(l.cards), nil
	case <-patience.C:
		return nil, fmt.Errorf("%s: %w: for %s", r.name, ErrHung, time.Since(l.began).Round(time.Millisecond))
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: a look is under way since %s: %w", r.name, time.Since(l.began).Round(time.Millisecond), ctx.Err())
	}
}

// begin is the look under way, a new one if there is none.
func (r *Reader) begin() (*look, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if r.look == nil {
		r.look = &look{began: time.Now(), done: make(chan struct{})}
		r.jobs <- r.look // has room: the one before is done
	}
	return r.look, nil
}

// Close closes the library. It waits at most CloseTimeout: what hangs then
// says ErrHung, and is closed when it comes back. Later calls do the same.
func (r *Reader) Close() error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.jobs)
	}
	r.mu.Unlock()
	patience := time.NewTimer(CloseTimeout)
	defer patience.Stop()
	select {
	case <-r.done:
		return r.err
	case <-patience.C:
		return fmt.Errorf("%s: closing: %w", r.name, ErrHung)
	}
}

// work owns the library. The thread is never given back to other goroutines:
// it ends with the work.
func (r *Reader) work(d Driver) {
	runtime.LockOSThread()
	defer close(r.done)
	k := keeper{driver: d}
	for l := range r.jobs {
		cards, err := k.look(l.began)
		if took := time.Since(l.began); took > r.cfg.Timeout {
			r.cfg.Log.Warn("GPU library came back", "library", r.name, "after", took, "error", err)
			err = errors.Join(err, fmt.Errorf("%w: %s, allowed are %s", ErrLate, took.Round(time.Millisecond), r.cfg.Timeout))
		}
		r.mu.Lock()
		r.look, l.cards, l.err = nil, cards, err
		r.mu.Unlock()
		close(l.done)
	}
	if err := k.close(); err != nil {
		r.err = fmt.Errorf("%s: closing: %w", r.name, err)
	}
}
