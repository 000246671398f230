package examples_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// draining is a weir with 200 answers that run and 50 calls that wait.
type draining struct {
	*world
	running, waiting []answer
	all              sync.WaitGroup
}

const (
	drainRunning = 200
	drainWaiting = 50
)

// newDraining fills the seats with SSE answers of n steps of 100 ms. The
// counters are in Redis, so that the next weir can tell what was charged.
func newDraining(t *testing.T, b envoytest.Binary, n int, drain string) *draining {
	t.Helper()
	redis := envoytest.StartRedis(t)
	dir := envoytest.Dir(t)
	w := newWorld(t, b, setup{
		example: formOf(b), dir: dir, pools: []string{"chat-fp16"}, sim: steady(100 * time.Millisecond),
		server: strings.Replace(envoytest.Server(dir), "drain: 25s", "drain: "+drain, 1),
		envoy:  unhurried, policy: patience + fmt.Sprintf(`
store: {redis: {addresses: [%q], timeout: 1s}}
classes: [{name: standard, maxWait: 29s, onExpiry: drop}]
queue: {perTenant: 100%%, coldStart: []}
quotas: [{name: all, match: {tenant: "*"}, by: [tenant], limits: [{requests: 100000, per: 1h}, {outputTokens: 100000000, per: 1h}, {tokens: 100000000, per: 1h}, {concurrency: 1000}]}]
`, redis.Addr) + sharedPool(drainRunning),
	})
	d := &draining{world: w, running: make([]answer, drainRunning), waiting: make([]answer, drainWaiting)}
	token := w.token(nil)
	for i := range drainRunning {
		d.all.Go(func() { d.running[i] = w.chat(token, n, true) })
		if (i+1)%20 == 0 {
			w.sees(fmt.Sprint(i+1, " run"), func(q queue) bool { return q.Running == i+1 })
		}
	}
	var first sync.Once
	for i := range drainWaiting {
		d.all.Go(func() {
			d.waiting[i] = w.chat(token, n, true)
			first.Do(d.checkReady)
		})
	}
	w.sees("50 wait", func(q queue) bool { return q.Waiting == drainWaiting })
	envoytest.Eventually(t, longest, "the model answers all", func() bool { return w.sims["chat-fp16"].Totals().Delivered >= drainRunning })
	return d
}

// checkReady: nobody is refused before /readyz says that weir goes away.
func (d *draining) checkReady() {
	res, err := d.weir.Admin.Get("http://weir/readyz")
	if err != nil {
		d.t.Errorf("/readyz while answers run: %v", err)
		return
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		d.t.Errorf("/readyz is %d when the first waiting call is refused, want 503", res.StatusCode)
	}
}

// exited waits for weir's end.
func (d *draining) exited(limit time.Duration) {
	d.t.Helper()
	select {
	case <-d.weir.Exited():
	case <-time.After(limit):
		d.t.Fatalf("weir runs on %v after SIGTERM", limit)
	}
	if code := d.weir.ExitCode(); code != 0 {
		d.t.Errorf("exit code %d", code)
	}
}

// whole checks that every running answer came to its end and that everybody
// who waited was told to come back.
func (d *draining) whole() {
	d.t.Helper()
	d.all.Wait()
	var cut []string
	for i, a := range d.running {
		if a.code != http.StatusOK || !a.done() {
			cut = append(cut, fmt.Sprintf("%d: %d %v after %v and %d bytes", i, a.code, a.err, a.took, len(a.body)))
		}
	}
	if len(cut) > 0 {
		d.t.Errorf("%d running answers were cut: %q; %v", len(cut), cut[:min(len(cut), 5)],
			d.envoy.Stats(d.t, `ext_proc\.weir\..*(timeouts|failed|closed)$|cluster\.weir\.(upstream_cx_destroy|upstream_rq_rx|http2.*(reset|timeout))`))
	}
	for _, a := range d.waiting {
		isRefusal(d.t, a, http.StatusServiceUnavailable, "draining")
	}
}

// SIGTERM with 200 running answers: none is cut, whoever waits is refused with
// a hint, newcomers are refused, and every token is charged.
func TestDrainWith200Running(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		d := newDraining(t, b, 50, "60s")
		d.weir.Signal(syscall.SIGTERM)
		envoytest.Eventually(t, longest, "/readyz is 503", func() bool {
			res, err := d.weir.Admin.Get("http://weir/readyz")
			if err != nil {
				return false
			}
			defer res.Body.Close()
			return res.StatusCode == http.StatusServiceUnavailable
		})
		if a := d.chat(d.token(nil), 1, false); a.code != http.StatusServiceUnavailable {
			t.Errorf("a newcomer got %d %s", a.code, a.body)
		}
		d.whole()
		d.exited(20 * time.Second)
		made := d.sims["chat-fp16"].Totals()
		if made.Finished != drainRunning || made.Peak != drainRunning {
			t.Errorf("the pool finished %d, %d at once, want %d", made.Finished, made.Peak, drainRunning)
		}
		d.weir = envoytest.Restart(t, d.dir)
		if used := d.used("acme"); used["requests"] != drainRunning || used["tokens"] != made.Prompt+made.Output || used["outputTokens"] != made.Output || used["concurrency"] != 0 {
			t.Errorf("charged %v, the pool counted %d requests, %d+%d tokens", used, made.Finished, made.Prompt, made.Output)
		}
	})
}

// A drain that is shorter than the answers lets them go: weir is gone in time,
// and they run on through Envoy to their ends, charged by the estimate.
func TestDrainLetsLongAnswersGo(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		const n = 90
		d := newDraining(t, b, n, "1s")
		d.weir.Signal(syscall.SIGTERM)
		d.exited(20 * time.Second)
		if left := d.sims["chat-fp16"].Totals().InFlight; left != drainRunning {
			t.Errorf("%d answers ran on when weir was gone, want all", left)
		}
		d.whole()
		d.weir = envoytest.Restart(t, d.dir)
		if used := d.used("acme"); used["requests"] != drainRunning || used["outputTokens"] != drainRunning*n || used["concurrency"] != 0 {
			t.Errorf("charged %v, want %d requests of at most %d output tokens", used, drainRunning, n)
		}
	})
}
