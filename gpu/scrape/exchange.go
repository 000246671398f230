package scrape

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// The bounds of a connection.
const (
	maxHeader = 64 << 10        // bytes of an answer before its body
	maxIdle   = 2 * time.Minute // longer unused: another one is made
	maxInform = 5               // answers of 1xx before the one that counts
)

var errHeader = errors.New("the answer's header is larger than 64 KiB")

// wire is one connection, and what was read of it too early.
type wire struct {
	conn   net.Conn
	reader *bufio.Reader
	left   int64     // bytes that may yet be read
	used   time.Time // last
}

// Read keeps an answer's header within bounds.
func (w *wire) Read(p []byte) (int, error) {
	if w.left <= 0 {
		return 0, errHeader
	}
	if int64(len(p)) > w.left {
		p = p[:w.left]
	}
	n, err := w.conn.Read(p)
	w.left -= int64(n)
	return n, err
}

// exchange asks the same of one server again and again by HTTP/1.1, over one
// connection that is kept. All of it is done by the goroutine that asks: with
// the two goroutines that net/http's Transport has for each connection a look
// costs a tenth more (BenchmarkPolled).
//
// A connection serves the next look only if the answer before it was read to
// its end and nothing came after it: what a server says unasked would be taken
// for the answer to the next look, and each answer for the one after. One that
// the server closes while it is asked is found by that look, which then asks
// once more over a new one. Deadline and end of the context end whatever waits
// for the connection, and close it.
type exchange struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	idle   *wire // nil = none
	closed bool
}

// quiet says whether the server neither said anything unasked nor closed the
// connection. It waits for nothing, and clears the deadlines for reading.
func (w *wire) quiet() bool {
	if w.reader.Buffered() > 0 {
		return false
	}
	var one [1]byte
	_ = w.conn.SetReadDeadline(time.Unix(1, 0)) // gives what TLS has read already, and asks the socket for nothing
	if _, err := w.conn.Read(one[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	_ = w.conn.SetReadDeadline(time.Time{}) // a connection that is closed says so below
	conn := w.conn
	if over, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = over.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var said error
	err = raw.Read(func(fd uintptr) bool {
		_, _, said = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	return err == nil && errors.Is(said, syscall.EAGAIN)
}

// take is the idle connection; nil = there is none.
func (x *exchange) take() *wire {
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.idle
	x.idle = nil
	if w != nil && (time.Since(w.used) > maxIdle || !w.quiet()) {
		_ = w.conn.Close() // nothing is on its way
		return nil
	}
	return w
}

// put keeps a connection for the next look.
func (x *exchange) put(w *wire) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || x.idle != nil {
		_ = w.conn.Close() // another one is kept
		return
	}
	w.used = time.Now()
	x.idle = w
}

// close frees the idle connection; one that is in use is closed after it.
func (x *exchange) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	if x.idle != nil {
		_ = x.idle.conn.Close() // nothing is on its way
		x.idle = nil
	}
}

// do sends text, a whole request of req, and gives the answer, whose body must
// be closed.
func (x *exchange) do(ctx context.Context, req *http.Request, text []byte) (*http.Response, error) {
	if w := x.take(); w != nil {
		resp, err := x.ask(ctx, w, req, text)
		if !errors.Is(err, errStale) {
			return resp, err
		}
	}
	conn, err := x.dial(ctx)
	if err != nil {
		return nil, late(ctx, err)
	}
	w := &wire{conn: conn}
	w.reader = bufio.NewReader(w)
	resp, err := x.ask(ctx, w, req, text)
	if errors.Is(err, errStale) {
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

// errStale is the error of a connection that ended before its answer began.
var errStale = errors.New("the connection was closed while it was idle")

// ask makes one exchange over w. On an error w is closed.
func (x *exchange) ask(ctx context.Context, w *wire, req *http.Request, text []byte) (*http.Response, error) {
	deadline, _ := ctx.Deadline()
	_ = w.conn.SetDeadline(deadline) // a connection that is closed says so when it is used
	b := &body{exchange: x, wire: w, ctx: ctx}
	b.stop = context.AfterFunc(ctx, func() { _ = w.conn.SetDeadline(time.Unix(1, 0)) })
	fail := func(err error) (*http.Response, error) {
		b.end(false)
		return nil, late(ctx, err)
	}
	reused := !w.used.IsZero()
	w.left = maxHeader
	_, err := w.conn.Write(text)
	if err == nil {
		_, err = w.reader.Peek(1)
	}
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) && reused {
			err = errStale
		}
		return fail(err)
	}
	resp, err := answer(w.reader, req)
	if err != nil {
		return fail(err)
	}
	if reused && resp.StatusCode == http.StatusRequestTimeout { // of the time in which nothing was asked
		return fail(errStale)
	}
	w.left = math.MaxInt64
	b.from, b.last = resp.Body, resp.Close || resp.StatusCode == http.StatusSwitchingProtocols
	resp.Body = b
	return resp, nil
}

// answer reads a header, past those that only inform.
func answer(r *bufio.Reader, req *http.Request) (*http.Response, error) {
	for range maxInform {
		resp, err := http.ReadResponse(r, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
	return nil, errors.New("too many answers of status 1xx")
}

// body is an answer's body, whose end frees the connection.
type body struct {
	exchange *exchange
	wire     *wire
	ctx      context.Context
	stop     func() bool // ends the watch over ctx; false = it struck
	from     io.ReadCloser
	last     bool // the connection serves no further look
	whole    bool // read to its end
	done     bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.whole = true
	case err != nil:
		err = late(b.ctx, err)
	}
	return n, err
}

// Close keeps the connection where it can be kept.
func (b *body) Close() error {
	b.end(!b.last && (b.whole || b.from == http.NoBody) && b.wire.reader.Buffered() == 0)
	return nil
}

func (b *body) end(keep bool) {
	if b.done {
		return
	}
	b.done = true
	if struck := !b.stop(); struck || !keep {
		_ = b.wire.conn.Close() // it is given up
		return
	}
	b.exchange.put(b.wire)
}

// late says of an error that comes of the end of ctx that it does.
func late(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.Join(context.DeadlineExceeded, err)
	}
	return err
}
