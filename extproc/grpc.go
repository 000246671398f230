package extproc

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/weirproxy/weir/policy"
)

// Sizes of the gRPC port.
const (
	// leastMessage is received whatever server.maxBody says: a body that Envoy
	// buffered beyond it is refused with 413, but a message beyond what is
	// received makes grpc-go end the stream, which Envoy shows as a 503. What
	// Envoy buffers is bounded by its own buffer limit.
	leastMessage = 256 << 20
	// headroom is what a message holds beside a body: headers, metadata.
	headroom = 1 << 20

	// Static windows: most bodies fit without a pause, and no bandwidth
	// probes are sent. Both must be set, or grpc-go falls back to 64 KiB.
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20

	// A peer that said nothing for silence is asked, and given up after patience
	// more: the requests of an Envoy that hangs, or whose host is gone without a
	// word, must not keep their seats until maxHold.
	silence  = 30 * time.Second
	patience = 10 * time.Second
)

// ServerOptions are the options of the gRPC server that both services share;
// transport credentials are added by the caller. Streams a connection are not
// bounded here: Envoy opens further connections at its own bound, and a lower
// one of ours would fail cold bursts.
func ServerOptions(p *policy.Policy) []grpc.ServerOption {
	size := int(max(p.Server.MaxBody, leastMessage) + headroom)
	o := []grpc.ServerOption{
		withCodec(),
		grpc.MaxRecvMsgSize(size),
		grpc.MaxSendMsgSize(size),
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
