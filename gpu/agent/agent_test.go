package agent_test

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/gpu/sourcetest"
	"github.com/weirproxy/weir/policy"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// played is an agent that does what a test says.
type played struct {
	gpuv1.UnimplementedAgentServer
	watch func(*gpuv1.WatchRequest, grpc.ServerStreamingServer[gpuv1.Snapshot]) error
}

func (p *played) Watch(r *gpuv1.WatchRequest, s grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
	return p.watch(r, s)
}

// socket is the address of a Unix socket that is not there yet.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// play serves an agent until the test, or stop, ends it.
func play(t *testing.T, path string, watch func(*gpuv1.WatchRequest, grpc.ServerStreamingServer[gpuv1.Snapshot]) error) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	gpuv1.RegisterAgentServer(s, &played{watch: watch})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = func() { s.Stop(); <-done }
	t.Cleanup(stop)
	return stop
}

// repeat sends snapshots made by one until the stream ends.
func repeat(one func(n uint64) *gpuv1.Snapshot) func(*gpuv1.WatchRequest, grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
	start := time.Now()
	return func(_ *gpuv1.WatchRequest, stream grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for n := uint64(1); ; n++ {
			w := one(n)
			w.Sequence, w.Time, w.Sent = n, timestamppb.Now(), durationpb.New(time.Since(start))
			if err := stream.Send(w); err != nil {
				return err
			}
			select {
			case <-stream.Context().Done():
				return nil
			case <-tick.C:
			}
		}
	}
}

func card(id string, util float64) *gpuv1.Card { return &gpuv1.Card{Id: id, Util: &util} }

// Q3
func TestContract(t *testing.T) {
	from := func(watch func(*gpuv1.WatchRequest, grpc.ServerStreamingServer[gpuv1.Snapshot]) error) func(*testing.T) gpu.Source {
		return func(t *testing.T) gpu.Source {
			path := socket(t)
			play(t, path, watch)
			return sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + path})
		}
	}
	sourcetest.Run(t, sourcetest.Makers{
		Pushed: true,
		Good: from(repeat(func(uint64) *gpuv1.Snapshot {
			return &gpuv1.Snapshot{Cards: []*gpuv1.Card{card("GPU-0", 0.3), card("GPU-1", 0.5)}}
		})),
		Broken: func(t *testing.T) gpu.Source {
			return sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + socket(t)})
		},
		Hanging: from(func(_ *gpuv1.WatchRequest, stream grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
			<-stream.Context().Done()
			return nil
		}),
		Strange: from(repeat(func(uint64) *gpuv1.Snapshot {
			return &gpuv1.Snapshot{Cards: []*gpuv1.Card{card("GPU-0", math.NaN()), card("GPU-1", 4294967295), card("GPU-2", -1)}, Dropped: 1}
		})),
	})
}

// An agent that sees nothing is a missed sample with its reason, each time.
func TestAgentSeesNothing(t *testing.T) {
	path := socket(t)
	play(t, path, repeat(func(n uint64) *gpuv1.Snapshot {
		if n%2 == 1 {
			return &gpuv1.Snapshot{Error: "libdcgm.so.4 cannot be loaded", Cards: []*gpuv1.Card{card("GPU-0", 0.5)}}
		}
		return &gpuv1.Snapshot{Cards: []*gpuv1.Card{card("GPU-0", 0.5)}}
	}))
	s := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + path})
	failed, saw := 0, 0
	for failed < 3 || saw < 3 {
		got, err := s.Sample(t.Context())
		switch {
		case err == nil:
			saw++
		case gpu.FaultOf(err) != gpu.FaultStatus || !strings.Contains(err.Error(), "libdcgm.so.4 cannot be loaded") || len(got.Cards) > 0:
			t.Fatalf("%+v, %v", got, err)
		default:
			failed++
		}
	}
}

