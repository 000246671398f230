// Package agent is a telemetry source that listens to weir-gpu-agent on a GPU
// node, over one gRPC stream (Q3). It also holds what both ends must agree on:
// the figures of a card, their bounds, and their names in Prometheus text.
//
// A look is the newest snapshot that no look has returned yet; it waits for
// one where there is none. Its instant is when the agent looked: the arrival,
// less the age that the agent states, less what the message was longer on its
// way than the quickest one (transit.go), so that neither a delayed stream nor
// a wrong wall clock makes an old reading new.
//
// Invariants: a snapshot that says an error is a missed sample, never an idle
// GPU; values are judged again here, whatever the agent did (wire.go); while
// there is no connection every look fails at once and says why; at most one
// connection, ended by Close.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/link"
	"github.com/weirproxy/weir/policy"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// ErrClosed is the error of a look at a closed source.
var ErrClosed = errors.New("telemetry source is closed")

// Config describes a source.
type Config struct {
	Name      string                                  // as the gauge knows it
	Address   string                                  // host:port, unix:/path or unix:@name
	Every     time.Duration                           // how often it is looked at; 0 = as often as there are snapshots
	Match     map[string]string                       // labels (Labels) that a card must have; empty = all cards
	TLS       *policy.ClientTLS                       // nil = none
	Token     policy.Secret                           // sent with the call; needs TLS, loopback or a Unix socket; its file is read at each connection
	Endpoints Endpoints                               // nil = not known
	Dial      func(context.Context) (net.Conn, error) // instead of connecting to Address; nil = connect
	Seed      uint64                                  // of the jitter between connections
}

// Endpoints says which model endpoint a card serves (gpu/scrape's Places). It
// is asked by one goroutine.
type Endpoints interface {
	Refresh() error                         // before the cards of a snapshot; on an error what was known stays
	Of(card *gpu.Card, label string) string // label: what its series name; an agent names none
}

// Source listens to one agent, from its first look on. It is safe for
// concurrent use and must be closed.
type Source struct {
	cfg    Config
	view   view
	link   *link.Link
	last   look // of watch alone
	life   context.Context
	end    context.CancelFunc
	listen sync.Once
	work   sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed at each change of what follows
	fresh   bool          // sample or err has not been returned yet
	sample  gpu.Sample
	err     error // instead of sample: the agent sees nothing
	down    error // why there is no stream; nil = there is one, or none was tried yet
}

var _ gpu.Source = (*Source)(nil)

// New makes a source. Nothing is connected yet, but the files must be good.
func New(cfg Config) (*Source, error) {
	l, err := link.New(link.Config{Address: cfg.Address, TLS: cfg.TLS, Token: cfg.Token, Message: maxMessage, Ping: ping, Dial: cfg.Dial, Seed: cfg.Seed})
	if err != nil {
		return nil, fmt.Errorf("telemetry source %s: %w", cfg.Name, err)
	}
	s := &Source{
		cfg:     cfg,
		view:    view{Fields(), cfg.Match, cfg.Endpoints},
		link:    l,
		changed: make(chan struct{}),
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Name is the configured name.
func (s *Source) Name() string { return s.cfg.Name }

// Engine is false: an agent sees GPUs.
func (s *Source) Engine() bool { return false }

// Close ends the connection. Looks under way and later ones fail.
func (s *Source) Close() error {
	s.listen.Do(func() {}) // never from now on
	s.end()
	s.work.Wait()
	return nil
}

// Sample is the newest snapshot that was not returned yet, as soon as there is
// one.
func (s *Source) Sample(ctx context.Context) (gpu.Sample, error) {
	sample, err := s.next(ctx)
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", s.cfg.Name, err)
	}
	return sample, nil
}

func (s *Source) next(ctx context.Context) (gpu.Sample, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Sample{}, err
	}
	s.listen.Do(func() { s.work.Go(func() { s.link.Keep(s.life, s.watch, s.fell) }) })
	for {
		s.mu.Lock()
		changed := s.changed
		switch {
		case s.life.Err() != nil:
			s.mu.Unlock()
			return gpu.Sample{}, ErrClosed
		case s.fresh:
			s.fresh = false
			sample, err := s.sample, s.err
			s.mu.Unlock()
			return sample, err
		case s.down != nil:
			err := s.down
			s.mu.Unlock()
			return gpu.Sample{}, err
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.life.Done():
		case <-ctx.Done():
			return gpu.Sample{}, fmt.Errorf("no snapshot from the agent: %w", ctx.Err())
		}
	}
}

// change tells waiting looks that fn has changed something.
func (s *Source) change(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	close(s.changed)
	s.changed = make(chan struct{})
}

// fell tells waiting looks why there is no stream.
func (s *Source) fell(err error) { s.change(func() { s.down = err }) }

// look names one look of one agent: a new agent counts from 1 again.
type look struct {
	time     int64 // nanoseconds
	sequence uint64
}

// hear takes one snapshot of a stream. The one that was heard last, again at
// the start of a new stream, says only that the agent is there.
func (s *Source) hear(w *gpuv1.Snapshot, at time.Time) {
	this := look{w.GetTime().AsTime().UnixNano(), w.GetSequence()}
	if this == s.last {
		s.change(func() { s.down = nil })
		return
	}
	s.last = this
	var sample gpu.Sample
	var err error
	if w.GetError() != "" {
		err = gpu.Missed(gpu.FaultStatus, fmt.Errorf("the agent sees no GPU: %.300s", w.GetError()))
	} else if sample, err = s.view.sample(w); err != nil {
		err = gpu.Missed(gpu.FaultForm, err)
	}
	sample.Source, sample.At = s.cfg.Name, at
	s.change(func() { s.sample, s.err, s.fresh, s.down = sample, err, true, nil })
}
