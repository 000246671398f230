package xds

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

func many(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("cluster-%d", i)
	}
	return names
}

// heldBy is the weight of the names that a server keeps.
func heldBy(s *Server) int64 {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	return s.roster.held
}

// What goes beyond the bounds ends its stream with a word, nothing is left of
// it, and the others are served.
func TestHostileRequests(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	put(t, s, one(1, "10.0.0.1:80"))
	good := deltaADS(t, conn, edge("good", 40))
	good.ask(rtds, "weir")
	good.ack(good.next())
	held := heldBy(s)

	known := map[string]string{}
	for _, name := range many(maxNames + 1) {
		known[name] = "1"
	}
	for i, c := range []struct {
		name   string
		node   *corev3.Node
		code   codes.Code
		reason string
		say    func(c *client) error
	}{
		{"a name of 10 MB", edge("e", 40), codes.ResourceExhausted, "", func(c *client) error {
			return c.send(eds, []string{strings.Repeat("x", 10<<20)}, "", "", "", nil)
		}},
		{"a long name", edge("e", 40), codes.InvalidArgument, refusedNames, func(c *client) error {
			return c.send(eds, []string{strings.Repeat("x", maxName+1)}, "", "", "", nil)
		}},
		{"too many names", edge("e", 40), codes.ResourceExhausted, refusedNames, func(c *client) error {
			return c.send(eds, many(maxNames+1), "", "", "", nil)
		}},
		{"too many types", edge("e", 40), codes.ResourceExhausted, refusedTypes, func(c *client) error {
			for j := range maxTypes + 1 {
				if err := c.send(fmt.Sprint("type-", j), nil, "", "", "", nil); err != nil {
					return nil // it ended before
				}
			}
			return nil
		}},
		{"a long type", edge("e", 40), codes.ResourceExhausted, refusedTypes, func(c *client) error {
			return c.send(strings.Repeat("x", maxTypeURL+1), nil, "", "", "", nil)
		}},
		{"no type", edge("e", 40), codes.InvalidArgument, "", func(c *client) error { return c.send("", nil, "", "", "", nil) }},
		{"a long id", &corev3.Node{Id: strings.Repeat("x", maxIdentity+1)}, codes.InvalidArgument, refusedNode, func(c *client) error {
			return c.send(rtds, nil, "", "", "", nil)
		}},
		{"a long cluster", &corev3.Node{Id: "e", Cluster: strings.Repeat("x", 1<<20)}, codes.InvalidArgument, refusedNode, func(c *client) error {
			return c.send(rtds, nil, "", "", "", nil)
		}},
		{"another node", edge("e", 40), codes.InvalidArgument, refusedNode, func(c *client) error {
			if err := c.send(rtds, nil, "", "", "", nil); err != nil {
				return err
			}
			c.node = edge(strings.Repeat("y", 1<<20), 40)
			return c.send(rtds, nil, "", "", "", nil)
		}},
	} {
		for _, delta := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, ", delta ", delta), func(t *testing.T) {
				before := s.Stats().Refused[c.reason]
				open := sotwADS
				if delta {
					open = deltaADS
				}
				k := open(t, conn, proto.CloneOf(c.node))
				if err := c.say(k); err != nil {
					t.Fatal(err)
				}
				for ended := false; !ended; {
					select {
					case err := <-k.fail:
						if got := grpcstatus.Code(err); got != c.code || len(err.Error()) > 3000 {
							t.Errorf("%v in %d bytes, want %v", got, len(err.Error()), c.code)
						}
						ended = true
					case <-k.in:
					case <-time.After(5 * time.Second):
						t.Fatal("it is left waiting")
					}
				}
				if after := s.Stats().Refused[c.reason]; c.reason != "" && after != before+1 {
					t.Errorf("%d refused as %s, want %d", after, c.reason, before+1)
				}
			})
		}
		put(t, s, one(int64(i+2), "10.0.0.1:80"))
		good.ack(good.next())
	}
	k := deltaADS(t, conn, edge("e", 40))
	k.say(eds, nil, "", "", "", known)
	if err := <-k.fail; grpcstatus.Code(err) != codes.ResourceExhausted {
		t.Errorf("a client that has too much: %v", err)
	}
	envoytest.Eventually(t, 5*time.Second, "nothing is left", func() bool {
		s.roster.mu.Lock()
		defer s.roster.mu.Unlock()
		return len(s.roster.streams) == 1 && len(s.roster.markers) == 1 && s.roster.held == held
	})
	for typeURL := range s.Stats().Unserved {
		if len(typeURL) > maxTypeURL {
			t.Errorf("a type of %d bytes is counted by name", len(typeURL))
		}
	}
}

