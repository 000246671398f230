package xds

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirproxy/weir/policy"
)

const (
	rtds = resourcev3.RuntimeType
	eds  = resourcev3.EndpointType
	cds  = resourcev3.ClusterType
)

// serveTest serves s on memory and returns a connection to it.
func serveTest(t testing.TB, s *Server) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	s.Register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///xds", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); s.Close(); g.Stop(); <-done })
	return conn
}

func edge(id string, minor uint32) *corev3.Node {
	return &corev3.Node{
		Id: id, Cluster: "edge", UserAgentName: "envoy", Extensions: []*corev3.Extension{{Name: "x"}},
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor, Patch: 4},
		}},
	}
}

// answered is one response of either protocol.
type answered struct {
	typeURL, nonce, version string
	got                     map[string]*anypb.Any
	versions                map[string]string
	removed                 []string
	size                    int // number of resources, which is all that a blind client knows
}

func (a *answered) names() []string {
	var out []string
	for name := range a.got {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// client is a simulated Envoy on one stream.
type client struct {
	t      testing.TB
	in     chan *answered
	fail   chan error
	send   func(typeURL string, subscribe []string, nonce, version string, refused string, known map[string]string) error
	cancel context.CancelFunc
	node   *corev3.Node
}

// first is the node, told with the first request alone.
func (c *client) first() *corev3.Node {
	n := c.node
	c.node = nil
	return n
}

type deltaStream interface {
	Send(*discoveryv3.DeltaDiscoveryRequest) error
	Recv() (*discoveryv3.DeltaDiscoveryResponse, error)
}

type sotwStream interface {
	Send(*discoveryv3.DiscoveryRequest) error
	Recv() (*discoveryv3.DiscoveryResponse, error)
}

func newClient(t testing.TB, node *corev3.Node, cancel context.CancelFunc, recv func() (*answered, error)) *client {
	c := &client{t: t, in: make(chan *answered, 100), fail: make(chan error, 1), cancel: cancel, node: node}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			a, err := recv()
			if err != nil {
				c.fail <- err
				return
			}
			c.in <- a
		}
	}()
	t.Cleanup(func() {
		cancel()
		for {
			select {
			case <-c.in:
			case <-done:
				return
			}
		}
	})
	return c
}

func overDelta(t testing.TB, node *corev3.Node, cancel context.CancelFunc, s deltaStream, blind bool) *client {
	c := newClient(t, node, cancel, func() (*answered, error) {
		r, err := s.Recv()
		if err != nil {
			return nil, err
		}
		a := &answered{typeURL: r.GetTypeUrl(), nonce: r.GetNonce(), version: r.GetSystemVersionInfo(), removed: r.GetRemovedResources(), got: map[string]*anypb.Any{}, versions: map[string]string{}}
		a.size = len(r.GetResources())
		for _, x := range r.GetResources() {
			if blind {
				break
			}
			a.got[x.GetName()], a.versions[x.GetName()] = x.GetResource(), x.GetVersion()
		}
		return a, nil
	})
	c.send = func(typeURL string, subscribe []string, nonce, _, refused string, known map[string]string) error {
		req := &discoveryv3.DeltaDiscoveryRequest{Node: c.first(), TypeUrl: typeURL, ResourceNamesSubscribe: subscribe, ResponseNonce: nonce, InitialResourceVersions: known}
		if refused != "" {
			req.ErrorDetail = &status.Status{Code: 13, Message: refused}
		}
		return s.Send(req)
	}
	return c
}

// overSotW is a client of the state of the world. An answer has no names: they
// are read from the resources.
func overSotW(t testing.TB, node *corev3.Node, cancel context.CancelFunc, s sotwStream, blind bool) *client {
	c := newClient(t, node, cancel, func() (*answered, error) {
		r, err := s.Recv()
		if err != nil {
			return nil, err
		}
		a := &answered{typeURL: r.GetTypeUrl(), nonce: r.GetNonce(), version: r.GetVersionInfo(), got: map[string]*anypb.Any{}}
		a.size = len(r.GetResources())
		for _, x := range r.GetResources() {
			if blind {
				break
			}
			m, err := x.UnmarshalNew()
			if err != nil {
				return nil, err
			}
			a.got[cachev3.GetResourceName(m)] = x
		}
		return a, nil
	})
	c.send = func(typeURL string, subscribe []string, nonce, version, refused string, _ map[string]string) error {
		req := &discoveryv3.DiscoveryRequest{Node: c.first(), TypeUrl: typeURL, ResourceNames: subscribe, ResponseNonce: nonce, VersionInfo: version}
		if refused != "" {
			req.ErrorDetail = &status.Status{Code: 13, Message: refused}
		}
		return s.Send(req)
	}
	return c
}

