package examples_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// TestProtectStorm (B7): all hosts throw their connections out at the first call,
// which they reset: more than five a second, more than half, and calls fail. The
// gRPC breaker is opened, Envoy's retries stop, the timeline says why; once the
// storm is over all is as before within ten seconds.
func TestProtectStorm(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 20 * time.Millisecond})
		load := s.infers(t, 100)
		s.wait(time.Second)
		if load.since(time.Now()); s.breaker("infer") != "closed" {
			t.Fatalf("the breaker is %s before the storm", s.breaker("infer"))
		}
		before := s.last()
		began := time.Now()
		s.become(breaks)
		envoytest.Eventually(t, 10*time.Second, "a storm of GOAWAYs opens the breaker", func() bool {
			_, ok := s.entry(before, transition("infer", "hard"))
			return ok
		})
		tripped, _ := s.entry(before, transition("infer", "hard"))
		envoytest.Eventually(t, time.Second, "Envoy's retries are stopped", func() bool { return s.retriesStopped("infer") })
		stopped := time.Since(tripped.At)
		if tripped.Key != "goaway" || tripped.Kind != "grpc" || !strings.Contains(tripped.Because, "GOAWAYs") {
			t.Errorf("the breaker opened by %s (%s): %s, want a storm of GOAWAYs", tripped.Key, tripped.Kind, tripped.Because)
		}
		if seen, ok := s.entry(before, func(e *happened) bool { return e.What == "watch" && e.Cluster == "infer" }); !ok || !strings.Contains(seen.Because, "busiest second") {
			t.Errorf("the timeline has no storm with figures: %+v", seen)
		}
		if told, ok := s.entry(before, push("infer", "retry_budget.budget_percent")); !ok || told.To != "0" || !strings.Contains(told.Because, "infer") {
			t.Errorf("the timeline has no push with its cause: %+v", told)
		}
		t.Logf("tripped %v after the first GOAWAY (%s); in Envoy %v later", tripped.At.Sub(began).Round(time.Millisecond), tripped.Because, stopped.Round(time.Millisecond))

		for _, h := range append(s.near, s.far...) {
			h.manners.Store(serves)
		}
		over := time.Now()
		envoytest.Eventually(t, 30*time.Second, "all is as before", func() bool {
			return s.breaker("infer") == "closed" && len(s.overrides()) == 0
		})
		took := time.Since(over)
		closed, _ := s.entry(tripped.Seq, transition("infer", "closed"))
		t.Logf("closed %v and overrides gone %v after the storm's end", closed.At.Sub(over).Round(time.Millisecond), took.Round(time.Millisecond))
		if took > 10*time.Second {
			t.Errorf("recovery to full took %v, want less than 10 s", took)
		}
		at := time.Now()
		s.wait(500 * time.Millisecond)
		load.end()
		later := load.since(at)
		if bad := failures(later); len(later) < 20 || len(bad) > 0 {
			t.Errorf("after recovery %d of %d calls fail", len(bad), len(later))
		}
		for _, r := range failures(load.all) {
			if r.reason != "breaker_open" && r.at.After(over) {
				t.Errorf("a call failed after the storm: %v %s %s", r.code, r.reason, r.text)
				break
			}
		}
		t.Logf("in all: %v", tally(load.all))
		if t.Failed() {
			s.told(before)
		}
	})
}
