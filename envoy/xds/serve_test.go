package xds

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const requests = "circuit_breakers.m.default.max_requests"

func put(t testing.TB, s *Server, snap *Snapshot) {
	t.Helper()
	if err := s.Set(time.Now(), snap); err != nil {
		t.Fatal(err)
	}
}

// one is a snapshot of cluster m with one number and hosts.
func one(max int64, hosts ...string) *Snapshot {
	return &Snapshot{Settings: []protect.Settings{override("m", max)}, Endpoints: map[string]discovery.View{"m": view(1, hosts...)}}
}

// ways are the four ways in which an Envoy may connect.
func ways(t *testing.T, fn func(t *testing.T, open func(conn *grpc.ClientConn, node *corev3.Node, typeURL string) *client, delta bool)) {
	for _, delta := range []bool{true, false} {
		for _, ads := range []bool{true, false} {
			t.Run(fmt.Sprintf("delta=%t,ads=%t", delta, ads), func(t *testing.T) {
				var shared *client
				fn(t, func(conn *grpc.ClientConn, node *corev3.Node, typeURL string) *client {
					switch {
					case !ads:
						return separate(t, conn, node, typeURL, delta)
					case shared == nil && delta:
						shared = deltaADS(t, conn, node)
					case shared == nil:
						shared = sotwADS(t, conn, node)
					}
					return shared
				}, delta)
			})
		}
	}
}

