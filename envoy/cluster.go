package envoy

import (
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/policy"
)

// ClusterOptions are what the section of a cluster depends on beside the
// policy. The zero value is safe with every server and release.
type ClusterOptions struct {
	// PeakQPS and Mean give the size of the connection pool (B11); 0 = not
	// known, the policy's maxConnections is then the bound.
	PeakQPS float64
	Mean    time.Duration

	// Permits is how often the servers permit keepalive pings, also on
	// connections without streams. 0 = not known: as a grpc-go server that
	// says nothing, 5 minutes and not without streams.
	Permits time.Duration

	// Health is the path of HTTP health checks; "" = /health, "-" = no health
	// checks. gRPC clusters ask grpc.health.v1.
	Health string

	// Hosts are ip:port or name:port, of clusters whose endpoints weir does
	// not serve. Where pools share the cluster by subsets, each host is given
	// one of them as envoy.lb metadata, in turn.
	Hosts []string

	// Release is the minor number of Envoy 1.x, 36 to 40; 0 = any of them.
	Release int
}

// The numbers of B11 and around.
const (
	weirCluster      = "weir"            // the cluster of weir itself
	streams          = 100               // on one HTTP/2 connection: what one GOAWAY concerns
	checkTimeout     = time.Second / 2   // B11: a health check that takes longer failed
	pingEvery        = 30 * time.Second  // B11, where the server permits it
	safePing         = 300 * time.Second // grpc-go: EnforcementPolicy.MinTime of a server that sets none
	resets           = 3                 // B11: then its connections are rebuilt
	preconnect       = 1.5
	httpsExtension   = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	lbMetadata       = "envoy.lb"
	lastMergeRelease = 39 // up to it Envoy holds health changes back for update_merge_window
)

// Pool is B11's arithmetic: peak QPS x mean seconds x 2, at least 1. 0 = not
// known.
func (o ClusterOptions) Pool() int64 {
	n := math.Ceil(o.PeakQPS*o.Mean.Seconds()*2 - 1e-9)
	if !(n > 0) {
		return 0
	}
	return int64(min(n, math.MaxUint32))
}

// Cluster is the section of one cluster as policy and B11 want it: for CDS,
// and for the guide. Where the policy has weir serve its endpoints it is of
// type EDS; otherwise it has the hosts of o, perhaps none.
func Cluster(c policy.Cluster, o ClusterOptions) *clusterv3.Cluster {
	out := &clusterv3.Cluster{
		Name:             c.Name,
		ConnectTimeout:   durationpb.New(5 * time.Second),
		LbPolicy:         clusterv3.Cluster_LEAST_REQUEST,
		CircuitBreakers:  &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{thresholds(c, o)}},
		OutlierDetection: outliers(),
		PreconnectPolicy: &clusterv3.Cluster_PreconnectPolicy{PerUpstreamPreconnectRatio: wrapperspb.Double(preconnect)},
		HealthChecks:     healthChecks(c.Protocol, o.Health),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{
			httpsExtension: packed(protocolOptions(c.Protocol, o.Permits)),
		},
	}
	out.LbSubsetConfig = subsets(c.Subsets)
	if c.Endpoints == nil {
		withHosts(out, c.Subsets, o)
		return out
	}
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	out.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: configSource()}
	// Who removes an endpoint means it, also if it still answers health checks.
	out.IgnoreHealthOnHostRemoval = true
	out.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 0}}
	if o.Release <= lastMergeRelease {
		out.CommonLbConfig.UpdateMergeWindow = durationpb.New(0)
	}
	return out
}

// thresholds are the numbers that protection starts from.
func thresholds(c policy.Cluster, o ClusterOptions) *clusterv3.CircuitBreakers_Thresholds {
	connections := c.MaxConnections
	if n := o.Pool(); n > 0 && c.Protocol == policy.HTTP {
		connections = n
	} else if n > 0 {
		connections = max(connections, connectionsFor(n))
	}
	t := &clusterv3.CircuitBreakers_Thresholds{
		Priority:           corev3.RoutingPriority_DEFAULT,
		MaxConnections:     number(connections),
		MaxPendingRequests: number(c.MaxPending),
		MaxRequests:        number(c.MaxRequests),
		TrackRemaining:     true,
	}
	if c.Budget == 0 {
		t.MaxRetries = number(c.MaxRetries)
		return t
	}
	t.RetryBudget = &clusterv3.CircuitBreakers_Thresholds_RetryBudget{
		BudgetPercent:       &typev3.Percent{Value: 100 * float64(c.Budget)},
		MinRetryConcurrency: number(c.MinRetries),
	}
	return t
}

// connectionsFor so many streams of HTTP/2.
func connectionsFor(n int64) int64 { return (n + streams - 1) / streams }

