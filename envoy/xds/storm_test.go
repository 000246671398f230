package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/internal/envoytest"
)

// model is an Envoy as far as it keeps what it is sent: an answer that it
// refuses changes nothing.
type model struct {
	t      *testing.T
	delta  bool
	rand   *rand.Rand
	agrees bool // refuses nothing
	names  []string
	c      *client

	runtime   map[string]float64
	endpoints map[string]*endpointv3.ClusterLoadAssignment
	versions  map[string]map[string]string // delta: by type and name
	last      map[string]string            // state of the world: by type
}

func (m *model) connect(s *Server) {
	conn := serveTest(m.t, s)
	if m.delta {
		m.c = deltaADS(m.t, conn, edge("e", 40))
	} else {
		m.c = sotwADS(m.t, conn, edge("e", 40))
	}
	m.c.say(rtds, []string{"weir"}, "", m.last[rtds], "", maps.Clone(m.versions[rtds]))
	m.c.say(eds, m.names, "", m.last[eds], "", maps.Clone(m.versions[eds]))
}

// take applies an answer, or refuses it now and then.
func (m *model) take(a *answered) {
	var names []string
	if !m.delta {
		names = map[string][]string{rtds: {"weir"}, eds: m.names}[a.typeURL]
	}
	if !m.agrees && m.rand.IntN(4) == 0 {
		m.c.say(a.typeURL, names, a.nonce, m.last[a.typeURL], "not today", nil)
		return
	}
	for name := range a.got {
		switch a.typeURL {
		case rtds:
			m.runtime = runtimeOf(m.t, a)
		case eds:
			m.endpoints[name] = claOf(m.t, a, name)
		}
	}
	if len(a.removed) > 0 && a.typeURL == rtds {
		m.t.Fatal("the layer is taken away")
	}
	maps.Copy(m.versions[a.typeURL], a.versions)
	for _, name := range a.removed {
		delete(m.versions[a.typeURL], name) // of endpoints Envoy keeps what it has
	}
	m.last[a.typeURL] = a.version
	m.c.ack(a, names...)
}

// settle takes answers until none comes.
func (m *model) settle() {
	for {
		select {
		case a := <-m.c.in:
			m.take(a)
		case err := <-m.c.fail:
			m.t.Fatal(err)
		case <-time.After(30 * time.Millisecond):
			return
		}
	}
}

// Whatever happens in whatever order (changes, refusals, weir dying with or
// without its state), an Envoy that refuses no more ends with what was set
// last. What it has is never less than it was told to have.
func TestEnvoysEndWithWhatWasSetLast(t *testing.T) {
	for _, delta := range []bool{true, false} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("delta=%t,seed=%d", delta, seed), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(seed, 1))
				m := &model{t: t, delta: delta, rand: r, names: []string{"a", "b", "c"}, endpoints: map[string]*endpointv3.ClusterLoadAssignment{},
					versions: map[string]map[string]string{rtds: {}, eds: {}}, last: map[string]string{}}
				dir := t.TempDir()
				s := New(time.Now(), Options{Dir: dir})
				m.connect(s)
				draw := func() *Snapshot {
					snap := &Snapshot{Endpoints: map[string]discovery.View{}, Settled: true}
					for _, name := range m.names {
						var hosts []string
						for i := range r.IntN(3) {
							hosts = append(hosts, fmt.Sprintf("10.0.0.%d:%d", i, 80+r.IntN(2)))
						}
						snap.Endpoints[name] = view(r.Uint64(), hosts...)
						set := protect.Settings{Cluster: name, Drop: int64(r.IntN(2) * 50)}
						if r.IntN(2) == 0 {
							set.MaxRequests = n(int64(r.IntN(5)))
						}
						snap.Settings = append(snap.Settings, set)
					}
					return snap
				}
				put(t, s, draw())
				for range 12 {
					switch r.IntN(6) {
					case 0:
						s.save(time.Now())
						m.c.cancel()
						s.Close()
						if r.IntN(2) == 0 {
							dir = t.TempDir()
						}
						s = New(time.Now(), Options{Dir: dir})
						m.connect(s)
						had := maps.Clone(m.runtime)
						m.settle()
						for key := range had { // nothing was set yet
							if _, has := m.runtime[key]; !has && !refusedSome(s) {
								t.Errorf("a start took %s away", key)
							}
						}
					case 1, 2:
						m.settle()
					default:
						put(t, s, draw())
					}
				}
				m.settle()
				m.agrees = true
				last := draw()
				put(t, s, last)
				m.settle()
				want := map[string]float64{}
				for k, v := range s.book.layer(everybody) {
					want[k] = float64(v)
				}
				if !maps.Equal(m.runtime, want) {
					t.Errorf("runtime %v, want %v", m.runtime, want)
				}
				for _, name := range m.names {
					if !proto.Equal(m.endpoints[name], s.book.records[name].resource) {
						t.Errorf("%s: %v, want %v", name, m.endpoints[name], s.book.records[name].resource)
					}
				}
			})
		}
	}
}

// refusedSome: what an Envoy refused before weir died, it may get now.
func refusedSome(s *Server) bool { return !s.Stats().Disk.Restored.IsZero() }

// Envoys come and go by the hundred while content changes: nothing is left of
// them, and who stays hears the last word.
func TestStormOfConnects(t *testing.T) {
	s := New(t0, Options{})
	conn := serveTest(t, s)
	put(t, s, one(1, "10.0.0.1:80"))
	stays := deltaADS(t, conn, edge("stays", 40))
	stays.ask(rtds, "weir")
	stays.ack(stays.next())
	var crowd sync.WaitGroup
	for w := range 8 {
		crowd.Go(func() {
			for i := range 40 {
				open := deltaADS
				if i%2 == 0 {
					open = sotwADS
				}
				c := open(t, conn, edge(fmt.Sprint("e", w, "-", i%5), 40))
				_ = c.send(rtds, []string{"weir"}, "", "", "", nil)
				if i%3 > 0 {
					_ = c.send(eds, []string{"m"}, "", "", "", nil)
					<-c.in
				}
				c.cancel()
			}
		})
	}
	for i := int64(2); i <= 50; i++ {
		put(t, s, one(i, "10.0.0.1:80", fmt.Sprintf("10.0.0.2:%d", i)))
	}
	crowd.Wait()
	for {
		a := stays.next()
		stays.ack(a)
		if runtimeOf(t, a)[requests] == 50 {
			break
		}
	}
	envoytest.Eventually(t, 5*time.Second, "the crowd is gone", func() bool { st := s.Stats(); return st.Nodes == 1 && st.Streams == 1 })
	if ids := s.Nodes(); !slices.ContainsFunc(ids, func(n Node) bool { return n.ID == "stays" }) {
		t.Errorf("%+v", ids)
	}
	for _, sh := range s.groups[0].shelves {
		if got := sh.common.NumCacheWatches(); got > 1 {
			t.Errorf("%s: %d watches are left", short(sh.typeURL), got)
		}
	}
	s.forget(time.Now().Add(remember))
	if got := len(s.roster.nodes); got != 1 {
		t.Errorf("%d nodes are remembered", got)
	}
}
