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
	"fmt"
	"net"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/link"
	"github.com/weirproxy/weir/policy"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// ErrClosed is the error of a look at a closed source.
var ErrClosed = link.ErrClosed

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

// Endpoints says which model endpoints a card serves (gpu/scrape's Places). It
// is asked by one goroutine.
type Endpoints interface {
	Refresh() error                                    // before the cards of a snapshot; on an error what was known stays
	Of(card *gpu.Card, labels ...string) gpu.Endpoints // labels: what its series name; an agent names none
}

// Source listens to one agent, from its first look on. It is safe for
// concurrent use and must be closed.
type Source struct {
	cfg   Config
	view  view
	inbox *link.Inbox[word]
	last  look // of watch alone
}

// word is one snapshot: a sample, or why the agent sees nothing.
type word struct {
	sample gpu.Sample
	err    error
}

var _ gpu.Source = (*Source)(nil)

// New makes a source. Nothing is connected yet, but the files must be good.
func New(cfg Config) (*Source, error) {
	l, err := link.New(link.Config{Address: cfg.Address, TLS: cfg.TLS, Token: cfg.Token, Message: maxMessage, Ping: ping, Dial: cfg.Dial, Seed: cfg.Seed})
	if err != nil {
		return nil, fmt.Errorf("telemetry source %s: %w", cfg.Name, err)
	}
	s := &Source{cfg: cfg, view: view{Fields(), cfg.Match, cfg.Endpoints}}
	s.inbox = link.NewInbox[word](l, s.watch, "no snapshot from the agent")
	return s, nil
}

// Name is the configured name.
func (s *Source) Name() string { return s.cfg.Name }

// Engine is false: an agent sees GPUs.
func (s *Source) Engine() bool { return false }

// Close ends the connection. Looks under way and later ones fail.
func (s *Source) Close() error {
	s.inbox.Close()
	return nil
}

// Sample is the newest snapshot that was not returned yet, as soon as there is
// one.
func (s *Source) Sample(ctx context.Context) (gpu.Sample, error) {
	got, err := s.inbox.Take(ctx)
	if err == nil {
		err = got.err
	}
	if err != nil {
		return gpu.Sample{}, fmt.Errorf("telemetry source %s: %w", s.cfg.Name, err)
	}
	return got.sample, nil
}

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
		s.inbox.Up()
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
	settle(sample.Cards, at, w.GetTime())
	s.inbox.Put(func(word) word { return word{sample, err} })
}
