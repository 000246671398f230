package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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
		Long: "serve answers ext_authz and ext_proc on server.grpc until SIGTERM, then drains: waiting requests get 503\n" +
			"with a hint, running answers finish within server.drain. It is ready when /readyz on server.admin says 200.\n" +
			"The policy file is watched; a broken one keeps the last good policy.",
		Example: "  weir serve --config /etc/weir/weir.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if config == "" {
				return usageError{errors.New("serve needs --config FILE (see weir serve --help)")}
			}
			return serve(c.Context(), config)
		},
	}
	c.Flags().StringVar(&config, "config", "", "policy `file`")
	return c
}

// serve runs a house until ctx ends, then drains it.
func serve(ctx context.Context, config string) error {
	p, err := policy.LoadFile(config)
	if err != nil {
		return err
	}
	log := telemetry.NewLogger(os.Stderr, p.Telemetry.LogLevel)
	h, err := build(ctx, config, p, log)
	if err != nil {
		return err
	}
	defer h.close()
	for _, note := range p.Notes() {
		log.Warn("policy", "note", note)
	}
	failed := h.open()
	log.Info("serving", "version", version, "policy", p.Hash, "mode", p.Mode.String(), "grpc", p.Server.GRPC, "admin", p.Server.Admin)
	select {
	case <-ctx.Done():
	case err = <-failed:
		return fmt.Errorf("listener: %w", err)
	}
	h.drain(p.Server.Drain)
	return nil
}

// drain ends the house politely (design: SIGTERM). In order: not ready;
// everybody who waits gets 503 with a hint; GOAWAY; running answers finish for
// up to limit; what still streams is let go, uncut.
func (h *house) drain(limit time.Duration) {
	h.draining.Store(true)
	h.health.Shutdown()
	h.log.Info("draining", "limit", limit.String(), "running", h.desk.Snapshot(time.Now()).Tickets)
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	gone := make(chan struct{})
	go func() { h.grpc.GracefulStop(); close(gone) }()
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
