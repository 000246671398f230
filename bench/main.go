// Command bench measures what weir's two gRPC services cost, as ratios to a
// server that decides nothing, in one run: weir as it is built and a no-op
// server (grpc-go as it comes) stand side by side as processes, and one client
// drives them in turn with the same ready-made Envoy messages at saturation.
// Ratios of CPU time hold on a machine that has other things to do; absolute
// figures and wall time do not. docs/performance.md explains the figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	rounds   int
	seconds  float64
	limit    time.Duration
	inFlight int
	procs    int
	weir     string
	redis    string
	profile  string
	out      string
}

func (o *options) check() error {
	switch {
	case o.rounds < 1 || o.rounds > 1000:
		return fmt.Errorf("-rounds %d: want 1 to 1000", o.rounds)
	case o.seconds < 0.05 || o.seconds > 60:
		return fmt.Errorf("-seconds %g: want 0.05 to 60", o.seconds)
	case o.limit < time.Second:
		return fmt.Errorf("-limit %v: want 1s or more", o.limit)
	case o.inFlight < 1 || o.inFlight > 1000:
		return fmt.Errorf("-inflight %d: want 1 to 1000", o.inFlight)
	case o.procs < 0:
		return fmt.Errorf("-procs %d: want 0 or more", o.procs)
	}
	return nil
}

func main() {
	runtime.LockOSThread() // children are to end with the thread that started them: this one, with the process
	if len(os.Args) == 4 && os.Args[1] == "noop" {
		fail(serveNoop(os.Args[2], os.Args[3]))
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 31, "rounds; the median counts")
	flag.Float64Var(&o.seconds, "seconds", 0.2, "seconds of load for each server and shape in a round")
	flag.DurationVar(&o.limit, "limit", 90*time.Second, "no further round starts after this time")
	flag.IntVar(&o.inFlight, "inflight", 64, "calls in flight")
	flag.IntVar(&o.procs, "procs", 1, "GOMAXPROCS of both servers; 0 = as the machine has")
	flag.StringVar(&o.weir, "weir", "", "weir `binary`; default: built from this checkout")
	flag.StringVar(&o.redis, "redis", os.Getenv("REDIS_SERVER"), "redis-server `binary`, to show that round trips would be counted; default: the first in PATH")
	flag.StringVar(&o.profile, "profile", "", "`folder` for profiles of weir under each shape, taken after the rounds")
	flag.StringVar(&o.out, "out", "bench/results.json", "`file` for the results")
	flag.Parse()
	if err := o.check(); err != nil || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench:", errors.Join(err, extra(flag.Args())))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		stop()
		fail(err)
	}
}

func extra(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown argument %q", args[0])
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// run starts the servers, measures, ends them and writes the results.
func run(ctx context.Context, o *options) error {
	dir, err := os.MkdirTemp("", "weirbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	h, err := setUp(ctx, o, dir)
	if err != nil {
		return err
	}
	defer h.close()
	r := newResults(o)
	if err := h.measure(ctx, o, r); err != nil {
		return err
	}
	if err := h.countAllocations(ctx, o, r); err != nil {
		return err
	}
	if err := h.countTrips(ctx, o, r); err != nil {
		return err
	}
	if err := h.profile(ctx, o); err != nil {
		return err
	}
	r.print(os.Stdout)
	return r.write(o.out)
}
