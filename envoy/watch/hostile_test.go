package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricspb "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	prompb "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// TestMetricsFloods: bombs of labels, of clusters, of names and of noise beside
// an Envoy that is well: its rows go on, and nothing of the bombs is kept.
func TestMetricsFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		m := NewMetrics(got.take, nil, slog.New(slog.DiscardHandler))
		m.Configure(streetPolicy(true, nil))
		c := serve(t, m)
		well := open(t, c)
		send(t, well, message("well", family("cluster.chat.upstream_rq_total", counter, 0, 0)))

		long := strings.Repeat("x", 1<<20)
		var labels []string
		for i := range 20_000 {
			labels = append(labels, fmt.Sprint("label-", i), long[:50])
		}
		var clusters []*prompb.MetricFamily
		for i := range 10_000 {
			clusters = append(clusters, family(fmt.Sprintf("cluster.c%d.upstream_rq_total", i), counter, 1, 0))
		}
		metrics := family("cluster.chat.upstream_rq_total", counter, 7, 0)
		for range 20_000 {
			metrics.Metric = append(metrics.Metric, metrics.Metric[0])
		}
		noise := make([]byte, 1<<20)
		r := rand.New(rand.NewPCG(1, 1))
		for i := range noise {
			noise[i] = byte(r.Uint32())
		}
		for i, bomb := range []*metricspb.StreamMetricsMessage{
			message("", family("cluster.chat.upstream_rq_total", counter, 5, 0, labels...)),
			message("", clusters...),
			message("", metrics),
			message("", family("cluster."+long+".upstream_rq_total", counter, 1, 0), family("cluster."+long+".upstream_rq_xx", counter, 1, 0)),
			message("", family("cluster."+long[:900]+".upstream_rq_total", counter, 1, 0, tag, long)),
			message("", family("cluster.upstream_rq_total", counter, 1, 0, tag, long), family(long, counter, 1, 0)),
			message("", family("cluster.upstream_rq_xx", counter, 1, 0, tag, "chat", class, long)),
		} {
			bad := open(t, c)
			first := message("bad", family("cluster.chat.upstream_rq_total", counter, 3, 0))
			send(t, bad, first)
			for range 3 {
				send(t, bad, bomb)
			}
			garbage := message("")
			garbage.ProtoReflect().SetUnknown(append([]byte{0x12, 0x80, 0x80, 0x40}, noise...)) // a family of 1 MiB of noise
			send(t, bad, garbage)
			send(t, well, message("", family("cluster.chat.upstream_rq_total", counter, float64(i+1), 0)))
			rows := got.all()
			if last := rows[len(rows)-1]; last.Node != "well" || last.Requests != int64(i+1) {
				t.Errorf("%d: %+v", i, last)
			}
			for _, row := range rows {
				if row.Cluster != "chat" || row.Node != "well" && row.Node != "bad" {
					t.Errorf("%d: a row of %.50q, %.50q", i, row.Node, row.Cluster)
				}
			}
			_ = ends(t, bad)
		}
	})
}

// TestMetricsDecoderKeepsNothing: what a stream keeps of a large message is
// small.
func TestMetricsDecoderKeepsNothing(t *testing.T) {
	d := &decoder{table: newTable(set([]string{"chat"}))}
	long := strings.Repeat("x", 8<<20)
	d.table.begin(false)
	d.message(bytesOf(t, message("n", family("cluster.some.upstream_rq_total", counter, 1, 0, tag, long), family("cluster."+long+".upstream_rq_total", counter, 1, 0))))
	if cap(d.table.name) > 4*maxStatName || len(d.table.rows) != 0 {
		t.Errorf("%d bytes of a name, %d rows", cap(d.table.name), len(d.table.rows))
	}
}

// TestMetricsBuffers: streams that told much once hold little.
func TestMetricsBuffers(t *testing.T) {
	m := NewMetrics(func(string, []Counters) (int, Garbage) { return 0, 0 }, nil, slog.New(slog.DiscardHandler))
	m.Configure(streetPolicy(true, nil))
	c := serve(t, m)
	bomb := message("n", family("listener."+strings.Repeat("x", 3<<20), counter, 1, 0))
	const streams = 20
	var all []metricspb.MetricsService_StreamMetricsClient
	for range streams {
		s := open(t, c)
		if err := s.Send(bomb); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	envoytest.Eventually(t, 8*time.Second, "every message is read", func() bool { return m.Stats().Messages >= streams })
	var after runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&after)
	if mb := after.HeapAlloc >> 20; mb > streams {
		t.Errorf("%d MB are held by %d streams that told 3 MB each", mb, streams)
	}
	for _, s := range all {
		_, _ = s.CloseAndRecv()
	}
}

