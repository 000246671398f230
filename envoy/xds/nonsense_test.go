package xds

import (
	"context"
	"errors"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/envoytest"
)

// methods are what an Envoy may call.
var methods = []string{
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
	"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
	"/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints",
	"/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints",
	"/envoy.service.runtime.v3.RuntimeDiscoveryService/StreamRuntime",
	"/envoy.service.runtime.v3.RuntimeDiscoveryService/DeltaRuntime",
}

// FuzzRequests: any two messages on any stream, to the real server: it goes on
// serving, and keeps nothing of the stream.
func FuzzRequests(f *testing.F) {
	encode := func(m proto.Message) []byte {
		out, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return out
	}
	full := encode(&discoveryv3.DiscoveryRequest{Node: edge("e", 40), TypeUrl: eds, ResourceNames: []string{"chat", "chat", ""}, VersionInfo: "x", ResponseNonce: "1"})
	delta := encode(&discoveryv3.DeltaDiscoveryRequest{Node: edge("e", 40), TypeUrl: eds, ResourceNamesSubscribe: []string{"*", ""}, ResourceNamesUnsubscribe: []string{"*"}, InitialResourceVersions: map[string]string{"": "1"}})
	for i := range methods {
		f.Add(byte(i), full, full)
		f.Add(byte(i), delta, delta)
		f.Add(byte(i), full[:20], []byte(nil))
		f.Add(byte(i), []byte{0xff}, full)
	}
	s := New(t0, Options{})
	conn := serveTest(f, s)
	put(f, s, one(1, "10.0.0.1:80"))
	f.Fuzz(func(t *testing.T, method byte, first, second []byte) {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, methods[int(method)%len(methods)], grpc.ForceCodec(envoytest.Raw{}))
		if err == nil {
			err = errors.Join(stream.SendMsg(&first), stream.SendMsg(&second), stream.CloseSend())
		}
		for err == nil {
			var answer []byte
			err = stream.RecvMsg(&answer)
		}
		stop()
		envoytest.Eventually(t, 5*time.Second, "nothing is left of it", func() bool { return heldBy(s) == 0 })
	})
}
