package envoytest

import (
	"bytes"
	"compress/gzip"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// Parrot is a server that answers whatever it reads by the same bytes, until
// it leads to another server.
type Parrot struct {
	Addr string

	mu    sync.Mutex
	reply []byte
	first bool   // it speaks before it is asked
	to    string // "" = nowhere
	ended bool
	conns map[net.Conn]bool
	work  sync.WaitGroup
}

// StartParrot starts one on loopback; the test ends it.
func StartParrot(t testing.TB, reply []byte) *Parrot { return startParrot(t, reply, false) }

// StartTalker starts one that sends its bytes once without being asked, too.
func StartTalker(t testing.TB, reply []byte) *Parrot { return startParrot(t, reply, true) }

func startParrot(t testing.TB, reply []byte, first bool) *Parrot {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Parrot{Addr: l.Addr().String(), reply: reply, first: first, conns: map[net.Conn]bool{}}
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); p.end(); p.work.Wait() })
	return p
}

func (p *Parrot) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.Lead("")
}

// Lead drops all connections; later ones go to a server.
func (p *Parrot) Lead(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Parrot) keep(c net.Conn) (to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	if p.ended {
		_ = c.Close()
	}
	return p.to
}

func (p *Parrot) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Parrot) serve(c net.Conn) {
	defer p.drop(c)
	to := p.keep(c)
	if to != "" {
		p.relay(c, to)
		return
	}
	buf := make([]byte, 1<<16)
	for asked := !p.first; ; asked = true {
		if asked {
			if _, err := c.Read(buf); err != nil {
				return
			}
		}
		if _, err := c.Write(p.reply); err != nil {
			return
		}
	}
}

func (p *Parrot) relay(c net.Conn, to string) {
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer p.drop(server)
	p.keep(server)
	p.work.Go(func() { _, _ = io.Copy(c, server); _ = c.Close() })
	_, _ = io.Copy(server, c)
}

// StartOdd starts a gRPC server that answers the first message of every method
// by the bytes of answer, which need be no message; those of streaming ones
// where its name ends in Watch, which goes on. The test ends it.
func StartOdd(t testing.TB, answer func(method string) []byte) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodec(Raw{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		for {
			var asked []byte
			if err := stream.RecvMsg(&asked); err != nil {
				return nil // it has gone
			}
			out := answer(method)
			if err := stream.SendMsg(&out); err != nil || !strings.HasSuffix(method, "/Watch") {
				return err
			}
		}
	}))
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// FuzzAnswers lets the fuzzer be the server that use is led to: any bytes, as
// an answer over gRPC or instead of HTTP/2. use must end within most.
func FuzzAnswers(f *testing.F, most time.Duration, use func(t *testing.T, addr string), answers ...[]byte) {
	for _, b := range append(answers, []byte{0xff}) {
		f.Add(true, b)
	}
	f.Add(false, []byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, overGRPC bool, answer []byte) {
		if len(answer) > 1<<16 {
			return
		}
		addr := ""
		if overGRPC {
			addr = StartOdd(t, func(string) []byte { return answer })
		} else {
			addr = StartTalker(t, answer).Addr
		}
		began := time.Now()
		use(t, addr)
		if took := time.Since(began); took > most {
			t.Errorf("took %v", took)
		}
	})
}

// Raw is a codec of messages that are bytes already: *[]byte.
type Raw struct{}

// Name is that of the codec that it stands for.
func (Raw) Name() string { return "proto" }

// Marshal gives the bytes.
func (Raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal keeps the bytes.
func (Raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }

// Pages are answers over HTTP of servers that mean no good, or are none:
// endless, packed, cut, or of another protocol.
func Pages() map[string][]byte {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 {
		_, _ = z.Write(make([]byte, 1<<20))
	}
	_ = z.Close()
	const ok = "HTTP/1.1 200 OK\r\n"
	lines := func(line string, n int) string { return strings.Repeat(line, n/len(line)) }
	out := map[string][]byte{}
	for name, page := range map[string]string{
		"a gzip bomb":               ok + "Content-Encoding: gzip\r\nContent-Length: " + strconv.Itoa(bomb.Len()) + "\r\n\r\n" + bomb.String(),
		"a length of 2^62":          ok + "Content-Length: 4611686018427387904\r\n\r\nabc",
		"a length of 2^64":          ok + "Content-Length: 18446744073709551616\r\n\r\nabc",
		"a length below 0":          ok + "Content-Length: -1\r\n\r\nabc",
		"two lengths":               ok + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
		"a header of 16 MiB":        ok + "X: " + lines("x", 16<<20) + "\r\n\r\n",
		"headers of 16 MiB":         ok + lines("X: x\r\n", 16<<20) + "\r\n",
		"a status line of 16 MiB":   "HTTP/1.1 200 " + lines("x", 16<<20),
		"early hints for ever":      lines("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 16<<20),
		"a chunk of 2^63":           ok + "Transfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\nabc",
		"a chunk of more":           ok + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
		"an extension for ever":     ok + "Transfer-Encoding: chunked\r\n\r\n1;" + lines("x", 16<<20),
		"small chunks for ever":     ok + "Transfer-Encoding: chunked\r\n\r\n" + lines("1;xxxxxxxxxxxxxxxx\r\n#\r\n", 16<<20),
		"trailers for ever":         ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + lines("X: x\r\n", 16<<20),
		"a body for ever":           ok + "\r\n" + lines("#", 64<<20),
		"a line that has no end":    ok + "Content-Length: 1000000\r\n\r\n" + lines("a", 1000000),
		"deep JSON":                 ok + "Content-Length: 1000000\r\n\r\n" + lines("[", 1000000),
		"nothing":                   ok + "Content-Length: 0\r\n\r\n",
		"HTTP/0.9":                  "hello",
		"HTTP/2":                    "\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80",
		"Redis":                     "-ERR unknown command\r\n",
		"zeros":                     lines("\x00", 1<<20),
		"another protocol's switch": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
	} {
		out[name] = []byte(page)
	}
	return out
}

// Allocated is how many bytes this process has allocated since its start.
func Allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
