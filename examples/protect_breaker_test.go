package examples_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// operator runs `weir breaker` as an operator does.
func (s *street) operator(args ...string) string {
	s.t.Helper()
	args = append([]string{"breaker", args[0], "--admin", "unix:" + filepath.Join(s.dir, "admin.sock")}, args[1:]...)
	out, err := exec.CommandContext(s.t.Context(), envoytest.Weir(s.t), args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestProtectLane (P8, B10): the breaker is open and Envoy is told so; calls
// with a priority that their token allows still get their tenth of the seats,
// and nobody else gets any.
func TestProtectLane(t *testing.T) {
	const seats, lane = 40, 4
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: time.Second, policy: func(tree envoytest.Tree) {
			examples.Set(tree, seats, "pools", 1, "seats", "requests")
		}})
		s.operator("trip", "infer", "--for", "1m", "--reason", "lane")
		envoytest.Eventually(t, time.Second, "Envoy's retries are stopped", func() bool { return s.retriesStopped("infer") })
		conn, critical, standard := s.dial(), s.token(claims{"class": "critical"}), s.token(nil)
		prior := metadata.AppendToOutgoingContext(t.Context(), "x-deepseek-priority", "critical")
		var all sync.WaitGroup
		results := make(chan result, 20)
		for range 3 * lane {
			all.Go(func() { results <- s.call(prior, conn, critical) })
		}
		all.Wait()
		close(results)
		var served, refused int
		for r := range results {
			switch {
			case r.code == codes.OK && r.reason == "admitted_lane":
				served++
			case r.code == codes.Unavailable && r.reason == "breaker_open":
				refused++
			default:
				t.Errorf("a call with priority: %v %s %s", r.code, r.reason, r.text)
			}
		}
		if served != lane || refused != 2*lane {
			t.Errorf("of %d calls at once with priority %d were served and %d refused, want %d of %d seats", 3*lane, served, refused, lane, seats)
		}
		for what, r := range map[string]result{
			"no priority":          s.call(t.Context(), conn, critical),
			"priority above class": s.call(prior, conn, standard),
		} {
			if r.code != codes.Unavailable || r.reason != "breaker_open" {
				t.Errorf("%s: %v %s", what, r.code, r.reason)
			}
		}
		for range 2 {
			if r := s.call(prior, conn, critical); r.code != codes.OK || r.reason != "admitted_lane" {
				t.Errorf("one after the other: %v %s %s", r.code, r.reason, r.text)
			}
		}
	})
}

// TestProtectVisible (B10): every push is in Envoy and in weir's timeline
// within a second of the transition that it follows from, and taken back when
// things have been calm; no connection is opened, closed or drained for it.
func TestProtectVisible(t *testing.T) {
	const key = "circuit_breakers.infer.default."
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 5 * time.Millisecond, policy: func(tree envoytest.Tree) {
			examples.Set(tree, envoytest.Tree{"calm": "1s", "hardDrop": "40%"}, "envoy", "protection")
		}})
		conn, token := s.dial(), s.token(nil)
		s.call(t.Context(), conn, token)
		stream := s.streams(conn, token, 100)
		destroyed, made := s.stat("cluster.infer.upstream_cx_destroy"), s.stat("cluster.infer.upstream_cx_total")
		var slowest time.Duration
		seen := func(since uint64, what, to string, key string, value string, limit time.Duration, ok func() bool) {
			t.Helper()
			var e happened
			envoytest.Eventually(t, 5*time.Second, what, func() (is bool) { e, is = s.entry(since, transition("infer", to)); return is })
			envoytest.Eventually(t, limit+5*time.Second, what+" in Envoy", ok)
			took := time.Since(e.At) - limit
			slowest = max(slowest, took)
			told, is := s.entry(since, push("infer", key))
			if !is || told.To != value {
				t.Errorf("%s: the timeline has %+v, want %s to be told %s", what, told, key, value)
			}
			if late := told.At.Sub(e.At) - limit; took > time.Second || late > time.Second {
				t.Errorf("%s: told after %v, in Envoy after %v, want a second at most", what, late, took)
			}
		}
		for _, step := range []struct{ do, to, key, value string }{
			{`{"action": "trip", "level": "soft", "for": "1m"}`, "soft", "retry_budget.budget_percent", "10"},
			{`{"action": "trip", "level": "hard", "for": "1m"}`, "hard", "retry_budget.budget_percent", "0"},
		} {
			since := s.last()
			s.act("infer", step.do)
			seen(since, step.to, step.to, step.key, step.value, 0, func() bool { return s.overrides()[key+step.key] == step.value })
			if step.to == "hard" {
				seen(since, "drop", "hard", "drop_overloads", "40 %", 0, func() bool { return strings.Contains(s.ask("/config_dump?include_eds"), `"drop_percentage"`) })
			}
		}
		since := s.last()
		s.act("infer", `{"action": "reset"}`)
		seen(since, "closed", "closed", "retry_budget.budget_percent", "file", time.Second, func() bool { return len(s.overrides()) == 0 })
		envoytest.Eventually(t, 2*time.Second, "nothing is dropped any more", func() bool {
			return !strings.Contains(s.ask("/config_dump?include_eds"), `"drop_percentage"`)
		})
		if n, err := drained(stream); err != nil || n < 99 {
			t.Errorf("an answer that ran meanwhile: %d messages, %v", n, err)
		}
		if d, m := s.stat("cluster.infer.upstream_cx_destroy")-destroyed, s.stat("cluster.infer.upstream_cx_total")-made; d != 0 || m != 0 {
			t.Errorf("%d connections were closed and %d made for it", d, m)
		}
		t.Logf("the slowest was in Envoy after %v", slowest.Round(time.Millisecond))
		if t.Failed() {
			s.told(0)
		}
	})
}
