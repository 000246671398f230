package envoy_test

import (
	"net"
	"testing"
	"time"

	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// TestPingsAreNotTooMany: a grpc-go server that permits no pings without
// streams, with times a thousandth of what they are. The generated section
// pings an idle connection at most twice before it ends; with the same pings
// and no end the server throws Envoy out by a GOAWAY.
func TestPingsAreNotTooMany(t *testing.T) {
	const goaways, open = "cluster.infer.upstream_cx_close_notify", "cluster.infer.upstream_cx_active"
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for name, ends := range map[string]bool{"as generated": true, "without an end": false} {
			t.Run(name, func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				s := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 300 * time.Millisecond}))
				go func() { _ = s.Serve(l) }()
				t.Cleanup(s.Stop)
				c := envoy.Cluster(policy.Cluster{Name: "infer", Protocol: policy.GRPCProtocol, MaxConnections: 100, MaxPending: 100, MaxRequests: 100},
					envoy.ClusterOptions{Hosts: []string{l.Addr().String()}, Health: "-"})
				o := new(upstreamsv3.HttpProtocolOptions)
				for key, packed := range c.GetTypedExtensionProtocolOptions() {
					if err := packed.UnmarshalTo(o); err != nil {
						t.Fatal(err)
					}
					ping := o.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive()
					ping.Interval = durationpb.New(ping.GetInterval().AsDuration() / 1000)
					o.CommonHttpProtocolOptions.IdleTimeout = durationpb.New(o.GetCommonHttpProtocolOptions().GetIdleTimeout().AsDuration() / 1000)
					if !ends {
						o.CommonHttpProtocolOptions = nil
					}
					scaled, err := anypb.New(o)
					if err != nil {
						t.Fatal(err)
					}
					c.TypedExtensionProtocolOptions[key] = scaled
				}
				e := through(t, b, c)
				calls(t, e, 1, 2) // a stream that ends at once; the connection stays
				if !ends {
					envoytest.Eventually(t, 10*time.Second, "the server throws Envoy out", func() bool { return e.Stats(t, "^"+goaways+"$")[goaways] > 0 })
					return
				}
				envoytest.Eventually(t, 10*time.Second, "idle connections end", func() bool { return e.Stats(t, "^"+open+"$")[open] == 0 })
				if n := e.Stats(t, "^"+goaways+"$")[goaways]; n != 0 {
					t.Errorf("%d GOAWAYs", n)
				}
			})
		}
	})
}
