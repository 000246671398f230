package watch

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/peer"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// rowsOf is one row, now.
func rowsOf(node string, c Counters) []Counters {
	c.Node, c.Cluster, c.At = node, "chat", time.Now()
	return []Counters{c}
}

// TestWatch: what a source brings is a reading within a step, what begins and
// ends is in the journal and the log, and a new policy is judged by at once.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		p := streetPolicy(true, nil)
		p.Envoy.Watch.GoAway.Literal = true
		w := New(p, Options{Log: log.log()})
		defer w.Close()
		if _, ok := w.Readings().Of("chat"); ok || len(w.Readings().All()) != 0 {
			t.Error("a reading of nothing")
		}
		_, more := w.Journal().Since(0)
		var c Counters
		storm := func(perSecond int64) {
			for range 10 {
				c.CloseNotify += perSecond
				c.ActiveConnections = 4
				c.Requests += 1000
				w.take("test", rowsOf("one", c))
				time.Sleep(time.Second)
			}
		}
		storm(8)
		r, _ := w.Readings().Of("chat")
		if !r.Storm || r.GoAwaysPerSecond < 7.9 || r.Envoys != 1 {
			t.Errorf("%+v", r)
		}
		select {
		case <-more:
		default:
			t.Error("the journal's channel is not closed")
		}
		p = streetPolicy(true, nil)
		p.Envoy.Watch.GoAway.PerSecond = 100
		w.Configure(p)
		time.Sleep(stepEvery + time.Millisecond)
		if r, _ := w.Readings().Of("chat"); r.Storm || r.GoAways == 0 {
			t.Errorf("by the new policy: %+v", r)
		}
		events, _ := w.Journal().Since(0)
		if len(events) != 2 || events[0].What != StormBegan || events[1].What != StormEnded || events[1].Seq != 2 || events[1].Lasted <= 0 {
			t.Errorf("%+v", events)
		}
		if later, _ := w.Journal().Since(1); len(later) != 1 || later[0].Seq != 2 {
			t.Errorf("%+v", later)
		}
		if l := log.String(); !strings.Contains(l, "GOAWAY storm") || !strings.Contains(l, "storm_ended") {
			t.Errorf("log: %s", l)
		}
		p.Envoy.Clusters = nil
		w.Configure(p)
		time.Sleep(stepEvery + time.Millisecond)
		if _, ok := w.Readings().Of("chat"); ok {
			t.Error("a cluster that is no longer watched has a reading")
		}
	})
}

// TestWatchTwoSources: an Envoy that two sources tell of is counted once, and
// by the other when the one falls silent.
func TestWatchTwoSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(streetPolicy(true, nil), Options{})
		defer w.Close()
		c := Counters{Connections: 1000, CloseNotify: 500, ActiveConnections: 4}
		refused := 0
		for range 50 {
			w.take("metrics", rowsOf("one", c))
			time.Sleep(100 * time.Millisecond)
			behind := c // a little older, as another's flush may be
			behind.Connections -= 3
			n, why := w.take("admin", rowsOf("one", behind))
			if refused += n; n > 0 && why != GarbageTwin {
				t.Fatal(why)
			}
			c.Connections++
		}
		if r, _ := w.Readings().Of("chat"); refused != 50 || r.GoAways != 0 || r.Connections != 4 {
			t.Errorf("%d refused, %+v", refused, r)
		}
		time.Sleep(5 * time.Second)
		if n, _ := w.take("admin", rowsOf("one", c)); n != 0 || w.Stats().Envoys[0].Source != "admin" {
			t.Errorf("the other source was not taken when the first fell silent: %+v", w.Stats())
		}
	})
}

// TestWatchWarns: an Envoy without a cluster of the policy, and one whose
// counters always begin anew, are named in the log.
func TestWatchWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		p := streetPolicy(true, nil)
		p.Envoy.Clusters = append(p.Envoy.Clusters, policy.Cluster{Name: "gone"})
		w := New(p, Options{Log: log.log()})
		defer w.Close()
		for i := range 60 {
			w.take("test", rowsOf("one", Counters{Connections: int64(100 - i)}))
			time.Sleep(time.Second)
		}
		l := log.String()
		if !strings.Contains(l, "node=one clusters=gone of=1") || !strings.Contains(l, "report_counters_as_deltas") || strings.Count(l, "clusters=gone") > 2 {
			t.Errorf("log: %s", l)
		}
		if e := w.Stats().Envoys[0]; len(e.Missing) != 1 || e.Missing[0] != "gone" || e.Restarts != 59 {
			t.Errorf("%+v", e)
		}
	})
}

