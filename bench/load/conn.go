package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/net/http2/hpack"
)

// Frame types and flags of RFC 9113 that gRPC servers send or get.
const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8

	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20

	firstWindow = 65535
)

// stream is one call under way.
type stream struct {
	id     uint32
	call   *Call
	next   int     // message to be sent next
	prefix [5]byte // of the reply being read
	have   int     // bytes of prefix
	left   int     // bytes of the reply still to come
	status string
}

// conn is one HTTP/2 connection. Its reader goroutine sends what replies ask
// for; the lock is for the start of a run.
type conn struct {
	client *Client
	net    net.Conn

	mu      sync.Mutex
	out     []byte // frames not yet written
	block   bytes.Buffer
	encoder *hpack.Encoder
	decoder *hpack.Decoder
	reading *stream // whose header block is being decoded
	streams map[uint32]*stream
	nextID  uint32
	window  int       // bytes that the server takes now
	blocked []*stream // wait for the window
	taken   int       // bytes received since the last update of ours
	pick    int
}

func newConn(c *Client, nc net.Conn, number int) *conn {
	n := &conn{client: c, net: nc, streams: map[uint32]*stream{}, nextID: 1, window: firstWindow, pick: number * 7919}
	n.encoder = hpack.NewEncoder(&n.block)
	n.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if n.reading != nil && f.Name == "grpc-status" {
			n.reading.status = f.Value
		}
	})
	n.out = append(n.out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"...)
	n.frame(frameSettings, 0, 0, 12)
	n.out = append(n.out, 0, 2, 0, 0, 0, 0) // no push
	n.out = append(n.out, 0, 4, 1, 0, 0, 0) // 16 MiB a stream
	n.grow(1 << 30)
	return n
}

func (n *conn) frame(kind, flags byte, id uint32, size int) {
	n.out = append(n.out, byte(size>>16), byte(size>>8), byte(size), kind, flags)
	n.out = binary.BigEndian.AppendUint32(n.out, id)
}

func (n *conn) grow(by uint32) {
	n.frame(frameWindowUpdate, 0, 0, 4)
	n.out = binary.BigEndian.AppendUint32(n.out, by)
}

// flush writes what is queued.
func (n *conn) flush() error {
	if len(n.out) == 0 {
		return nil
	}
	_, err := n.net.Write(n.out)
	n.out = n.out[:0]
	return err
}

// start queues a new call, in turn of the run's calls.
func (n *conn) start(calls []Call) {
	n.pick++
	s := &stream{id: n.nextID, call: &calls[n.pick%len(calls)]}
	n.nextID += 2
	n.streams[s.id] = s
	n.block.Reset()
	n.header(":method", "POST")
	n.header(":scheme", "http")
	n.header(":path", s.call.Path)
	n.header(":authority", "weir")
	n.header("te", "trailers")
	if s.call.Timeout != "" {
		n.header("grpc-timeout", s.call.Timeout)
	}
	n.header("content-type", "application/grpc")
	n.frame(frameHeaders, flagEndHeaders, s.id, n.block.Len())
	n.out = append(n.out, n.block.Bytes()...)
	n.send(s)
}

func (n *conn) header(name, value string) {
	_ = n.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) // into memory
}

// send queues the stream's next message, or the end when there is none.
func (n *conn) send(s *stream) {
	if s.next == len(s.call.Messages) {
		n.frame(frameData, flagEndStream, s.id, 0)
		s.next++
		return
	}
	message := s.call.Messages[s.next]
	if len(message) > n.window {
		n.blocked = append(n.blocked, s)
		return
	}
	s.next++
	flags := byte(0)
	if s.call.Unary {
		flags = flagEndStream
	}
	n.window -= len(message)
	n.frame(frameData, flags, s.id, len(message))
	n.out = append(n.out, message...)
}

// read handles frames until the connection ends.
func (n *conn) read() error {
	buf := make([]byte, 256<<10)
	have := 0
	for {
		k, err := n.net.Read(buf[have:])
		if err != nil {
			return err
		}
		have += k
		used, err := n.handleAll(buf[:have])
		if err != nil {
			return err
		}
		have = copy(buf, buf[used:have])
	}
}

// handleAll handles the whole frames in b and writes what follows from them.
func (n *conn) handleAll(b []byte) (used int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(b)-used >= 9 {
		h := b[used:]
		size := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
		if len(h) < 9+size {
			break
		}
		if err := n.handle(h[3], h[4], binary.BigEndian.Uint32(h[5:9])&0x7fffffff, h[9:9+size]); err != nil {
			return used, err
		}
		used += 9 + size
	}
	return used, n.flush()
}

func (n *conn) handle(kind, flags byte, id uint32, p []byte) error {
	switch kind {
	case frameData:
		n.data(id, p, flags&flagEndStream != 0)
	case frameHeaders:
		return n.headers(id, p, flags)
	case frameReset:
		if s := n.streams[id]; s != nil {
			s.status = "reset"
			n.finish(s)
		}
	case frameSettings:
		if flags&flagAck == 0 {
			n.frame(frameSettings, flagAck, 0, 0)
		}
	case framePing:
		if flags&flagAck == 0 {
			n.frame(framePing, flagAck, 0, len(p))
			n.out = append(n.out, p...)
		}
	case frameGoAway:
		return errors.New("the server sent GOAWAY")
	case frameWindowUpdate:
		if id == 0 { // calls are small: a stream's own window never ends
			n.window += int(binary.BigEndian.Uint32(p) & 0x7fffffff)
			waiting := n.blocked
			n.blocked = nil
			for _, s := range waiting {
				n.send(s)
			}
		}
	}
	return nil
}

func (n *conn) headers(id uint32, p []byte, flags byte) error {
	if flags&(flagPadded|flagPriority) != 0 || flags&flagEndHeaders == 0 {
		return fmt.Errorf("HEADERS in a form that grpc-go does not send (flags %#x)", flags)
	}
	s := n.streams[id]
	n.reading = s
	_, err := n.decoder.Write(p)
	n.reading = nil
	if err != nil {
		return err
	}
	if s != nil && flags&flagEndStream != 0 {
		n.finish(s)
	}
	return nil
}

// data walks the length-prefixed replies in a DATA frame.
func (n *conn) data(id uint32, p []byte, end bool) {
	if n.taken += len(p); n.taken > 1<<28 {
		n.grow(uint32(n.taken))
		n.taken = 0
	}
	s := n.streams[id]
	if s == nil {
		return
	}
	for len(p) > 0 {
		if s.have < len(s.prefix) {
			k := copy(s.prefix[s.have:], p)
			s.have, p = s.have+k, p[k:]
			if s.have < len(s.prefix) {
				break
			}
			s.left = int(binary.BigEndian.Uint32(s.prefix[1:]))
		}
		k := min(s.left, len(p))
		s.left, p = s.left-k, p[k:]
		if s.left == 0 {
			s.have = 0
			if !s.call.Unary {
				n.send(s)
			}
		}
	}
	if end {
		n.finish(s)
	}
}

// finish counts a call and starts the next one while the run lasts.
func (n *conn) finish(s *stream) {
	delete(n.streams, s.id)
	if calls := n.client.finished(s.status, s.next >= len(s.call.Messages)); calls != nil {
		n.start(calls)
	}
}
