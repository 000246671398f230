package main

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// dcgmPolicy has pools that each look at an agent of weir's own.
func dcgmPolicy(agent string, every ...time.Duration) *policy.Policy {
	p := policy.Default()
	for i, e := range every {
		p.Pools = append(p.Pools, policy.Pool{
			Name:      fmt.Sprintf("pool%d", i),
			Telemetry: []policy.TelemetrySource{{Kind: policy.KindDCGM, Agent: agent, Every: e, Timeout: e, Endpoint: "chat"}},
		})
	}
	return p
}

// scriptedAgent is weir-gpu-agent, reading a script whatever it is asked for.
func scriptedAgent(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	binary := envoytest.Agent(t)
	for name, text := range map[string]string{
		"curve.yaml": "gpus: 8\npoints: [{at: 0s, util: 90%}]\n",
		"agent":      "#!/bin/sh\nexec " + binary + " \"$@\" --source=script --script=" + dir + "/curve.yaml\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "agent")
}

// Kind dcgm: pools share one child, a killed child is replaced and pressure
// goes by the stale rule meanwhile; a reload that wants it quicker starts it
// anew, one that does not want it ends it.
func TestAgentAsAChild(t *testing.T) {
	agent := scriptedAgent(t)
	var log envoytest.Log
	g := newGauges(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(g.close)
	if err := g.swap(dcgmPolicy(agent, 200*time.Millisecond, 100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	process := func() int { return g.children.running[agent].agent.Process() }
	follows := func(pool string) func() bool {
		return func() bool {
			now := time.Now()
			_, stale := g.reading(pool).Age(now)
			return !stale && g.reading(pool).Pressure(now) > 0.85
		}
	}
	envoytest.Eventually(t, time.Minute, "pool0 follows the child", follows("pool0"))
	envoytest.Eventually(t, time.Minute, "pool1 follows the child", follows("pool1"))
	if n := strings.Count(log.String(), "GPU agent runs"); n != 1 {
		t.Errorf("%d children for one binary: %s", n, log.String())
	}
	if cards := g.reading("pool0").Cards(); len(cards) != 8 || cards[0].Endpoints.String() != "chat" {
		t.Errorf("cards %+v", cards)
	}
	first := process()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, time.Minute, "neutral without a child", func() bool {
		now := time.Now()
		_, stale := g.reading("pool1").Age(now)
		return stale
	})
	envoytest.Eventually(t, time.Minute, "pool1 follows the next child", follows("pool1"))
	second := process()
	if second == first || second == 0 {
		t.Errorf("process %d after %d", second, first)
	}
	if err := g.swap(dcgmPolicy(agent, 200*time.Millisecond)); err != nil { // slower
		t.Fatal(err)
	}
	if third := process(); third == second || syscall.Kill(second, 0) == nil {
		t.Errorf("process %d after %d, which must be gone", third, second)
	}
	envoytest.Eventually(t, time.Minute, "pool0 follows the slower child", follows("pool0"))
	last := process()
	if err := g.swap(policy.Default()); err != nil {
		t.Fatal(err)
	}
	if len(g.children.running) != 0 || syscall.Kill(last, 0) == nil {
		t.Errorf("process %d is left behind", last)
	}
}

// A binary that is missing is a clear line at the start, and weir goes on by
// the stale rule.
func TestAgentIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir-gpu-agent")
	var log envoytest.Log
	g := newGauges(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(g.close)
	p := dcgmPolicy(path, time.Second)
	if err := g.swap(p); err != nil {
		t.Fatal(err)
	}
	if said := log.String(); !strings.Contains(said, "GPU agent does not run") || !strings.Contains(said, path) || !strings.Contains(said, "no such file") {
		t.Error(said)
	}
	if got := g.reading("pool0").Pressure(time.Now()); got != 0.5 {
		t.Errorf("pressure %v, want neutral", got)
	}
	missing, err := checkFiles(p)
	if err != nil || len(missing) != 1 || !strings.Contains(missing[0].Error(), path) {
		t.Errorf("weir check notes %v, %v", missing, err)
	}
}

// A policy that is refused leaves the children as they were.
func TestRefusedPolicyLeavesChildren(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir-gpu-agent")
	g := newGauges(slog.New(slog.DiscardHandler))
	t.Cleanup(g.close)
	if err := g.swap(dcgmPolicy(path, time.Second)); err != nil {
		t.Fatal(err)
	}
	bad := dcgmPolicy(path+"2", time.Second)
	bad.Pools = append(bad.Pools, policy.Pool{Name: "bad", Telemetry: []policy.TelemetrySource{{Kind: policy.KindScript, File: path}}})
	if err := g.swap(bad); err == nil {
		t.Fatal("a script that is missing is taken")
	}
	if _, ok := g.children.running[path]; !ok || len(g.children.running) != 1 {
		t.Errorf("children %v", g.children.running)
	}
}

func TestWantedChildren(t *testing.T) {
	p := dcgmPolicy("/opt/a", 5*time.Second, 300*time.Millisecond, 10*time.Second)
	p.Pools = append(p.Pools, dcgmPolicy("/opt/b", 5*time.Second).Pools...)
	want := map[string]time.Duration{"/opt/a": 300 * time.Millisecond, "/opt/b": time.Second}
	if got := wantedChildren(p); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if here, err := os.Getwd(); err != nil || agentPath(policy.TelemetrySource{Agent: "agent"}) != filepath.Join(here, "agent") {
		t.Errorf("a file of the policy's folder is looked for at %s (%v)", agentPath(policy.TelemetrySource{Agent: "agent"}), err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got := agentPath(policy.TelemetrySource{}); got != filepath.Join(filepath.Dir(self), "weir-gpu-agent") {
		t.Errorf("the agent is looked for at %s, want beside weir", got)
	}
}
