// Package modelsim is a simulated model pool: an OpenAI-compatible HTTP
// server (JSON and SSE) and a gRPC inference service in front of a machine
// whose service time grows with its load like that of a GPU under continuous
// batching with a limited KV cache. It serves vLLM and dcgm-exporter metrics
// that follow its load, counts its own tokens exactly, and fails on command.
// The demo and the tests use it as upstream.
//
// The machine is a [Batch], a core without a clock: the servers here give it
// one, and the simulator (internal/simulate) plays it in virtual time.
//
// It is deterministic for one seed and one order of arrivals, and runs in
// virtual time (testing/synctest) as well as in real time, where Config.Speed
// makes it faster. It accepts what stock clients send and judges nothing.
package modelsim

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Config describes a simulator. Zero fields take defaults.
type Config struct {
	Models  []string // names served, first one is the default; empty = any name, listed as "sim"
	Variant string   // sent as x-sim-variant and as label of metrics; default fp16
	Engine  EngineConfig
	Output  int     // tokens of an answer whose request sets no cap; default 16
	Text    string  // words of the answers, repeated; default a sentence
	Speed   float64 // how many times faster than real; default 1
	Seed    uint64
	GPUs    int // in the dcgm-exporter text; default 1
	Log     *slog.Logger
}

const sentence = "Water finds its way and the weir decides how much of it may pass at once "

func (c *Config) fill() {
	c.Engine.fill()
	set(&c.Output, 16)
	set(&c.Speed, 1)
	set(&c.GPUs, 1)
	if c.Variant == "" {
		c.Variant = "fp16"
	}
	if strings.TrimSpace(c.Text) == "" {
		c.Text = sentence
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Sim is a running simulator. It is made by New and must be closed.
type Sim struct {
	cfg    Config
	words  []string
	engine *engine
	totals *totals
	faults *faults
	gpu    *cards
	http   *http.Server
	grpc   *grpc.Server
	start  time.Time

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // the engine's loop, servers and handlers

	mu  sync.Mutex
	ids uint64
}

// New starts the machine. Serve puts it on a listener; Handler serves where
// the caller has a server of its own.
func New(cfg Config) *Sim {
	cfg.fill()
	s := &Sim{
		cfg:    cfg,
		words:  strings.Fields(cfg.Text),
		engine: newEngine(cfg.Engine, cfg.Speed, cfg.Seed),
		totals: newTotals(),
		faults: newFaults(rand.New(rand.NewPCG(cfg.Seed, 2))),
		start:  time.Now(),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.gpu = newCards(s.start)
	s.grpc = s.newGRPC()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           s.Handler(),
		Protocols:         protocols,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100_000},
	}
	s.work.Go(func() { s.engine.loop(s.ctx) })
	return s
}

// Serve answers HTTP/1.1, HTTP/2 without TLS and gRPC on one listener, until
// Close or an error of the listener. It owns the listener. It may run for
// several listeners at once. After Close it returns nil.
func (s *Sim) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return l.Close()
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close cuts every connection, ends the machine and waits for all of it.
func (s *Sim) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	err := s.http.Close()
	s.grpc.Stop()
	s.work.Wait()
	return err
}

// Totals are the simulator's own counts.
func (s *Sim) Totals() Totals { return s.totals.read() }

// Reset forgets the counts; requests in flight count as started anew.
func (s *Sim) Reset() { s.totals.reset() }

// Load is the state of the machine now.
func (s *Sim) Load() Load { return s.engine.snapshot() }

// WaitIdle blocks until no request is in flight, or ctx ends.
func (s *Sim) WaitIdle(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.totals.mu.Lock()
		defer s.totals.mu.Unlock()
		s.totals.idle.Broadcast()
	})
	defer stop()
	s.totals.mu.Lock()
	defer s.totals.mu.Unlock()
	for s.totals.active > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.totals.idle.Wait()
	}
	return nil
}

// Handler is the whole HTTP surface, gRPC included. Close ends its requests
// and waits for them, whoever serves it.
func (s *Sim) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.serveChat)
	mux.HandleFunc("POST /v1/completions", s.serveCompletions)
	mux.HandleFunc("POST /v1/embeddings", s.serveEmbeddings)
	mux.HandleFunc("GET /v1/models", s.serveModels)
	mux.HandleFunc("GET /metrics", s.serveVLLM)
	mux.HandleFunc("GET /dcgm/metrics", s.serveDCGM)
	mux.HandleFunc("GET /sim/stats", s.serveStats)
	mux.HandleFunc("POST /sim/fault", s.serveSetFault)
	mux.HandleFunc("DELETE /sim/fault", s.serveClearFault)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if s.ctx.Err() != nil {
			s.mu.Unlock()
			panic(http.ErrAbortHandler) //nolint:forbidigo // net/http's way to answer nothing
		}
		s.work.Add(1)
		s.mu.Unlock()
		defer s.work.Done()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		r = r.WithContext(ctx)
		if isGRPC(r) {
			s.serveGRPC(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// nextID is the number of a new request.
func (s *Sim) nextID() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids++
	return s.ids
}
