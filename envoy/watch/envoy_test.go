package watch

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// host is a gRPC server on a port of its own.
type host struct {
	t    testing.TB
	addr string
	opts []grpc.ServerOption
	srv  *grpc.Server
}

func newHost(t testing.TB, opts ...grpc.ServerOption) *host {
	h := &host{t: t, addr: "127.0.0.1:0", opts: opts}
	h.start()
	t.Cleanup(func() { h.srv.Stop() })
	return h
}

func (h *host) start() {
	h.t.Helper()
	var listen net.Listener
	envoytest.Eventually(h.t, 2*time.Second, "port "+h.addr, func() bool {
		var err error
		listen, err = net.Listen("tcp", h.addr)
		return err == nil
	})
	h.addr = listen.Addr().String()
	h.srv = grpc.NewServer(h.opts...)
	healthpb.RegisterHealthServer(h.srv, health.NewServer())
	srv := h.srv
	go func() { _ = srv.Serve(listen) }()
}

// place is a test's Envoys with a Watch for each source.
type place struct {
	t          testing.TB
	dir        string
	metrics    *Watch // served by MetricsService alone
	admin      *Watch // polls alone
	envoys     []*envoytest.Envoy
	nodes      []string
	clients    []healthpb.HealthClient
	failed, ok atomic.Int64
}