func TestEveryWayIsServed(t *testing.T) {
	ways(t, func(t *testing.T, open func(*grpc.ClientConn, *corev3.Node, string) *client, delta bool) {
		s := New(t0, Options{})
		conn := serveTest(t, s)
		put(t, s, one(6, "10.0.0.1:80"))
		node := edge("e1", 40)
		// names are sent again by a client of the state of the world, not by a delta one
		again := func(name string) []string {
			if delta {
				return nil
			}
			return []string{name}
		}
		r := open(conn, node, rtds)
		r.ask(rtds, "weir")
		a := r.next()
		if got := runtimeOf(t, a); len(got) != 1 || got[requests] != 6 {
			t.Errorf("rtds %v", got)
		}
		r.ack(a, again("weir")...)
		e := open(conn, node, eds)
		e.ask(eds, "m")
		a = e.next()
		if h := healths(claOf(t, a, "m")); len(h) != 1 {
			t.Errorf("eds %v", h)
		}
		e.ack(a, again("m")...)

		put(t, s, one(6, "10.0.0.1:80"))
		r.quiet("an equal snapshot")
		put(t, s, one(9, "10.0.0.1:80"))
		a = r.next()
		if a.typeURL != rtds || runtimeOf(t, a)[requests] != 9 {
			t.Errorf("%s %v", a.typeURL, a.names())
		}
		r.ack(a, again("weir")...)
		put(t, s, one(9, "10.0.0.1:80", "10.0.0.2:80"))
		a = e.next()
		if a.typeURL != eds || len(healths(claOf(t, a, "m"))) != 2 {
			t.Errorf("%s %v", a.typeURL, a.names())
		}
		e.ack(a, again("m")...)
		put(t, s, &Snapshot{Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80", "10.0.0.2:80")}})
		a = r.next()
		if got := runtimeOf(t, a); len(got) != 0 || len(a.removed) != 0 {
			t.Errorf("withdrawn: %v, removed %v, want an empty layer", got, a.removed)
		}
	})
}

// Nothing is answered before there is something to answer: not to a new
// Envoy, not to one that still has what an earlier life sent.
func TestNothingIsTakenBackByAServerThatKnowsNothing(t *testing.T) {
	s := New(t0, Options{Cluster: plainCluster})
	conn := serveTest(t, s)
	c := deltaADS(t, conn, edge("e1", 40))
	for typeURL, name := range map[string]string{rtds: "weir", eds: "m", cds: "*"} {
		known := map[string]string{name: "hash"}
		if name == "*" {
			known = map[string]string{"m": "hash"}
		}
		c.say(typeURL, []string{name}, "", "", "", known)
	}
	w := sotwADS(t, conn, edge("e2", 40))
	w.say(rtds, []string{"weir"}, "", "old.3", "", nil)
	c.quiet("an empty server")
	w.quiet("an empty server")

	snap := one(6, "10.0.0.1:80")
	snap.Clusters = []policy.Cluster{{Name: "m", Endpoints: &policy.Endpoints{}}}
	put(t, s, snap)
	seen := map[string]bool{}
	for len(seen) < 3 { // endpoints may come twice: behind their cluster too
		a := c.next()
		seen[short(a.typeURL)] = true
		if len(a.removed) != 0 || len(a.got) != 1 {
			t.Errorf("%s: %v, removed %v", short(a.typeURL), a.names(), a.removed)
		}
	}
	if got := runtimeOf(t, w.next()); got[requests] != 6 {
		t.Errorf("%v", got)
	}
}

// A server that comes back with its state sends a delta client nothing, one
// of the state of the world the same; what is new after that is sent, though
// the numbers of versions begin again.
func TestBackWithState(t *testing.T) {
	dir := t.TempDir()
	s := New(t0, Options{Dir: dir})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	c := deltaADS(t, conn, edge("e1", 40))
	known := map[string]map[string]string{}
	for _, ask := range [][2]string{{rtds, "weir"}, {eds, "m"}} {
		c.ask(ask[0], ask[1])
		a := c.next()
		c.ack(a)
		known[a.typeURL] = a.versions
	}
	w := separate(t, conn, edge("e2", 40), rtds, false)
	w.ask(rtds, "weir")
	old := w.next().version
	s.save(t0)
	s.Close()

	s = New(time.Now(), Options{Dir: dir})
	conn = serveTest(t, s)
	c = deltaADS(t, conn, edge("e1", 40))
	c.say(rtds, []string{"weir"}, "", "", "", known[rtds])
	c.say(eds, []string{"m"}, "", "", "", known[eds])
	c.quiet("the same content")
	w = separate(t, conn, edge("e2", 40), rtds, false)
	w.say(rtds, []string{"weir"}, "", old, "", nil)
	a := w.next()
	if runtimeOf(t, a)[requests] != 6 || a.version == old {
		t.Errorf("version %q after %q, %v", a.version, old, runtimeOf(t, a))
	}
	w.ack(a, "weir")
	put(t, s, one(7, "10.0.0.1:80"))
	if a := c.next(); runtimeOf(t, a)[requests] != 7 {
		t.Errorf("%v", runtimeOf(t, a))
	}
	if a := w.next(); runtimeOf(t, a)[requests] != 7 {
		t.Errorf("%v", runtimeOf(t, a))
	}
}

// go-control-plane#1318: a client waits for two names of which one is known;
// the second one is pushed when it is there.
func TestOpenWatchGetsTheSecondName(t *testing.T) {
	ways(t, func(t *testing.T, open func(*grpc.ClientConn, *corev3.Node, string) *client, delta bool) {
		s := New(t0, Options{})
		conn := serveTest(t, s)
		put(t, s, one(6, "10.0.0.1:80"))
		c := open(conn, edge("e1", 40), eds)
		c.ask(eds, "m", "later")
		a := c.next()
		if !slices.Equal(a.names(), []string{"m"}) {
			t.Fatalf("%v", a.names())
		}
		if delta {
			c.ack(a)
		} else {
			c.ack(a, "m", "later")
		}
		if u := s.Stats().Unknown; !slices.Equal(u, []Unknown{{"e1", "eds", "later"}}) {
			t.Errorf("unknown %v", u)
		}
		snap := one(6, "10.0.0.1:80")
		snap.Endpoints["later"] = view(1, "10.0.0.2:80")
		put(t, s, snap)
		claOf(t, c.next(), "later")
		if u := s.Stats().Unknown; len(u) != 0 {
			t.Errorf("unknown %v", u)
		}
	})
}

// kuma#11602: updates that overtake each other's words end on the last.
func TestFastUpdatesEndOnTheLast(t *testing.T) {
	ways(t, func(t *testing.T, open func(*grpc.ClientConn, *corev3.Node, string) *client, delta bool) {
		s := New(t0, Options{})
		conn := serveTest(t, s)
		put(t, s, one(0, "10.0.0.1:80"))
		c := open(conn, edge("e1", 40), rtds)
		c.ask(rtds, "weir")
		done := make(chan error, 1)
		const last = 400
		go func() {
			for i := int64(1); i <= last; i++ {
				if err := s.Set(time.Now(), one(i, "10.0.0.1:80")); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for {
			a := c.next()
			if delta {
				c.ack(a)
			} else {
				c.ack(a, "weir")
			}
			if runtimeOf(t, a)[requests] == last {
				break
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		c.quiet("the last one was there")
	})
}

// go-control-plane#1001: the endpoints of a cluster that changed come again on
// ADS behind the cluster, those of others do not.
func TestEndpointsFollowTheirCluster(t *testing.T) {
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprintf("delta=%t", delta), func(t *testing.T) {
			s := New(t0, Options{Cluster: plainCluster})
			conn := serveTest(t, s)
			snap := func(max int64) *Snapshot {
				return &Snapshot{
					Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80"), "o": view(1, "10.0.0.2:80")},
					Clusters:  []policy.Cluster{{Name: "m", MaxRequests: max, Endpoints: &policy.Endpoints{}}, {Name: "o", Endpoints: &policy.Endpoints{}}, {Name: "own file"}},
				}
			}
			put(t, s, snap(1))
			var c *client
			var names []string
			if delta {
				c = deltaADS(t, conn, edge("e1", 40))
			} else {
				c, names = sotwADS(t, conn, edge("e1", 40)), []string{"m", "o"}
			}
			c.ask(cds)
			a := c.next()
			if !slices.Equal(a.names(), []string{"m", "o"}) {
				t.Fatalf("cds %v", a.names())
			}
			c.ack(a)
			c.ask(eds, "m", "o")
			c.ack(c.next(), names...)
			c.quiet("all was answered")

			put(t, s, snap(2))
			a = c.next()
			if a.typeURL != cds || delta && !slices.Equal(a.names(), []string{"m"}) {
				t.Fatalf("%s %v", short(a.typeURL), a.names())
			}
			clusters := a
			a = c.next() // before the word on the cluster: Envoy gives it when it has these
			want := []string{"m"}
			if !delta {
				want = []string{"m", "o"} // its answers do not say what changed
			}
			if a.typeURL != eds || !slices.Equal(a.names(), want) {
				t.Errorf("%s %v, want eds %v", short(a.typeURL), a.names(), want)
			}
			c.ack(a, names...)
			c.ack(clusters)
			c.quiet("once")
			put(t, s, snap(2))
			c.quiet("equal clusters")
		})
	}
}

// A type that weir does not serve stays unanswered; the others go on.
func TestOtherTypesOnADSAreLeftOpen(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	for _, c := range []*client{deltaADS(t, conn, edge("e1", 40)), sotwADS(t, conn, edge("e2", 40))} {
		c.ask(resourcev3.ListenerType)
		c.ask(cds) // no CDS here
		c.quiet("listeners")
		c.ask(rtds, "weir")
		if a := c.next(); runtimeOf(t, a)[requests] != 6 {
			t.Errorf("%v", a.names())
		}
	}
	if u := s.Stats().Unserved; u[resourcev3.ListenerType] != 2 || u[cds] != 2 {
		t.Errorf("%v", u)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	c := deltaADS(t, conn, edge("e", 40))
	c.ask(rtds, "weir")
	c.quiet("nothing yet")
	s.Close()
	select {
	case err := <-c.fail:
		if errors.Is(err, nil) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the stream stays")
	}
}