// As many names as there may be, no node at all, and a node of 70 KB: served,
// and of the node its name is kept.
func TestLargeAndNamelessClients(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	fat := edge("fat", 40)
	for i := range 1000 {
		fat.Extensions = append(fat.Extensions, &corev3.Extension{Name: fmt.Sprintf("envoy.filters.http.something_%d", i), TypeUrls: []string{strings.Repeat("t", 40)}})
	}
	fat.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: strings.Repeat("v", 70<<10)}
	if size := proto.Size(fat); size < 140<<10 {
		t.Fatalf("a node of %d bytes", size)
	}
	for _, node := range []*corev3.Node{nil, fat} {
		for _, k := range []*client{deltaADS(t, conn, proto.CloneOf(node)), sotwADS(t, conn, proto.CloneOf(node))} {
			k.ask(eds, append(many(maxNames-1), "m")...)
			if got := k.next().names(); len(got) != 1 || got[0] != "m" {
				t.Errorf("%s gets %v", node.GetId(), got)
			}
		}
	}
	nodes := s.Nodes()
	if len(nodes) != 2 || nodes[0].ID != "" || nodes[1].ID != "fat" || len(nodes[1].Release) > maxRelease || nodes[1].Streams != 2 {
		for _, n := range nodes {
			t.Errorf("%q %q %d streams", n.ID, n.Release, n.Streams)
		}
	}
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	for marker := range s.roster.markers {
		if size := proto.Size(marker); size > 100 {
			t.Errorf("%d bytes are kept of a node", size)
		}
	}
	if want := int64(4 * maxNames * 200); s.roster.held < want || s.roster.held > 2*want {
		t.Errorf("%d bytes are held, want at least %d", s.roster.held, want)
	}
	for _, n := range s.roster.nodes {
		if len(n.unknown) > maxUnknown {
			t.Errorf("%d unknown names are kept", len(n.unknown))
		}
	}
}

// All names together are bounded; who leaves makes room.
func TestNamesOfAllStreams(t *testing.T) {
	s := New(t0, Options{})
	s.roster.maxHeld = 50_000
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	first := deltaADS(t, conn, edge("first", 40))
	first.ask(eds, append(many(199), "m")...)
	first.next()
	second := deltaADS(t, conn, edge("second", 40))
	second.ask(eds, many(200)...)
	if err := <-second.fail; grpcstatus.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	first.cancel()
	envoytest.Eventually(t, 5*time.Second, "room", func() bool { return s.Stats().Streams == 0 })
	if held := heldBy(s); held != 0 {
		t.Errorf("%d bytes are held by nobody", held)
	}
	third := deltaADS(t, conn, edge("third", 40))
	third.ask(eds, append(many(150), "m")...)
	third.next()
	// Names given back are room, too.
	for i := range 20 {
		third.say(eds, []string{fmt.Sprint("again-", i)}, "", "", "", nil)
	}
	third.ask(rtds, "weir")
	third.next()
}

// Refusals by the thousand are one, of one answer.
func TestNackFloods(t *testing.T) {
	for _, delta := range []bool{true, false} {
		s := New(t0, Options{})
		conn := serveTest(t, s)
		put(t, s, one(6, "10.0.0.1:80"))
		open := sotwADS
		if delta {
			open = deltaADS
		}
		bad := open(t, conn, edge("bad", 40))
		bad.ask(eds, "m")
		a := bad.next()
		for i := range 3000 {
			nonce := a.nonce
			if i%2 == 1 {
				nonce = fmt.Sprint(i * 7919)
			}
			var names []string
			if !delta {
				names = []string{"m"}
			}
			bad.say(eds, names, nonce, "", strings.Repeat("no m ", 1000), nil)
		}
		bad.ask(rtds, "weir")
		for {
			if a := bad.next(); a.typeURL == rtds {
				break
			}
		}
		st := s.Stats()
		if st.Nacked["eds"] != 1 || st.Sent["eds"] > 2 {
			t.Errorf("delta %t: %d refusals, %d answers, want 1 and no repetition", delta, st.Nacked["eds"], st.Sent["eds"])
		}
		if text := s.Nodes()[0].LastNack.Text; len(text) > maxWords {
			t.Errorf("%d bytes of it are kept", len(text))
		}
	}
}

