package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/envoy/watch"
	"github.com/weirproxy/weir/envoy/xds"
	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/policy"
)

// stormReadings are those of Envoys that see GOAWAYs at a cluster.
func stormReadings(t *testing.T, p *policy.Policy, cluster string) *watch.Readings {
	t.Helper()
	now := time.Now()
	core := watch.NewCore(p.Envoy.Watch, []string{cluster}, now)
	var r *watch.Readings
	row := watch.Counters{Node: "e", Cluster: cluster, ActiveConnections: 20, Connections: 20, ActiveRequests: 20}
	for i := range 60 {
		now = now.Add(time.Second / 2)
		if i > 40 {
			row.CloseNotify += 20
			row.Resets += 20
			row.Connections += 20
			row.Destroyed += 20
		}
		row.At, row.Requests = now, row.Requests+100
		core.Observe(now, []watch.Counters{row})
		r, _ = core.Step(now)
	}
	if got, _ := r.Of(cluster); !got.Storm {
		t.Fatalf("no storm: %+v", got)
	}
	return r
}

// TestStreetStorm: a storm of GOAWAYs opens gRPC breakers alone, and stops
// retries at every pool of the cluster until it is over (B7, B9).
func TestStreetStorm(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	c, g, calm := stormReadings(t, p, "c"), stormReadings(t, p, "g"), new(watch.Readings)
	moved := readPolicy(t, strings.Replace(streetPolicy, "cluster: g}", "cluster: elsewhere}", 1))
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, "a", p, nil)
		defer r.end()
		r.stop() // the duties would look at the watch, which hears nobody
		r.work.Wait()
		want := func(when, storms string) {
			t.Helper()
			text := ""
			for _, s := range r.desk.Snapshot(time.Now()).Pools {
				if s.Storm {
					text += s.Name + " "
				}
			}
			if text != storms {
				t.Errorf("%s: a storm at %q, want %q", when, text, storms)
			}
		}
		follow := func(p *policy.Policy) {
			r.holder.Swap(p)
			r.desk.Swap(p)
			r.configure(p)
		}
		r.storm(time.Now(), c)
		want("storm at c", "chat small ")
		if s := r.pool("chat").View; s.State != breaker.Closed {
			t.Errorf("an HTTP pool is %v", s.State)
		}
		r.storm(time.Now(), g)
		want("storm at g", "infer ")
		if s := r.pool("infer").View; s.State != breaker.Hard || s.Cause != breaker.ByGoAway || s.By == "" {
			t.Errorf("the gRPC pool is %+v", s)
		}
		follow(moved)
		r.storm(time.Now(), g)
		want("the pool was moved to another cluster", "")
		follow(p)
		r.storm(time.Now(), g)
		want("and back", "infer ")
		r.storm(time.Now(), calm)
		want("calm", "")
	})
}

// TestStreetProtects: a breaker that opens becomes numbers for Envoy at once
// and, when it was calm, the file's again; the timeline has each with its cause.
func TestStreetProtects(t *testing.T) {
	p := readPolicy(t, streetPolicy+"envoy: {xds: {}}\n")
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, "a", p, nil)
		defer r.end()
		time.Sleep(time.Second)
		if n := len((*r.told.Load())["c"].Because); n > 0 {
			t.Fatalf("told something with nothing wrong")
		}
		r.ends("chat", 40, true)
		time.Sleep(20 * time.Millisecond)
		s := (*r.told.Load())["c"]
		if s.MaxRetries == nil || *s.MaxRetries != 0 || s.MinRetries == nil || *s.MinRetries != 0 {
			t.Fatalf("20 ms after a breaker opened, its cluster is told %+v", s)
		}
		if g := (*r.told.Load())["g"]; len(g.Because) > 0 {
			t.Errorf("the other cluster is told %+v", g)
		}
		pushes := r.entries(entryPush)
		if len(pushes) != 3 || pushes[0].Cluster != "c" || pushes[0].From == "" || pushes[0].To != "0" || pushes[0].Because == "" {
			t.Errorf("the timeline says %+v", pushes)
		}
		if n := r.xds.Stats().Pushes; n != 2 { // the first content, and this
			t.Errorf("%d pushes", n)
		}
		r.desk.Breaker("chat").Reset(time.Now(), "test")
		time.Sleep(p.Envoy.Protection.Calm - 100*time.Millisecond)
		if s := (*r.told.Load())["c"]; s.MaxRetries == nil {
			t.Error("loosened before it was calm")
		}
		time.Sleep(time.Second)
		if s := (*r.told.Load())["c"]; s.MaxRetries != nil {
			t.Errorf("when it was calm, told %+v", s)
		}
	})
}

