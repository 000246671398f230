package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// clustersOf is a snapshot of clusters m and o; what differs in m is max.
func clustersOf(max int64) *Snapshot {
	return &Snapshot{
		Endpoints: map[string]discovery.View{"m": view(1, "10.0.0.1:80"), "o": view(1, "10.0.0.2:80")},
		Clusters:  []policy.Cluster{{Name: "m", MaxRequests: max, Endpoints: &policy.Endpoints{}}, {Name: "o", MaxRequests: 1, Endpoints: &policy.Endpoints{}}},
	}
}

func maxOf(t *testing.T, a *answered, name string) string {
	t.Helper()
	var c clusterv3.Cluster
	unmarshal(t, a, name, &c)
	return c.GetAltStatName()
}

const words = "Error adding/updating cluster(s) m: no such field"

// An Envoy that refuses a cluster keeps its last good one: it is served that,
// also when it comes back; others get the new one; it is not asked again and
// again; the words are kept; the next content goes to all.
func TestRefusedContentIsKeptFromThatEnvoyAlone(t *testing.T) {
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprintf("delta=%t", delta), func(t *testing.T) {
			s := New(t0, Options{Cluster: plainCluster})
			conn := serveTest(t, s)
			open := func(id string, minor uint32) *client {
				if delta {
					return deltaADS(t, conn, edge(id, minor))
				}
				return sotwADS(t, conn, edge(id, minor))
			}
			put(t, s, clustersOf(1))
			old := open("old", 36)
			old.ask(cds)
			a := old.next()
			good := a.version
			old.ack(a)

			put(t, s, clustersOf(2))
			a = old.next()
			if maxOf(t, a, "m") != "2ns" {
				t.Fatal(maxOf(t, a, "m"))
			}
			old.say(cds, nil, a.nonce, good, words, nil)
			a = old.next() // the server takes it to have the refused one: it is told what it has
			if maxOf(t, a, "m") != "1ns" {
				t.Errorf("after the refusal: %s, want the last good one", maxOf(t, a, "m"))
			}
			old.ack(a)
			old.quiet("a refusal is not answered again and again")

			nodes := s.Nodes()
			if n := nodes[0].LastNack; n == nil || n.Text != words || n.Type != "cds" || !slices.Equal(n.Names, []string{"m"}) || nodes[0].Nacks != 1 || s.Stats().Nacked["cds"] != 1 {
				t.Errorf("%+v, %+v", nodes[0], n)
			}

			fresh := open("new", 40)
			fresh.ask(cds)
			if a := fresh.next(); maxOf(t, a, "m") != "2ns" {
				t.Errorf("another Envoy gets %s", maxOf(t, a, "m"))
			}

			old.cancel()
			envoytest.Eventually(t, 5*time.Second, "old left", func() bool { return len(s.Nodes()) == 1 })
			old = open("old", 36)
			old.ask(cds)
			a = old.next()
			if maxOf(t, a, "m") != "1ns" || maxOf(t, a, "o") != "1ns" {
				t.Errorf("back: %s, %s, want the last good one", maxOf(t, a, "m"), maxOf(t, a, "o"))
			}
			old.ack(a)

			put(t, s, clustersOf(3))
			a = old.next()
			if maxOf(t, a, "m") != "3ns" {
				t.Errorf("the next content: %s", maxOf(t, a, "m"))
			}
			old.ack(a)
			put(t, s, clustersOf(4))
			for maxOf(t, a, "m") != "4ns" { // the way back to the common cache repeats what is equal, once
				a = old.next()
				old.ack(a)
			}
		})
	}
}

// The very first answer is refused: there is no good one to go back to, the
// client has no version, and still it is not sent the same for ever.
func TestRefusingTheFirstAnswerIsNoLoop(t *testing.T) {
	ways(t, func(t *testing.T, open func(*grpc.ClientConn, *corev3Node, string) *client, delta bool) {
		s := New(t0, Options{Cluster: plainCluster})
		conn := serveTest(t, s)
		put(t, s, clustersOf(1))
		c := open(conn, edge("e", 40), eds)
		c.ask(eds, "m", "o")
		answers := 0
		var names []string
		if !delta {
			names = []string{"m", "o"}
		}
		for quiet := false; !quiet; {
			select {
			case a := <-c.in:
				if answers++; answers > 3 {
					t.Fatalf("%d answers to an Envoy that refuses all", answers)
				}
				c.say(eds, names, a.nonce, "", "no", nil)
			case err := <-c.fail:
				t.Fatal(err)
			case <-time.After(150 * time.Millisecond):
				quiet = true
			}
		}
		if answers != 1 {
			t.Errorf("%d answers, want 1", answers)
		}
		envoytest.Eventually(t, 5*time.Second, "the word", func() bool { return s.Nodes()[0].Nacks == 1 })
		if n := s.Nodes()[0].LastNack; !slices.Equal(n.Names, []string{"m", "o"}) {
			t.Errorf("who is not named by the words is not told from the others: %v", n.Names)
		}
		snap := clustersOf(1)
		snap.Endpoints["m"] = view(2, "10.0.0.7:80")
		put(t, s, snap)
		if a := c.next(); healths(claOf(t, a, "m"))["10.0.0.7"] == "" {
			t.Errorf("%v", a.names())
		}
	})
}

