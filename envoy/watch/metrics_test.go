package watch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metricspb "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/policy"
)

// lines is a log.
type lines struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// basin collects what a source brings.
type basin struct {
	mu   sync.Mutex
	rows []Counters
}

func (b *basin) take(_ string, rows []Counters) (int, Garbage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = append(b.rows, rows...)
	return 0, 0
}

func (b *basin) all() []Counters {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Counters(nil), b.rows...)
}

// serve runs the service over memory; the client is closed with the test.
func serve(t *testing.T, m *Metrics) metricspb.MetricsServiceClient {
	t.Helper()
	listen := bufconn.Listen(1 << 20)
	srv := grpc.NewServer()
	m.Register(srv)
	go func() { _ = srv.Serve(listen) }()
	conn, err := grpc.NewClient("passthrough:///mem", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listen.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); srv.Stop() })
	return metricspb.NewMetricsServiceClient(conn)
}

func send(t *testing.T, s metricspb.MetricsService_StreamMetricsClient, m *metricspb.StreamMetricsMessage) {
	t.Helper()
	if err := s.Send(m); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// ends gives the error that a stream ends with.
func ends(t *testing.T, s metricspb.MetricsService_StreamMetricsClient) error {
	t.Helper()
	_, err := s.CloseAndRecv()
	return err
}

func open(t *testing.T, c metricspb.MetricsServiceClient) metricspb.MetricsService_StreamMetricsClient {
	t.Helper()
	s, err := c.StreamMetrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestMetricsFlushInParts: the node comes once; a flush comes in parts, and no
// row is brought of which only a part was told.
func TestMetricsFlushInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		m := NewMetrics(got.take, nil, slog.New(slog.DiscardHandler))
		m.Configure(streetPolicy(true, nil))
		s := open(t, serve(t, m))
		stamp := func() int64 { return time.Now().UnixMilli() }
		send(t, s, message("one", family("cluster.chat.upstream_cx_total", counter, 100, stamp())))
		send(t, s, message("", family("cluster.chat.upstream_cx_close_notify", counter, 50, stamp())))
		if rows := got.all(); len(rows) != 0 {
			t.Fatalf("parts of the first flush were brought: %+v", rows)
		}
		time.Sleep(time.Second)
		send(t, s, message("", family("cluster.chat.upstream_cx_total", counter, 103, stamp())))
		send(t, s, message("", family("cluster.chat.upstream_cx_close_notify", counter, 51, stamp())))
		rows := got.all()
		if len(rows) != 2 || rows[0].Node != "one" || rows[0].Connections != 103 || rows[0].CloseNotify != 50 || rows[1].CloseNotify != 51 {
			t.Errorf("%+v", rows)
		}
		// A cluster that is watched from now on is new in the same way.
		p := streetPolicy(true, nil)
		p.Envoy.Clusters = append(p.Envoy.Clusters, policy.Cluster{Name: "more"})
		m.Configure(p)
		send(t, s, message("", family("cluster.more.upstream_cx_total", counter, 9, stamp())))
		if n := len(got.all()); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
		time.Sleep(time.Second)
		send(t, s, message("", family("cluster.more.upstream_cx_total", counter, 9, stamp()), family("cluster.chat.upstream_cx_total", counter, 104, stamp())))
		if rows := got.all(); len(rows) != 4 || rows[3].Connections+rows[2].Connections != 113 {
			t.Errorf("%+v", rows)
		}
		if err := ends(t, s); err != nil {
			t.Errorf("a stream that Envoy ends: %v", err)
		}
		if st := m.Stats(); st.Messages != 6 || st.Rows != 4 || len(st.Garbage) != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestMetricsRefusals: who may not speak, who does not say its name, and a
// policy that does not want it. Nobody else is affected.
func TestMetricsRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		var log lines
		deny := func(n Node, p *peer.Peer) error {
			if n.ID == "stranger" && n.Cluster == "street" && p != nil {
				return errors.New("not in any group")
			}
			return nil
		}
		m := NewMetrics(got.take, deny, log.log())
		m.Configure(streetPolicy(true, nil))
		c := serve(t, m)
		well := open(t, c)
		send(t, well, message("one", flush(1, 0, true, 0)...))
		for _, bad := range []struct {
			node string
			want codes.Code
		}{{"stranger", codes.PermissionDenied}, {"", codes.InvalidArgument}, {strings.Repeat("x", 257), codes.InvalidArgument}} {
			s := open(t, c)
			send(t, s, message(bad.node, flush(1, 0, true, 0)...))
			if err := ends(t, s); status.Code(err) != bad.want {
				t.Errorf("%.10q: %v, want %v", bad.node, err, bad.want)
			}
		}
		if st := m.Stats(); st.Garbage["denied"] != 1 || st.Garbage["node"] != 2 {
			t.Errorf("%+v", st)
		}
		if s := log.String(); strings.Count(s, "are refused") != 2 || !strings.Contains(s, "not in any group") {
			t.Errorf("log: %s", s)
		}
		send(t, well, message("", family("cluster.chat.upstream_cx_total", counter, math.NaN(), 0), family("cluster.chat.upstream_rq_total", counter, 3, 0)))
		if rows := got.all(); len(rows) != 1 || rows[0].Requests != 3 || m.Stats().Garbage["value"] != 1 {
			t.Errorf("%+v %+v", rows, m.Stats())
		}
		m.Configure(streetPolicy(false, nil))
		send(t, well, message("", flush(1, 0, true, 0)...))
		if err := ends(t, well); status.Code(err) != codes.Unimplemented {
			t.Errorf("switched off: %v", err)
		}
	})
}

