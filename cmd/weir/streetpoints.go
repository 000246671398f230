package main

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	"github.com/weirproxy/weir/envoy/discovery"
	"github.com/weirproxy/weir/policy"
)

// points follow the endpoints of all clusters of the policy that have sources
// (G2). What a cluster had before its sources changed is kept by the control
// plane until the new ones were read. Safe for concurrent use.
type points struct {
	log     *slog.Logger
	changed func()

	mu   sync.Mutex
	kept map[string]*follower // by cluster
	ctx  context.Context      //nolint:containedctx // of the followers, which come and go with policies
	work *sync.WaitGroup      // nil = not started
	lost uint64               // failures of followers that are gone
}

// follower is one cluster.
type follower struct {
	from    policy.Endpoints
	cluster *discovery.Cluster
	stop    context.CancelFunc
	failing map[string]bool // sources that were complained of
}

// configure follows a policy. On an error nothing changes.
func (p *points) configure(pol *policy.Policy) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := map[string]*follower{}
	for _, c := range pol.ProtectedClusters() {
		if c.Endpoints == nil {
			continue
		}
		old := p.kept[c.Name]
		if old != nil && old.from.Heartbeat == c.Endpoints.Heartbeat && reflect.DeepEqual(old.from.Priorities, c.Endpoints.Priorities) {
			next[c.Name] = old
			continue
		}
		made, err := discovery.New(c.Endpoints, discovery.Options{Changed: p.changed})
		if err != nil {
			return fmt.Errorf("envoy.clusters %s: endpoints: %w", c.Name, err)
		}
		next[c.Name] = &follower{from: *c.Endpoints, cluster: made}
	}
	for name, f := range p.kept {
		if next[name] != f {
			p.lost += f.cluster.Failures()
			if f.stop != nil {
				f.stop()
			}
		}
	}
	p.kept = next
	p.run()
	return nil
}

// start begins to follow, until ctx ends.
func (p *points) start(ctx context.Context, work *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx, p.work = ctx, work
	p.run()
}

// run starts the followers that do not run. The lock is held.
func (p *points) run() {
	if p.work == nil || p.ctx.Err() != nil {
		return
	}
	for _, f := range p.kept {
		if f.stop == nil {
			var ctx context.Context
			ctx, f.stop = context.WithCancel(p.ctx)
			p.work.Go(func() { f.cluster.Run(ctx) })
		}
	}
}

// read reads all sources once.
func (p *points) read(ctx context.Context) {
	var group sync.WaitGroup
	for _, f := range p.all() {
		group.Go(func() { f.cluster.Read(ctx) })
	}
	group.Wait()
	p.complain()
}

// complain says once of each source that it cannot be read, and once that it
// can again.
func (p *points) complain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, f := range p.kept {
		failing := map[string]bool{}
		for _, trouble := range f.cluster.Problems() {
			failing[trouble.Source] = true
			if !f.failing[trouble.Source] {
				p.log.Warn("endpoints cannot be read, the last good list stays", "cluster", name, "source", trouble.Source, "error", trouble.Err)
			}
		}
		for source := range f.failing {
			if !failing[source] {
				p.log.Info("endpoints are read again", "cluster", name, "source", source)
			}
		}
		f.failing = failing
	}
}

func (p *points) all() map[string]*follower {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]*follower, len(p.kept))
	for name, f := range p.kept {
		out[name] = f
	}
	return out
}

// views are what is known of each cluster.
func (p *points) views() map[string]discovery.View {
	all := p.all()
	out := make(map[string]discovery.View, len(all))
	for name, f := range all {
		out[name] = f.cluster.View()
	}
	return out
}

// failures are readings that failed, and the sources whose last one did.
func (p *points) failures() (failed uint64, sources int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	failed = p.lost
	for _, f := range p.kept {
		failed += f.cluster.Failures()
		sources += len(f.cluster.Problems())
	}
	return failed, sources
}
