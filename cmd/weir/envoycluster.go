package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/envoy/lint"
	"github.com/weirproxy/weir/policy"
)

// clusterFlags are the flags of "weir envoy cluster".
type clusterFlags struct {
	config, release string
	clusters        []string
	envoy.ClusterOptions
}

func envoyClusterCommand() *cobra.Command {
	f := new(clusterFlags)
	c := &cobra.Command{
		Use:   "cluster FILE",
		Short: "Print the Envoy sections of the model clusters",
		Long: "cluster prints the section of each cluster that a policy protects, or of those named: size of the\n" +
			"connection pool, keepalive that the servers permit, isolation of hosts that are slow to answer health\n" +
			"checks or reset, limits and retry budget that protection starts from, endpoints from weir where the\n" +
			"policy has them. The arithmetic stands in comments.",
		Example: "  weir envoy cluster weir.yaml\n" +
			"  weir envoy cluster --config weir.yaml --cluster chat-fp16 --peak-qps 500 --mean 2s --host 10.0.0.8:8000\n" +
			"  weir envoy cluster --config weir.yaml --permits-keepalive 30s --release 1.36",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			file, err := policyFile(args, f.config)
			if err != nil {
				return err
			}
			if err := f.check(c); err != nil {
				return usageError{err}
			}
			p, err := policy.LoadFile(file, policy.WithoutSecrets())
			if err != nil {
				return err
			}
			out, err := envoy.ClusterGuide(p, f.clusters, f.ClusterOptions)
			var unknown *envoy.ErrCluster
			if errors.As(err, &unknown) {
				return usageError{fmt.Errorf("--cluster: %w", err)}
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), out)
			return err
		},
	}
	c.Flags().StringVar(&f.config, "config", "", "policy `file`, in place of FILE")
	c.Flags().StringArrayVar(&f.clusters, "cluster", nil, "`name` of a cluster; may be repeated; default all")
	c.Flags().Float64Var(&f.PeakQPS, "peak-qps", 0, "requests a second at peak, to one cluster through one Envoy")
	c.Flags().DurationVar(&f.Mean, "mean", 0, "mean time of a request")
	c.Flags().DurationVar(&f.Permits, "permits-keepalive", 0, "how often the gRPC servers permit pings, also without streams; default 5m and only with streams")
	c.Flags().StringVar(&f.Health, "health", "/health", "`path` of HTTP health checks; - = no health checks")
	c.Flags().StringArrayVar(&f.Hosts, "host", nil, "`host:port` of the one cluster named; may be repeated")
	c.Flags().StringVar(&f.release, "release", "", "`release` of Envoy: 1.36 to 1.40; default any")
	return c
}

// check refuses what cannot be meant.
func (f *clusterFlags) check(c *cobra.Command) error {
	release, err := lint.ParseRelease(f.release)
	if err != nil {
		return fmt.Errorf("--release: %w", err)
	}
	f.Release = int(release)
	changed := c.Flags().Changed
	switch {
	case changed("peak-qps") != changed("mean"):
		return errors.New("--peak-qps and --mean: the pool needs both or none")
	case changed("peak-qps") && !(f.PeakQPS > 0 && f.PeakQPS <= 1e7):
		return fmt.Errorf("--peak-qps %v: must be above 0, up to 10000000", f.PeakQPS)
	case changed("mean") && (f.Mean < time.Millisecond || f.Mean > time.Hour):
		return fmt.Errorf("--mean %v: must be 1ms to 1h", f.Mean)
	case changed("permits-keepalive") && (f.Permits < time.Second || f.Permits > 24*time.Hour):
		return fmt.Errorf("--permits-keepalive %v: must be 1s to 24h", f.Permits)
	case f.Health != "-" && (len(f.Health) == 0 || f.Health[0] != '/' || !visible(f.Health)):
		return fmt.Errorf("--health %q: must be a path from / on in visible ASCII, or -", f.Health)
	case len(f.Hosts) > 0 && len(f.clusters) != 1:
		return errors.New("--host: needs one --cluster that has these hosts")
	}
	for _, h := range f.Hosts {
		host, port, err := net.SplitHostPort(h)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || host == "" || n == 0 || !visible(host) {
			return fmt.Errorf("--host %q: must be host:port", h)
		}
	}
	return nil
}

// visible reports whether a text has visible ASCII alone, as hosts and paths do.
func visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
