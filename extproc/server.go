package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/admission"
)

// Server is the ext_proc service. Register it on a grpc.Server made with
// ServerOptions.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	o       Options
	closing chan struct{} // closed by Shutdown: let go of what is judged
	once    sync.Once
	streams atomic.Int64
	readers readers

	followed followed
}

// NewServer makes a service. Desk and Policy must be set.
func NewServer(o Options) (*Server, error) {
	if o.Desk == nil || o.Policy == nil {
		return nil, errors.New("extproc: Options.Desk and Options.Policy are required")
	}
	s := &Server{o: o, closing: make(chan struct{})}
	s.readers.open()
	return s, nil
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	extprocv3.RegisterExternalProcessorServer(r, s)
}

// Streams is how many side streams are open.
func (s *Server) Streams() int64 { return s.streams.Load() }

// Shutdown lets go of every stream whose request is judged: it is closed with
// OK and its answer runs on through Envoy, charged by estimate. Streams that
// are still to be judged stay until they are; drain the desk first, so that
// these are refused. It returns when no stream is left, or with ctx's error.
// It may be called more than once.
func (s *Server) Shutdown(ctx context.Context) error {
	s.once.Do(func() { close(s.closing) })
	for _, st := range s.followed.list() {
		st.release()
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.streams.Load() > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("extproc: %d streams left: %w", s.streams.Load(), ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// Wait returns when the readers of all streams have ended. Streams end with
// their connection, so stop the gRPC server first.
func (s *Server) Wait() { s.readers.wait() }

// stream is one call of Process. Two goroutines share it: the reader calls
// Recv all the time and answers at once where it can, the handler watches the
// shutdown. Once the request is held the handler is the only one left, and
// reads. The lock holds the conversation and Send.
type stream struct {
	server *Server
	wire   extprocv3.ExternalProcessor_ProcessServer
	frames frames  // of wire
	in     inbound // the reader's
	head   [5]byte // of a message

	mu     sync.Mutex
	sent   outbound // on its way
	talk   conversation
	over   bool // nothing may be sent any more
	result error

	body   *time.Timer   // runs while the body is awaited
	handed bool          // the handler reads from here on
	holds  chan struct{} // a hold began, and the reader has let go
	done   chan struct{} // closed when over
}

// Process serves one side stream: one HTTP request.
func (s *Server) Process(wire extprocv3.ExternalProcessor_ProcessServer) error {
	st := s.open(wire)
	if st.frames == nil {
		return errFrames
	}
	s.streams.Add(1)
	defer s.streams.Add(-1)
	s.readers.serve(st)
	if st.watch() {
		st.follow()
	}
	if st.handed {
		s.followed.drop(st)
	}
	return st.result
}

func (s *Server) open(wire extprocv3.ExternalProcessor_ProcessServer) *stream {
	st := &stream{server: s, wire: wire, holds: make(chan struct{}, 1), done: make(chan struct{})}
	ctx := wire.Context()
	st.frames, _ = grpc.ServerTransportStreamFromContext(ctx).(frames)
	st.talk.o = &s.o
	st.talk.ctx = ctx
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		st.talk.initial, st.talk.badStart = initialOverrides(md)
	}
	return st
}

// watch waits for the end of the stream or of the process, or for a hold: then
// it is true.
func (st *stream) watch() bool {
	closing := st.server.closing
	for {
		select {
		case <-st.done:
			return false
		case <-st.holds:
			return true
		case <-closing:
			closing = nil
			st.release()
		}
	}
}

// read takes messages until the stream ends or is handed to its handler. It
// never waits for a decision.
func (st *stream) read() {
	for !st.handed { // by its own steps alone
		if err := st.wire.RecvMsg(&st.in); err != nil {
			st.broke(err)
			return
		}
		st.take()
	}
	st.holds <- struct{}{} // one a stream: there is room
}

// broke ends a stream that has no more messages.
func (st *stream) broke(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.end(err, false, false)
}

// take hands a message that came to the conversation.
func (st *stream) take() {
	received := time.Now()
	at := "undecodable"
	st.step(func(now time.Time) error {
		if st.in.err != nil {
			return violation("%v", st.in.err)
		}
		at = st.in.phase.String()
		return st.talk.receive(now, &st.in.message)
	})
	st.in = inbound{} // a body must not stay while its answer runs
	if h := st.server.o.Hooks.Observed; h != nil {
		h(at, time.Since(received))
	}
}

// step runs one event of the conversation and sends what follows. After an
// error or a panic the stream is over.
func (st *stream) step(event func(now time.Time) error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.over {
		return
	}
	defer st.recovered()
	err := event(time.Now())
	if st.flush() != nil {
		st.end(io.ErrClosedPipe, true, false)
		return
	}
	if err != nil {
		st.server.o.fault(st.talk.ctx, FaultProtocol, err.Error())
		st.end(status.Error(codes.InvalidArgument, err.Error()), false, false)
		return
	}
	st.awaitBody()
	if st.talk.state == held && !st.handed {
		st.hold()
	}
	switch {
	case st.talk.state == closed: // our answer is the last word, whatever still comes
		st.end(nil, false, false)
	case st.leaving():
		st.end(nil, false, true)
	}
}

// awaitBody bounds the wait for a body, from the headers on: a caller may be
// slow on purpose, and Envoy may stop reading. The lock is held; the timer's
// function takes it for one step, and does nothing once the stream is over.
func (st *stream) awaitBody() {
	awaited := st.talk.state == reading
	switch {
	case awaited && st.body == nil:
		st.body = time.AfterFunc(st.talk.policy.Server.BodyTimeout, func() {
			st.step(func(now time.Time) error {
				st.talk.late(now)
				return nil
			})
		})
	case !awaited && st.body != nil:
		st.body.Stop()
		st.body = nil
	}
}

// flush sends what the conversation has to say.
func (st *stream) flush() error {
	for i := range st.talk.out {
		if err := st.send(&st.talk.out[i]); err != nil {
			st.talk.out = st.talk.out[:0]
			return err
		}
	}
	clear(st.talk.out) // a changed body must not stay while its answer runs
	st.talk.out = st.talk.out[:0]
	return nil
}

func (st *stream) send(r *reply) error {
	st.sent = encode(r)
	defer func() { st.sent = nil }()
	return st.wire.SendMsg(&st.sent)
}

// leaving reports a shutdown that may let go of this stream.
func (st *stream) leaving() bool {
	select {
	case <-st.server.closing:
		return st.talk.state.judged()
	default:
		return false
	}
}

func (st *stream) release() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.over && st.leaving() {
		st.end(nil, false, true)
	}
}

// end is the only way in which a stream ends; the lock is held. cause is what
// Recv or the conversation said; a status error of ours is returned as it is.
func (st *stream) end(cause error, undelivered, drained bool) {
	if st.over {
		return
	}
	st.over = true
	if st.body != nil {
		st.body.Stop()
	}
	st.result = errInternal // holds if what follows panics
	defer st.wake()
	defer st.swallow()
	now := time.Now()
	unjudged := st.talk.ended(undelivered, drained)
	switch {
	case cause != nil && own(cause):
		st.result = cause
		if unjudged != nil {
			st.talk.abandon(admission.Internal)
		}
	case unjudged != nil:
		// Envoy has gone or is told: never OK, which would mean "go on".
		st.result = status.Error(codes.Canceled, unjudged.Error())
	default:
		st.result = nil
	}
	if h := st.server.o.Hooks.Finished; h != nil {
		h(st.talk.ctx, st.talk.summary(now, st.result))
	}
}

// wake tells the handler of the end: it watches, or reads.
func (st *stream) wake() {
	close(st.done)
	if st.handed {
		_ = st.frames.WriteStatus(status.Convert(st.result)) // a connection that has gone needs none
	}
}

// errInternal is what a stream ends with after a panic.
var errInternal = status.Error(codes.Internal, "weir: internal error")

// own tells our own errors from the transport's.
func own(err error) bool {
	c := status.Code(err)
	return c == codes.InvalidArgument || c == codes.Internal
}

// recovered turns a panic into an error answer: an immediate one while the
// request is not judged, else an error status; never an open door.
func (st *stream) recovered() {
	v := recover()
	if v == nil {
		return
	}
	st.server.o.fault(st.talk.ctx, FaultPanic, fmt.Sprintf("%T at:\n%s", v, debug.Stack()))
	st.talk.out = st.talk.out[:0]
	st.fail()
	if !st.over {
		st.end(errInternal, false, false)
	}
}

// fail answers an unjudged request with 500.
func (st *stream) fail() {
	defer st.swallow()
	if st.over || st.talk.state.judged() {
		return
	}
	d := admission.Decide(admission.Internal, "")
	im := render(&d, &scene{now: time.Now(), id: st.talk.call.id, grpc: st.talk.call.grpc})
	_ = st.send(&reply{phase: requestHeaders, immediate: im}) // the stream ends either way
}

// swallow keeps a panic in the clean-up from ending the process.
func (st *stream) swallow() {
	if v := recover(); v != nil {
		st.server.o.fault(st.talk.ctx, FaultPanic, fmt.Sprintf("%T in clean-up", v))
	}
}