func newPlace(t testing.TB) *place {
	p := &place{t: t, dir: envoytest.Dir(t)}
	p.metrics = New(streetPolicy(true, nil), Options{})
	t.Cleanup(p.metrics.Close)
	listen, err := net.Listen("unix", filepath.Join(p.dir, "weir.sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	p.metrics.Metrics().Register(srv)
	go func() { _ = srv.Serve(listen) }()
	t.Cleanup(srv.Stop)
	return p
}

// streetPolicy watches the cluster "chat".
func streetPolicy(metrics bool, admin []policy.EnvoyAdmin) *policy.Policy {
	p := &policy.Policy{Envoy: policy.Default().Envoy}
	p.Envoy.Clusters = []policy.Cluster{{Name: "chat"}}
	p.Envoy.Watch.Metrics, p.Envoy.Watch.Admin, p.Envoy.Watch.Every = metrics, admin, 100*time.Millisecond
	return p
}

// start runs an Envoy in front of the hosts, and a client of it.
func (p *place) start(b envoytest.Binary, node string, tags bool, http2 envoytest.Tree, hosts ...*host) {
	p.t.Helper()
	dir := filepath.Join(p.dir, node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	e := envoytest.Start(p.t, b, dir, bootstrap(b, p.dir, node, tags, http2, hosts))
	p.envoys, p.nodes = append(p.envoys, e), append(p.nodes, node)
	conn, err := grpc.NewClient(e.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	p.clients = append(p.clients, healthpb.NewHealthClient(conn))
}

// poll starts the Watch that polls, when all Envoys run.
func (p *place) poll() {
	var admin []policy.EnvoyAdmin
	for _, node := range p.nodes {
		admin = append(admin, policy.EnvoyAdmin{Node: node, URL: "unix:" + filepath.Join(p.dir, node, "envoy.sock")})
	}
	p.admin = New(streetPolicy(false, admin), Options{})
	p.t.Cleanup(p.admin.Close)
}

// load makes calls through every Envoy until stop is called.
func (p *place) load(workers int, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for _, c := range p.clients {
		for range workers {
			work.Go(func() {
				ticker := time.NewTicker(every)
				defer ticker.Stop()
				for ctx.Err() == nil {
					if _, err := c.Check(ctx, &healthpb.HealthCheckRequest{}); err == nil {
						p.ok.Add(1)
					} else if ctx.Err() == nil {
						p.failed.Add(1)
					}
					<-ticker.C
				}
			})
		}
	}
	var once sync.Once
	end := func() { once.Do(func() { cancel(); work.Wait() }) }
	p.t.Cleanup(end)
	return end
}

// both waits until both sources say the same.
func (p *place) both(limit time.Duration, what string, ok func(r Reading) bool) {
	p.t.Helper()
	for name, w := range map[string]*Watch{"metrics": p.metrics, "admin": p.admin} {
		var last Reading
		done := false
		p.t.Cleanup(func() {
			if !done {
				p.t.Logf("%s, last: %+v\n%+v", name, last, w.Stats())
			}
		})
		envoytest.Eventually(p.t, limit, what+" by "+name, func() bool {
			last, _ = w.Readings().Of("chat")
			return ok(last)
		})
		done = true
	}
}

func bootstrap(b envoytest.Binary, dir, node string, tags bool, http2 envoytest.Tree, hosts []*host) envoytest.Tree {
	type tree = envoytest.Tree
	type list = []any
	tcp := func(addr string) tree {
		h, port, _ := net.SplitHostPort(addr)
		var n int
		_, _ = fmt.Sscan(port, &n)
		return tree{"socket_address": tree{"address": h, "port_value": n}}
	}
	options := func(h2 tree) tree {
		return tree{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": tree{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": tree{"http2_protocol_options": h2},
		}}
	}
	var endpoints list
	for _, h := range hosts {
		endpoints = append(endpoints, tree{"endpoint": tree{"address": tcp(h.addr)}})
	}
	sink := tree{
		"@type": "type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig", "transport_api_version": "V3",
		"emit_tags_as_labels": tags, "grpc_service": tree{"envoy_grpc": tree{"cluster_name": "weir"}},
	}
	if b.Minor() >= 37 && b.Minor() < 99 {
		sink["batch_size"] = 10 // each flush in many parts
	}
	return tree{
		"node":                 tree{"id": node, "cluster": "street"},
		"admin":                tree{"address": tree{"pipe": tree{"path": filepath.Join(dir, node, "envoy.sock")}}},
		"stats_flush_interval": "0.25s",
		"stats_sinks":          list{tree{"name": "envoy.stat_sinks.metrics_service", "typed_config": sink}},
		"static_resources": tree{
			"listeners": list{tree{"name": "l", "address": tcp("127.0.0.1:0"), "filter_chains": list{tree{"filters": list{tree{
				"name": "hcm", "typed_config": tree{
					"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
					"stat_prefix": "s",
					"route_config": tree{"virtual_hosts": list{tree{"name": "v", "domains": list{"*"}, "routes": list{tree{
						"match": tree{"prefix": "/"},
						"route": tree{"cluster": "chat", "timeout": "0s", "retry_policy": tree{"retry_on": "connect-failure,refused-stream", "num_retries": 3}},
					}}}}},
					"http_filters": list{tree{"name": "envoy.filters.http.router", "typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
				},
			}}}}}},
			"clusters": list{
				tree{
					"name": "chat", "type": "STATIC", "connect_timeout": "1s", "typed_extension_protocol_options": options(http2),
					"load_assignment": tree{"cluster_name": "chat", "endpoints": list{tree{"lb_endpoints": endpoints}}},
				},
				tree{
					"name": "weir", "type": "STATIC", "connect_timeout": "1s", "typed_extension_protocol_options": options(tree{}),
					"load_assignment": tree{"cluster_name": "weir", "endpoints": list{tree{"lb_endpoints": list{tree{"endpoint": tree{"address": tree{"pipe": tree{"path": filepath.Join(dir, "weir.sock")}}}}}}}},
				},
			},
		},
	}
}

// TestGracefulStop (B7): one of three hosts stops gracefully under load and
// comes back. Both sources count one GOAWAY for each connection to it, of two
// Envoys together, and there is no storm.
func TestGracefulStop(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		hosts := []*host{newHost(t), newHost(t), newHost(t)}
		p := newPlace(t)
		p.start(b, "one", true, envoytest.Tree{}, hosts...)
		p.start(b, "two", false, envoytest.Tree{}, hosts...)
		p.poll()
		stop := p.load(8, 10*time.Millisecond)
		told := func() (n int64) {
			for _, e := range p.envoys {
				n += e.Stats(t, `cluster\.chat\.upstream_cx_close_notify$`)["cluster.chat.upstream_cx_close_notify"]
			}
			return n
		}
		active := func() (n int64) {
			for _, e := range p.envoys {
				n += e.Stats(t, `cluster\.chat\.upstream_cx_active$`)["cluster.chat.upstream_cx_active"]
			}
			return n
		}
		p.both(15*time.Second, "two Envoys with a connection to each host", func(r Reading) bool {
			return r.Envoys == 2 && r.Connections >= 6 && r.Connections == active() && r.Members == 3 && r.RequestsPerSecond > 100
		})
		hosts[1].srv.GracefulStop()
		hosts[1].start()
		want := told()
		if want < 2 || want > 4 {
			t.Fatalf("Envoys count %d GOAWAYs of one host, want one for each connection", want)
		}
		p.both(3*time.Second, fmt.Sprintf("%d GOAWAYs", want), func(r Reading) bool { return r.GoAways == want })
		stop()
		p.both(3*time.Second, "the connections that there are", func(r Reading) bool { return r.Connections == active() && r.ActiveRequests == 0 })
		p.clean(b)
		for _, w := range []*Watch{p.metrics, p.admin} {
			if events, _ := w.Journal().Since(0); len(events) > 0 {
				t.Errorf("one host's restart: %+v", events)
			}
		}
		t.Logf("%d GOAWAYs, %d calls went well, %d failed", want, p.ok.Load(), p.failed.Load())
	})
}

// clean finds no garbage, and the Envoys by their nodes.
func (p *place) clean(b envoytest.Binary) {
	p.t.Helper()
	for _, w := range []*Watch{p.metrics, p.admin} {
		s := w.Stats()
		if len(s.Envoys) != len(p.envoys) {
			p.t.Errorf("Envoys: %+v", s.Envoys)
		}
		for _, e := range s.Envoys {
			if e.Silent || e.Restarts > 0 || len(e.Missing) > 0 || e.Clusters != 1 {
				p.t.Errorf("%s: %+v", b.Version, e)
			}
		}
		for _, source := range s.Sources {
			if len(source.Garbage) > 0 {
				p.t.Errorf("%s: garbage %v", source.Name, source.Garbage)
			}
			for _, target := range source.Targets {
				if len(target.Missed) > 1 || target.Looks == 0 {
					p.t.Errorf("%+v", target)
				}
			}
		}
	}
}

// TestHardStop: hosts that die send no GOAWAY; connects fail, and are not
// taken for connections that were.
func TestHardStop(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		hosts := []*host{newHost(t), newHost(t)}
		p := newPlace(t)
		p.start(b, "one", b.Minor() >= 40, envoytest.Tree{}, hosts...)
		p.poll()
		p.load(4, 10*time.Millisecond)
		p.both(15*time.Second, "connections to both hosts", func(r Reading) bool { return r.Connections >= 2 && r.RequestsPerSecond > 50 })
		for _, h := range hosts {
			h.srv.Stop()
		}
		p.both(4*time.Second, "connects that fail and 503s", func(r Reading) bool {
			return r.Connections == 0 && r.FailuresPerSecond > 5 && r.ErrorsPerSecond > 5 && r.GoAways == 0 && !r.Storm
		})
		for _, h := range hosts {
			h.start()
		}
		p.both(4*time.Second, "connections again", func(r Reading) bool { return r.Connections >= 2 && r.Share == 1 })
		p.clean(b)
	})
}

// TestMaxConnectionAge (B7): servers that end each connection after a moment,
// without a call that fails, are no storm for either source, though most
// connections are told again and again.
func TestMaxConnectionAge(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		ages := grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 300 * time.Millisecond, MaxConnectionAgeGrace: time.Second})
		hosts := []*host{newHost(t, ages), newHost(t, ages), newHost(t, ages)}
		p := newPlace(t)
		p.start(b, "one", true, envoytest.Tree{}, hosts...)
		p.poll()
		stop := p.load(4, 10*time.Millisecond)
		p.both(6*time.Second, "many GOAWAYs", func(r Reading) bool { return !r.Calm && r.GoAwayShare >= 0.5 && r.GoAwaysPerSecond > 5 })
		envoytest.Holds(t, 3*time.Second, "no storm", func() bool {
			m, _ := p.metrics.Readings().Of("chat")
			a, _ := p.admin.Readings().Of("chat")
			return !m.Storm && !a.Storm
		})
		stop() // nobody makes connections, so none is told
		p.both(8*time.Second, "the end of them", func(r Reading) bool { return r.GoAwaysPerSecond <= 5 && !r.Protect })
		for _, w := range []*Watch{p.metrics, p.admin} {
			if events, _ := w.Journal().Since(0); len(events) > 0 {
				t.Errorf("%+v", events)
			}
		}
		// grpc/grpc-go#2767: calls that are shorter than the grace.
		if n := p.failed.Load(); n > 0 {
			t.Errorf("%d of %d calls failed", n, n+p.ok.Load())
		}
	})
}

// TestTooManyPings: Envoy's own pings against grpc-go's default policy. What
// it does to idle connections and to silent streams is recognised.
func TestTooManyPings(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		t.Parallel()
		h := newHost(t)
		p := newPlace(t)
		p.start(b, "one", true, envoytest.Tree{"connection_keepalive": envoytest.Tree{"interval": "0.1s", "timeout": "1s"}}, h)
		p.poll()
		p.load(2, 700*time.Millisecond)
		p.both(9*time.Second, "connections thrown out for pings", func(r Reading) bool { return r.Calm && !r.Storm })
		r, _ := p.admin.Readings().Of("chat")
		t.Log(r.Because)
	})
}
