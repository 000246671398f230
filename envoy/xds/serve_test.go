package xds

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

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
	for range 3 {
		a := c.next()
		seen[short(a.typeURL)] = true
		if len(a.removed) != 0 || len(a.got) != 1 {
			t.Errorf("%s: %v, removed %v", short(a.typeURL), a.names(), a.removed)
		}
	}
	if len(seen) != 3 || runtimeOf(t, w.next())[requests] != 6 {
		t.Errorf("answered %v", seen)
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

func TestGroups(t *testing.T) {
	s := New(t0, Options{Groups: []policy.XDSGroup{
		{Name: "secret", ID: "e*", SANs: []string{"spiffe://a/*"}},
		{Name: "a", ID: "a-*", Cluster: "edge", Clusters: []string{"m"}},
		{Name: "b", ID: "b-1"},
	}})
	conn := serveTest(t, s)
	snap := one(6, "10.0.0.1:80")
	snap.Settings = append(snap.Settings, override("o", 7))
	snap.Endpoints["o"] = view(1, "10.0.0.2:80")
	put(t, s, snap)
	for id, want := range map[string][]string{"a-7": {requests}, "b-1": {requests, "circuit_breakers.o.default.max_requests"}} {
		c := deltaADS(t, conn, edge(id, 40))
		c.ask(rtds, "weir")
		a := c.next()
		got := runtimeOf(t, a)
		if len(got) != len(want) || got[want[len(want)-1]] == 0 {
			t.Errorf("%s gets %v, want %v", id, got, want)
		}
		c.ack(a)
		c.ask(eds, "m", "o")
		if got := c.next().names(); len(got) != len(want) {
			t.Errorf("%s gets %v", id, got)
		}
	}
	for _, c := range []*client{deltaADS(t, conn, edge("e1", 40)), separate(t, conn, edge("x", 40), rtds, false), sotwADS(t, conn, &corev3.Node{Id: "a-1", Cluster: "other"})} {
		c.ask(rtds, "weir")
		select {
		case err := <-c.fail:
			if grpcstatus.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "no group of envoy.xds.nodes admits node") {
				t.Error(err)
			}
		case a := <-c.in:
			t.Errorf("an unknown node gets %v", a.names())
		case <-time.After(5 * time.Second):
			t.Error("an unknown node is left waiting")
		}
	}
	if r := s.Stats().Refused; r["group"] != 3 {
		t.Errorf("refused %v", r)
	}
}

func TestAdmits(t *testing.T) {
	for _, c := range []struct {
		g           policy.XDSGroup
		id, cluster string
		sans        []string
		want        bool
	}{
		{policy.XDSGroup{}, "x", "", nil, true},
		{policy.XDSGroup{ID: "x"}, "x", "", nil, true},
		{policy.XDSGroup{ID: "x"}, "xy", "", nil, false},
		{policy.XDSGroup{ID: "x*"}, "xy", "", nil, true},
		{policy.XDSGroup{ID: "*"}, "", "", nil, true},
		{policy.XDSGroup{ID: "x", Cluster: "c"}, "x", "d", nil, false},
		{policy.XDSGroup{SANs: []string{"a.example"}}, "x", "", nil, false},
		{policy.XDSGroup{SANs: []string{"a.example"}}, "a.example", "a.example", []string{"b.example"}, false},
		{policy.XDSGroup{SANs: []string{"a.example", "spiffe://t/ns/*"}}, "x", "", []string{"b", "spiffe://t/ns/edge"}, true},
	} {
		if got := admits(&c.g, c.id, c.cluster, caller{sans: c.sans}); got != c.want {
			t.Errorf("%+v admits %q %q %v: %t", c.g, c.id, c.cluster, c.sans, got)
		}
	}
}

// A node that says another name later on its stream is not taken at it.
func TestANodeKeepsItsName(t *testing.T) {
	s := New(t0, Options{Groups: []policy.XDSGroup{{Name: "a", ID: "a"}}})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	c := sotwADS(t, conn, edge("a", 40))
	c.ask(rtds, "weir")
	a := c.next()
	c.node = edge("b", 40)
	c.ack(a, "weir")
	if err := <-c.fail; grpcstatus.Code(err) != codes.InvalidArgument || s.Stats().Refused["identity"] != 1 {
		t.Error(err, s.Stats().Refused)
	}
}

func TestBounds(t *testing.T) {
	s := New(t0, Options{MaxNodes: 2, MaxStreams: 3})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	var open []*client
	for _, id := range []string{"a", "b"} {
		c := deltaADS(t, conn, edge(id, 40))
		c.ask(rtds, "weir")
		c.next()
		open = append(open, c)
	}
	full := func(id, reason string) {
		t.Helper()
		c := deltaADS(t, conn, edge(id, 40))
		c.ask(rtds, "weir")
		if err := <-c.fail; grpcstatus.Code(err) != codes.ResourceExhausted || s.Stats().Refused[reason] != 1 {
			t.Errorf("%s: %v, %v", reason, err, s.Stats().Refused)
		}
	}
	full("c", "nodes")
	more := deltaADS(t, conn, edge("a", 40))
	more.ask(rtds, "weir")
	more.next()
	full("a", "streams")
	open[1].cancel()
	waitFor(t, "b left", func() bool { return len(s.Nodes()) == 1 })
	c := deltaADS(t, conn, edge("c", 40))
	c.ask(rtds, "weir")
	c.next() // in the place of one that left
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("within 5 s: " + what)
		}
	}
}

// What /debug/envoys shows, and what is warned of.
func TestNodesAndWarnings(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	snap := one(6, "10.0.0.1:80")
	snap.Endpoints["alone"] = view(1, "10.0.0.9:80")
	put(t, s, snap)
	old, strange := deltaADS(t, conn, edge("old", 35)), sotwADS(t, conn, &corev3.Node{Id: "strange"})
	c := separate(t, conn, edge("new", 40), eds, true)
	for _, x := range []*client{old, strange} {
		x.ask(rtds, "weir")
		if runtimeOf(t, x.next())[requests] != 6 {
			t.Error("an Envoy of a release that is not supported is served all the same")
		}
	}
	c.ask(eds, "m", "nosuch")
	a := c.next()
	waitFor(t, "a lag", func() bool {
		all := s.Nodes()
		return len(all) == 3 && all[0].ID == "new" && len(all[0].Types) == 1 && all[0].Types[0].Lag > 0
	})
	c.ack(a)
	waitFor(t, "no lag", func() bool { return s.Nodes()[0].Types[0].Lag == 0 })
	got := s.Nodes()[0]
	ty := got.Types[0]
	if got.Release != "1.40.4" || !got.Supported || got.Streams != 1 || got.Cluster != "edge" || got.Peer == "" || ty.Name != "eds" || !ty.Delta || ty.ADS ||
		!slices.Equal(ty.Names, []string{"m", "nosuch"}) || ty.Sent != a.version || ty.Acked != a.version {
		t.Errorf("%+v", got)
	}
	st := s.Stats()
	if !slices.Equal(st.Unsupported, []string{"old", "strange"}) || !slices.Equal(st.Unknown, []Unknown{{"new", "eds", "nosuch"}}) || !slices.Equal(st.Unclaimed, []string{"alone"}) ||
		st.Nodes != 3 || st.Streams != 3 || st.Sent["eds"] != 1 || st.Acked["eds"] != 1 || st.Sent["rtds"] != 2 || st.Pushes != 1 {
		t.Errorf("%+v", st)
	}
	c.cancel()
	waitFor(t, "new left", func() bool { return len(s.Nodes()) == 2 })
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
