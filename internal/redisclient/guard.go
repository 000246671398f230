package redisclient

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// maxHeld bounds the replies that are still coming, over all connections of a
// client, beyond the first firstBuffer bytes of each.
const (
	maxHeld     = 32 << 20
	firstBuffer = 4 << 10
)

// keeper is what the guarded connections of one client share.
type keeper struct {
	held      atomic.Int64 // bytes of replies that are still coming
	mu        sync.Mutex
	sentinels map[string]bool      // addresses that Sentinels named
	failed    map[string]time.Time // by address: when a server ended a connection as soon as it stood
}

func newKeeper() *keeper {
	return &keeper{sentinels: make(map[string]bool), failed: make(map[string]time.Time)}
}

// guarded is a connection to a Redis that may send anything. The client
// library sees whole replies only: within bounds, asked for, and of the form
// that it takes for granted. So no length is allocated before as much has
// come, and nothing that a server sends makes the library panic. Anything else
// closes the connection with an error that is ErrProtocol and says what came.
type guarded struct {
	net.Conn
	keeper *keeper
	addr   string // that was dialled
	born   time.Time

	asking    sync.Mutex // a listener writes while it reads
	requests  requests
	asked     []ask // commands whose replies are to come
	listening bool  // to channels

	// Of the one that reads:
	buf     []byte
	given   int // bytes of buf that the library has
	whole   int // bytes of buf that are whole replies
	scanned int // bytes of buf that the scanner has seen
	scanner scanner
	err     error // that closed the connection

	extra  atomic.Int64 // bytes of the buffer that are counted in the keeper
	closed atomic.Bool
}

// guardedSocket is a guarded connection that can be asked, as the client
// library does before it takes one from the pool, whether it still stands.
type guardedSocket struct {
	*guarded
	syscall.Conn
}

// guard wraps a connection before its first byte.
func (k *keeper) guard(c net.Conn, addr string) net.Conn {
	g := &guarded{Conn: c, keeper: k, addr: addr, born: time.Now()}
	if socket, ok := c.(syscall.Conn); ok {
		return guardedSocket{g, socket}
	}
	return g
}

// Write notes what is asked for.
func (g *guarded) Write(p []byte) (int, error) {
	g.asking.Lock()
	g.requests.write(p, func(a ask) {
		if a == channels {
			g.listening = true
		}
		if !g.listening {
			g.asked = append(g.asked, a)
		}
	})
	g.asking.Unlock()
	return g.Conn.Write(p)
}

// Read gives whole replies.
func (g *guarded) Read(p []byte) (int, error) {
	for g.given == g.whole {
		if g.err != nil {
			return 0, g.err
		}
		if err := g.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, g.buf[g.given:g.whole])
	if g.given += n; g.given == g.whole {
		g.compact()
	}
	return n, nil
}

// Close gives back what the connection held.
func (g *guarded) Close() error {
	g.closed.Store(true)
	g.giveBack()
	return g.Conn.Close()
}

func (g *guarded) giveBack() { g.keeper.held.Add(-g.extra.Swap(0)) }

// compact forgets what was given, and a buffer that was large.
func (g *guarded) compact() {
	rest := g.buf[g.whole:]
	if len(rest) == 0 && cap(g.buf) > firstBuffer {
		g.giveBack()
		g.buf = nil
	} else {
		g.buf = g.buf[:copy(g.buf, rest)]
	}
	g.scanned -= g.whole
	g.given, g.whole = 0, 0
}

// fill reads once and looks at what came.
func (g *guarded) fill() error {
	if err := g.room(); err != nil {
		return g.broken(err)
	}
	n, err := g.Conn.Read(g.buf[len(g.buf):cap(g.buf)])
	if n == 0 {
		var late net.Error
		if err != nil && !(errors.As(err, &late) && late.Timeout()) {
			g.keeper.ended(g)
		}
		return err
	}
	g.buf = g.buf[:len(g.buf)+n]
	if err := g.look(); err != nil {
		err = g.broken(err)
		if g.whole == 0 {
			return err
		}
	}
	if g.whole == 0 {
		return err
	}
	return nil
}

// room makes the buffer larger once what came has filled it.
func (g *guarded) room() error {
	if len(g.buf) < cap(g.buf) {
		return nil
	}
	size := max(2*cap(g.buf), firstBuffer)
	if more := int64(size - max(cap(g.buf), firstBuffer)); more > 0 {
		g.extra.Add(more)
		if g.keeper.held.Add(more) > maxHeld || g.closed.Load() {
			g.giveBack()
			return violation("more than %d bytes of replies that are still coming", maxHeld)
		}
	}
	g.buf = append(make([]byte, 0, size), g.buf...)
	return nil
}

// look finds the whole replies in the buffer and holds them against what was
// asked for.
func (g *guarded) look() error {
	for g.scanned < len(g.buf) {
		a, resp3, err := g.next()
		if err != nil {
			return err
		}
		g.scanner.resp3 = resp3
		to, whole, err := g.scanner.next(g.buf[g.whole:], g.scanned-g.whole)
		g.scanned = g.whole + to
		if err != nil || !whole {
			return err
		}
		reply := g.buf[g.whole:g.scanned]
		if reply[0] == '>' && a != channels {
			return violation("a push that nobody asked for: %.80q", reply)
		}
		if err := g.keeper.fits(a, reply); err != nil {
			return err
		}
		g.whole = g.scanned
		g.answered(a)
	}
	return nil
}

// next is what the next reply has to fit.
func (g *guarded) next() (a ask, resp3 bool, err error) {
	g.asking.Lock()
	defer g.asking.Unlock()
	resp3 = g.requests.hello == 3
	switch {
	case len(g.asked) > 0:
		return g.asked[0], resp3, nil
	case g.listening:
		return channels, resp3, nil
	}
	return 0, resp3, violation("a reply that nobody asked for: %.80q", g.buf[g.whole:])
}

func (g *guarded) answered(a ask) {
	if a == channels {
		return
	}
	g.asking.Lock()
	g.asked = append(g.asked[:0], g.asked[1:]...)
	g.asking.Unlock()
}

// broken closes the connection for good.
func (g *guarded) broken(err error) error {
	g.err = &replyError{"from " + g.addr + ": " + strings.TrimPrefix(err.Error(), ErrProtocol.Error()+": ")}
	g.keeper.ended(g)
	_ = g.Close()
	return g.err
}

// The library's listener at a Sentinel connects again without a pause.
const (
	dialPause = 100 * time.Millisecond // after a connection that the server ended early
	early     = time.Second
	maxFailed = 256 // addresses
)

// ended notes a connection that the server ended, by a close or by nonsense.
func (k *keeper) ended(g *guarded) {
	now := time.Now()
	if g.closed.Load() || now.Sub(g.born) > early {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.failed) >= maxFailed {
		clear(k.failed)
	}
	k.failed[g.addr] = now
}

// pause waits until an address may be dialled again.
func (k *keeper) pause(ctx context.Context, addr string) error {
	k.mu.Lock()
	at, ok := k.failed[addr]
	k.mu.Unlock()
	if !ok {
		return nil
	}
	wait := time.NewTimer(time.Until(at.Add(dialPause)))
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
