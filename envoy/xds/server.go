package xds

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/weirproxy/weir/policy"
)

// Options are what a Server is made of. The zero value serves one group of
// all nodes, without a state on disk and without CDS.
type Options struct {
	Dir    string            // of the last state; "" = none is kept
	Layer  string            // name of the RTDS layer; default weir
	Groups []policy.XDSGroup // who may connect and what each gets, the first match; none = all

	// Cluster makes the cluster that CDS serves; nil serves no CDS. It must give
	// equal clusters for equal policies: a cluster that differs is rebuilt by
	// Envoy. nil leaves the cluster out.
	Cluster func(*policy.Cluster) *clusterv3.Cluster

	// Grace is how long overrides of the last state stand when nobody renews
	// them; default 60 s.
	Grace time.Duration

	MaxNodes   int // known at once; default 1000
	MaxStreams int // open at once; default 20000: a node without ADS opens one for each EDS cluster

	Log *slog.Logger // nil discards
}

// Server is the control plane. Safe for concurrent use.
type Server struct {
	o        Options
	log      *slog.Logger
	words    register
	roster   *roster
	groups   []*group
	services *services
	stop     context.CancelFunc
	dirty    chan struct{}

	written fs.FileInfo // the state as this server wrote it last; of save alone
	shared  bool        // somebody else writes there too, and it was said

	mu       sync.Mutex // of book and what follows
	book     *book
	withheld []string
	filled   bool
	disk     DiskStats
	pushes   uint64
	gone     uint64
}

// group is what the nodes of one policy group get.
type group struct {
	name     string
	match    policy.XDSGroup
	clusters map[string]bool // nil = all
	shelves  map[string]*shelf
}

func (g *group) admitsCluster(name string) bool { return g.clusters == nil || g.clusters[name] }

// New makes a server and fills it with the last state on disk, where there is
// one. A state that cannot be read is refused, said in the log and in Stats,
// and nothing else: Envoys keep what they have until the first Set. now is
// the start of Options.Grace.
func New(now time.Time, o Options) *Server {
	o.Layer = cmp.Or(o.Layer, "weir")
	o.Grace = cmp.Or(o.Grace, time.Minute)
	o.MaxNodes, o.MaxStreams = cmp.Or(o.MaxNodes, 1000), cmp.Or(o.MaxStreams, 20_000)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var id [6]byte
	_, _ = rand.Read(id[:]) // never fails
	instance := hex.EncodeToString(id[:])
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{o: o, log: o.Log, words: register{log: o.Log}, roster: newRoster(&o), stop: stop, dirty: make(chan struct{}, 1), book: newBook(instance, o.Cluster)}
	for i, g := range append([]policy.XDSGroup(nil), o.Groups...) {
		s.groups = append(s.groups, newGroup(&g, fmt.Sprintf("%s.%d.", instance, i), o.Cluster != nil))
	}
	if len(s.groups) == 0 {
		s.groups = []*group{newGroup(&policy.XDSGroup{}, instance+".", o.Cluster != nil)}
	}
	s.services = newServices(ctx, s)
	s.restore(now)
	return s
}

func newGroup(g *policy.XDSGroup, prefix string, cds bool) *group {
	out := &group{name: g.Name, match: *g, shelves: map[string]*shelf{
		resourcev3.RuntimeType:  newShelf(resourcev3.RuntimeType, prefix),
		resourcev3.EndpointType: newShelf(resourcev3.EndpointType, prefix),
	}}
	if cds {
		out.shelves[resourcev3.ClusterType] = newShelf(resourcev3.ClusterType, prefix)
	}
	if len(g.Clusters) > 0 {
		out.clusters = make(map[string]bool, len(g.Clusters))
		for _, c := range g.Clusters {
			out.clusters[c] = true
		}
	}
	return out
}

// restore takes the state on disk as the first content.
func (s *Server) restore(now time.Time) {
	if s.o.Dir == "" {
		return
	}
	st, err := readState(s.o.Dir)
	if err == nil && st != nil {
		err = s.book.inherit(st, now.Add(s.o.Grace))
	}
	switch {
	case err != nil:
		s.disk.Refused = err.Error()
		s.log.Error("xds: the last state is refused; Envoys keep what they have until the first settings", "err", err)
	case st == nil:
	default:
		s.disk.Restored = st.Saved
		c := changes{runtime: true}
		for name, r := range s.book.records {
			if r.served {
				c.endpoints = append(c.endpoints, name)
			}
		}
		s.publish(&c)
		s.log.Info("xds: serving the last state", "saved", st.Saved, "clusters", len(st.Clusters), "overrides", s.book.inherited(), "grace", s.o.Grace.String())
	}
}

