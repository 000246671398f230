package envoy_test

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// accepting listens until the test ends, serves each connection and gives its
// address.
func accepting(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}

// resetting listens and ends whatever comes without an answer: HTTP/1.1 by a
// reset of the connection, HTTP/2 by one of the stream.
func resetting(t *testing.T, h2 bool, hits *atomic.Int64) string {
	return accepting(t, func(c net.Conn) {
		defer c.Close()
		if h2 {
			resetStreams(c, hits)
			return
		}
		if _, err := c.Read(make([]byte, 4096)); err == nil {
			hits.Add(1)
		}
		_ = c.(*net.TCPConn).SetLinger(0)
	})
}

func resetStreams(c net.Conn, hits *atomic.Int64) {
	if _, err := c.Read(make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			hits.Add(1)
			_ = f.WriteRSTStream(frame.StreamID, http2.ErrCodeInternal)
		}
	}
}

// through starts an Envoy whose one listener leads to a cluster, by a route
// that says more where wanted.
func through(t *testing.T, b envoytest.Binary, c *clusterv3.Cluster, more ...envoytest.Tree) *envoytest.Envoy {
	t.Helper()
	raw, err := protojson.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var cluster any
	if err := json.Unmarshal(raw, &cluster); err != nil {
		t.Fatal(err)
	}
	dir := envoytest.Dir(t)
	type tree = envoytest.Tree
	route := tree{"cluster": c.GetName()}
	for _, m := range more {
		maps.Copy(route, m)
	}
	hcm := tree{
		"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "in",
		"route_config": tree{"virtual_hosts": []any{tree{"name": "all", "domains": []any{"*"}, "routes": []any{
			tree{"match": tree{"prefix": "/"}, "route": route},
		}}}},
		"http_filters": []any{tree{"name": "envoy.filters.http.router", "typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
	}
	return envoytest.Start(t, b, dir, tree{
		"admin": tree{"address": tree{"pipe": tree{"path": filepath.Join(dir, "envoy.sock")}}},
		"static_resources": tree{
			"listeners": []any{tree{
				"name": "in", "address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}},
				"filter_chains": []any{tree{"filters": []any{tree{"name": "envoy.filters.network.http_connection_manager", "typed_config": hcm}}}},
			}},
			"clusters": []any{cluster},
		},
	})
}

// TestAHostThatResets: of two hosts one ends each request by a reset. After
// three it is left alone (B11). With local and external errors split it never
// is, since a connection that comes about ends the count: which is why they
// are not. A cluster of one host keeps it.
func TestAHostThatResets(t *testing.T) {
	const active = "cluster.chat.outlier_detection.ejections_active"
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for _, c := range []struct {
			name             string
			h2, split, alone bool
			isolated         bool
		}{
			{name: "http", isolated: true},
			{name: "grpc", h2: true, isolated: true},
			{name: "http, split", split: true},
			{name: "grpc, split", h2: true, split: true},
			{name: "alone", alone: true},
		} {
			t.Run(c.name, func(t *testing.T) {
				protocol := policy.HTTP
				if c.h2 {
					protocol = policy.GRPCProtocol
				}
				var hits atomic.Int64
				hosts := []string{resetting(t, c.h2, &hits)}
				if !c.alone {
					hosts = append(hosts, well(t))
				}
				cluster := envoy.Cluster(policy.Cluster{Name: "chat", Protocol: protocol, MaxConnections: 100, MaxPending: 100, MaxRequests: 100},
					envoy.ClusterOptions{Hosts: hosts, Health: "-"})
				cluster.OutlierDetection.SplitExternalLocalOriginErrors = c.split
				e := through(t, b, cluster)
				ejected := func() bool { return e.Stats(t, "^"+active+"$")[active] == 1 }
				if !c.isolated {
					if failed := calls(t, e, 40, 40); failed < 7 || ejected() {
						t.Errorf("%d of 40 calls failed, left alone: %v; want more than 6, and nobody left alone", failed, ejected())
					}
					return
				}
				if failed := calls(t, e, 100, 3); failed != 3 {
					t.Fatalf("%d of 100 calls failed, want 3", failed)
				}
				envoytest.Eventually(t, 5*time.Second, "the host is left alone after three resets", ejected)
				if failed := calls(t, e, 40, 40); failed != 0 {
					t.Errorf("%d of 40 calls failed while it is left alone", failed)
				}
				if n := hits.Load(); n < 3 || n > 4 {
					t.Errorf("the host had %d calls, want 3 (or 4: one that was on its way)", n)
				}
			})
		}
	})
}

// calls makes n calls one by one, and no more once so many failed.
func calls(t *testing.T, e *envoytest.Envoy, n, enough int) (failed int) {
	t.Helper()
	for range n {
		res, err := http.Get("http://" + e.Addr + "/")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			failed++
		}
		if failed == enough {
			break
		}
	}
	return failed
}

// well is a host that answers everything with 200.
func well(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: &protocols, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}
