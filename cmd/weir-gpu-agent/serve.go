package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/internal/listen"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// serve runs the agent until ctx ends or something that it cannot do without
// fails. Readers are closed within two seconds (dcgm-exporter#84: a host
// engine that is killed can freeze its GPU).
func serve(ctx context.Context, o options) error {
	signal.Ignore(syscall.SIGPIPE) // whoever reads the log may die
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return usageError{err}
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if o.host == "" {
		o.host = hostname()
	}
	choices, err := readers(&o, log)
	if err != nil {
		return err
	}
	a, err := open(&o, choices, log)
	if err != nil {
		return err
	}
	return a.run(ctx)
}

// house is one running agent.
type house struct {
	keeper  *keeper
	watch   *watchService
	grpc    *grpc.Server
	http    *http.Server // nil = no metrics
	log     *slog.Logger
	streams net.Listener
	pages   net.Listener
}

// open wires an agent and opens its listeners.
func open(o *options, choices []choice, log *slog.Logger) (*house, error) {
	config, err := secure(o)
	if err != nil {
		return nil, err
	}
	fields := agent.Fields()
	b := newBoard(func(cards []gpu.Card) []*gpuv1.Card {
		wire := make([]*gpuv1.Card, len(cards))
		for i := range cards {
			wire[i] = agent.Encode(&cards[i], fields)
		}
		return wire
	})
	g := guard{certificate: o.clientCA != "", tokenFile: o.tokenFile}
	h := &house{
		keeper: &keeper{choices: choices, every: o.every, host: o.host, board: b, log: log, fields: fields},
		watch:  &watchService{board: b, guard: g, ending: make(chan struct{})},
		log:    log,
	}
	h.grpc = newServer(h.watch, config)
	if h.streams, err = openStreams(o.listen); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if o.metrics == "" {
		return h, nil
	}
	p := &pages{board: b, guard: g, every: o.every, watchers: h.watch.watchers.Load, version: version}
	h.http = &http.Server{
		Handler: p.handler(), TLSConfig: config,
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if h.pages, err = listen.Open(o.metrics); err != nil {
		_ = h.streams.Close()
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	return h, nil
}

func openStreams(address string) (net.Listener, error) {
	if fd, ok := strings.CutPrefix(address, "fd:"); ok {
		n, err := strconv.Atoi(fd)
		if err != nil {
			return nil, err
		}
		return newHandover(uintptr(n))
	}
	return listen.Open(address)
}

// run serves until ctx ends, the reader is lost for good, or a listener fails.
func (h *house) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	work.Go(func() {
		if err := h.keeper.run(ctx); err != nil {
			cancel(err)
		}
	})
	work.Go(func() {
		switch err := h.grpc.Serve(h.streams); {
		case errors.Is(err, errParentGone):
			h.log.Info(err.Error())
			cancel(nil)
		case err != nil && !errors.Is(err, grpc.ErrServerStopped):
			cancel(fmt.Errorf("--listen: %w", err))
		}
	})
	address := []any{"version", version, "grpc", h.streams.Addr().String()}
	if h.http != nil {
		address = append(address, "metrics", h.pages.Addr().String())
		work.Go(func() {
			if err := h.servePages(); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("--metrics: %w", err))
			}
		})
	}
	h.log.Info("serving", address...)
	<-ctx.Done()
	close(h.watch.ending)
	h.grpc.Stop()
	if h.http != nil {
		_ = h.http.Close() // nothing to save
	}
	work.Wait()
	h.log.Info("ended")
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (h *house) servePages() error {
	if h.http.TLSConfig != nil {
		return h.http.ServeTLS(h.pages, "", "")
	}
	return h.http.Serve(h.pages)
}