func deltaADS(t testing.TB, conn *grpc.ClientConn, node *corev3.Node) *client {
	t.Helper()
	return overDeltaADS(t, conn, node, false)
}

func overDeltaADS(t testing.TB, conn *grpc.ClientConn, node *corev3.Node, blind bool) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return overDelta(t, node, cancel, s, blind)
}

func sotwADS(t testing.TB, conn *grpc.ClientConn, node *corev3.Node) *client {
	t.Helper()
	return overSotWADS(t, conn, node, false)
}

func overSotWADS(t testing.TB, conn *grpc.ClientConn, node *corev3.Node, blind bool) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return overSotW(t, node, cancel, s, blind)
}

// separate opens a stream of one type.
func separate(t testing.TB, conn *grpc.ClientConn, node *corev3.Node, typeURL string, delta bool) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var d deltaStream
	var s sotwStream
	var err error
	switch {
	case typeURL == rtds && delta:
		d, err = runtimeservice.NewRuntimeDiscoveryServiceClient(conn).DeltaRuntime(ctx)
	case typeURL == rtds:
		s, err = runtimeservice.NewRuntimeDiscoveryServiceClient(conn).StreamRuntime(ctx)
	case delta:
		d, err = endpointservice.NewEndpointDiscoveryServiceClient(conn).DeltaEndpoints(ctx)
	default:
		s, err = endpointservice.NewEndpointDiscoveryServiceClient(conn).StreamEndpoints(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if delta {
		return overDelta(t, node, cancel, d, false)
	}
	return overSotW(t, node, cancel, s, false)
}

func (c *client) ask(typeURL string, names ...string) { c.say(typeURL, names, "", "", "", nil) }

func (c *client) say(typeURL string, names []string, nonce, version, refused string, known map[string]string) {
	c.t.Helper()
	if err := c.send(typeURL, names, nonce, version, refused, known); err != nil {
		c.t.Fatal(err)
	}
}

// next is the next answer within 5 s.
func (c *client) next() *answered {
	c.t.Helper()
	select {
	case a := <-c.in:
		return a
	case err := <-c.fail:
		c.t.Fatalf("the stream ended: %v", err)
	case <-time.After(5 * time.Second):
		c.t.Fatal("no answer within 5 s")
	}
	return nil
}

// quiet asserts that nothing comes.
func (c *client) quiet(what string) {
	c.t.Helper()
	select {
	case a := <-c.in:
		c.t.Fatalf("%s: %s answered %v, removed %v", what, short(a.typeURL), a.names(), a.removed)
	case err := <-c.fail:
		c.t.Fatalf("%s: the stream ended: %v", what, err)
	case <-time.After(100 * time.Millisecond):
	}
}

// ack acknowledges; a delta client names nothing.
func (c *client) ack(a *answered, names ...string) {
	c.say(a.typeURL, names, a.nonce, a.version, "", nil)
}

func runtimeOf(t testing.TB, a *answered) map[string]float64 {
	t.Helper()
	var r runtimeservice.Runtime
	unmarshal(t, a, "weir", &r)
	out := map[string]float64{}
	for k, v := range r.GetLayer().GetFields() {
		out[k] = v.GetNumberValue()
	}
	return out
}

func claOf(t testing.TB, a *answered, name string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	var m endpointv3.ClusterLoadAssignment
	unmarshal(t, a, name, &m)
	return &m
}

func unmarshal(t testing.TB, a *answered, name string, into proto.Message) {
	t.Helper()
	x := a.got[name]
	if x == nil {
		t.Fatalf("%s has %v, not %s", short(a.typeURL), a.names(), name)
	}
	if err := x.UnmarshalTo(into); err != nil {
		t.Fatal(err)
	}
}

// plainCluster is a cluster whose endpoints come over ADS.
func plainCluster(c *policy.Cluster) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: c.Name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		AltStatName: time.Duration(c.MaxRequests).String(), // what a test changes
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
	}
}

type corev3Node = corev3.Node

func contextOf(t testing.TB) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(context.Background())
}
