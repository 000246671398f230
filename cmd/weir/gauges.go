package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/agent"
	"github.com/weirproxy/weir/gpu/cgroup"
	"github.com/weirproxy/weir/gpu/link"
	"github.com/weirproxy/weir/gpu/orca"
	"github.com/weirproxy/weir/gpu/scrape"
	"github.com/weirproxy/weir/gpu/script"
	"github.com/weirproxy/weir/policy"
)

// gauges are the telemetry of all pools. Reading takes no lock; a policy that
// leaves a pool's telemetry alone leaves its gauge alone.
type gauges struct {
	log      *slog.Logger
	start    time.Time
	children children
	texts    scrape.Buffers // of all sources
	current  atomic.Pointer[map[string]*poolGauge]
	mu       sync.Mutex               // of swap and close
	wanted   map[string]time.Duration // children of the present policy
}

// poolGauge is one pool's gauge with what feeds it.
type poolGauge struct {
	pool      string
	gauge     *gpu.Gauge
	targets   []gpu.Target
	poller    *gpu.Poller // owns the sources; nil = not yet
	listeners []*orca.Source
	telemetry []policy.TelemetrySource
	engines   []policy.EngineMetrics
	config    policy.Gauge
}

func newGauges(log *slog.Logger) *gauges {
	g := &gauges{log: log, start: time.Now(), children: children{log: log}}
	g.current.Store(&map[string]*poolGauge{})
	return g
}

// reading is the present reading of a pool; nil = no telemetry.
func (g *gauges) reading(pool string) *gpu.Reading {
	if p := (*g.current.Load())[pool]; p != nil {
		return p.gauge.Reading()
	}
	return nil
}

// hear hands what a pool says of its load to the sources that listen to it.
func (g *gauges) hear(pool, value string) {
	if p := (*g.current.Load())[pool]; p != nil {
		for _, l := range p.listeners {
			l.Offer(value)
		}
	}
}

// unwell are the endpoints of a pool whose GPUs are faulty or lost.
func (g *gauges) unwell(pool string, now time.Time) []string {
	p := (*g.current.Load())[pool]
	if p == nil {
		return nil
	}
	var out []string
	for _, e := range p.gauge.Reading().Endpoints(now) {
		if !e.Healthy {
			out = append(out, e.Name)
		}
	}
	return out
}

// swap follows a policy. On an error nothing changes.
func (g *gauges) swap(p *policy.Policy) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := *g.current.Load()
	wanted := wantedChildren(p)
	g.children.start(wanted)
	next := map[string]*poolGauge{}
	var opened []*poolGauge
	for i := range p.Pools {
		pool := &p.Pools[i]
		if len(pool.Telemetry) == 0 {
			continue
		}
		if have := old[pool.Name]; have != nil && have.fits(p, pool) {
			next[pool.Name] = have
			continue
		}
		made, err := g.open(p, pool)
		if err != nil {
			for _, s := range opened {
				err = errors.Join(err, closeSources(s.targets))
			}
			g.children.follow(g.wanted)
			return err
		}
		opened = append(opened, made)
		next[pool.Name] = made
	}
	for _, s := range opened {
		s.inherit(old)
		s.poller = gpu.StartPoller(s.gauge, s.targets, rand.Uint64(), g.log)
	}
	g.current.Store(&next)
	for name, was := range old {
		if next[name] != was {
			was.close()
		}
	}
	g.wanted = wanted
	g.children.follow(wanted)
	return nil
}

func (s *poolGauge) fits(p *policy.Policy, pool *policy.Pool) bool {
	return reflect.DeepEqual(s.telemetry, pool.Telemetry) && reflect.DeepEqual(s.engines, p.Engines) && s.config == p.Gauge
}

// open makes one pool's gauge and sources; nothing polls them yet.
func (g *gauges) open(p *policy.Policy, pool *policy.Pool) (*poolGauge, error) {
	var targets []gpu.Target
	var infos []gpu.SourceInfo
	var listeners []*orca.Source
	for i, t := range pool.Telemetry {
		source, err := openSource(sourceName(pool.Name, i, t), t, p.Engines, &g.children, &g.texts)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("pools %s: telemetry[%d]: %w", pool.Name, i, err), closeSources(targets))
		}
		if l, ok := source.(*orca.Source); ok {
			listeners = append(listeners, l)
		}
		target := gpu.Target{Source: source, Every: t.Every, Timeout: t.Timeout}
		targets = append(targets, target)
		infos = append(infos, target.Info())
	}
	return &poolGauge{
		pool: pool.Name, gauge: gpu.NewGauge(p.Gauge, infos, g.start), targets: targets, listeners: listeners,
		telemetry: pool.Telemetry, engines: p.Engines, config: p.Gauge,
	}, nil
}

// sourceName is what a gauge, metrics and the log call a pool's source.
func sourceName(pool string, i int, t policy.TelemetrySource) string {
	return fmt.Sprintf("%s/%d-%s", pool, i, t.Kind)
}

func openSource(name string, t policy.TelemetrySource, engines []policy.EngineMetrics, c *children, texts *scrape.Buffers) (gpu.Source, error) {
	switch t.Kind {
	case policy.KindScript:
		return script.Load(name, t.File)
	case policy.KindORCA:
		return orca.New(name), nil
	case policy.KindORCAGRPC:
		return orca.NewRemote(name, t.Every, link.Config{Address: t.URL, TLS: t.TLS, Token: t.Token, Seed: rand.Uint64()})
	case policy.KindCgroup:
		return cgroup.New(name), nil
	case policy.KindAgent, policy.KindDCGM:
		return openAgent(name, t, c)
	}
	return texts.New(name, t, engines)
}

// openAgent makes a source that listens to an agent elsewhere, or to weir's own.
func openAgent(name string, t policy.TelemetrySource, c *children) (gpu.Source, error) {
	places, err := scrape.NewPlaces(t.Endpoint, t.EndpointsFile)
	if err != nil {
		return nil, err
	}
	config := agent.Config{
		Name: name, Address: t.URL, Every: t.Every, Match: t.Match, TLS: t.TLS, Token: t.Token,
		Endpoints: places, Seed: rand.Uint64(),
	}
	if t.Kind == policy.KindDCGM {
		config.Address = agentPath(t)
		config.Dial = c.dial(config.Address)
	}
	s, err := agent.New(config)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// each calls fn for every pool with telemetry.
func (g *gauges) each(fn func(pool string, s *poolGauge)) {
	for name, s := range *g.current.Load() {
		fn(name, s)
	}
}

func (g *gauges) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range *g.current.Load() {
		s.close()
	}
	g.current.Store(&map[string]*poolGauge{})
	g.children.close()
}

func (s *poolGauge) close() { s.poller.Close() }

// closeSources closes sources that nobody polls yet.
func closeSources(targets []gpu.Target) error {
	var errs []error
	for _, t := range targets {
		if c, ok := t.Source.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