// Set says what Envoys should have now; the streams of those that have
// something else get it at once. An equal snapshot sends nothing and costs a
// comparison. Call it at each change and, for endpoints.return, some times a
// second. The error names settings that were left as they were.
func (s *Server) Set(now time.Time, snap *Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.book.set(now, snap)
	if !slices.Equal(c.withheld, s.withheld) {
		s.withheld = c.withheld
		for _, g := range s.groups {
			g.shelves[resourcev3.EndpointType].expect(c.withheld)
		}
	}
	if !s.filled {
		s.filled = true
		c.runtime = c.runtime || s.disk.Restored.IsZero() // fills the layer, be it empty
		s.publish(&c)
	} else if c.any() {
		s.publish(&c)
	}
	return err
}

// Expire withdraws the overrides that were inherited from the state on disk
// and that nobody renewed within Options.Grace. Run calls it.
func (s *Server) Expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, gone := s.book.expire(now)
	if len(gone) > 0 {
		s.gone += uint64(len(gone))
		s.log.Warn("xds: overrides of the last state are withdrawn: nobody renewed them", "clusters", gone, "grace", s.o.Grace.String())
	}
	if c.any() {
		s.publish(&c)
	}
}

// publish puts what changed on the shelves of each group: clusters before
// their endpoints.
func (s *Server) publish(c *changes) {
	s.pushes++
	for _, g := range s.groups {
		if sh := g.shelves[resourcev3.ClusterType]; sh != nil && s.filled {
			s.put(g, sh, c.clusters, (*record).clusterResource)
		}
		s.put(g, g.shelves[resourcev3.EndpointType], c.endpoints, (*record).endpointResource)
		if c.runtime {
			changed := map[string]types.Resource{s.o.Layer: runtimeLayer(s.o.Layer, s.book.layer(g.admitsCluster))}
			s.report(g.shelves[resourcev3.RuntimeType].put(changed, nil))
		}
	}
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

func (s *Server) put(g *group, sh *shelf, names []string, of func(*record) types.Resource) {
	changed := make(map[string]types.Resource)
	var removed []string
	for _, name := range names {
		if !g.admitsCluster(name) {
			continue
		}
		if r := s.book.records[name]; r != nil {
			if res := of(r); res != nil {
				changed[name] = res
				continue
			}
		}
		removed = append(removed, name)
	}
	s.report(sh.put(changed, removed))
}

func (s *Server) report(err error) {
	if err != nil {
		s.log.Error("xds: cannot make a resource", "err", err)
	}
}

// Close ends all streams. A gRPC server that stops gracefully waits for them.
func (s *Server) Close() { s.stop() }

// Run writes the state to disk when it changed, at most four times a second,
// and withdraws what nobody renews, until the context ends; the last state is
// written then. Call it once.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			select {
			case <-s.dirty:
				s.save(time.Now())
			default:
			}
			return
		case <-tick.C:
			s.Expire(time.Now())
			s.forget(time.Now())
			if s.failing() {
				s.save(time.Now())
			}
		case <-s.dirty:
			s.save(time.Now())
			pause := time.NewTimer(250 * time.Millisecond)
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
			pause.Stop()
		}
	}
}

// failing reports whether the state on disk is not the last one.
func (s *Server) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk.Error != ""
}

// save writes the state. What fails is said once, and tried again each second.
func (s *Server) save(now time.Time) {
	if s.o.Dir == "" {
		return
	}
	s.mu.Lock()
	st := s.book.save(now)
	s.mu.Unlock()
	if is := fileOf(s.o.Dir); s.written != nil && is != nil && !os.SameFile(is, s.written) && !s.shared {
		s.shared = true
		s.log.Warn("xds: another process keeps its state in the same directory, each overwrites the other's: give every weir its own envoy.xds.state", "dir", s.o.Dir)
	}
	err := st.write(s.o.Dir)
	if err == nil {
		s.written = fileOf(s.o.Dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.disk.Error == "" {
			s.log.Error("xds: cannot keep the state", "err", err)
		}
		s.disk.Errors++
		s.disk.Error = err.Error()
		return
	}
	s.disk.Saved, s.disk.Error = st.Saved, ""
}
