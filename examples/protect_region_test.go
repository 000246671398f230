package examples_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// TestProtectRegionDead (G2): all hosts of region a die under load: within
// three seconds region b answers, and nothing fails any more; when they live
// again the calls go home, not before endpoints.return.
func TestProtectRegionDead(t *testing.T) {
	const hold = 4 * time.Second // Envoy's own health checks take two
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 20 * time.Millisecond, far: 2, policy: func(tree envoytest.Tree) {
			examples.Set(tree, hold.String(), "envoy", "clusters", 1, "endpoints", "return")
		}})
		load := s.infers(t, 100)
		s.wait(time.Second)
		at := time.Now()
		for _, h := range s.near {
			h.stop()
		}
		s.wait(3 * time.Second)
		settled := time.Now()
		s.wait(time.Second)
		dead := load.since(at)
		t.Logf("region a is dead: %v by %v", tally(dead), hostsOf(dead))
		now := load.since(settled)
		if bad := failures(now); len(now) < 20 || len(bad) > 0 {
			t.Errorf("3 s later %d of %d calls fail: %v", len(bad), len(now), tally(now))
		}
		for _, h := range s.near {
			h.start()
		}
		back := time.Now()
		near := func() int {
			by := hostsOf(load.since(back))
			return by["a1"] + by["a2"] + by["a3"]
		}
		s.wait(hold - 300*time.Millisecond)
		if n := near(); n > 0 {
			t.Errorf("%d calls go to region a before endpoints.return", n)
		}
		envoytest.Eventually(t, 5*time.Second, "region a is used again", func() bool { return near() > 20 })
		t.Logf("region a answers %v after it lives again; %v", time.Since(back).Round(time.Millisecond), tally(load.end()))
		if bad := failures(load.since(back)); len(bad) > 0 {
			t.Errorf("the way back cost %d calls: %v", len(bad), tally(bad))
		}
		if t.Failed() {
			s.told(0)
		}
	})
}

// TestProtectRegionReturn (G2): weir is told that region a is unwell: region b
// answers within a second, and no call fails; told that it is well again, weir
// keeps it out for endpoints.return.
func TestProtectRegionReturn(t *testing.T) {
	const hold = 3 * time.Second
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		dir := envoytest.Dir(t)
		file := filepath.Join(dir, "hosts.yaml")
		var s *street
		write := func(health string) {
			text := ""
			for _, h := range s.near {
				text += fmt.Sprintf("- {address: %q, health: %s}\n", h.addr, health)
			}
			if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		s = newStreet(t, b, streetSetup{dir: dir, work: 20 * time.Millisecond, far: 2, started: func(made *street) { s = made; write("healthy") }, policy: func(tree envoytest.Tree) {
			examples.Set(tree, hold.String(), "envoy", "clusters", 1, "endpoints", "return")
			examples.Set(tree, envoytest.Tree{"region": "a", "file": file, "every": "100ms"}, "envoy", "clusters", 1, "endpoints", "priorities", 0)
		}})
		load := s.infers(t, 100)
		s.wait(time.Second)
		before := hostsOf(load.since(time.Time{}))
		if before["b1"]+before["b2"] > 0 {
			t.Errorf("with region a well the calls go to %v", before)
		}
		near := func(since time.Time) int {
			by := hostsOf(load.since(since))
			return by["a1"] + by["a2"] + by["a3"]
		}
		write("unhealthy")
		at := time.Now()
		envoytest.Eventually(t, time.Second, "/clusters shows region a unwell", func() bool {
			return strings.Contains(s.flags("infer", s.near[0].addr), "failed_eds_health")
		})
		t.Logf("in Envoy after %v: %s", time.Since(at).Round(time.Millisecond), s.flags("infer", s.near[0].addr))
		moved := time.Now()
		s.wait(500 * time.Millisecond)
		if n := near(moved); n > 0 {
			t.Errorf("%d calls go to region a", n)
		}
		write("healthy")
		well := time.Now()
		s.wait(hold - 500*time.Millisecond)
		if n := near(moved); n > 0 {
			t.Errorf("%d calls go to region a before endpoints.return", n)
		}
		envoytest.Eventually(t, 3*time.Second, "region a is used again", func() bool { return near(well) > 20 })
		took := time.Since(well)
		all := load.end()
		t.Logf("region a answers %v after it was well; %v", took.Round(time.Millisecond), tally(all))
		if bad := failures(all); len(bad) > 0 {
			t.Errorf("%d of %d calls failed: %v", len(bad), len(all), tally(all))
		}
		if t.Failed() {
			s.told(0)
		}
	})
}
