package examples_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// TestProtectManyEnvoys: Envoys of different releases on one weir are told the
// same within a second; one that dies takes nothing from the others.
func TestProtectManyEnvoys(t *testing.T) {
	binaries := envoytest.Envoys(t)
	oldest := binaries[len(binaries)-1]
	first := newStreet(t, binaries[0], streetSetup{work: 5 * time.Millisecond})
	others := []*street{
		newStreet(t, oldest, streetSetup{weir: first, node: "edge-2"}),
		newStreet(t, binaries[0], streetSetup{weir: first, node: "edge-3"}),
	}
	all := append([]*street{first}, others...)
	token := first.token(nil)
	for _, s := range all {
		if r := s.call(t.Context(), s.dial(), token); r.code != codes.OK {
			t.Fatalf("%s: %v %s", s.envoy.Binary.Version, r.code, r.text)
		}
	}
	envoytest.Eventually(t, 5*time.Second, "the timeline has all of them", func() bool {
		seen := map[string]bool{}
		for _, e := range first.timeline(0) {
			seen[e.Node] = seen[e.Node] || e.Key == "came"
		}
		return seen["edge-1"] && seen["edge-2"] && seen["edge-3"]
	})
	visible := func(what string, streets []*street, limit time.Duration, ok func(s *street) bool) {
		t.Helper()
		began := time.Now()
		for _, s := range streets {
			envoytest.Eventually(t, limit-time.Since(began), s.envoy.Binary.Version+": "+what, func() bool { return ok(s) })
		}
		t.Logf("%s at %d Envoys after %v", what, len(streets), time.Since(began).Round(time.Millisecond))
	}
	stopped := func(s *street) bool { return s.retriesStopped("infer") }
	first.act("infer", `{"action": "trip", "for": "1m"}`)
	visible("retries stopped", all, time.Second, stopped)

	seq := first.last()
	others[0].envoy.Kill()
	envoytest.Eventually(t, 5*time.Second, "the timeline says that an Envoy is gone", func() bool {
		_, ok := first.entry(seq, func(e *happened) bool { return e.What == "node" && e.Node == "edge-2" && e.Key == "left" })
		return ok
	})
	left := []*street{first, others[1]}
	for _, s := range left {
		if !stopped(s) {
			t.Errorf("an Envoy was killed, and another lost %v", s.overrides())
		}
	}
	first.act("infer", `{"action": "reset"}`)
	visible("as in the file", left, 3*time.Second, func(s *street) bool { return len(s.overrides()) == 0 }) // protection.calm is 2 s
	for _, s := range left {
		if r := s.call(t.Context(), s.dial(), token); r.code != codes.OK {
			t.Errorf("%v %s", r.code, r.text)
		}
	}
}

// TestProtectWeirDies: weir is killed and comes back, with its last state and
// without. Envoy keeps its endpoints, its connections and what it was told;
// with ext_proc open to failure, as the example says, an answer that runs is
// not cut.
func TestProtectWeirDies(t *testing.T) {
	for _, name := range []string{"with its state", "empty"} {
		t.Run(name, func(t *testing.T) {
			envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) { weirDies(t, b, name == "empty") })
		})
	}
}

func weirDies(t *testing.T, b envoytest.Binary, empty bool) {
	s := newStreet(t, b, streetSetup{work: 5 * time.Millisecond, envoy: func(tree envoytest.Tree) {
		examples.Set(tree, true, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config", "http_filters", 1, "typed_config", "failure_mode_allow")
	}})
	conn, token := s.dial(), s.token(nil)
	const messages = 100 // 5 s
	running := s.streams(conn, token, messages)
	s.act("infer", `{"action": "trip", "for": "1m"}`)
	envoytest.Eventually(t, time.Second, "Envoy's retries are stopped", func() bool { return s.retriesStopped("infer") })
	members, destroyed := s.stat("cluster.infer.membership_total"), s.stat("cluster.infer.upstream_cx_destroy")
	kept := func(when string) {
		t.Helper()
		if n := s.stat("cluster.infer.membership_total"); n != members {
			t.Errorf("%s: %d endpoints, before %d", when, n, members)
		}
		if n := s.stat("cluster.infer.upstream_cx_destroy") - destroyed; n != 0 {
			t.Errorf("%s: %d connections to models were closed", when, n)
		}
	}
	s.wait(300 * time.Millisecond) // the state is written ten times a second
	s.weir.Kill()
	s.wait(500 * time.Millisecond)
	kept("weir is dead")
	if !s.retriesStopped("infer") {
		t.Errorf("weir is dead: Envoy has %v", s.overrides())
	}
	if empty {
		state := filepath.Join(s.dir, "state")
		if err := errors.Join(os.RemoveAll(state), os.Mkdir(state, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	s.weir = envoytest.Restart(t, s.dir)
	began := time.Now()
	envoytest.Eventually(t, 3*time.Second, "Envoy is connected again", func() bool { return s.stat("runtime.control_plane.connected_state") == 1 })
	t.Logf("connected %v after weir is back", time.Since(began).Round(time.Millisecond))
	s.wait(500 * time.Millisecond)
	kept("weir is back")
	// The breaker's memory went with the process. What Envoy was told stands for
	// a minute where the state is kept; else the file's numbers are what is left.
	if s.breaker("infer") != "closed" || s.retriesStopped("infer") == empty {
		t.Errorf("weir is back: breaker %s, Envoy has %v", s.breaker("infer"), s.overrides())
	}
	if r := s.call(t.Context(), conn, token); r.code != codes.OK {
		t.Errorf("a call: %v %s %s", r.code, r.reason, r.text)
	}
	s.act("infer", `{"action": "trip", "for": "1m"}`)
	envoytest.Eventually(t, time.Second, "a push comes through again", func() bool { return s.retriesStopped("infer") })
	if n, err := drained(running); err != nil || n != messages-1 {
		t.Errorf("the answer that ran meanwhile ended after %d of %d messages: %v", n+1, messages, err)
	}
	kept("at the end")
	if t.Failed() {
		s.told(0)
	}
}
