package watch

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// gate is an admin address in memory.
type gate struct {
	mu     sync.Mutex
	looks  []time.Duration
	start  time.Time
	url    *url.URL
	answer func(r *http.Request) (int, string, error)
}

func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	g.mu.Lock()
	g.looks = append(g.looks, time.Since(g.start))
	g.url = r.URL
	answer := g.answer
	g.mu.Unlock()
	code, body, err := answer(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}, nil
}

func (g *gate) set(answer func(*http.Request) (int, string, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer, g.looks, g.start = answer, nil, time.Now()
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.looks)
}

func (g *gate) asked() *url.URL {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.url
}

func well(*http.Request) (int, string, error) {
	return 200, "cluster.chat.upstream_cx_active: 3\ncluster.chat.upstream_cx_close_notify: 4\n", nil
}

// gates makes a poller of admin addresses in memory, one for each node.
func gates(sink Sink, log *lines, nodes ...string) (*Poller, map[string]*gate, *policy.Policy) {
	p := NewPoller(sink, log.log(), 1)
	made := map[string]*gate{}
	var admin []policy.EnvoyAdmin
	for _, n := range nodes {
		made[n] = &gate{start: time.Now(), answer: well}
		admin = append(admin, policy.EnvoyAdmin{Node: n, URL: "http://127.0.0.1:1/" + n})
	}
	p.limit = 1024
	p.transport = func(t policy.EnvoyAdmin) (string, http.RoundTripper) { return "http://envoy", made[t.Node] }
	return p, made, streetPolicy(false, admin)
}

// TestPoller: each target is read at its period, with its node and a narrow
// filter, and a new policy keeps those that stay.
func TestPoller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		var log lines
		p, g, pol := gates(got.take, &log, "one", "two")
		defer p.Close()
		p.Configure(pol)
		time.Sleep(10*time.Second + 50*time.Millisecond)
		for node, gate := range g {
			if n := gate.count(); n < 98 || n > 103 {
				t.Errorf("%s: %d looks in 10 s of 100 ms", node, n)
			}
		}
		rows := got.all()
		if rows[0].Cluster != "chat" || rows[0].ActiveConnections != 3 || rows[0].CloseNotify != 4 || rows[0].At.IsZero() {
			t.Errorf("%+v", rows[0])
		}
		asked := g["one"].asked()
		q := asked.Query()
		if f := q.Get("filter"); !strings.HasPrefix(f, `^cluster\.(chat)\.(upstream_cx_active|`) || !q.Has("usedonly") || asked.Path != "/stats" {
			t.Errorf("asks %v", asked)
		}
		pol.Envoy.Watch.Admin = pol.Envoy.Watch.Admin[:1]
		p.Configure(pol)
		g["one"].set(well)
		g["two"].set(well)
		time.Sleep(time.Second)
		if one, two := g["one"].count(), g["two"].count(); one < 9 || two != 0 {
			t.Errorf("after a new policy: %d, %d looks", one, two)
		}
		if s := p.Stats(); len(s.Targets) != 1 || s.Targets[0].Looks < 105 || s.Targets[0].Err != "" || log.String() != "" {
			t.Errorf("%+v %s", s, log.String())
		}
	})
}

// TestPollerMisses: each kind of miss is named, told once, backs off, heals,
// and delays no other target.
func TestPollerMisses(t *testing.T) {
	for _, c := range []struct {
		why    Miss
		word   string
		answer func(*http.Request) (int, string, error)
	}{
		{MissDenied, "allow_paths", func(*http.Request) (int, string, error) {
			return 403, "request to path /stats not allowed", nil
		}},
		{MissStatus, "status 500", func(*http.Request) (int, string, error) { return 500, "oh", nil }},
		{MissConnect, "refused", func(*http.Request) (int, string, error) { return 0, "", errors.New("connection refused") }},
		{MissEmpty, "stats_matcher", func(*http.Request) (int, string, error) { return 200, "", nil }},
		{MissSize, "1 KiB", func(*http.Request) (int, string, error) { return 200, strings.Repeat("x", 1025), nil }},
		{MissTimeout, "deadline", func(r *http.Request) (int, string, error) { <-r.Context().Done(); return 0, "", r.Context().Err() }},
	} {
		t.Run(string(c.why), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got basin
				var log lines
				p, g, pol := gates(got.take, &log, "bad", "good")
				defer p.Close()
				g["bad"].set(c.answer)
				p.Configure(pol)
				time.Sleep(time.Minute)
				if n := g["bad"].count(); n < 7 || n > 15 {
					t.Errorf("%d looks in a minute, want about a dozen", n)
				}
				if n := g["good"].count(); n < 580 {
					t.Errorf("%d looks at the other target", n)
				}
				s := p.Stats()
				if s.Targets[0].Missed[string(c.why)] == 0 || len(s.Targets[0].Missed) != 1 || !strings.Contains(s.Targets[0].Err, c.word) {
					t.Errorf("%+v", s.Targets[0])
				}
				if l := log.String(); strings.Count(l, "cannot be read") != 1 || !strings.Contains(l, c.word) {
					t.Errorf("log: %s", l)
				}
				g["bad"].set(well)
				time.Sleep(12 * time.Second)
				if l := log.String(); !strings.Contains(l, "answers again") || p.Stats().Targets[0].Err != "" {
					t.Errorf("not back: %s", l)
				}
			})
		})
	}
}

// TestPollerJitter: targets do not ask in step, and their looks wander.
func TestPollerJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got basin
		var log lines
		p, g, pol := gates(got.take, &log, "one", "two", "three", "four")
		defer p.Close()
		p.Configure(pol)
		time.Sleep(5 * time.Second)
		p.Close()
		phases := map[time.Duration]bool{}
		for _, gate := range g {
			phases[gate.looks[0]/(5*time.Millisecond)] = true
			gaps := map[time.Duration]bool{}
			for i := 1; i < len(gate.looks); i++ {
				gap := gate.looks[i] - gate.looks[i-1]
				gaps[gap] = true
				if i > 1 && (gap < 89*time.Millisecond || gap > 111*time.Millisecond) {
					t.Errorf("a gap of %v", gap)
				}
			}
			if len(gaps) < 20 {
				t.Errorf("%d different gaps", len(gaps))
			}
		}
		if len(phases) < 3 {
			t.Errorf("%d phases of 4 targets", len(phases))
		}
	})
}

// TestFilter: names are quoted, and too many are not named.
func TestFilter(t *testing.T) {
	if f := filter([]string{"a.b", "c|d"}, func(s string) string { return "<" + s + ">" }); !strings.HasPrefix(f, `^cluster\.(<a.b>|<c|d>)\.(`) || !strings.HasSuffix(f, ")$") {
		t.Error(f)
	}
	many := make([]string, 500)
	for i := range many {
		many[i] = "cluster"
	}
	if f := filter(many, func(s string) string { return s }); !strings.HasPrefix(f, `^cluster\..*\.(`) {
		t.Error(f)
	}
}
