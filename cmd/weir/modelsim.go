package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/modelsim"
)

// modelsimCommand runs a simulated model pool.
func modelsimCommand() *cobra.Command {
	cfg := modelsim.Config{}
	listen, metrics := "", ""
	cmd := &cobra.Command{
		Use:   "modelsim",
		Short: "Run a simulated model pool: OpenAI-compatible HTTP, gRPC, metrics, faults on command",
		Long: `Runs a simulated model pool on a loopback address.

  POST /v1/chat/completions, /v1/completions, /v1/embeddings; GET /v1/models
  gRPC ` + modelsim.ServiceName + ` and health, on the same port
  GET  /metrics        vLLM's names         GET /dcgm/metrics  dcgm-exporter's names
  GET  /sim/stats      its own counts       POST, DELETE /sim/fault
  header x-sim-fault:  status=503, reset, reset-mid, hang, late-headers=1s, slow=50ms,
                       cut, error-in-stream, no-usage, no-length, gzip, goaway`,
		Example: `  weir modelsim --listen 127.0.0.1:26101 --model deepseek-v4 --seats 64 --variant fp16
  curl -H 'x-sim-fault: slow=200ms' 127.0.0.1:26101/v1/chat/completions \
    -d '{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"hello"}]}'
  curl -X POST 127.0.0.1:26101/sim/fault -d '{"fault":"status=503","rate":0.5}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return runModelsim(ctx, cmd, cfg, listen, metrics)
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:26101", "address of HTTP and gRPC: `HOST:PORT` or unix:/path")
	f.StringVar(&metrics, "metrics", "", "one more address, `HOST:PORT`, that serves the same (for metrics apart from the calls)")
	f.StringSliceVar(&cfg.Models, "model", nil, "model `NAME`s served; none = any")
	f.StringVar(&cfg.Variant, "variant", "fp16", "precision that answers carry as x-sim-variant")
	f.IntVar(&cfg.Engine.Running, "seats", 64, "sequences in one batch")
	f.Int64Var(&cfg.Engine.KVTokens, "kv-tokens", 400_000, "tokens that fit the KV cache")
	f.DurationVar(&cfg.Engine.StepBase, "step", 10*time.Millisecond, "one decoding step of an empty batch")
	f.DurationVar(&cfg.Engine.StepPerSequence, "step-per-sequence", 200*time.Microsecond, "more for each sequence in the batch")
	f.DurationVar(&cfg.Engine.PrefillPerToken, "prefill", 20*time.Microsecond, "more for each prompt token read")
	f.Float64Var(&cfg.Engine.Jitter, "jitter", 0, "share by which steps vary, 0..1")
	f.IntVar(&cfg.Output, "output", 16, "tokens of an answer whose request sets no cap")
	f.StringVar(&cfg.Text, "text", "", "words of the answers, repeated")
	f.Float64Var(&cfg.Speed, "speed", 1, "how many times faster than real")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of everything random")
	f.IntVar(&cfg.GPUs, "gpus", 1, "GPUs in the dcgm-exporter text")
	return cmd
}

// runModelsim serves until ctx ends.
func runModelsim(ctx context.Context, cmd *cobra.Command, cfg modelsim.Config, addresses ...string) (err error) {
	sim := modelsim.New(cfg)
	defer func() { err = errors.Join(err, sim.Close()) }()
	failed := make(chan error, len(addresses))
	for _, address := range addresses {
		if address == "" {
			continue
		}
		network := "tcp"
		if path, ok := strings.CutPrefix(address, "unix:"); ok {
			network, address = "unix", path
		}
		l, err := new(net.ListenConfig).Listen(ctx, network, address)
		if err != nil {
			return fmt.Errorf("modelsim: %w", err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "modelsim listens on %s\n", l.Addr())
		go func() { failed <- sim.Serve(l) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}
