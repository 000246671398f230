package redisstore_test

import (
	"bufio"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// What a proxy does with traffic.
const (
	pass     int32 = iota // hands everything on
	hang                  // accepts, reads, never answers: the server sees nothing
	swallow               // the server hears and acts, its answers are lost
	cut                   // closes what comes
	slow                  // answers 200 ms late
	cutReply              // closes after a part of an answer
)

// proxy is a faulty wire in front of a server.
type proxy struct {
	addr, target string
	mode         atomic.Int32
	listener     net.Listener
	mu           sync.Mutex
	conns        map[net.Conn]bool
	wg           sync.WaitGroup
}

func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() { l.Close(); p.drop(); p.wg.Wait() })
	return p
}

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *proxy) keep(c net.Conn) { p.mu.Lock(); p.conns[c] = true; p.mu.Unlock() }

// drop closes every connection.
func (p *proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// point leads new connections to another server.
func (p *proxy) point(target string) { p.mu.Lock(); p.target = target; p.mu.Unlock() }

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	p.keep(client)
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	p.keep(server)
	done := make(chan struct{})
	go func() { defer close(done); p.copy(client, server, true); client.Close() }()
	p.copy(server, client, false)
	server.Close()
	<-done
}

// copy hands on what one side says, by the mode at that moment.
func (p *proxy) copy(to, from net.Conn, answer bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		out := buf[:n]
		switch mode := p.mode.Load(); {
		case mode == cut:
			return
		case mode == hang, mode == swallow && answer:
			continue
		case mode == slow && answer:
			<-time.After(200 * time.Millisecond)
		case mode == cutReply && answer:
			to.Write(out[:n/2])
			return
		}
		if _, err := to.Write(out); err != nil {
			return
		}
	}
}

// startStub answers every command with one line.
func startStub(t testing.TB, line string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); answerAll(c, line) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// answerAll reads commands (arrays of bulk strings) until the client leaves.
func answerAll(c net.Conn, line string) {
	r := bufio.NewReader(c)
	for {
		n, err := readLength(r, '*')
		if err != nil {
			return
		}
		for range n {
			size, err := readLength(r, '$')
			if err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, r, int64(size)+2); err != nil {
				return
			}
		}
		if _, err := io.WriteString(c, line+"\r\n"); err != nil {
			return
		}
	}
}

func readLength(r *bufio.Reader, kind byte) (n int, err error) {
	line, err := r.ReadString('\n')
	if err != nil || line[0] != kind {
		return 0, io.ErrUnexpectedEOF
	}
	for _, d := range line[1 : len(line)-2] {
		n = n*10 + int(d-'0')
	}
	return n, nil
}