// TestTooManyEnvoys: more than are counted are refused, and those that were
// there are still heard.
func TestTooManyEnvoys(t *testing.T) {
	core := NewCore(defaults(), []string{"chat"}, instant)
	refused := 0
	for i := range MaxEnvoys + 10 {
		refused += core.Observe(instant, []Counters{{Node: fmt.Sprint(i), Cluster: "chat", At: instant, ActiveConnections: 1}, {Node: fmt.Sprint(i), Cluster: "unknown", At: instant}})
	}
	readings, _ := core.Step(instant)
	if r, _ := readings.Of("chat"); refused != 10 || r.Envoys != MaxEnvoys || len(readings.All()) != 1 {
		t.Errorf("%d refused, %+v", refused, r)
	}
}

// TestPollerOverUnix: the admin socket as the policy writes it, http too.
func TestPollerOverUnix(t *testing.T) {
	dir := envoytest.Dir(t)
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stats" && strings.Contains(r.URL.Query().Get("filter"), "close_notify") {
			_, _ = rw.Write([]byte("cluster.chat.upstream_cx_active: 3\n"))
		}
	})
	socket := "unix:" + filepath.Join(dir, "admin.sock")
	var admin []policy.EnvoyAdmin
	for _, at := range []struct{ node, network, addr string }{{"one", "unix", strings.TrimPrefix(socket, "unix:")}, {"two", "tcp", "127.0.0.1:0"}} {
		listen, err := net.Listen(at.network, at.addr)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: handler, ReadHeaderTimeout: time.Second}
		go func() { _ = srv.Serve(listen) }()
		t.Cleanup(func() { _ = srv.Close() })
		address := socket
		if at.network == "tcp" {
			address = "http://" + listen.Addr().String()
		}
		admin = append(admin, policy.EnvoyAdmin{Node: at.node, URL: address})
	}
	var asked atomic.Int64
	w := New(streetPolicy(true, admin), Options{Allow: func(Node, *peer.Peer) error { asked.Add(1); return nil }})
	defer w.Close()
	envoytest.Eventually(t, 5*time.Second, "both are read", func() bool {
		r, _ := w.Readings().Of("chat")
		return r.Envoys == 2 && r.Connections == 6
	})
	if asked.Load() != 0 {
		t.Error("a poller's target was asked whether it may speak")
	}
}

// TestCoreSane: random Envoys, counters, gaps, restarts and steps of the
// clock: every reading is sane, and no GOAWAY is counted twice.
func TestCoreSane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := defaults()
		p.GoAway.Window = time.Duration(rapid.IntRange(1, 700).Draw(t, "window")) * time.Second
		p.GoAway.Literal = rapid.Bool().Draw(t, "literal")
		core := NewCore(p, nil, instant)
		at, told := time.Duration(0), 0.0
		rows := map[string]*Counters{}
		n := func(most int) int64 { return int64(rapid.IntRange(0, most).Draw(t, "n")) }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at += time.Duration(rapid.IntRange(-2000, 20_000).Draw(t, "ms")) * time.Millisecond
			now := instant.Add(at)
			node := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node")
			c, known := rows[node]
			if !known || rapid.IntRange(0, 20).Draw(t, "restart") == 0 {
				c = &Counters{Node: node, Cluster: "chat"}
				rows[node] = c
			} else {
				goaways := n(50)
				c.CloseNotify += goaways
				c.Connections += 1 + n(50)
				c.Requests += 1 + n(500)
				c.ConnectFail += n(5)
				c.Destroyed += n(60)
				told += float64(goaways)
			}
			c.ActiveConnections, c.ActiveRequests, c.Pending, c.Members, c.Healthy = n(50), n(50), n(3), n(3), n(3)
			c.At = now.Add(-time.Duration(n(3000)) * time.Millisecond)
			core.Observe(now, []Counters{*c})
			readings, _ := core.Step(now)
			r, ok := readings.Of("chat")
			if !ok {
				t.Fatal("no reading")
			}
			check(t, r)
			if float64(r.GoAways) > told+0.5 {
				t.Fatalf("%d GOAWAYs of %.0f", r.GoAways, told)
			}
		}
	})
}

// TestNothingIsLost: with a window longer than the run, all GOAWAYs are in it,
// however they fell between samples.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := defaults()
		p.GoAway.Window = 10 * time.Minute
		core := NewCore(p, nil, instant)
		c := Counters{Node: "a", Cluster: "chat", At: instant}
		core.Observe(instant, []Counters{c})
		at := time.Duration(0)
		for range 30 {
			at += time.Duration(rapid.IntRange(0, 15_000).Draw(t, "ms")) * time.Millisecond
			c.At = instant.Add(at)
			c.CloseNotify += int64(rapid.IntRange(0, 9).Draw(t, "goaways"))
			core.Observe(c.At, []Counters{c})
		}
		readings, _ := core.Step(instant.Add(at))
		if r, _ := readings.Of("chat"); r.GoAways != c.CloseNotify {
			t.Fatalf("%d GOAWAYs, want %d", r.GoAways, c.CloseNotify)
		}
	})
}