// Clients that never read, on all kinds of streams: content changes as fast as
// ever, the others hear it, and when they go nothing is left.
func TestSlowReaders(t *testing.T) {
	s := New(t0, Options{Cluster: func(k *policy.Cluster) *clusterv3.Cluster { return plainCluster(k) }})
	conn := serveTest(t, s)
	snap := func(i int64) *Snapshot {
		out := &Snapshot{Endpoints: map[string]discovery.View{}, Settings: []protect.Settings{{Cluster: "c0", MaxRequests: n(i)}}}
		for j := range 20 {
			name := fmt.Sprint("c", j)
			var hosts []string
			for h := range 100 {
				hosts = append(hosts, fmt.Sprintf("10.%d.%d.%d:80", j, h, i%250))
			}
			out.Endpoints[name] = view(uint64(i), hosts...)
			out.Clusters = append(out.Clusters, policy.Cluster{Name: name, MaxRequests: i, Endpoints: &policy.Endpoints{}})
		}
		return out
	}
	put(t, s, snap(1))
	good := deltaADS(t, conn, edge("good", 40))
	good.ask(rtds, "weir")
	good.ack(good.next())
	envoytest.Eventually(t, 5*time.Second, "settled", func() bool { return s.Stats().Streams == 1 })
	start := runtime.NumGoroutine()

	names := []string{}
	for j := range 20 {
		names = append(names, fmt.Sprint("c", j))
	}
	ctx, cancel := contextOf(t)
	defer cancel()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	const slow = 60
	for i := range slow {
		node := edge(fmt.Sprint("slow-", i), 40)
		if i%2 == 0 {
			d, err := ads.DeltaAggregatedResources(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_ = d.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: cds})
			_ = d.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: names})
			_ = d.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: rtds, ResourceNamesSubscribe: []string{"weir"}})
			for n := range 40 { // words that nobody waits for, and new names
				_ = d.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResponseNonce: fmt.Sprint(n)})
				_ = d.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: []string{fmt.Sprint("x", n)}, ResourceNamesUnsubscribe: names[:n%20]})
			}
			continue
		}
		d, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = d.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: cds})
		_ = d.Send(&discoveryv3.DiscoveryRequest{TypeUrl: eds, ResourceNames: names})
		for n := range 40 {
			_ = d.Send(&discoveryv3.DiscoveryRequest{TypeUrl: cds, ResponseNonce: fmt.Sprint(n)})
			_ = d.Send(&discoveryv3.DiscoveryRequest{TypeUrl: eds, ResourceNames: names[:1+n%20], ResponseNonce: fmt.Sprint(n)})
		}
	}
	envoytest.Eventually(t, 5*time.Second, "they are there", func() bool { return s.Stats().Nodes == slow+1 })
	for i := int64(2); i <= 120; i++ {
		began := time.Now()
		put(t, s, snap(i))
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("a change took %v", took)
		}
		for a := good.next(); ; a = good.next() {
			good.ack(a)
			if runtimeOf(t, a)["circuit_breakers.c0.default.max_requests"] == float64(i) {
				break
			}
		}
	}
	if now := runtime.NumGoroutine(); now > start+slow*8 {
		t.Errorf("%d goroutines, %d before %d clients", now, start, slow)
	}
	cancel()
	envoytest.Eventually(t, 5*time.Second, "nothing is left", func() bool { return s.Stats().Streams == 1 && runtime.NumGoroutine() <= start+2 })
	for _, sh := range s.groups[0].shelves {
		if got := sh.common.NumCacheWatches(); got > 1 {
			t.Errorf("%s: %d watches are left", short(sh.typeURL), got)
		}
	}
}

// Streams beyond the bound are refused, the others go on.
func TestThousandsOfStreams(t *testing.T) {
	s := New(t0, Options{MaxStreams: 2000})
	conn := serveTest(t, s)
	put(t, s, one(1, "10.0.0.1:80"))
	good := deltaADS(t, conn, edge("good", 40))
	good.ask(rtds, "weir")
	good.ack(good.next())
	ctx, cancel := contextOf(t)
	defer cancel()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	for i := range 3000 {
		d, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = d.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: fmt.Sprint("e", i%50)}, TypeUrl: rtds, ResourceNamesSubscribe: []string{"weir"}})
	}
	envoytest.Eventually(t, 5*time.Second, "all were heard", func() bool { st := s.Stats(); return st.Refused[refusedStreams] == 1001 && st.Sent["rtds"] == 2000 })
	put(t, s, one(2, "10.0.0.1:80"))
	if got := runtimeOf(t, good.next())[requests]; got != 2 {
		t.Errorf("it hears %v", got)
	}
	cancel()
	envoytest.Eventually(t, 5*time.Second, "they are gone", func() bool { st := s.Stats(); return st.Streams == 1 && st.Nodes == 1 })
}

// Whoever connects and is refused without end fills no disk with lines.
func TestLinesAreBounded(t *testing.T) {
	var text bytes.Buffer
	w := register{log: slog.New(slog.NewTextHandler(&text, nil))}
	for i := range 100_000 {
		w.say(t0.Add(time.Duration(i)*time.Microsecond), slog.LevelWarn, "refused", "node", i)
	}
	if got := strings.Count(text.String(), "msg=refused"); got != maxLines {
		t.Errorf("%d lines, want %d", got, maxLines)
	}
	w.say(t0.Add(time.Minute), slog.LevelError, "after a minute")
	w.say(t0.Add(-time.Hour), slog.LevelError, "after the clock went back")
	for _, want := range []string{`lines=99700`, `level=ERROR msg="after a minute"`, `msg="after the clock went back"`} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("%s is not said once", want)
		}
	}
}
