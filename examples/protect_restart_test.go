package examples_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// TestProtectGracefulStop (B7, B11): one of three hosts is restarted as an
// orchestrator does it, under 500 calls a second: no call fails, and the
// breaker does not take one rolling restart for a storm.
func TestProtectGracefulStop(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 20 * time.Millisecond})
		load := s.infers(t, 500)
		s.wait(1500 * time.Millisecond)
		notified := s.stat("cluster.infer.upstream_cx_close_notify")
		s.near[0].graceful()
		s.wait(1500 * time.Millisecond)
		s.near[0].start()
		s.wait(1500 * time.Millisecond)
		all := load.end()
		t.Logf("%d calls, %v, by host %v", len(all), tally(all), hostsOf(all))
		if bad := failures(all); len(bad) > 0 {
			t.Errorf("%d of %d calls failed, the first: %v %s %s", len(bad), len(all), bad[0].code, bad[0].reason, bad[0].text)
		}
		if len(all) < 1000 {
			t.Errorf("%d calls in 4.5 s: that is no load", len(all))
		}
		if n := s.stat("cluster.infer.upstream_cx_close_notify") - notified; n < 1 {
			t.Errorf("Envoy counted %d GOAWAYs, want the one of the restart", n)
		}
		if e, tripped := s.entry(0, func(e *happened) bool { return e.What == "transition" }); tripped {
			t.Errorf("the breaker went from %s to %s: %s", e.From, e.To, e.Because)
		}
		if o := s.overrides(); len(o) > 0 {
			t.Errorf("Envoy was told %v", o)
		}
		if t.Failed() {
			s.told(0)
		}
	})
}

// TestProtectReset (B11): one of three hosts resets every connection as soon
// as something is said. After three it is left alone, which /clusters shows;
// the others serve; once it is well again its connections are made anew.
func TestProtectReset(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 20 * time.Millisecond, envoy: func(tree envoytest.Tree) {
			for _, c := range clustersOf(tree, "infer") {
				examples.Set(c, "1s", "outlier_detection", "base_ejection_time") // 15 s are long for a test
			}
		}})
		load := s.infers(t, 100)
		s.wait(time.Second)
		bad := s.near[0]
		bad.manners.Store(resets)
		bad.stop()
		bad.start()
		at := time.Now()
		envoytest.Eventually(t, 3*time.Second, "/clusters shows the host ejected", func() bool {
			return strings.Contains(s.flags("infer", bad.addr), "failed_outlier_check")
		})
		ejected := time.Now()
		t.Logf("ejected after %v: %s", ejected.Sub(at).Round(time.Millisecond), s.flags("infer", bad.addr))
		if n := s.stat("cluster.infer.outlier_detection.ejections_enforced_consecutive_gateway_failure"); n < 1 {
			t.Errorf("%d ejections for three failures in a row", n)
		}
		s.wait(1500 * time.Millisecond)
		isolated := load.since(ejected)
		if lost, by := failures(isolated), hostsOf(isolated); by["a2"] == 0 || by["a3"] == 0 || by["a1"] > 0 || 20*len(lost) > len(isolated) {
			t.Errorf("while it is left alone %d of %d fail (%v), served by %v", len(lost), len(isolated), tally(isolated), by)
		}

		bad.manners.Store(serves)
		well := time.Now()
		envoytest.Eventually(t, 10*time.Second, "it serves again, on new connections", func() bool { return hostsOf(load.since(well))["a1"] > 0 })
		t.Logf("back %v after it was well; %v", time.Since(well).Round(time.Millisecond), tally(load.end()))
		if e, tripped := s.entry(0, transition("infer", "hard")); tripped {
			t.Errorf("one of three hosts opened the breaker: %s", e.Because)
		}
		if t.Failed() {
			s.told(0)
		}
	})
}

// TestProtectLowGoAway: a host answers each call by a GOAWAY whose last stream
// id is below it, which says that the call never ran: it runs elsewhere, and
// no caller notices.
func TestProtectLowGoAway(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		s := newStreet(t, b, streetSetup{work: 20 * time.Millisecond})
		load := s.infers(t, 100)
		s.wait(time.Second)
		s.near[0].manners.Store(refuses)
		s.near[0].graceful()
		s.near[0].start()
		s.wait(2500 * time.Millisecond)
		all := load.end()
		refused := s.near[0].calls.Load()
		t.Logf("%d refused (health checks too), %v, by host %v", refused, tally(all), hostsOf(all))
		if bad := failures(all); len(bad) > 0 {
			t.Errorf("%d of %d calls failed, the first: %v %s %s", len(bad), len(all), bad[0].code, bad[0].reason, bad[0].text)
		}
		if n := s.stat("cluster.infer.upstream_rq_retry_success"); n < 1 {
			t.Errorf("%d calls ran elsewhere: the host refused nothing", n)
		}
		if t.Failed() {
			s.told(0)
		}
	})
}

// clustersOf are the clusters of an Envoy configuration by name.
func clustersOf(tree envoytest.Tree, names ...string) (out []any) {
	for _, c := range examples.Get(tree, "static_resources", "clusters").([]any) {
		if name, _ := examples.Get(c, "name").(string); slices.Contains(names, name) {
			out = append(out, c)
		}
	}
	return out
}