// TestStreetTellsUnwellEndpoints: what the gauge thinks of a host reaches EDS.
func TestStreetTellsUnwellEndpoints(t *testing.T) {
	p := readPolicy(t, streetPolicy+`envoy:
  xds: {}
  clusters: [{name: g, endpoints: {priorities: [{static: ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]}]}}]
`)
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, "a", p, nil)
		defer r.end()
		r.mu.Lock()
		r.unwell["infer"] = []string{"10.0.0.2:80"}
		r.mu.Unlock()
		time.Sleep(2 * protectEvery)
		if h := (*r.told.Load())["g"].Health; len(h) != 1 || h["10.0.0.2:80"].String() != "unhealthy" {
			t.Errorf("health %v", h)
		}
		v := r.clusters()
		if len(v) != 2 || len(v[1].Endpoints) != 3 || v[1].Endpoints[1].Health != "unhealthy" || v[1].Endpoints[0].Health != "healthy" {
			t.Errorf("the picture is %+v", v)
		}
	})
}

// TestStreetKeepsEndpoints: a reload that changes a cluster's sources leaves it
// served while the new ones cannot be read, and what was never read is not told
// as nothing. Each trouble is said once.
func TestStreetKeepsEndpoints(t *testing.T) {
	dir := t.TempDir()
	text := func(source string) string {
		return streetPolicy + "envoy: {xds: {}, clusters: [{name: g, endpoints: {priorities: [{" + source + ", every: 1s}]}}]}\n"
	}
	first := readPolicy(t, text(`file: `+filepath.Join(dir, "a.yaml")))
	second := readPolicy(t, text(`file: `+filepath.Join(dir, "b.yaml")))
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, "a", first, nil)
		defer r.end()
		hosts := func() (out []string) {
			for _, e := range r.points.views()["g"].Endpoints {
				out = append(out, e.Address.String())
			}
			return out
		}
		write := func(name, host string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("["+host+"]"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if served := len(r.xds.Stats().Unclaimed); served != 0 {
			t.Error("a cluster of which nothing is known is served")
		}
		if failed, sources := r.points.failures(); failed == 0 || sources != 1 || r.log.count("endpoints cannot be read") != 1 {
			t.Errorf("%d failures of %d sources, said %d times", failed, sources, r.log.count("endpoints cannot be read"))
		}
		write("a.yaml", "10.0.0.1:80")
		time.Sleep(2 * time.Second)
		if got := fmt.Sprint(hosts()); got != "[10.0.0.1:80]" || len(r.xds.Stats().Unclaimed) != 1 {
			t.Fatalf("endpoints %s, served %v", got, r.xds.Stats().Unclaimed)
		}
		r.holder.Swap(second)
		r.desk.Swap(second)
		r.configure(second)
		time.Sleep(2 * time.Second)
		if got := fmt.Sprint(hosts()); got != "[]" || len(r.xds.Stats().Unclaimed) != 1 {
			t.Errorf("before the new source is there: %s, served %v", got, r.xds.Stats().Unclaimed)
		}
		write("b.yaml", "10.0.0.2:80")
		time.Sleep(2 * time.Second)
		if got := fmt.Sprint(hosts()); got != "[10.0.0.2:80]" {
			t.Errorf("when it is: %s", got)
		}
		if lost, back := r.log.count("endpoints cannot be read"), r.log.count("endpoints are read again"); lost != 2 || back != 2 {
			t.Errorf("of two troubles it was said %d times that they began, %d that they ended", lost, back)
		}
	})
}

// TestStreetNodes: who came, went and refused is in the timeline, once.
func TestStreetNodes(t *testing.T) {
	r := &street{}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := xds.Node{ID: "e", Release: "1.20.0", Since: at}
	r.compare(xds.Node{}, n)
	r.compare(n, n)
	refused := n
	refused.LastNack = &xds.Nack{At: at.Add(time.Second), Type: "eds", Version: "v7", Text: "no", Names: []string{"c", "g"}}
	r.compare(n, refused)
	r.compare(refused, refused)
	layer := refused
	layer.LastNack = &xds.Nack{At: at.Add(2 * time.Second), Type: "rtds", Version: "v8", Text: "bad", Names: []string{"weir"}}
	r.compare(refused, layer)
	var got []string
	for _, e := range r.timeline.view(admin.TimelineQuery{}).Entries {
		got = append(got, strings.Join([]string{e.What, e.Node, e.Cluster, e.Key, e.From, e.To, e.Because}, "|"))
	}
	want := []string{
		"node|e||came||1.20.0|its release is not one that weir was tested with",
		"nack|e|c|eds|v7||no", "nack|e|g|eds|v7||no", "nack|e||rtds|v8||bad",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
