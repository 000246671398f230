package xds

import (
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// checked is an EDS cluster on ADS whose health check tells MaxRequests
// seconds apart; one of 13 has a timeout that Envoy refuses.
func checked(k *policy.Cluster) *clusterv3.Cluster {
	c := plainCluster(k)
	c.EdsClusterConfig.EdsConfig.InitialFetchTimeout = durationpb.New(10 * time.Second)
	c.ConnectTimeout = durationpb.New(time.Second)
	if k.MaxRequests == 13 {
		c.ConnectTimeout = durationpb.New(-time.Second)
	}
	if k.MaxRequests > 1 {
		c.HealthChecks = []*corev3.HealthCheck{{
			Timeout: durationpb.New(time.Second), Interval: durationpb.New(time.Duration(k.MaxRequests) * time.Second),
			UnhealthyThreshold: wrapperspb.UInt32(1), HealthyThreshold: wrapperspb.UInt32(1),
			HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{Path: "/"}},
		}}
	}
	return c
}

func owned(max int64, host string) *Snapshot {
	return &Snapshot{
		Settings:  []protect.Settings{{Cluster: "m", MaxRetries: n(max)}},
		Endpoints: map[string]discovery.View{"m": view(1, host)},
		Clusters:  []policy.Cluster{{Name: "m", MaxRequests: max, Endpoints: &policy.Endpoints{}}},
	}
}

// go-control-plane#1001: only a cluster's health check changes; Envoy takes
// the cluster at once, not after its fetch timeout of 10 s, and serves on. weir
// dies and comes back: no cluster is lost.
func TestEnvoyTakesAChangedClusterAtOnce(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		t.Parallel()
		for _, api := range []string{"ads DELTA_GRPC", "ads GRPC"} {
			t.Run(api, func(t *testing.T) {
				t.Parallel()
				a := upstream(t, "a")
				w := newStreet(t, b, api, Options{Cluster: checked}, owned(1, a))
				w.within(5*time.Second, "served", func() bool { c, _ := w.call(); return c == 200 })
				for max := int64(2); max <= 6; max++ {
					put(t, w.server, owned(max, a))
					if max == 5 { // the next one comes before the word on this one
						continue
					}
					w.within(2*time.Second, "a changed cluster is taken", func() bool {
						s := w.envoy.Stats(t, `^cluster_manager\.(cluster_modified|cds\.update_success|warming_clusters)$`)
						c, body := w.call()
						if c != 200 || body != "a" {
							t.Errorf("%d %q while it warms", c, body)
						}
						return s["cluster_manager.warming_clusters"] == 0 && s["cluster_manager.cluster_modified"] >= min(max-1, 4)
					})
				}
				w.down()
				w.up()
				w.within(5*time.Second, "Envoy is back", func() bool { return w.server.Stats().Streams == 1 })
				w.want(200, "a")
				put(t, w.server, owned(6, a))
				w.within(time.Second, "weir is heard", func() bool {
					return w.runtime("circuit_breakers.m.default.max_retries") == "6"
				})
				w.want(200, "a")
				if log := w.envoy.Log(); strings.Contains(log, "fetch timed out") || strings.Contains(log, "warming timeout") {
					t.Errorf("Envoy waited for what nobody sent:\n%s", log)
				}
			})
		}
	})
}

// A cluster that Envoy refuses: it serves on with the last good one, and so
// does an Envoy of the same name that starts anew.
func TestEnvoyRefusesACluster(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		t.Parallel()
		for _, api := range []string{"ads DELTA_GRPC", "ads GRPC"} {
			t.Run(api, func(t *testing.T) {
				t.Parallel()
				a := upstream(t, "a")
				w := newStreet(t, b, api, Options{Cluster: checked}, owned(1, a))
				w.within(5*time.Second, "served", func() bool { c, _ := w.call(); return c == 200 })
				put(t, w.server, owned(13, a))
				w.within(2*time.Second, "a refusal", func() bool { return w.server.Nodes()[0].LastNack != nil })
				if k := w.server.Nodes()[0].LastNack; k.Type != "cds" || len(k.Names) != 1 || k.Names[0] != "m" || !strings.Contains(k.Text, "Invalid duration") {
					t.Errorf("%+v", k)
				}
				w.want(200, "a")
				envoytest.Holds(t, 300*time.Millisecond, "it was refused once", func() bool { return w.server.Stats().Nacked["cds"] == 1 })
				w.envoy.Kill()
				w.client.CloseIdleConnections()
				w.envoy = envoytest.Start(t, b, w.dir, bootstrap(w.dir, w.dir, "edge-"+b.Version, api))
				w.within(5*time.Second, "a new life is served the last good one", func() bool { c, _ := w.call(); return c == 200 })
				if got := w.server.Stats().Nacked["cds"]; got != 1 {
					t.Errorf("refused %d times, want 1", got)
				}
				put(t, w.server, owned(2, a))
				w.within(2*time.Second, "the next content", func() bool {
					return w.envoy.Stats(t, `^cluster_manager\.cluster_modified$`)["cluster_manager.cluster_modified"] == 1
				})
				w.want(200, "a")
			})
		}
	})
}

// Envoys of several releases on one weir: each hears each word within a second.
func TestEnvoysOfSeveralReleases(t *testing.T) {
	all := envoytest.Envoys(t)
	w := newStreet(t, all[0], "DELTA_GRPC", Options{}, one(1, "127.0.0.1:9"))
	streets := []*street{w}
	for _, b := range all[1:] {
		dir := envoytest.Dir(t)
		o := &street{t: t, dir: dir, admin: envoytest.UnixClient(dir + "/envoy.sock"), client: w.client}
		t.Cleanup(o.admin.CloseIdleConnections)
		o.envoy = envoytest.Start(t, b, dir, bootstrap(dir, w.dir, "edge-"+b.Version, "GRPC"))
		streets = append(streets, o)
	}
	put(t, w.server, one(17, "127.0.0.1:9"))
	for _, o := range streets {
		o.within(time.Second, o.envoy.Binary.Version+" has it", func() bool { return o.runtime(requests) == "17" })
	}
	nodes := w.server.Nodes()
	if len(nodes) != len(all) {
		t.Fatalf("%+v", nodes)
	}
	for _, k := range nodes {
		if k.ID != "edge-"+k.Release || !k.Supported || k.Streams != 2 || len(k.Types) != 2 || k.Peer == "" {
			t.Errorf("%+v", k)
		}
	}
}
