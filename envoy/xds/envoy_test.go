package xds

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/internal/envoytest"
)

// An override is in Envoy within a second; drop_overloads drops and stops;
// weir dies, comes back with its state, and comes back with nothing: no
// override and no endpoint is lost, no connection is opened or closed.
func TestEnvoyKeepsItsOverrides(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		t.Parallel()
		for _, api := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(api, func(t *testing.T) {
				t.Parallel()
				a := upstream(t, "a")
				snap := func(s protect.Settings) *Snapshot {
					s.Cluster = "m"
					return &Snapshot{Settings: []protect.Settings{s}, Endpoints: map[string]discovery.View{"m": view(1, a)}}
				}
				w := newStreet(t, b, api, Options{}, snap(protect.Settings{}))
				w.want(200, "a")
				before := w.wire()

				put(t, w.server, snap(protect.Settings{MaxRequests: n(6)}))
				w.within(time.Second, "an override is in /runtime", func() bool { return w.runtime(requests) == "6" })

				for _, share := range []int64{100, 0, 100} { // on, off, and on again with the same share
					put(t, w.server, snap(protect.Settings{MaxRequests: n(6), Drop: share}))
					w.within(time.Second, fmt.Sprintf("drop %d %%", share), func() bool { c, _ := w.call(); return (c == 503) == (share == 100) })
				}
				w.want(503, "drop overload")

				w.down()
				w.want(503, "drop overload")
				w.up()
				w.within(5*time.Second, "Envoy is back", func() bool { return len(w.server.Nodes()) == 1 && w.server.Stats().Streams == 2 })
				put(t, w.server, snap(protect.Settings{})) // a start that knows of no trouble
				if w.runtime(requests) != "6" {
					t.Errorf("the override is lost: %q", w.runtime(requests))
				}
				w.want(503, "drop overload")
				w.server.Expire(time.Now().Add(2 * time.Minute))
				w.within(time.Second, "withdrawn after the grace", func() bool { c, _ := w.call(); return c == 200 && w.runtime(requests) == "" })

				put(t, w.server, snap(protect.Settings{MaxRequests: n(5)}))
				w.within(time.Second, "an override again", func() bool { return w.runtime(requests) == "5" })
				w.down()
				w.o.Dir = "" // its disk is gone
				w.up()
				w.within(5*time.Second, "Envoy is back at an empty weir", func() bool { return w.server.Stats().Streams == 2 })
				envoytest.Holds(t, 200*time.Millisecond, "the override stands at an empty weir", func() bool { return w.runtime(requests) == "5" })
				w.want(200, "a")
				put(t, w.server, snap(protect.Settings{MaxRequests: n(4)}))
				w.within(time.Second, "its first word", func() bool { return w.runtime(requests) == "4" })
				w.want(200, "a")
				if after := w.wire(); after != before {
					t.Errorf("%s, before %s", after, before)
				}
			})
		}
	})
}

// kuma#11602, two updates 5 ms apart, each pair ends on its last one.
func TestEnvoyEndsOnTheLastUpdate(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		t.Parallel()
		for _, api := range []string{"DELTA_GRPC", "GRPC"} {
			t.Run(api, func(t *testing.T) {
				t.Parallel()
				w := newStreet(t, b, api, Options{}, one(1, "127.0.0.1:9"))
				for i := int64(2); i <= 401; i += 2 {
					put(t, w.server, one(i, "127.0.0.1:9", fmt.Sprintf("127.0.0.2:%d", i)))
					<-time.After(5 * time.Millisecond) // how far apart they are is the case
					put(t, w.server, one(i+1, "127.0.0.1:9", fmt.Sprintf("127.0.0.2:%d", i+1)))
					envoytest.Eventually(t, 2*time.Second, fmt.Sprintf("update %d", i+1), func() bool { return w.runtime(requests) == fmt.Sprint(i+1) })
				}
				var out struct {
					Clusters []struct {
						Name  string `json:"name"`
						Hosts []struct {
							Address struct {
								Socket struct {
									Port int64 `json:"port_value"`
								} `json:"socket_address"`
							} `json:"address"`
						} `json:"host_statuses"`
					} `json:"cluster_statuses"`
				}
				envoytest.Eventually(t, time.Second, "the last endpoints", func() bool {
					w.get("http://envoy/clusters?format=json", &out)
					for _, c := range out.Clusters {
						if c.Name == "m" {
							return len(c.Hosts) == 2 && c.Hosts[0].Address.Socket.Port+c.Hosts[1].Address.Socket.Port == 9+401
						}
					}
					return false
				})
			})
		}
	})
}

// G2: the first region dies, the second serves at once; the first is well
// again and gets its load back after the hold, with no connection drained.
func TestEnvoyFailsOverAndReturns(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		t.Parallel()
		a, second := upstream(t, "first"), upstream(t, "second")
		now := time.Now()
		snap := func(h protect.Health) *Snapshot {
			return &Snapshot{
				Settings:  []protect.Settings{{Cluster: "m", Health: map[string]protect.Health{a: h}}},
				Endpoints: map[string]discovery.View{"m": view(1, a, second+"@1")},
			}
		}
		w := newStreet(t, b, "DELTA_GRPC", Options{}, snap(protect.Healthy))
		w.want(200, "first")
		put(t, w.server, snap(protect.Unhealthy))
		w.within(time.Second, "the second region serves", func() bool { _, body := w.call(); return body == "second" })
		before := w.wire()
		put(t, w.server, snap(protect.Healthy))
		envoytest.Holds(t, 50*time.Millisecond, "the second region serves on", func() bool { _, body := w.call(); return body == "second" })
		for range 20 {
			w.want(200, "second")
		}
		if err := w.server.Set(now.Add(40*time.Second), snap(protect.Healthy)); err != nil {
			t.Fatal(err)
		}
		w.within(time.Second, "the first region is back", func() bool { _, body := w.call(); return body == "first" })
		if after := w.wire(); after != before {
			t.Errorf("%s, before %s", after, before)
		}
	})
}
