package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/bench/load"
	"github.com/weirproxy/weir/bench/wire"
)

// counting is the no-op server, and counts what it is sent.
type counting struct {
	noop
	messages chan int
}

func (c counting) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	n := &countedStream{ExternalProcessor_ProcessServer: s}
	err := c.noop.Process(n)
	c.messages <- n.received
	return err
}

type countedStream struct {
	extprocv3.ExternalProcessor_ProcessServer
	received int
}

func (s *countedStream) Recv() (*extprocv3.ProcessingRequest, error) {
	m, err := s.ExternalProcessor_ProcessServer.Recv()
	if err == nil {
		s.received++
	}
	return m, err
}

// failing refuses Checks and ends side streams at their first message.
type failing struct{ noop }

func (failing) Check(context.Context, *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	return nil, status.Error(codes.Unavailable, "no")
}

func (failing) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	_, _ = s.Recv()
	return nil
}

// serve runs a gRPC server on a socket and dials it.
func serve(t *testing.T, impl interface {
	authv3.AuthorizationServer
	extprocv3.ExternalProcessorServer
}) *load.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "bench") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	authv3.RegisterAuthorizationServer(s, impl)
	extprocv3.RegisterExternalProcessorServer(s, impl)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	c, err := load.Dial(t.Context(), "unix", socket, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Stop(); <-served; os.RemoveAll(dir) })
	return c
}

func checkCall(t *testing.T) load.Call {
	t.Helper()
	var s shape
	if err := s.add(load.Call{Path: authv3.Authorization_Check_FullMethodName, Timeout: "10S", Unary: true}, wire.Check("token")); err != nil {
		t.Fatal(err)
	}
	return s.calls[0]
}

func sideCall(t *testing.T, messages []*extprocv3.ProcessingRequest) load.Call {
	t.Helper()
	var s shape
	if err := s.side(messages); err != nil {
		t.Fatal(err)
	}
	return s.calls[0]
}

func TestEveryMessageIsSentAndAnswered(t *testing.T) {
	for _, c := range []struct {
		name     string
		messages []*extprocv3.ProcessingRequest
		want     int
	}{
		{"headers and body", wire.HeadersAndBody(wire.Caller{Token: "token"}), 2},
		{"full stream", wire.FullStream(wire.Caller{Token: "token"}), 24},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := counting{messages: make(chan int, 1<<20)}
			client := serve(t, server)
			// More in flight than the connection's first window takes.
			n, err := client.Run(t.Context(), []load.Call{sideCall(t, c.messages)}, 200, 50*time.Millisecond)
			if err != nil || n < 200 {
				t.Fatalf("%d calls, %v; want 200 or more", n, err)
			}
			for range n {
				if got := <-server.messages; got != c.want {
					t.Fatalf("a stream of %d messages, want %d", got, c.want)
				}
			}
		})
	}
}

func TestRunsOneAfterAnother(t *testing.T) {
	client := serve(t, noop{})
	for range 3 {
		if n, err := client.Run(t.Context(), []load.Call{checkCall(t)}, 16, 20*time.Millisecond); err != nil || n < 16 {
			t.Fatalf("%d calls, %v; want 16 or more", n, err)
		}
	}
}

func TestFailuresAreNotMeasured(t *testing.T) {
	client := serve(t, failing{})
	for name, c := range map[string]struct {
		call load.Call
		want string
	}{
		"status":    {checkCall(t), `grpc-status "14"`},
		"early end": {sideCall(t, wire.HeadersAndBody(wire.Caller{})), "all messages sent: false"},
		"empty":     {load.Call{}, "0 messages"},
		"too long":  {load.Call{Messages: [][]byte{make([]byte, 20<<10)}}, "a message of 20480 bytes"},
	} {
		_, err := client.Run(t.Context(), []load.Call{c.call}, 4, 20*time.Millisecond)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestMessagesHaveTheirSizes(t *testing.T) {
	m := wire.FullStream(wire.Caller{Token: "token"})
	if n := len(m[1].GetRequestBody().GetBody()); n != wire.BodyBytes {
		t.Errorf("a body of %d bytes, want %d", n, wire.BodyBytes)
	}
	if n := len(m); n != 2+1+wire.Chunks+1 {
		t.Errorf("%d messages, want %d", n, 2+1+wire.Chunks+1)
	}
	if last := m[len(m)-2].GetResponseBody().GetBody(); !strings.Contains(string(last), `"usage":{`) {
		t.Errorf("the last chunk carries no usage: %s", last)
	}
}

func TestFiguresOfRounds(t *testing.T) {
	var r results
	list := []sample{{noop: 10, weir: 11}, {noop: 20, weir: 26}, {noop: 10, weir: 12}, {noop: 10, weir: 14}, {noop: 10, weir: 10}}
	r.add("headers_body/authz", list)
	r.add("headers_body/extproc", []sample{{noop: 10, weir: 11.5}})
	s := r.Shapes[0]
	if s.Ratio != 1.2 || s.Spread != 0.167 || s.WeirUS != 12 || s.NoopUS != 10 || r.HeadersBodyCPU != 1.2 {
		t.Errorf("got %+v and %v; want ratio 1.2, spread (1.3-1.1)/1.2, medians 12 and 10", s, r.HeadersBodyCPU)
	}
	calm := []sample{{foreign: 0.9, weir: 1}, {foreign: 0.1, weir: 2}, {foreign: 0.15, weir: 3}, {foreign: 0.5, weir: 4}}
	got := quietest(calm, 3)
	if len(got) != 3 || got[0].weir != 2 || got[1].weir != 3 || got[2].weir != 4 {
		t.Errorf("the quietest are %+v", got)
	}
	if !disturbed([][]sample{calm}, 3) || disturbed([][]sample{calm}, 2) {
		t.Error("two of the rounds are quiet")
	}
}

func TestOwnFiguresOfTheKernel(t *testing.T) {
	used, err := cpu(self)
	if err != nil || used <= 0 {
		t.Errorf("CPU time of this process: %v, %v", used, err)
	}
	if b, err := busy(); err != nil || b <= 0 {
		t.Errorf("CPU time of the machine: %v, %v", b, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before, err := dialled(self)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if n, err := dialled(self); err != nil || n != before+1 {
		t.Errorf("%d connections dialled, %v; want %d: what was accepted does not count", n, err, before+1)
	}
}
