package examples_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/envoytest"
)

// eager is grpc-go's own retry, as eager as it gets: four tries within
// milliseconds.
const eager = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4,
	"initialBackoff": "0.001s", "maxBackoff": "0.002s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// unavailable is a gRPC server whose every answer is only an error; it counts
// the tries.
func unavailable(t *testing.T) (addr string, tries *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tries = new(atomic.Int64)
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		tries.Add(1)
		return status.Error(codes.Unavailable, "restarting")
	}))
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String(), tries
}

// TestRetryControl: B9 through Envoy, with a client of grpc-go that tries again
// by itself. Without retry control a failing call costs the model four tries;
// with it the push-back spreads them, and the second failure in a row ends
// them.
func TestRetryControl(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		addr, tries := unavailable(t)
		for _, control := range []string{"disabled: true", "base: 300ms, storm: 2"} {
			w := newWorld(t, b, setup{policy: grpcPolicy + "retryControl: {" + control + "}\n", pools: []string{}, envoy: func(tree envoytest.Tree) { pointAt(tree, "infer", addr) }})
			conn, err := grpc.NewClient(w.envoy.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(eager))
			if err != nil {
				t.Fatal(err)
			}
			client := &caller{w, conn}
			call := func(tenant string, within time.Duration, want int64, least time.Duration) {
				ctx, stop := context.WithTimeout(client.as(tenant), within)
				defer stop()
				before, began := tries.Load(), time.Now()
				said, err := client.infer(ctx)
				client.refusedAs(tenant, err, codes.Unavailable)
				if n := tries.Load() - before; n != want {
					t.Errorf("%s: %s: %d tries, want %d; the last one says %v", control, tenant, n, want, said)
				}
				if took := time.Since(began); took < least || took > least+4*time.Second {
					t.Errorf("%s: %s: took %v, want %v and little more", control, tenant, took, least)
				}
			}
			if control == "disabled: true" {
				call("eager", 20*time.Second, 4, 0)
			} else {
				call("two", 20*time.Second, 2, 300*time.Millisecond)
				call("again", 20*time.Second, 2, 300*time.Millisecond) // another tenant's streak is its own
				call("two", 20*time.Second, 1, 0)                      // its streak goes on
			}
			_ = conn.Close()
		}
	})
}

// TestRetryControlAndDeadlines: a caller whose deadline is nearer than the wait
// does not try again.
func TestRetryControlAndDeadlines(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		addr, tries := unavailable(t)
		w := newWorld(t, b, setup{policy: grpcPolicy + "retryControl: {base: 10s}\n", pools: []string{}, envoy: func(tree envoytest.Tree) { pointAt(tree, "infer", addr) }})
		conn, err := grpc.NewClient(w.envoy.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(eager))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := &caller{w, conn}
		ctx, stop := context.WithTimeout(client.as("hasty"), 8*time.Second)
		defer stop()
		began := time.Now()
		said, err := client.infer(ctx)
		client.refusedAs("hasty", err, codes.Unavailable)
		if n, took := tries.Load(), time.Since(began); n != 1 || took > 4*time.Second || firstOf(said, "grpc-retry-pushback-ms") != "-1" {
			t.Errorf("%d tries in %v, want one at once; it says %v", n, took, said)
		}
	})
}
