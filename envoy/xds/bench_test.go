package xds

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/internal/envoytest"
)

const benchClusters, benchEnvoys, benchHosts = 1000, 50, 4

// crowd is a snapshot of 1,000 clusters of four hosts; round changes each
// cluster's limit, the health of a host and the share that is dropped.
func crowd(views map[string]discovery.View, round int64) *Snapshot {
	s := &Snapshot{Endpoints: views}
	for name, v := range views {
		set := protect.Settings{Cluster: name, MaxRequests: n(100 + round), Drop: round % 2}
		if round%2 == 1 {
			set.Health = map[string]protect.Health{v.Endpoints[0].Address.String(): protect.Unhealthy}
		}
		s.Settings = append(s.Settings, set)
	}
	return s
}

func crowdViews() (map[string]discovery.View, []string) {
	views := make(map[string]discovery.View, benchClusters)
	for i := range benchClusters {
		var hosts []string
		for h := range benchHosts {
			hosts = append(hosts, fmt.Sprintf("10.%d.%d.%d:8000", i/250, i%250, h+1))
		}
		views[fmt.Sprintf("cluster-%04d", i)] = view(1, hosts...)
	}
	var names []string
	for name := range views {
		names = append(names, name)
	}
	slices.Sort(names)
	return views, names
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// pushTo tells how long a change of all clusters takes to be at all clients
// (blind ones: what an Envoy does with an answer costs another machine), and
// what server, streams and clients hold.
func pushTo(b *testing.B, ads func(testing.TB, *grpc.ClientConn, string) *client, sotw bool) {
	empty := heap()
	s := New(time.Now(), Options{})
	conn := serveTest(b, s)
	views, names := crowdViews()
	put(b, s, crowd(views, 0))
	var again []string
	if sotw {
		again = names
	}
	var clients []*client
	for i := range benchEnvoys {
		c := ads(b, conn, fmt.Sprintf("edge-%02d", i))
		c.ask(rtds, "weir")
		c.ask(eds, names...)
		for range 2 {
			a := c.next()
			if a.typeURL == rtds {
				c.ack(a, "weir")
			} else {
				c.ack(a, again...)
			}
		}
		clients = append(clients, c)
	}
	envoytest.Eventually(b, 5*time.Second, "all have the first content", func() bool { return s.Stats().Acked["eds"] == benchEnvoys })
	held := heap() - empty
	round := int64(0)
	for b.Loop() {
		round++
		put(b, s, crowd(views, round))
		for _, c := range clients {
			for range 2 {
				a := c.next()
				switch {
				case a.typeURL == rtds:
					c.ack(a, "weir")
				case a.size != benchClusters:
					b.Fatalf("%d clusters", a.size)
				default:
					c.ack(a, again...)
				}
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/push")
	b.ReportMetric(held, "MB")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkPush50x1000(b *testing.B) {
	b.Run("delta", func(b *testing.B) {
		pushTo(b, func(t testing.TB, conn *grpc.ClientConn, id string) *client {
			return overDeltaADS(t, conn, edge(id, 40), true)
		}, false)
	})
	b.Run("sotw", func(b *testing.B) {
		pushTo(b, func(t testing.TB, conn *grpc.ClientConn, id string) *client {
			return overSotWADS(t, conn, edge(id, 40), true)
		}, true)
	})
}

// An equal snapshot of 1,000 clusters, as it comes some times a second.
func BenchmarkSetEqual1000(b *testing.B) {
	s := New(time.Now(), Options{})
	defer s.Close()
	views, _ := crowdViews()
	snap := crowd(views, 1)
	put(b, s, snap)
	for b.Loop() {
		put(b, s, snap)
	}
	if got := s.Stats().Pushes; got != 1 {
		b.Fatalf("%d pushes", got)
	}
}