// outliers: three failed answers or resets in a row, and the host is left
// alone for a while; its connections are closed when they are idle. Local and
// external errors are counted together: apart, a connection that comes about
// would end the count of local errors, and a host that accepts and then resets
// would never reach three.
func outliers() *clusterv3.OutlierDetection {
	return &clusterv3.OutlierDetection{
		Interval:                           durationpb.New(time.Second),
		BaseEjectionTime:                   durationpb.New(15 * time.Second),
		MaxEjectionPercent:                 number(50),
		ConsecutiveGatewayFailure:          number(resets),
		EnforcingConsecutiveGatewayFailure: number(100),
	}
}

func healthChecks(protocol policy.Protocol, path string) []*corev3.HealthCheck {
	if path == "-" {
		return nil
	}
	if path == "" {
		path = "/health"
	}
	check := &corev3.HealthCheck{
		Timeout:            durationpb.New(checkTimeout),
		Interval:           durationpb.New(time.Second),
		NoTrafficInterval:  durationpb.New(5 * time.Second),
		UnhealthyThreshold: number(2),
		HealthyThreshold:   number(2),
	}
	check.HealthChecker = &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{Path: path}}
	if protocol == policy.GRPCProtocol {
		check.HealthChecker = &corev3.HealthCheck_GrpcHealthCheck_{GrpcHealthCheck: &corev3.HealthCheck_GrpcHealthCheck{}}
	}
	return []*corev3.HealthCheck{check}
}

// protocolOptions: HTTP/2 with pings for gRPC, HTTP/1.1 else.
func protocolOptions(protocol policy.Protocol, permits time.Duration) *upstreamsv3.HttpProtocolOptions {
	explicit := &upstreamsv3.HttpProtocolOptions_ExplicitHttpConfig{}
	out := &upstreamsv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamsv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit},
	}
	if protocol != policy.GRPCProtocol {
		explicit.ProtocolConfig = &upstreamsv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}
		out.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(4 * time.Second)}
		return out
	}
	interval := max(permits, pingEvery)
	if permits == 0 {
		// A third ping on an idle connection would be the one too many.
		interval = safePing
		out.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(2 * safePing)}
	}
	explicit.ProtocolConfig = &upstreamsv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
			MaxConcurrentStreams: number(streams),
			ConnectionKeepalive:  &corev3.KeepaliveSettings{Interval: durationpb.New(interval), Timeout: durationpb.New(10 * time.Second)},
		},
	}
	return out
}

// withHosts makes a cluster whose endpoints are in Envoy's file.
func withHosts(out *clusterv3.Cluster, parts []map[string]string, o ClusterOptions) {
	kind := clusterv3.Cluster_STATIC
	group := &endpointv3.LocalityLbEndpoints{}
	for i, h := range o.Hosts {
		host, port, err := net.SplitHostPort(h)
		if err != nil {
			continue // whoever takes addresses from people has checked them
		}
		if _, err := netip.ParseAddr(host); err != nil {
			kind = clusterv3.Cluster_STRICT_DNS
		}
		n, _ := strconv.ParseUint(port, 10, 16)
		e := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{
			Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)}}},
		}}}}
		if len(parts) > 0 {
			e.Metadata = metadata(parts[i%len(parts)])
		}
		group.LbEndpoints = append(group.LbEndpoints, e)
	}
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: kind}
	out.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: out.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{group}}
}

// subsets let weir choose a part of a cluster by metadata, and nothing else if
// it is empty.
func subsets(all []map[string]string) *clusterv3.Cluster_LbSubsetConfig {
	if len(all) == 0 {
		return nil
	}
	config := &clusterv3.Cluster_LbSubsetConfig{FallbackPolicy: clusterv3.Cluster_LbSubsetConfig_NO_FALLBACK}
	for _, subset := range all {
		keys := sortedKeys(subset)
		if !slices.ContainsFunc(config.SubsetSelectors, func(s *clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector) bool {
			return slices.Equal(s.GetKeys(), keys)
		}) {
			config.SubsetSelectors = append(config.SubsetSelectors, &clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector{Keys: keys})
		}
	}
	return config
}

func metadata(subset map[string]string) *corev3.Metadata {
	fields := make(map[string]*structpb.Value, len(subset))
	for k, v := range subset {
		fields[k] = structpb.NewStringValue(v)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{lbMetadata: {Fields: fields}}}
}

// configSource is where Envoy asks weir: its own delta stream, found again
// soon after weir was away (by Envoy's default it may take 30 s).
func configSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: durationpb.New(time.Second),
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices:        []*corev3.GrpcService{grpcService()},
		}},
	}
}

// grpcService is weir as the server of a stream that must not stay away.
func grpcService() *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
		ClusterName: weirCluster,
		RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
			BaseInterval: durationpb.New(200 * time.Millisecond), MaxInterval: durationpb.New(time.Second),
		}},
	}}}
}

// number is n as Envoy takes it.
func number(n int64) *wrapperspb.UInt32Value {
	return wrapperspb.UInt32(uint32(min(max(n, 0), math.MaxUint32)))
}

// packed messages are ours, which always marshal.
func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		return nil
	}
	return a
}
