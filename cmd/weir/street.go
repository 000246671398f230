package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/envoy"
	"github.com/weirproxy/weir/envoy/protect"
	"github.com/weirproxy/weir/envoy/watch"
	"github.com/weirproxy/weir/envoy/xds"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
)

// How often the street looks by itself.
const (
	clockEvery   = 100 * time.Millisecond // breakers' time, words to other replicas
	breath       = 10 * time.Millisecond  // between two rounds of the clock, at least
	stormEvery   = 200 * time.Millisecond // readings, as often as there are new ones
	sweepEvery   = time.Second            // of words that are over
	protectEvery = 250 * time.Millisecond // what Envoys are told
	nodesEvery   = 500 * time.Millisecond // who came, went, refused
	firstRead    = 2 * time.Second        // of endpoint sources, before serving
)

// streetOptions are what a street is made of.
type streetOptions struct {
	Policy  func() *policy.Policy // in force
	Desk    *admission.Desk
	Journal *breaker.Journal
	Council *breaker.Council
	Replica string
	Bus     breaker.Bus // nil = none; the street closes it
	// Unwell are the endpoints of a pool whose GPUs are faulty or lost, as
	// ip:port.
	Unwell  func(pool string, now time.Time) []string
	Metrics *telemetry.Metrics
	Trace   func(t *breaker.Transition)
	Log     *slog.Logger
}

// street is what connects breakers, replicas and Envoys: one goroutine for each
// duty, from start to close.
//
//	clock      breakers' time; transitions to log, metrics, traces, timeline; words to replicas
//	storms     readings of Envoys to breakers (B7) and retry control (B9)
//	protect    breakers, readings and endpoints to what Envoys are told (B10)
//	nodes      Envoys that come, go or refuse to the timeline
//	and one for what is said, one for what is heard (B3), one for each endpoint source,
//	one for the state on disk
//
// What fails here fails alone: no duty is asked when a request is decided.
type street struct {
	o        streetOptions
	log      *slog.Logger
	timeline timeline
	speaker  *speaker // nil = no bus
	watch    *watch.Watch
	xds      *xds.Server // nil = weir is no control plane
	points   *points
	kick     chan struct{}

	mu     sync.Mutex // of the keeper
	keeper protect.Keeper
	told   atomic.Pointer[map[string]protect.Settings] // by cluster

	swept   time.Time            // of the duty clock alone
	stormy  map[string]bool      // clusters; of the duty storms alone
	proved  map[string]time.Time // by pool: see proven; likewise
	lost    map[string]lost      // by cluster; likewise
	restate atomic.Bool          // pools may have moved to other clusters
	ending  chan struct{}        // closed by endStreams
	ended   sync.Once
	stop    context.CancelFunc
	work    sync.WaitGroup
}

// newStreet makes a street whose Envoys can be registered; nothing runs yet but
// the watch.
func newStreet(now time.Time, o streetOptions) (*street, error) {
	p := o.Policy()
	s := &street{o: o, log: o.Log, kick: make(chan struct{}, 1), ending: make(chan struct{}), stormy: map[string]bool{}, proved: map[string]time.Time{}}
	s.told.Store(&map[string]protect.Settings{})
	s.points = &points{log: o.Log, changed: s.wake, kept: map[string]*follower{}}
	if err := s.points.configure(p); err != nil {
		return nil, err
	}
	s.watch = watch.New(p, watch.Options{Log: o.Log, Seed: rand.Uint64(), Allow: s.allow})
	if o.Bus != nil {
		s.speaker = newSpeaker(now, o.Replica, o.Bus, o.Council, p.Breaker.Cascade, o.Log, &s.timeline)
	}
	if x := p.Envoy.XDS; x != nil {
		s.xds = xds.New(now, xds.Options{Dir: x.State, Layer: x.Layer, Groups: x.Nodes, Cluster: clusterMaker(x), Log: o.Log})
	}
	return s, nil
}

// clusterMaker makes the clusters that CDS serves; nil = none.
func clusterMaker(x *policy.XDS) func(*policy.Cluster) *clusterv3.Cluster {
	if !x.CDS {
		return nil
	}
	return func(c *policy.Cluster) *clusterv3.Cluster { return envoy.Cluster(*c, envoy.ClusterOptions{}) }
}

// allow says which Envoys may send metrics: those that the control plane would
// serve.
func (s *street) allow(n watch.Node, p *peer.Peer) error {
	if x := s.o.Policy().Envoy.XDS; x != nil {
		return xds.Admit(x.Nodes, n.ID, n.Cluster, p)
	}
	return nil
}

// register adds the services of Envoys to a gRPC server.
func (s *street) register(r grpc.ServiceRegistrar) {
	s.watch.Metrics().Register(careful{endable{r, s.ending}, s.log})
	if s.xds != nil {
		s.xds.Register(careful{r, s.log})
	}
}

// fill reads the endpoint sources once and fills the control plane, so that no
// Envoy is served an empty one.
func (s *street) fill(ctx context.Context) {
	if s.xds == nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, firstRead)
	defer stop()
	s.points.read(ctx)
	s.protect(time.Now())
}

