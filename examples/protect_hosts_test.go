package examples_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/internal/modelsim"
)

// host is one gRPC model server of a real grpc-go on a port of its own. It
// changes its manners while it runs, for connections that come from then on.
type host struct {
	t    *testing.T
	addr string
	name string
	work time.Duration // of one call

	manners atomic.Int32
	calls   atomic.Int64 // that began
	ended   atomic.Int64 // that were answered
	open    atomic.Int64 // connections

	mu       sync.Mutex
	listener net.Listener
	plain    *hall
	ageing   *hall
	web      *hall
	running  sync.WaitGroup
}

// The manners of a host towards a new connection.
const (
	serves  int32 = iota
	ages          // GOAWAY after 300 ms, a tenth more or less (grpc-go's MaxConnectionAge)
	resets        // RST as soon as something is said
	refuses       // each call gets a GOAWAY with a last stream id below it
	polite        // GOAWAY with each 20th answer of a connection, which ends it when all calls are answered
	halves        // likewise, and every other call is reset
	breaks        // GOAWAY with the first call of a connection, which is reset in the middle of its answer
)

const connectionAge = 300 * time.Millisecond

// stopper is a server that can end at once, or when its calls are answered.
type stopper interface {
	Stop()
	GracefulStop()
}

// hall hands accepted connections to a grpc-go server.
type hall struct {
	server stopper
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	addr   net.Addr
}

func (h *hall) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}
func (h *hall) Close() error   { h.once.Do(func() { close(h.closed) }); return nil }
func (h *hall) Addr() net.Addr { return h.addr }

// newHost starts a host on a free port; the test ends it.
func newHost(t *testing.T, name string, work time.Duration) *host {
	t.Helper()
	h := &host{t: t, addr: "127.0.0.1:0", name: name, work: work}
	h.start()
	t.Cleanup(h.stop)
	return h
}

// start listens, again on the same port after stop or graceful.
func (h *host) start() {
	h.t.Helper()
	l, err := net.Listen("tcp", h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addr, h.listener = l.Addr().String(), l
	h.plain = h.hall(l)
	h.ageing = h.hall(l, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: 10 * time.Second}))
	h.web = h.polite(l)
	plain, ageing, web := h.plain, h.ageing, h.web
	h.running.Go(func() { h.accept(l, plain, ageing, web) })
}

func (h *host) hall(l net.Listener, options ...grpc.ServerOption) *hall {
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: modelsim.ServiceName, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Infer", Handler: h.infer}},
		Streams: []grpc.StreamDesc{{StreamName: "InferStream", Handler: h.stream, ServerStreams: true}},
	}, h)
	healthpb.RegisterHealthServer(s, health.NewServer())
	out := &hall{server: s, conns: make(chan net.Conn), closed: make(chan struct{}), addr: l.Addr()}
	h.running.Go(func() { _ = s.Serve(out) }) // ends with Stop
	return out
}

func (h *host) accept(l net.Listener, plain, ageing, web *hall) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		h.open.Add(1)
		c = &counted{Conn: c, left: func() { h.open.Add(-1) }}
		into := plain
		switch h.manners.Load() {
		case ages:
			into = ageing
		case resets:
			h.running.Go(func() { reset(c) })
			continue
		case refuses:
			h.running.Go(func() { h.refuse(c) })
			continue
		case polite, halves, breaks:
			into = web
		}
		select {
		case into.conns <- c:
		case <-into.closed:
			c.Close()
		}
	}
}

// counted is a connection whose end is noted.
type counted struct {
	net.Conn
	once sync.Once
	left func()
}

func (c *counted) Close() error { c.once.Do(c.left); return c.Conn.Close() }

// reset breaks a connection as soon as the other side spoke.
func reset(c net.Conn) {
	_, _ = c.Read(make([]byte, 1))
	if tcp, ok := c.(*counted).Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// refuse speaks HTTP/2 by hand: it answers each call, health checks too, by a
// GOAWAY whose last stream id is below it.
func (h *host) refuse(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	if f.WriteSettings() != nil {
		return
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = f.WritePing(true, frame.Data)
		case *http2.HeadersFrame:
			h.calls.Add(1)
			if f.WriteGoAway(max(frame.StreamID, 2)-2, http2.ErrCodeNo, nil) != nil {
				return
			}
		}
	}
}

// stop ends it at once: connections break, the port is closed.
func (h *host) stop() { h.leave(stopper.Stop) }

// graceful ends it with a GOAWAY; calls under way are answered.
func (h *host) graceful() { h.leave(stopper.GracefulStop) }

func (h *host) leave(end func(stopper)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listener == nil {
		return
	}
	h.listener.Close()
	h.listener = nil
	var both sync.WaitGroup
	for _, x := range []*hall{h.plain, h.ageing, h.web} {
		both.Go(func() { x.Close(); end(x.server) })
	}
	both.Wait()
	if h.manners.Load() < resets {
		h.running.Wait()
	}
}

func (h *host) infer(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	in := new(structpb.Struct)
	if err := dec(in); err != nil {
		return nil, err
	}
	h.calls.Add(1)
	if err := takes(ctx, h.work); err != nil {
		return nil, err
	}
	h.ended.Add(1)
	return &structpb.Struct{Fields: map[string]*structpb.Value{"host": structpb.NewStringValue(h.name)}}, nil
}

// stream answers max_tokens messages, one each 50 ms.
func (h *host) stream(_ any, s grpc.ServerStream) error {
	in := new(structpb.Struct)
	if err := s.RecvMsg(in); err != nil {
		return err
	}
	h.calls.Add(1)
	for range int(in.GetFields()["max_tokens"].GetNumberValue()) {
		if err := s.SendMsg(&structpb.Struct{Fields: map[string]*structpb.Value{"host": structpb.NewStringValue(h.name)}}); err != nil {
			return err
		}
		if err := takes(s.Context(), 50*time.Millisecond); err != nil {
			return err
		}
	}
	h.ended.Add(1)
	return nil
}

// takes is the time that an engine takes.
func takes(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// drained reports the end of a stream that was not cut.
func drained(s grpc.ClientStream) (n int, err error) {
	for {
		if err = s.RecvMsg(new(structpb.Struct)); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		n++
	}
}