// TestMetricsSpoofing: who claims another's id over its own certificate is
// refused where the policy's groups say who may be who; where they do not, it is
// counted under a name of its own and takes nothing from the other.
func TestMetricsSpoofing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		owner := "edge-1"
		m := NewMetrics(got.take, func(n Node, p *peer.Peer) error {
			if n.ID == "edge-1" && owner != "edge-1" {
				return errors.New("its certificate is another's")
			}
			return nil
		}, slog.New(slog.DiscardHandler))
		m.Configure(streetPolicy(true, nil))
		c := serve(t, m)
		total := func(n float64) *metricspb.StreamMetricsMessage {
			return message("edge-1", family("cluster.chat.upstream_rq_total", counter, n, 0))
		}
		first := open(t, c)
		send(t, first, total(10))
		twin := open(t, c)
		send(t, twin, total(1_000_000))
		// Another id in a later message changes nothing.
		later := message("victim", family("cluster.chat.upstream_rq_total", counter, 2_000_000, 0))
		send(t, twin, later)
		owner = "nobody"
		spoof := open(t, c)
		send(t, spoof, total(5))
		if err := ends(t, spoof); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v", err)
		}
		send(t, first, total(11))
		var rows []string
		for _, r := range got.all() {
			rows = append(rows, fmt.Sprint(r.Node, " ", r.Requests))
		}
		if s := strings.Join(rows, ", "); s != "edge-1 10, edge-1#2 1000000, edge-1#2 2000000, edge-1 11" {
			t.Error(s)
		}
		fat := message("edge-2", family("cluster.chat.upstream_rq_total", counter, 1, 0))
		fat.Identifier.Node.Cluster = strings.Repeat("c", maxNode+1)
		s := open(t, c)
		send(t, s, fat)
		if err := ends(t, s); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a long cluster: %v", err)
		}
	})
}

// TestMetricsStreamsAreBounded: as many streams as Envoys are counted, and no
// more until one goes.
func TestMetricsStreamsAreBounded(t *testing.T) {
	var log lines
	m := NewMetrics(func(string, []Counters) (int, Garbage) { return 0, 0 }, nil, log.log())
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "x", Net: "unix"}})
	for i := range MaxEnvoys {
		d := &decoder{node: Node{ID: fmt.Sprint("n", i%7)}}
		if _, err := m.enter(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := m.enter(ctx, &decoder{node: Node{ID: "new"}}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one more: %v", err)
		}
	}
	if n := strings.Count(log.String(), "too many streams"); n != 1 || m.Stats().Garbage["many"] != 3 {
		t.Errorf("said %d times, %v", n, m.Stats().Garbage)
	}
	m.leave("n3#5")
	if name, err := m.enter(ctx, &decoder{node: Node{ID: "new"}}); err != nil || name != "new" {
		t.Errorf("%q %v", name, err)
	}
}

// TestMetricsClockGoesBack: an Envoy's clock goes back a day; its rows are put
// at the time when they came, and a cluster that is new then is brought with its
// second flush as ever.
func TestMetricsClockGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		m := NewMetrics(got.take, nil, slog.New(slog.DiscardHandler))
		p := streetPolicy(true, nil)
		p.Envoy.Clusters = append(p.Envoy.Clusters, policy.Cluster{Name: "more"})
		m.Configure(p)
		s := open(t, serve(t, m))
		skew := time.Duration(0)
		stamp := func() int64 { return time.Now().Add(skew).UnixMilli() }
		for range 3 {
			send(t, s, message("one", family("cluster.chat.upstream_rq_total", counter, 1, stamp())))
			time.Sleep(time.Second)
		}
		skew = -24 * time.Hour
		for i := range 8 {
			send(t, s, message("", family("cluster.chat.upstream_rq_total", counter, 2, stamp()), family("cluster.more.upstream_rq_total", counter, 2, stamp())))
			rows := got.all()
			more := 0
			for _, r := range rows {
				if r.Cluster == "more" {
					more++
				}
			}
			if late := time.Since(rows[len(rows)-1].At); more != i || late > 100*time.Millisecond {
				t.Errorf("flush %d: %d rows of the new cluster, want %d; %v late", i, more, i, late)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestFramesOfAnything: a frame takes whatever bytes come, an empty message too.
func TestFramesOfAnything(t *testing.T) {
	var f frame
	for _, m := range []proto.Message{&corepb.Node{Id: strings.Repeat("x", 100)}, new(emptypb.Empty)} {
		b := bytesOf(t, m)
		f.Reset()
		if err := proto.Unmarshal(b, &f); err != nil || string(f.bytes) != string(b) {
			t.Errorf("%v %q, want %q", err, f.bytes, b)
		}
	}
}