// A look returns the newest snapshot once; then it waits for the next.
func TestEachSnapshotOnce(t *testing.T) {
	path, sent := socket(t), make(chan float64)
	play(t, path, func(r *gpuv1.WatchRequest, stream grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
		if r.GetPeriod().AsDuration() != time.Second {
			t.Errorf("period %v, want a fifth of Every", r.GetPeriod().AsDuration())
		}
		for n := uint64(1); ; n++ {
			select {
			case util := <-sent:
				if err := stream.Send(&gpuv1.Snapshot{Sequence: n, Time: timestamppb.Now(), Cards: []*gpuv1.Card{card("GPU-0", util)}}); err != nil {
					return err
				}
			case <-stream.Context().Done():
				return nil
			}
		}
	})
	s := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + path, Every: 5 * time.Second})
	for _, util := range []float64{0.25, 0.5, 0.75} {
		go func() { sent <- util }()
		if got, err := s.Sample(t.Context()); err != nil || got.Util.V != util {
			t.Fatalf("%+v, %v; want %v", got, err, util)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if got, err := s.Sample(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v, %v: the same snapshot again", got, err)
	}
}

// Looks fail at once while the agent is away, say why, and see it when it is
// back, though it is another process.
func TestAgentGoesAndComesBack(t *testing.T) {
	path := socket(t)
	watch := repeat(func(uint64) *gpuv1.Snapshot { return &gpuv1.Snapshot{Cards: []*gpuv1.Card{card("GPU-0", 0.5)}} })
	stop := play(t, path, watch)
	s := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + path})
	for round := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		for {
			if got, err := s.Sample(ctx); err == nil {
				if got.Util.V != 0.5 {
					t.Fatalf("%+v", got)
				}
				break
			} else if ctx.Err() != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		stop()
		for {
			_, err := s.Sample(ctx)
			if err == nil {
				continue // what came before the end
			}
			if ctx.Err() != nil || gpu.FaultOf(err) != gpu.FaultConnect || !strings.Contains(err.Error(), path) {
				t.Fatalf("round %d: %v", round, err)
			}
			break
		}
		cancel()
		stop = play(t, path, watch)
	}
}

// An agent that is restarted counts from 1 again, and that is news; the same
// look over a new stream is none.
func TestSameLookOverANewStream(t *testing.T) {
	path, at := socket(t), timestamppb.Now()
	streams := make(chan struct{}, 100)
	play(t, path, func(_ *gpuv1.WatchRequest, stream grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
		streams <- struct{}{}
		w := &gpuv1.Snapshot{Sequence: 7, Time: at, Cards: []*gpuv1.Card{card("GPU-0", 0.5)}}
		if len(streams) == 3 {
			w = &gpuv1.Snapshot{Sequence: 1, Time: timestamppb.New(at.AsTime().Add(time.Second)), Cards: []*gpuv1.Card{card("GPU-0", 0.9)}}
		}
		return errors.Join(stream.Send(w), status.Error(codes.Unavailable, "gone"))
	})
	s := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + path})
	var utils []float64
	for len(utils) < 2 {
		if got, err := s.Sample(t.Context()); err == nil {
			utils = append(utils, got.Util.V)
		}
	}
	if utils[0] != 0.5 || utils[1] != 0.9 {
		t.Errorf("looks saw %v, want the first look once and then the new agent's", utils)
	}
}

// A token goes with the call, from the file as it is then, and never in the
// clear to another machine.
func TestToken(t *testing.T) {
	path, file := socket(t), filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	play(t, path, func(r *gpuv1.WatchRequest, stream grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer second" {
			return status.Errorf(codes.Unauthenticated, "authorization is %q", got)
		}
		return repeat(func(uint64) *gpuv1.Snapshot { return &gpuv1.Snapshot{Cards: []*gpuv1.Card{card("GPU-0", 0.5)}} })(r, stream)
	})
	if _, err := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + path, Token: policy.NewSecret(file, "first")}).Sample(t.Context()); err != nil {
		t.Error(err)
	}
	_, err := sourcetest.Open(t, agent.New, agent.Config{Name: "node", Address: "unix:" + path, Token: policy.NewSecret("", "wrong")}).Sample(t.Context())
	if gpu.FaultOf(err) != gpu.FaultStatus || !strings.Contains(err.Error(), "Unauthenticated") {
		t.Errorf("with a wrong token: %v", err)
	}
	if _, err := agent.New(agent.Config{Address: "node:9411", Token: policy.NewSecret("", "x")}); err == nil || !strings.Contains(err.Error(), "in the clear") {
		t.Errorf("a token in the clear: %v", err)
	}
}

func TestConfig(t *testing.T) {
	for address, want := range map[string]string{
		"":                    "host:port",
		"http://node:1/":      "host:port",
		"node":                "host:port",
		"node:9411":           "",
		"[::1]:9411":          "",
		"unix:@weir-gpu":      "",
		"unix:/run/gpu.sock":  "",
		"dns:///node.example": "host:port",
	} {
		s, err := agent.New(agent.Config{Name: "node", Address: address})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", address, err, want)
		}
		if s != nil {
			_ = s.Close()
			if _, err := s.Sample(t.Context()); !errors.Is(err, agent.ErrClosed) {
				t.Errorf("%q: a look at a closed source: %v", address, err)
			}
		}
	}
	missing := &policy.ClientTLS{CA: filepath.Join(t.TempDir(), "ca.pem")}
	if _, err := agent.New(agent.Config{Address: "node:9411", TLS: missing}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a CA file that is not there: %v", err)
	}
}
