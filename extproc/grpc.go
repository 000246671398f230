package extproc

import (
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/weirproxy/weir/policy"
)

// Sizes of the gRPC port.
const (
	// Static windows: most bodies fit without a pause, and no bandwidth
	// probes are sent. Both must be set, or grpc-go falls back to 64 KiB.
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20

	// A peer that said nothing for silence is asked, and given up after patience
	// more: the requests of an Envoy that hangs, or whose host is gone without a
	// word, must not keep their seats until maxHold.
	silence  = 30 * time.Second
	patience = 10 * time.Second

	// Envoy opens a further connection after 1,024 streams. What it sends to a
	// connection that is new it sends before it knows of a lower bound, which
	// would fail cold bursts.
	leastStreams = 1024
)

// ServerOptions are the options of the gRPC server that both services share;
// transport credentials are added by the caller. A connection may have as many
// streams as Envoy's circuit breaker lets through: an Envoy never has more, a
// peer that opens and resets them in a loop starts no more handlers than that.
func ServerOptions(p *policy.Policy) []grpc.ServerOption {
	o := []grpc.ServerOption{
		withCodec(),
		grpc.MaxRecvMsgSize(int(p.Server.MaxMessage())),
		grpc.MaxConcurrentStreams(uint32(min(max(p.Envoy.MaxRequests, leastStreams), math.MaxUint32))), //nolint:gosec // bounded
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silence, Timeout: patience}),
		// Envoy pings every 10 s, also without streams.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if p.Server.Workers > 0 {
		o = append(o, grpc.NumStreamWorkers(uint32(p.Server.Workers)))
	}
	return o
}
