package extproc

import (
	"bufio"
	"bytes"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/policy"
)

// raw is an HTTP/2 client that does what a well-behaved one does not.
type raw struct {
	*http2.Framer
	t     *testing.T
	conn  net.Conn
	out   *bufio.Writer
	head  []byte // of a call to ext_proc
	acked atomic.Int64
	gone  atomic.Int64 // GOAWAYs
}

func dialRaw(t *testing.T, l *bufconn.Listener) *raw {
	t.Helper()
	c, err := l.Dial()
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewWriterSize(c, 1<<16)
	r := &raw{Framer: http2.NewFramer(out, c), t: t, conn: c, out: out, head: callHead()}
	if _, err := out.WriteString(http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	r.do(r.WriteSettings())
	r.do(out.Flush())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			f, err := r.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				if f.IsAck() {
					r.acked.Add(1)
				}
			case *http2.GoAwayFrame:
				r.gone.Add(1)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return r
}

func (r *raw) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func callHead() []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0) // the same bytes for each stream
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"},
		{":authority", "weir"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return b.Bytes()
}

// TestStreamFlood (open-telemetry/opentelemetry-network#268): 20,000 streams
// that are opened on one connection, and reset or not, start no more handlers
// than that connection may have; another is served meanwhile.
func TestStreamFlood(t *testing.T) {
	for name, resets := range map[string]bool{"open": false, "open and reset": true} {
		t.Run(name, func(t *testing.T) { flood(t, resets) })
	}
}

func flood(t *testing.T, resets bool) {
	const (
		streams, limit = 20_000, 1024
		each           = 2  // who handles a stream, and who reads it
		others         = 64 // connections, watchers
	)
	h, _, _ := openReal(t, rules(func(p *policy.Policy) { p.Envoy.MaxRequests = limit }))
	serve := func() {
		e := h.begin(streamBody)
		_ = e.hangUp(true)
	}
	serve() // what is made once is made
	r := dialRaw(t, h.listener)
	before, most := runtime.NumGoroutine(), 0
	watched := make(chan struct{})
	var over atomic.Bool
	go func() {
		defer close(watched)
		for !over.Load() {
			most = max(most, runtime.NumGoroutine()-before)
			runtime.Gosched()
		}
	}()
	for i := range uint32(streams) {
		r.do(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: r.head, EndHeaders: true}))
		if resets {
			r.do(r.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}
		if i == streams/2 {
			serve()
		}
	}
	r.do(r.out.Flush())
	serve()
	over.Store(true)
	<-watched
	if most > each*limit+maxIdle+others {
		t.Errorf("%d goroutines more, want %d for each of %d streams at most", most, each, limit)
	}
	r.conn.Close()
	settle(t, func() bool { return runtime.NumGoroutine() <= before+maxIdle+others }, "goroutines")
}

// TestPingsArePermitted (llm-d/llm-d-kv-cache#359): an Envoy that pings each 10
// s for an hour, with and without streams, is never thrown out.
func TestPingsArePermitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 20)
		s := grpc.NewServer(ServerOptions(rules())...)
		served := make(chan struct{})
		go func() { defer close(served); _ = s.Serve(l) }()
		t.Cleanup(func() { s.Stop(); <-served })
		r := dialRaw(t, l)
		const pings = 360
		for range pings {
			time.Sleep(10 * time.Second)
			r.do(r.WritePing(false, [8]byte{1}))
			r.do(r.out.Flush())
		}
		synctest.Wait()
		if r.acked.Load() != pings || r.gone.Load() != 0 {
			t.Errorf("%d of %d pings were answered, %d GOAWAYs", r.acked.Load(), pings, r.gone.Load())
		}
	})
}