// TestMetricsTwins: two Envoys of one node id are two; a name is free again
// when its stream ends.
func TestMetricsTwins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		var log lines
		m := NewMetrics(got.take, nil, log.log())
		m.Configure(streetPolicy(true, nil))
		c := serve(t, m)
		total := func(n float64) *metricspb.StreamMetricsMessage {
			return message("one", family("cluster.chat.upstream_cx_total", counter, n, 0))
		}
		first, second := open(t, c), open(t, c)
		send(t, first, total(1))
		send(t, second, total(2))
		if err := ends(t, first); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		third := open(t, c)
		send(t, third, total(3))
		var names []string
		for _, r := range got.all() {
			names = append(names, r.Node)
		}
		if s := strings.Join(names, " "); s != "one one#2 one" || !strings.Contains(log.String(), "two Envoys say the same node") {
			t.Errorf("%s; %s", s, log.String())
		}
	})
}

// TestMetricsGarbage: bytes that are no message end their stream at most.
func TestMetricsGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		m := NewMetrics(got.take, nil, slog.New(slog.DiscardHandler))
		m.Configure(streetPolicy(true, nil))
		c := serve(t, m)
		s := open(t, c)
		bad := message("one", family("cluster.chat.upstream_cx_total", counter, 5, 0))
		bad.ProtoReflect().SetUnknown([]byte{0x12, 0x03, 0xff, 0xff, 0xff}) // a family of no form
		send(t, s, bad)
		if rows := got.all(); len(rows) != 1 || rows[0].Connections != 5 || m.Stats().Garbage["form"] != 1 {
			t.Errorf("%+v %+v", rows, m.Stats())
		}
		if err := ends(t, s); err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// TestSenderClock: messages that wait are put where they were sent; a clock
// that is set, ours or the sender's, is found again.
func TestSenderClock(t *testing.T) {
	var c senderClock
	base := time.UnixMilli(1_800_000_000_000)
	for i, m := range []struct{ sent, received, want time.Duration }{
		{0, 250 * time.Millisecond, 250 * time.Millisecond},
		{time.Second, 1200 * time.Millisecond, 1200 * time.Millisecond},
		{2 * time.Second, 5200 * time.Millisecond, 2200 * time.Millisecond}, // three came at once
		{3 * time.Second, 5200 * time.Millisecond, 3200 * time.Millisecond},
		{4 * time.Second, 5200 * time.Millisecond, 4200 * time.Millisecond},
		{time.Hour, 6200 * time.Millisecond, 6200 * time.Millisecond}, // the sender's was set
		{time.Hour + time.Second, 7200 * time.Millisecond, 7200 * time.Millisecond},
		{time.Minute, 8200 * time.Millisecond, 8200 * time.Millisecond},
	} {
		got := c.at(base.Add(m.received), base.Add(m.sent).UnixMilli())
		if off := got.Sub(base.Add(m.want)).Abs(); off > 10*time.Millisecond {
			t.Errorf("%d: %v, want %v", i, got.Sub(base), m.want)
		}
	}
	if got := c.at(base, 0); !got.Equal(base) {
		t.Errorf("without a stamp: %v", got)
	}
}
