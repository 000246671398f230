package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/envoy/watch"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// TestStreetStreams: an Envoy gets its layer as soon as it is served; a weir
// that drains ends its streams, that of the metrics too, and holds up nobody.
func TestStreetStreams(t *testing.T) {
	r := newReplica(t, "a", readPolicy(t, streetPolicy+"envoy: {xds: {}}\n"), nil)
	defer r.end()
	l, err := net.Listen("unix", filepath.Join(envoytest.Dir(t), "g.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	defer server.Stop()
	r.register(server)
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()

	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "e", Cluster: "edge"}
	if err := ads.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resourcev3.RuntimeType, ResourceNamesSubscribe: []string{"weir"}}); err != nil {
		t.Fatal(err)
	}
	if got, err := ads.Recv(); err != nil || len(got.GetResources()) != 1 || got.GetResources()[0].GetName() != "weir" {
		t.Fatalf("the layer: %v, %v", got, err)
	}
	metrics, err := metricsv3.NewMetricsServiceClient(conn).StreamMetrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := metrics.Send(&metricsv3.StreamMetricsMessage{Identifier: &metricsv3.StreamMetricsMessage_Identifier{Node: node}}); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, 10*time.Second, "the message is read", func() bool { return r.watch.Stats().Sources[0].Messages == 1 })
	envoytest.Eventually(t, 10*time.Second, "the node is in the timeline", func() bool { return len(r.entries(entryNode)) == 1 })

	begun := time.Now()
	done := make(chan struct{})
	go func() { server.GracefulStop(); close(done) }()
	r.endStreams()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("streams of Envoys hold up the end")
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the end took %v", took)
	}
	if _, err := ads.Recv(); err == nil {
		t.Error("something was sent at the end: Envoy would take it")
	}
	if err := metrics.RecvMsg(new(metricsv3.StreamMetricsResponse)); status.Code(err) != codes.Unavailable {
		t.Errorf("the metrics stream ends with %v", err)
	}
}

// TestStreetAllows: whoever the control plane would not serve sends no metrics
// either; without groups everybody who reaches the socket does.
func TestStreetAllows(t *testing.T) {
	cert := &x509.Certificate{DNSNames: []string{"spiffe://mesh/envoy/1"}}
	tlsPeer := &peer.Peer{Addr: &net.TCPAddr{}, AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}},
	}}}
	unverified := &peer.Peer{Addr: &net.TCPAddr{}, AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}}
	socket := &peer.Peer{Addr: &net.UnixAddr{Net: "unix"}}
	p := readPolicy(t, streetPolicy)
	holder := func(p *policy.Policy) *street { return &street{o: streetOptions{Policy: policy.NewHolder(p).Current}} }
	q := *p
	q.Envoy.XDS = &policy.XDS{Nodes: []policy.XDSGroup{{Name: "edge", ID: "edge-*", Cluster: "front"}, {Name: "other", SANs: []string{"spiffe://mesh/envoy/*"}}}}
	open, closed := holder(p), holder(&q)
	for _, c := range []struct {
		s    *street
		node watch.Node
		from *peer.Peer
		ok   bool
	}{
		{open, watch.Node{ID: "any"}, socket, true},
		{closed, watch.Node{ID: "edge-1", Cluster: "front"}, socket, true},
		{closed, watch.Node{ID: "edge-1", Cluster: "back"}, socket, false},
		{closed, watch.Node{ID: "x"}, tlsPeer, true},
		{closed, watch.Node{ID: "x"}, unverified, false},
		{closed, watch.Node{ID: "x"}, nil, false},
	} {
		err := c.s.allow(c.node, c.from)
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "no group of envoy.xds.nodes admits node") {
			t.Errorf("%+v from %+v: %v, want admitted %v", c.node, c.from, err, c.ok)
		}
	}
}