// An Envoy that refuses everything, also the last good one, is left alone.
func TestRefusingTheLastGoodOneToo(t *testing.T) {
	for _, delta := range []bool{true, false} {
		s := New(t0, Options{Cluster: plainCluster})
		conn := serveTest(t, s)
		c := deltaADS(t, conn, edge("e", 40))
		if !delta {
			c = sotwADS(t, conn, edge("e", 40))
		}
		put(t, s, clustersOf(1))
		c.ask(cds)
		a := c.next()
		first := a.version
		c.ack(a)
		put(t, s, clustersOf(2))
		answers := 0
		for quiet := false; !quiet; {
			select {
			case a := <-c.in:
				if answers++; answers > 6 {
					t.Fatalf("delta=%t: %d answers to an Envoy that refuses all", delta, answers)
				}
				c.say(cds, nil, a.nonce, first, words, nil)
			case err := <-c.fail:
				t.Fatal(err)
			case <-time.After(150 * time.Millisecond):
				quiet = true
			}
		}
		if answers > 3 {
			t.Errorf("delta=%t: %d answers", delta, answers)
		}
	}
}

func TestMentions(t *testing.T) {
	for _, c := range []struct {
		text string
		want bool
	}{
		{"Error adding/updating cluster(s) m: x", true}, {"cluster m.", true}, {"m", true}, {"'m', o", true},
		{"cluster m-int8", false}, {"am", false}, {"m.dotted", false}, {"x_m", false}, {"", false}, {"mm m1 m", true},
	} {
		if got := mentions(c.text, "m"); got != c.want {
			t.Errorf("%q: %t", c.text, got)
		}
	}
	if mentions("x", "") {
		t.Error("the empty name is mentioned everywhere")
	}
}

func TestLongWordsAreCut(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	put(t, s, one(6, "10.0.0.1:80"))
	c := deltaADS(t, conn, edge("e", 40))
	c.ask(rtds, "weir")
	a := c.next()
	c.say(rtds, nil, a.nonce, "", strings.Repeat("ä", 5000), nil)
	envoytest.Eventually(t, 5*time.Second, "the word", func() bool { return s.Nodes()[0].LastNack != nil })
	if n := s.Nodes()[0].LastNack; len(n.Text) != maxWords {
		t.Errorf("%d bytes", len(n.Text))
	}
}

// Run: the state is on disk soon, and what nobody renews is withdrawn after
// the grace by an update.
func TestRunKeepsTheStateAndItsGrace(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := New(time.Now(), Options{Dir: dir})
		run := func(s *Server) (stop func()) {
			done := make(chan struct{})
			ctx, cancel := contextOf(t)
			go func() { defer close(done); s.Run(ctx) }()
			return func() { cancel(); <-done; s.Close() }
		}
		stop := run(s)
		put(t, s, &Snapshot{Settings: []protect.Settings{override("m", 6)}})
		synctest.Wait()
		if st, err := readState(dir); err != nil || st == nil || st.Clusters[0].Runtime[requests] != 6 {
			t.Fatalf("%+v, %v", st, err)
		}
		put(t, s, &Snapshot{Settings: []protect.Settings{override("m", 7)}})
		stop() // within the pause between two writes
		if st, err := readState(dir); err != nil || st.Clusters[0].Runtime[requests] != 7 {
			t.Fatalf("the last one: %+v, %v", st, err)
		}

		s = New(time.Now(), Options{Dir: dir, Grace: 20 * time.Second})
		stop = run(s)
		time.Sleep(19 * time.Second)
		synctest.Wait()
		if st := s.Stats(); !slices.Equal(st.Inherited, []string{"m"}) || st.Withdrawn != 0 {
			t.Errorf("within the grace: %+v", st)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st := s.Stats(); len(st.Inherited) != 0 || st.Withdrawn != 1 {
			t.Errorf("after it: %+v", st)
		}
		time.Sleep(time.Second)
		stop()
		if st, err := readState(dir); err != nil || len(st.Clusters) != 0 {
			t.Errorf("%+v, %v", st, err)
		}
	})
}
