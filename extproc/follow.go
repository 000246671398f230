package extproc

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// frames is gRPC's own view of a stream. A request that is held is read by it,
// in its handler's goroutine: RecvMsg would need another goroutine, or twice
// the stack, and to end a stream whose handler reads there is no other way.
type frames interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	WriteStatus(s *status.Status) error
}

var errFrames = status.Error(codes.Internal, "weir: the gRPC library does not show its streams")

// hold has the handler read a request that waits; the lock is held.
func (st *stream) hold() {
	st.handed = true
	st.server.followed.add(st)
	st.talk.visit.Notify(func() { st.server.readers.spawn(st.decide) })
}

// decide answers a request that was held.
func (st *stream) decide() {
	st.step(func(now time.Time) error {
		if st.talk.state == held { // else Envoy was first
			st.talk.decide(now)
		}
		return nil
	})
}

// follow reads a stream from its hold to its end, which ends the reading
// wherever it came from. Most of a stack is needed for a decision, which has
// another goroutine.
func (st *stream) follow() {
	for {
		if err := st.next(); err != nil {
			st.broke(err)
			return
		}
		st.take()
	}
}

// next reads a message as RecvMsg does.
func (st *stream) next() error {
	if err := st.frames.ReadMessageHeader(st.head[:]); err != nil {
		return torn(err)
	}
	return st.message()
}

// message reads what follows its header. Envoy does not compress messages.
func (st *stream) message() (err error) {
	defer func() {
		if v := recover(); v != nil {
			st.server.o.fault(st.talk.ctx, FaultPanic, "a message cannot be read")
			err = errInternal
		}
	}()
	n := int64(binary.BigEndian.Uint32(st.head[1:]))
	if most := st.talk.policy.Server.MaxMessage(); n > most {
		return status.Errorf(codes.ResourceExhausted, "weir: a message of %d bytes, at most %d are read", n, most)
	}
	if st.head[0] != 0 {
		return status.Error(codes.Unimplemented, "weir: compressed messages are not read")
	}
	data, err := st.frames.Read(int(n))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return torn(err)
	}
	defer data.Free()
	return codec{}.Unmarshal(data, &st.in)
}

// torn is a stream's end in the middle of a message.
func torn(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, err.Error())
	}
	return err
}

// followed are the streams whose handlers read them.
type followed struct {
	mu  sync.Mutex
	all map[*stream]struct{}
}

func (f *followed) add(st *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[*stream]struct{}{}
	}
	f.all[st] = struct{}{}
}

func (f *followed) drop(st *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, st)
}

// list is those that there are now.
func (f *followed) list() []*stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]*stream, 0, len(f.all))
	for st := range f.all {
		list = append(list, st)
	}
	return list
}
