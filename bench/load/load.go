// Package load is a thin gRPC client for measuring servers: it sends
// ready-made messages over HTTP/2 (RFC 9113) and counts calls, with so little
// work for each that the server is what saturates. It understands what grpc-go
// servers send and nothing else.
package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Call is one RPC. Each message is sent when the one before was answered;
// after the last answer the stream is closed from our side.
type Call struct {
	Path     string
	Timeout  string   // grpc-timeout; "" = none
	Messages [][]byte // framed by Frame
	Unary    bool     // one message, which ends our side
}

// Sizes that keep the client simple: a message is one DATA frame, and a call
// fits a stream's first window.
const (
	maxMessage = 16 << 10
	maxCall    = 60 << 10
)

// Frame puts gRPC's length prefix before a message.
func Frame(message []byte) []byte {
	out := make([]byte, 1, 5+len(message))
	out = binary.BigEndian.AppendUint32(out, uint32(len(message)))
	return append(out, message...)
}

// Client keeps calls in flight on a few connections to one server. One run at
// a time.
type Client struct {
	conns   []*conn
	readers sync.WaitGroup
	broken  chan error // a connection ended; room for all
	closing atomic.Bool

	calls   atomic.Pointer[[]Call] // nil = no further call starts
	flight  atomic.Int64
	done    atomic.Int64
	failed  atomic.Pointer[error] // the first failure
	drained chan struct{}
}

// Dial opens connections to a server.
func Dial(ctx context.Context, network, address string, connections int) (*Client, error) {
	c := &Client{broken: make(chan error, connections), drained: make(chan struct{}, 1)}
	for i := range connections {
		var d net.Dialer
		nc, err := d.DialContext(ctx, network, address)
		if err != nil {
			c.Close()
			return nil, err
		}
		n := newConn(c, nc, i)
		c.conns = append(c.conns, n)
		if err := n.flush(); err != nil {
			c.Close()
			return nil, err
		}
		c.readers.Go(func() {
			if err := n.read(); err != nil && !c.closing.Load() {
				c.broken <- fmt.Errorf("connection %d: %w", i, err)
			}
		})
	}
	return c, nil
}

// Close ends the connections and their goroutines.
func (c *Client) Close() {
	c.closing.Store(true)
	for _, n := range c.conns {
		n.net.Close()
	}
	c.readers.Wait()
}

// drainTime bounds the end of a run.
const drainTime = 10 * time.Second

// Run keeps inFlight calls under way for d, lets them end, and returns how
// many there were. A call that fails, or that the server ends early, is an
// error.
func (c *Client) Run(ctx context.Context, calls []Call, inFlight int, d time.Duration) (int64, error) {
	if err := check(calls); err != nil {
		return 0, err
	}
	c.done.Store(0)
	c.failed.Store(nil)
	c.flight.Store(int64(inFlight))
	c.calls.Store(&calls)
	for i := range inFlight {
		n := c.conns[i%len(c.conns)]
		n.mu.Lock()
		n.start(calls)
		err := n.flush()
		n.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
	err := c.wait(ctx, d)
	return c.done.Load(), err
}

func (c *Client) wait(ctx context.Context, d time.Duration) error {
	over := time.NewTimer(d)
	defer over.Stop()
	late := time.NewTimer(d + drainTime)
	defer late.Stop()
	for {
		select {
		case <-over.C:
			c.calls.Store(nil)
		case <-c.drained:
			if err := c.failed.Load(); err != nil {
				return *err
			}
			return nil
		case err := <-c.broken:
			return err
		case <-late.C:
			return fmt.Errorf("%d calls were not answered within %v", c.flight.Load(), drainTime)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// finished counts a call and returns those to go on with; nil = enough.
func (c *Client) finished(status string, whole bool) []Call {
	c.done.Add(1)
	if status != "0" || !whole {
		err := fmt.Errorf("a call ended with grpc-status %q, all messages sent: %v", status, whole)
		if c.failed.CompareAndSwap(nil, &err) {
			c.calls.Store(nil)
		}
	}
	if calls := c.calls.Load(); calls != nil {
		return *calls
	}
	if c.flight.Add(-1) == 0 {
		c.drained <- struct{}{}
	}
	return nil
}

func check(calls []Call) error {
	if len(calls) == 0 {
		return errors.New("no calls")
	}
	for i := range calls {
		sum := 0
		for _, m := range calls[i].Messages {
			if sum += len(m); len(m) > maxMessage {
				return fmt.Errorf("call %d: a message of %d bytes, at most %d", i, len(m), maxMessage)
			}
		}
		if sum > maxCall || len(calls[i].Messages) == 0 || calls[i].Unary && len(calls[i].Messages) != 1 {
			return fmt.Errorf("call %d: %d messages of %d bytes; 1 to %d bytes, and one message if unary", i, len(calls[i].Messages), sum, maxCall)
		}
	}
	return nil
}
