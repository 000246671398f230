// Command weir-gpu-agent reads the GPUs of its node and tells weir of them: a
// gRPC stream of snapshots (proto/gpu/v1) and Prometheus text in
// dcgm-exporter's names. It is apart from weir because libdcgm and the driver
// behind it can hang or end the process that holds them; what dies then is
// telemetry, not admission.
//
// One loop looks (keeper.go); any number of watchers read what it saw last
// (board.go), each at its own pace.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// usageError is a wrong flag or argument: exit code 2.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c := command()
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "weir-gpu-agent: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// options are the flags.
type options struct {
	source, script string
	dcgm, engine   string
	every          time.Duration
	listen         string
	metrics        string
	host           string
	cert, key      string
	clientCA       string
	tokenFile      string
	logLevel       string
	check          bool
}

// The bounds of --every, as of telemetry[].every in weir's policy.
const (
	minEvery = 100 * time.Millisecond
	maxEvery = 10 * time.Minute
)

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "weir-gpu-agent",
		Short: "Tell weir how full the GPUs of this node are",
		Long: "weir-gpu-agent reads the GPUs of its node by DCGM, else NVML, and serves what it saw: a gRPC stream for\n" +
			"weir (telemetry kind agent) and Prometheus text with dcgm-exporter's names on /metrics. What cannot be read is\n" +
			"absent; while nothing can be read it says why and tries again. An address beyond loopback needs TLS and a\n" +
			"client CA or a token. It is ready when /readyz says 200.",
		Example: "  weir-gpu-agent\n" +
			"  weir-gpu-agent --source dcgm --dcgm localhost:5555\n" +
			"  weir-gpu-agent --listen 0.0.0.0:9411 --metrics 0.0.0.0:9410 --tls-cert tls.crt --tls-key tls.key --token-file token",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.judge(); err != nil {
				return usageError{err}
			}
			if o.check {
				return nil
			}
			return serve(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.source, "source", "auto", "who reads the GPUs: auto (dcgm, else nvml), dcgm, nvml or script")
	f.StringVar(&o.script, "script", "", "YAML curve `file` of --source script")
	f.StringVar(&o.dcgm, "dcgm", "embedded", "host engine of DCGM: embedded, started, or the `address` of one that runs (host:port or unix:/path)")
	f.StringVar(&o.engine, "dcgm-engine", "", "`program` that --dcgm started starts (default nv-hostengine)")
	f.DurationVar(&o.every, "every", time.Second, "between looks at the GPUs")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9411", "`address` of the gRPC stream: host:port, unix:/path, or fd:N for a socket that hands over connections")
	f.StringVar(&o.metrics, "metrics", "127.0.0.1:9410", "`address` of /metrics, /healthz and /readyz; empty = none")
	f.StringVar(&o.host, "host", "", "`name` of this node in what is told (default: the machine's)")
	f.StringVar(&o.cert, "tls-cert", "", "PEM certificate `file`; read again when it changes")
	f.StringVar(&o.key, "tls-key", "", "its key `file`")
	f.StringVar(&o.clientCA, "client-ca", "", "PEM `file` of authorities that clients' certificates must come from")
	f.StringVar(&o.tokenFile, "token-file", "", "`file` with the bearer token that clients must send; read at each call")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.BoolVar(&o.check, "check", false, "judge the flags and end")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	args := c.Args
	c.Args = func(c *cobra.Command, a []string) error {
		if err := args(c, a); err != nil {
			return usageError{err}
		}
		return nil
	}
	c.CompletionOptions.DisableDefaultCmd = true
	return c
}
