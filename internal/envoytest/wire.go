package envoytest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Wire is a faulty TCP connection in front of a server on loopback.
type Wire struct {
	Addr string // where it listens

	target   string
	mode     atomic.Int32
	listener net.Listener
	mu       sync.Mutex
	conns    map[net.Conn]bool
	running  sync.WaitGroup
}

// What a Wire does with traffic.
const (
	pass int32 = iota
	cut        // closes what is open and what comes
	hang       // accepts, reads, hands nothing on
)

// StartWire puts a wire before target; the test ends it.
func StartWire(t testing.TB, target string) *Wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{Addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]bool{}}
	w.running.Go(w.accept)
	t.Cleanup(func() { l.Close(); w.drop(); w.running.Wait() })
	return w
}

// Cut breaks all connections, and those that are tried, until Mend.
func (w *Wire) Cut() { w.mode.Store(cut); w.drop() }

// Hang makes it a black hole until Mend: all stays open, nothing comes through.
func (w *Wire) Hang() { w.mode.Store(hang) }

// Mend lets what comes from now on through. Connections that hung have lost
// what was said and are broken.
func (w *Wire) Mend() {
	if w.mode.Swap(pass) == hang {
		w.drop()
	}
}

func (w *Wire) accept() {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.running.Go(func() { w.serve(c) })
	}
}

func (w *Wire) keep(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
}

func (w *Wire) forget(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	c.Close()
}

func (w *Wire) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close()
	}
	clear(w.conns)
}

func (w *Wire) serve(client net.Conn) {
	w.keep(client)
	defer w.forget(client)
	if w.mode.Load() == cut {
		return
	}
	server, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	w.keep(server)
	defer w.forget(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.carry(client, server)
		client.Close()
	}()
	w.carry(server, client)
	server.Close()
	<-done
}

func (w *Wire) carry(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		switch w.mode.Load() {
		case cut:
			return
		case hang:
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
