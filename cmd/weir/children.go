package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/child"
	"github.com/weirproxy/weir/policy"
)

// children are the GPU agents that weir runs itself (kind dcgm), one for each
// binary: all sources share it, because two host engines on one GPU take each
// other's profiling counters away.
type children struct {
	log *slog.Logger

	mu      sync.Mutex
	running map[string]running // by path
}

type running struct {
	agent *child.Agent
	every time.Duration
}

// wantedChildren are the agents that a policy needs and how often they look:
// each second, or as often as the keenest source.
func wantedChildren(p *policy.Policy) map[string]time.Duration {
	want := map[string]time.Duration{}
	for i := range p.Pools {
		for _, t := range p.Pools[i].Telemetry {
			if t.Kind == policy.KindDCGM {
				path := agentPath(t)
				want[path] = min(t.Every, cmp.Or(want[path], time.Second))
			}
		}
	}
	return want
}

// agentPath is the agent's binary: named, else beside weir's. It always has a
// folder in front, so that nothing is looked for on the PATH.
func agentPath(t policy.TelemetrySource) string {
	if t.Agent != "" {
		if path, err := filepath.Abs(t.Agent); err == nil {
			return path
		}
		return "./" + t.Agent
	}
	self, err := os.Executable()
	if err != nil {
		self = "./weir"
	}
	return filepath.Dir(self) + "/weir-gpu-agent"
}

// start starts what is wanted and does not run.
func (c *children) start(want map[string]time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if _, ok := c.running[path]; !ok {
			c.launch(path, want[path])
		}
	}
}

// follow ends what is not wanted any more, and starts anew what has to look
// more or less often.
func (c *children) follow(want map[string]time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, r := range c.running {
		every, ok := want[path]
		if ok && every == r.every {
			continue
		}
		r.agent.Close()
		delete(c.running, path)
		if ok {
			c.launch(path, every)
		}
	}
}

func (c *children) launch(path string, every time.Duration) {
	if c.running == nil {
		c.running = map[string]running{}
	}
	c.running[path] = running{child.Start(path, []string{"--every=" + every.String()}, c.log), every}
}

// dial connects to an agent, whichever process it is then.
func (c *children) dial(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c.mu.Lock()
		r, ok := c.running[path]
		c.mu.Unlock()
		if !ok {
			return nil, fmt.Errorf("%s is not running", path)
		}
		return r.agent.Dial(ctx)
	}
}

// close ends them all.
func (c *children) close() { c.follow(nil) }
