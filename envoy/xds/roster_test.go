package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

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

func TestAdmitForOthers(t *testing.T) {
	groups := []policy.XDSGroup{{ID: "a*"}, {ID: "b", SANs: []string{"x"}}}
	for id, want := range map[string]bool{"a1": true, "b": false, "c": false} {
		if err := Admit(groups, id, "edge", nil); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := Admit(nil, "any", "", nil); err != nil {
		t.Error(err)
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
		_ = c.send(rtds, []string{"weir"}, "", "", "", nil) // the stream may have ended
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
	envoytest.Eventually(t, 5*time.Second, "b left", func() bool { return len(s.Nodes()) == 1 })
	c := deltaADS(t, conn, edge("c", 40))
	c.ask(rtds, "weir")
	c.next() // in the place of one that left
}

func TestNamesAreBounded(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	c := deltaADS(t, conn, edge("a", 40))
	for i := range 11 {
		names := make([]string, maxNames/10)
		for j := range names {
			names[j] = fmt.Sprint(i, "-", j)
		}
		c.ask(eds, names...)
	}
	if err := <-c.fail; grpcstatus.Code(err) != codes.ResourceExhausted || s.Stats().Refused["names"] != 1 {
		t.Errorf("%v, %v", err, s.Stats().Refused)
	}
}

// What /debug/envoys shows, and what is warned of.
func TestNodesAndWarnings(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	snap := one(6, "10.0.0.1:80")
	snap.Endpoints["alone"] = view(1, "10.0.0.9:80")
	snap.Endpoints["soon"] = discovery.View{Unread: []int{0}} // nothing known yet: not answered, and no mistake
	put(t, s, snap)
	old, strange := deltaADS(t, conn, edge("old", 35)), sotwADS(t, conn, &corev3.Node{Id: "strange"})
	c := separate(t, conn, edge("new", 40), eds, true)
	for _, x := range []*client{old, strange} {
		x.ask(rtds, "weir")
		if runtimeOf(t, x.next())[requests] != 6 {
			t.Error("an Envoy of a release that is not supported is served all the same")
		}
	}
	c.ask(eds, "m", "nosuch", "soon")
	a := c.next()
	envoytest.Eventually(t, 5*time.Second, "a lag", func() bool {
		all := s.Nodes()
		return len(all) == 3 && all[0].ID == "new" && len(all[0].Types) == 1 && all[0].Types[0].Lag > 0
	})
	c.ack(a)
	envoytest.Eventually(t, 5*time.Second, "no lag", func() bool { return s.Nodes()[0].Types[0].Lag == 0 })
	got := s.Nodes()[0]
	ty := got.Types[0]
	if got.Release != "1.40.4" || !got.Supported || got.Streams != 1 || got.Cluster != "edge" || got.Peer == "" || ty.Name != "eds" || !ty.Delta || ty.ADS ||
		!slices.Equal(ty.Names, []string{"m", "nosuch", "soon"}) || ty.Sent != a.version || ty.Acked != a.version {
		t.Errorf("%+v", got)
	}
	st := s.Stats()
	if !slices.Equal(st.Unsupported, []string{"old", "strange"}) || !slices.Equal(st.Unknown, []Unknown{{"new", "eds", "nosuch"}}) || !slices.Equal(st.Unclaimed, []string{"alone"}) ||
		st.Nodes != 3 || st.Streams != 3 || st.Sent["eds"] != 1 || st.Acked["eds"] != 1 || st.Sent["rtds"] != 2 || st.Pushes != 1 {
		t.Errorf("%+v", st)
	}
	c.cancel()
	envoytest.Eventually(t, 5*time.Second, "new left", func() bool { return len(s.Nodes()) == 2 })
}
