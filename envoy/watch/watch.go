package watch

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/weirproxy/weir/policy"
)

// stepEvery is how often a Watch judges; with a period of half a second of the
// poller, a change is seen within 0.7 s.
const stepEvery = 200 * time.Millisecond

// What is looked at less often: whether an Envoy lacks clusters of the policy,
// or its counters begin anew all the time.
const (
	inspectEvery = 10 * time.Second
	missingAfter = 30 * time.Second
	tooOften     = 3 // restarts of each counter
	someNames    = 10
)

// Options are what a Watch is given besides a policy. The zero value is
// usable.
type Options struct {
	Log   *slog.Logger                     // nil = none
	Allow func(n Node, p *peer.Peer) error // who may send metrics; nil = everybody who reaches the socket
	Seed  uint64                           // of the poller's jitter
}

// Watch runs the sources and the core, and judges a few times a second from
// New to Close. Safe for concurrent use.
type Watch struct {
	log     *slog.Logger
	words   *seldom
	metrics *Metrics
	sources []Source
	now     atomic.Pointer[Readings]
	journal Journal

	mu       sync.Mutex // of the core
	core     *Core
	owners   map[string]string // source of an Envoy's counters
	inspect  time.Time         // when last
	restarts map[string]uint64 // then

	stop   chan struct{}
	ended  chan struct{}
	closed sync.Once
}

// New makes a Watch for a policy and starts it. The MetricsService is served
// once Metrics is registered.
func New(p *policy.Policy, o Options) *Watch {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	now := time.Now()
	w := &Watch{
		log: o.Log, words: newSeldom(o.Log),
		core:   NewCore(p.Envoy.Watch, watchedClusters(p), now),
		owners: make(map[string]string), inspect: now, restarts: make(map[string]uint64),
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	w.metrics = NewMetrics(w.take, o.Allow, o.Log)
	w.sources = []Source{w.metrics, NewPoller(w.take, o.Log, o.Seed)}
	w.now.Store(&Readings{At: now})
	for _, s := range w.sources {
		s.Configure(p)
	}
	go w.run()
	return w
}

// Configure takes a new policy at once. What was learnt of clusters that stay
// is kept.
func (w *Watch) Configure(p *policy.Policy) {
	w.mu.Lock()
	w.core.Configure(p.Envoy.Watch, watchedClusters(p))
	w.mu.Unlock()
	for _, s := range w.sources {
		s.Configure(p)
	}
}

// Metrics is the MetricsService, to be registered with a gRPC server.
func (w *Watch) Metrics() *Metrics { return w.metrics }

// Readings are the newest; never nil.
func (w *Watch) Readings() *Readings { return w.now.Load() }

// Journal has what began and ended.
func (w *Watch) Journal() *Journal { return &w.journal }

// Stats are figures of Envoys and sources.
type Stats struct {
	Envoys  []Envoy // by node
	Sources []SourceStats
}

// Stats gathers figures; it is meant for a look now and then.
func (w *Watch) Stats() Stats {
	var s Stats
	w.mu.Lock()
	s.Envoys = w.core.Envoys()
	for i := range s.Envoys {
		s.Envoys[i].Source = w.owners[s.Envoys[i].Node]
	}
	w.mu.Unlock()
	for _, source := range w.sources {
		s.Sources = append(s.Sources, source.Stats())
	}
	return s
}

// Close ends the sources and the judging, and waits for them.
func (w *Watch) Close() {
	w.closed.Do(func() { close(w.stop) })
	for _, s := range w.sources {
		s.Close()
	}
	<-w.ended
}

// take is the sink of the sources. An Envoy's counters are taken from one
// source while that one speaks: of two, the later would look like a restart.
func (w *Watch) take(source string, rows []Counters) (refused int, why Garbage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, node := time.Now(), rows[0].Node
	if owner, ok := w.owners[node]; ok && owner != source && w.core.hears(node, now) {
		return len(rows), GarbageTwin
	}
	if refused = w.core.Observe(now, rows); refused > 0 {
		w.words.warn(now, "many", "more Envoys than are counted: the rest is ignored", "limit", MaxEnvoys, "node", node)
		return refused, GarbageMany
	}
	w.owners[node] = source
	return 0, 0
}

func (w *Watch) run() {
	defer close(w.ended)
	ticker := time.NewTicker(stepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-ticker.C:
			w.step(time.Now())
		}
	}
}

func (w *Watch) step(now time.Time) {
	w.mu.Lock()
	readings, events := w.core.Step(now)
	var envoys []Envoy
	if now.Sub(w.inspect) >= inspectEvery {
		w.inspect = now
		envoys = w.core.Envoys()
		w.disown(envoys)
	}
	w.mu.Unlock()
	w.now.Store(readings)
	w.journal.add(events)
	for i := range events {
		w.say(&events[i])
	}
	w.look(envoys, now)
}

// disown forgets who brought Envoys that are forgotten.
func (w *Watch) disown(envoys []Envoy) {
	known := make(map[string]bool, len(envoys))
	for i := range envoys {
		known[envoys[i].Node] = true
	}
	for node := range w.owners {
		if !known[node] {
			delete(w.owners, node)
			delete(w.restarts, node)
		}
	}
}

func (w *Watch) say(e *Event) {
	args := []any{"cluster", e.Cluster, "event", e.What.String(), "because", e.Because}
	switch e.What {
	case StormBegan:
		w.log.Warn("GOAWAY storm", args...)
	case ProtectBegan:
		w.log.Warn("protect mode", args...)
	case CalmBegan:
		w.log.Warn("connections are thrown out, most likely for keepalive pings (ENHANCE_YOUR_CALM)", args...)
	default:
		w.log.Info("watch", append(args, "lasted", e.Lasted)...)
	}
}

// look warns of Envoys that do not fit the policy.
func (w *Watch) look(envoys []Envoy, now time.Time) {
	for i := range envoys {
		e := &envoys[i]
		if len(e.Missing) > 0 && !e.Silent && now.Sub(e.First) >= missingAfter {
			w.missing(e, now)
		}
		before, seen := w.restarts[e.Node]
		w.restarts[e.Node] = e.Restarts
		if seen && e.Clusters > 0 && e.Restarts-before >= uint64(tooOften*e.Clusters) {
			w.words.warn(now, "anew "+e.Node, "an Envoy's counters begin anew all the time: is report_counters_as_deltas on, or do two Envoys share an admin address?", "node", e.Node)
		}
	}
}

func (w *Watch) missing(e *Envoy, now time.Time) {
	names := e.Missing[:min(len(e.Missing), someNames)]
	w.words.warn(now, "missing "+e.Node+strings.Join(names, ","), "an Envoy has no statistics of clusters of the policy: it does not know them, or they never had a host",
		"node", e.Node, "clusters", strings.Join(names, ", "), "of", len(e.Missing))
}
