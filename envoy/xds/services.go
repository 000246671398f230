package xds

import (
	"context"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
)

// services are the gRPC methods. Fetching by single calls, which Envoy
// does over REST alone, is refused with the status UNIMPLEMENTED.
type services struct {
	runtimeservice.UnimplementedRuntimeDiscoveryServiceServer
	endpointservice.UnimplementedEndpointDiscoveryServiceServer
	clusterservice.UnimplementedClusterDiscoveryServiceServer

	sotw  sotw.Server
	delta delta.Server
}

func newServices(ctx context.Context, s *Server) *services {
	return &services{
		sotw:  sotw.NewServer(ctx, gate{s}, callbacks{s}, sotw.WithOrderedADS()),
		delta: delta.NewServer(ctx, gate{s}, callbacks{s}),
	}
}

// Register adds the services to a gRPC server: ADS, RTDS, EDS, and CDS where
// Options.Cluster is set. Call it before Serve.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, s.services)
	runtimeservice.RegisterRuntimeDiscoveryServiceServer(r, s.services)
	endpointservice.RegisterEndpointDiscoveryServiceServer(r, s.services)
	if s.o.Cluster != nil {
		clusterservice.RegisterClusterDiscoveryServiceServer(r, s.services)
	}
}

func (s *services) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.sotw.StreamHandler(g, resourcev3.AnyType)
}

func (s *services) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.delta.DeltaStreamHandler(g, resourcev3.AnyType)
}

func (s *services) StreamRuntime(g runtimeservice.RuntimeDiscoveryService_StreamRuntimeServer) error {
	return s.sotw.StreamHandler(g, resourcev3.RuntimeType)
}

func (s *services) DeltaRuntime(g runtimeservice.RuntimeDiscoveryService_DeltaRuntimeServer) error {
	return s.delta.DeltaStreamHandler(g, resourcev3.RuntimeType)
}

func (s *services) StreamEndpoints(g endpointservice.EndpointDiscoveryService_StreamEndpointsServer) error {
	return s.sotw.StreamHandler(g, resourcev3.EndpointType)
}

func (s *services) DeltaEndpoints(g endpointservice.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return s.delta.DeltaStreamHandler(g, resourcev3.EndpointType)
}

func (s *services) StreamClusters(g clusterservice.ClusterDiscoveryService_StreamClustersServer) error {
	return s.sotw.StreamHandler(g, resourcev3.ClusterType)
}

func (s *services) DeltaClusters(g clusterservice.ClusterDiscoveryService_DeltaClustersServer) error {
	return s.delta.DeltaStreamHandler(g, resourcev3.ClusterType)
}