// start begins the duties; they end with ctx, or by close.
func (s *street) start(ctx context.Context) {
	ctx, s.stop = context.WithCancel(ctx)
	s.work.Go(func() { s.clock(ctx) })
	s.work.Go(func() { s.storms(ctx) })
	s.points.start(ctx, &s.work)
	if s.speaker != nil {
		s.work.Go(func() { s.speaker.publish(ctx) })
		s.work.Go(func() { s.speaker.listen(ctx) })
	}
	if s.xds != nil {
		s.work.Go(func() { s.protection(ctx) })
		s.work.Go(func() { s.nodes(ctx) })
		s.work.Go(func() { s.xds.Run(ctx) })
	}
}

// configure follows a policy that is in force in the desk.
func (s *street) configure(p *policy.Policy) {
	s.watch.Configure(p)
	if s.speaker != nil {
		s.speaker.configure(p.Breaker.Cascade)
	}
	if err := s.points.configure(p); err != nil {
		s.log.Error("endpoints are not followed as the new policy says, the old sources stay", "error", err)
	}
	s.restate.Store(true)
	s.wake()
}

// endable registers services whose streams end when a channel is closed: an
// Envoy that sends metrics never ends its stream by itself.
type endable struct {
	grpc.ServiceRegistrar
	ending <-chan struct{}
}

// RegisterService implements grpc.ServiceRegistrar.
func (e endable) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Streams = slices.Clone(desc.Streams)
	for i := range d.Streams {
		handle := d.Streams[i].Handler
		d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			done := make(chan error, 1)
			go func() { done <- handle(srv, stream) }() // ends with the stream, at the latest when this returns
			select {
			case err := <-done:
				return err
			case <-e.ending:
				return status.Error(codes.Unavailable, "weir drains")
			}
		}
	}
	e.ServiceRegistrar.RegisterService(&d, impl)
}

// endStreams ends what would hold up a server that stops politely: the streams
// of Envoys, which end by themselves never. They keep what they were told.
func (s *street) endStreams() {
	s.ended.Do(func() { close(s.ending) })
	if s.xds != nil {
		s.xds.Close()
	}
}

// close ends the duties and waits for them. Safe on a street that did not start.
func (s *street) close() {
	if s.stop != nil {
		s.stop()
	}
	if s.xds != nil {
		s.xds.Close()
	}
	s.watch.Close()
	if s.o.Bus != nil {
		if err := s.o.Bus.Close(); err != nil {
			s.log.Warn("close breaker bus", "error", err)
		}
	}
	s.work.Wait()
}

// wake has protection looked at at once.
func (s *street) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// clock is the duty of breakers: what time alone brings, what follows from a
// transition, and what replicas are told.
func (s *street) clock(ctx context.Context) {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	seq := uint64(0)
	for {
		begun := time.Now()
		news, more := s.o.Journal.Since(seq)
		for i := range news {
			if i == 0 && news[0].Seq > seq+1 {
				s.log.Warn("transitions of breakers came faster than they could be told", "lost", news[0].Seq-seq-1)
			}
			seq = news[i].Seq
			s.note(ctx, &news[i])
		}
		if len(news) > 0 {
			s.wake()
		}
		if s.speaker != nil {
			s.speaker.round(time.Now(), s.o.Desk)
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
			rest(ctx, breath-time.Since(begun))
		case <-tick.C:
			s.advance(time.Now())
		}
	}
}

// rest waits, so that thousands of transitions are told in some rounds and not
// in one each.
func rest(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (s *street) advance(now time.Time) {
	for _, b := range s.o.Desk.Breakers(now) {
		if br := s.o.Desk.Breaker(b.Pool); br != nil {
			br.Advance(now)
		}
	}
	s.o.Desk.Tenants().Advance(now)
	if now.Sub(s.swept) >= sweepEvery || now.Before(s.swept) { // rulings do not wait for it
		s.swept = now
		s.o.Council.Advance(now)
	}
}

// note tells a transition to everybody who wants to know.
func (s *street) note(ctx context.Context, t *breaker.Transition) {
	cluster := ""
	if t.Kind != breaker.Tenant {
		cluster = clusterOf(s.o.Policy(), t.Breaker)
	}
	e := transitionEntry(t, cluster)
	s.timeline.add(e)
	s.o.Metrics.Transition(t)
	s.o.Trace(t)
	level := slog.LevelInfo
	if t.To == breaker.Soft || t.To == breaker.Hard {
		level = slog.LevelWarn
	}
	s.log.LogAttrs(ctx, level, "breaker", slog.String("breaker", t.Breaker), slog.String("kind", t.Kind.String()),
		slog.String("from", e.From), slog.String("to", e.To), slog.String("cause", e.Key), slog.String("because", e.Because),
		slog.Int("requests", t.Requests), slog.Int("failures", t.Failures), slog.Float64("open_ms", milliseconds(t.Open)))
}

// clusterOf is a pool's cluster; "" where the policy has no such pool.
func clusterOf(p *policy.Policy, pool string) string {
	for i := range p.Pools {
		if p.Pools[i].Name == pool {
			if c := p.Pools[i].Cluster; c != "" {
				return c
			}
			return pool
		}
	}
	return ""
}
