package watch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/weirproxy/weir/policy"
)

// SourceMetrics is the name of Metrics.
const SourceMetrics = "metrics"

// maxNode is the longest node id or cluster that is taken, in bytes.
const maxNode = 256

// keepFrame is how large a buffer a stream keeps for its next message: else a
// thousand streams could hold MaxMessage each by one message.
const keepFrame = 1 << 20

// MaxMessage is what the gRPC server that Metrics is registered with lets
// through at least (policy.Server.MaxMessage): all statistics of some 2,500
// clusters.
const MaxMessage = 16 << 20

// Metrics is the server of envoy.service.metrics.v3.MetricsService. Envoy
// opens one stream and flushes into it each stats_flush_interval: its node in
// the first message, then every statistic that it has used, absolute, as one
// message or, with batch_size, several. A message is as large as 6 KiB for
// each cluster that Envoy has, unless its stats_matcher leaves some out: see
// MaxMessage.
//
// report_counters_as_deltas must be off: what falls in an outage of weir would
// be lost.
type Metrics struct {
	sink  Sink
	allow func(n Node, p *peer.Peer) error // nil = all
	words *seldom
	conf  atomic.Pointer[metricsConf]
	tally tally

	mu      sync.Mutex
	streams map[string]bool // names that are taken
}

type metricsConf struct {
	on      bool
	watched map[string]struct{}
}

// NewMetrics makes the service. allow says who may speak: it is asked once for
// each stream, and its error ends it; nil lets everybody who reaches the
// socket. log hears of what is refused, each once a minute.
func NewMetrics(sink Sink, allow func(n Node, p *peer.Peer) error, log *slog.Logger) *Metrics {
	m := &Metrics{sink: sink, allow: allow, words: newSeldom(log), streams: make(map[string]bool)}
	m.conf.Store(&metricsConf{})
	return m
}

// Name is SourceMetrics.
func (m *Metrics) Name() string { return SourceMetrics }

// Configure takes a policy. With envoy.watch.metrics off, streams end with
// their next message.
func (m *Metrics) Configure(p *policy.Policy) {
	m.conf.Store(&metricsConf{on: p.Envoy.Watch.Metrics, watched: set(watchedClusters(p))})
}

// Stats are figures since the start.
func (m *Metrics) Stats() SourceStats { return m.tally.stats(SourceMetrics) }

// Close ends streams with their next message; the gRPC server, which owns
// them, ends them at once.
func (m *Metrics) Close() { m.conf.Store(&metricsConf{}) }

// Register adds the service to a gRPC server.
func (m *Metrics) Register(s grpc.ServiceRegistrar) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.metrics.v3.MetricsService",
		HandlerType: (*streamer)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName:    "StreamMetrics",
			ClientStreams: true,
			Handler:       func(srv any, stream grpc.ServerStream) error { return srv.(streamer).stream(stream) },
		}},
		Metadata: "envoy/service/metrics/v3/metrics_service.proto",
	}, m)
}

type streamer interface {
	stream(s grpc.ServerStream) error
}

// stream reads one Envoy until it goes.
func (m *Metrics) stream(s grpc.ServerStream) error {
	conf := m.conf.Load()
	d := &decoder{table: newTable(conf.watched)}
	var clock senderClock
	name := ""
	var raw frame
	defer func() { m.leave(name) }()
	for {
		if err := s.RecvMsg(&raw); err != nil {
			if errors.Is(err, io.EOF) {
				return s.SendMsg(new(emptypb.Empty))
			}
			return err
		}
		received := time.Now()
		if now := m.conf.Load(); now != conf {
			conf = now
			d.table.watch(conf.watched)
		}
		if !conf.on {
			return status.Error(codes.Unimplemented, "envoy.watch.metrics is off in weir's policy")
		}
		bytes := raw.bytes
		d.table.begin(false)
		d.message(bytes)
		if name == "" {
			var err error
			if name, err = m.enter(s.Context(), d); err != nil {
				return err
			}
		}
		rows := d.table.end(name, clock.at(received, d.table.stamp))
		m.tally.note(len(bytes), len(rows), &d.garbage)
		m.tally.deliver(m.sink, SourceMetrics, rows)
		if cap(raw.bytes) > keepFrame {
			raw.bytes = nil
		}
	}
}

// enter admits a stream by its first message and names it: two Envoys that say
// the same node are two all the same, the second "node#2".
func (m *Metrics) enter(ctx context.Context, d *decoder) (string, error) {
	from, _ := peer.FromContext(ctx)
	node := d.node
	if node.ID == "" || len(node.ID) > maxNode || len(node.Cluster) > maxNode {
		m.tally.garbage[GarbageNode].Add(1)
		m.words.warn(time.Now(), "node", "an Envoy's metrics are refused: its first message must have a node.id of 1 to 256 bytes, and a node.cluster of no more", "peer", address(from))
		return "", status.Error(codes.InvalidArgument, "the first message must have a node.id of 1 to 256 bytes, and a node.cluster of no more")
	}
	if m.allow != nil {
		if err := m.allow(node, from); err != nil {
			m.tally.garbage[GarbageDenied].Add(1)
			m.words.warn(time.Now(), "denied "+node.ID, "an Envoy's metrics are refused", "node", node.ID, "cluster", node.Cluster, "peer", address(from), "error", err)
			return "", status.Error(codes.PermissionDenied, "this node may not send metrics here")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.streams) >= MaxEnvoys {
		m.tally.garbage[GarbageMany].Add(1)
		m.words.warn(time.Now(), "streams", "an Envoy's metrics are refused: there are too many streams", "limit", MaxEnvoys, "node", node.ID, "peer", address(from))
		return "", status.Error(codes.ResourceExhausted, "weir takes the metrics of no more Envoys")
	}
	name := node.ID
	for i := 2; m.streams[name]; i++ {
		name = node.ID + "#" + strconv.Itoa(i)
	}
	if name != node.ID {
		m.words.warn(time.Now(), "twin "+node.ID, "two Envoys say the same node: the second is counted under another name (or the first is gone and its connection is not yet known to be)", "node", node.ID, "as", name)
	}
	m.streams[name] = true
	return name, nil
}

func (m *Metrics) leave(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.streams, name)
}

func address(p *peer.Peer) string {
	if p == nil || p.Addr == nil {
		return ""
	}
	return p.Addr.String()
}

// senderClock tells when a message was sent, by our clock, from the sender's:
// what came through fastest of late took no time. A message that waited is
// then not taken for a burst.
type senderClock struct {
	known   bool
	fastest time.Duration // least that ours was ahead of the sender's
}

// How a sender's clock may differ: beyond clockStep it was set; each message
// lets it run off by clockDrift.
const (
	clockStep  = 5 * time.Second
	clockDrift = time.Millisecond
)

func (c *senderClock) at(received time.Time, stampMs int64) time.Time {
	if stampMs <= 0 {
		return received
	}
	ahead := received.Sub(time.UnixMilli(stampMs))
	c.fastest += clockDrift
	if late := ahead - c.fastest; !c.known || late < 0 || late > clockStep {
		c.known, c.fastest = true, ahead
	}
	return received.Add(c.fastest - ahead)
}
