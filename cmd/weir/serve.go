package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
)

func serveCommand() *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the sidecar",
		Long: "serve answers ext_authz and ext_proc on server.grpc until SIGTERM, SIGINT or SIGHUP, then drains: waiting\n" +
			"requests get 503 with a hint, running answers finish within server.drain. It is ready when /readyz on server.admin says 200.\n" +
			"The policy file is watched; a broken one keeps the last good policy.\n" +
			"Unless GOGC is set, the garbage collector lets the heap grow by 16 MiB or a quarter of what is in use; GOMEMLIMIT bounds it. What a flood took is given back.",
		Example: "  weir serve --config /etc/weir/weir.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if config == "" {
				return usageError{errors.New("serve needs --config FILE (see weir serve --help)")}
			}
			signal.Ignore(syscall.SIGPIPE) // whoever reads the log may die; weir serves on
			return serve(c.Context(), config)
		},
	}
	c.Flags().StringVar(&config, "config", "", "policy `file`")
	return c
}

// loadPolicy reads the policy file. Reading takes ten times the memory of the
// policy that it gives: it is collected as it is left, and given back to the
// system at once rather than kept for the next time.
func loadPolicy(path string) (*policy.Policy, error) {
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(loadPercent))
	}
	defer debug.FreeOSMemory()
	return policy.LoadFile(path)
}

// loadPercent is the garbage collector's target while a policy is read.
const loadPercent = 50

// serve runs a house until ctx ends, then drains it.
func serve(ctx context.Context, config string) error {
	p, err := loadPolicy(config)
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(telemetry.Level(p.Telemetry.LogLevel))
	sink := telemetry.NewSink(os.Stderr)
	defer sink.Close(time.Second)
	log := telemetry.NewLogger(sink, level)
	h, err := build(ctx, config, p, log, level)
	if err != nil {
		return err
	}
	defer h.close()
	h.sink = sink
	h.audit = telemetry.NewLogger(sink, new(slog.LevelVar))
	for _, loud := range p.Insecure() {
		log.Error("policy", "note", loud)
	}
	for _, note := range p.Notes()[len(p.Insecure()):] {
		log.Warn("policy", "note", note)
	}
	stop, kept := make(chan struct{}), make(chan struct{})
	go func() { defer close(kept); keepMemory(stop) }()
	defer func() { close(stop); <-kept }()
	failed, limit := h.open(), p.Server.Drain
	log.Info("serving", "version", version, "policy", p.Hash, "mode", p.Mode.String(), "grpc", p.Server.GRPC, "admin", p.Server.Admin)
	p = nil // the first policy goes when another is in force
	select {
	case <-ctx.Done():
	case err = <-failed:
		return fmt.Errorf("listener: %w", err)
	}
	h.drain(limit)
	return nil
}

// farewell is how long requests are admitted after GOAWAY: what an Envoy sent
// before it heard is on its way. With a second weir beside this one nobody is
// refused then.
const farewell = 100 * time.Millisecond

// drain ends the house politely. In order: not ready; GOAWAY; the streams of
// Envoys to the control plane end, and they keep what they have; everybody who
// waits gets 503 with a hint; running answers finish for up to limit; what still
// streams is let go, uncut.
func (h *house) drain(limit time.Duration) {
	h.draining.Store(true)
	h.health.Shutdown()
	h.log.Info("draining", "limit", limit.String(), "running", h.desk.Snapshot(time.Now()).Tickets)
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	gone := make(chan struct{})
	go func() { h.grpc.GracefulStop(); close(gone) }()
	h.street.endStreams()
	select {
	case <-gone:
	case <-time.After(farewell):
	}
	left := h.desk.Drain(ctx)
	last, stopLast := context.WithTimeout(context.Background(), 2*time.Second)
	defer stopLast()
	if err := h.extproc.Shutdown(last); err != nil {
		h.log.Warn("drain", "error", err)
	}
	select {
	case <-gone:
	case <-last.Done():
		h.grpc.Stop()
		<-gone
	}
	h.log.Info("drained", "let_go", left)
}
