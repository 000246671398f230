package main

import (
	"crypto/tls"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// maxWatchers bounds the streams of one agent.
const maxWatchers = 1000

// watchService serves a board over gRPC.
type watchService struct {
	gpuv1.UnimplementedAgentServer
	board    *board
	guard    guard
	watchers atomic.Int64
	ending   chan struct{} // closed when streams must end
}

// newServer makes the gRPC server; secure may be nil.
func newServer(w *watchService, secure *tls.Config) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(4 << 10), // a request says a period
		grpc.MaxConcurrentStreams(100),
		grpc.ConnectionTimeout(5 * time.Second),
		// A watcher that vanished without a word is noticed.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
	}
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	s := grpc.NewServer(options...)
	gpuv1.RegisterAgentServer(s, w)
	return s
}

// Watch sends the newest look, then each that follows, at least period apart.
// Send waits while the watcher reads nothing; what came meanwhile is skipped.
func (w *watchService) Watch(r *gpuv1.WatchRequest, stream grpc.ServerStreamingServer[gpuv1.Snapshot]) error {
	ctx := stream.Context()
	if err := w.guard.stream(ctx); err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if w.watchers.Add(1) > maxWatchers {
		w.watchers.Add(-1)
		return status.Errorf(codes.Unavailable, "more than %d watchers", maxWatchers)
	}
	defer w.watchers.Add(-1)
	period := r.GetPeriod().AsDuration()
	var sent *seen
	for {
		last, _, changed := w.board.newest()
		// A tenth of slack, for looks do not come to the millisecond.
		if last != nil && last != sent && (sent == nil || last.at.Sub(sent.at) >= period*9/10) {
			if err := stream.Send(w.snapshot(last, time.Now())); err != nil {
				return err
			}
			sent = last
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-w.ending:
			return status.Error(codes.Unavailable, "the agent is ending")
		}
	}
}

// snapshot puts a look on the wire.
func (w *watchService) snapshot(s *seen, now time.Time) *gpuv1.Snapshot {
	m := &gpuv1.Snapshot{
		Time:     timestamppb.New(s.at),
		Sequence: s.sequence,
		Source:   s.source,
		Cards:    s.wire,
		Age:      durationpb.New(now.Sub(s.at)),
		Sent:     durationpb.New(now.Sub(w.board.start)),
	}
	if s.err != nil {
		m.Error = s.err.Error()
	}
	for _, n := range s.dropped {
		m.Dropped += uint32(n)
	}
	return m
}
