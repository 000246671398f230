package examples_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// newest is the release that failures are tried on; those that differ by
// release are in local_test.go.
func newest(t *testing.T) envoytest.Binary { t.Helper(); return envoytest.Envoys(t)[0] }

func TestWeirKilledAndRestarted(t *testing.T) {
	w := newWorld(t, newest(t), setup{})
	token := w.token(nil)
	l := w.load(t, 12, func(int) answer { return w.chat(token, 6, true) })
	envoytest.Eventually(t, longest, "50 answers before the crash", func() bool { return l.count(200) >= 50 })
	w.weir.Kill()
	envoytest.Eventually(t, longest, "503 while weir is away", func() bool { return l.count(503) > 0 })
	served := l.count(200)
	w.weir = envoytest.Restart(t, w.dir)
	envoytest.Eventually(t, longest, "50 answers after the crash", func() bool { return l.count(200) >= served+50 })
	l.end()
	l.only(t, 200, 503)
	w.idle(5 * time.Second)
}

// TestWeirStopped: a weir that hangs is noticed within a message timeout, and
// answers again when it goes on.
func TestWeirStopped(t *testing.T) {
	w := newWorld(t, newest(t), setup{})
	token := w.token(nil)
	if a := w.chat(token, 6, true); a.code != 200 {
		t.Fatalf("before: %d %v", a.code, a.err)
	}
	w.weir.Signal(syscall.SIGSTOP)
	t.Cleanup(func() { w.weir.Signal(syscall.SIGCONT) })
	envoytest.Eventually(t, longest, "weir stands still", w.weir.Stopped)
	for range 2 {
		// In these tests ext_authz has five seconds.
		if a := w.chat(token, 6, true); a.code < 500 || a.took > 10*time.Second {
			t.Errorf("while weir hangs: %d after %v, want a 5xx within the timeouts", a.code, a.took)
		}
	}
	w.weir.Signal(syscall.SIGCONT)
	envoytest.Eventually(t, longest, "answers after the hang", func() bool { return w.chat(token, 6, true).done() })
	w.idle(5 * time.Second)
}

func TestEnvoyKilledUnderLoad(t *testing.T) {
	w := newWorld(t, newest(t), setup{})
	token := w.token(claims{"tenant": "cut"})
	l := w.load(t, 40, func(int) answer { return w.chat(token, 200, true) })
	envoytest.Eventually(t, longest, "every seat of the class's pool is taken and somebody waits", func() bool {
		q := w.queue()
		return q.Running >= 8 && q.Waiting > 0
	})
	w.envoy.Kill()
	killed := time.Now()
	l.end()
	w.idle(5 * time.Second) // the machine is shared; unit tests hold 100 ms
	t.Logf("every seat was free %v after the kill", time.Since(killed))
	if n := w.metric("weir_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
	tree := envoytest.Example(t, "two-filters.yaml", w.dir, w.weir.Socket, w.addrs)
	w.envoy = envoytest.Start(t, w.envoy.Binary, w.dir, tree)
	if a := w.chat(token, 6, true); !a.done() {
		t.Errorf("after the restart of Envoy: %d %v %s", a.code, a.err, a.body)
	}
}

// TestRedisKilledAndBack: without Redis each replica goes on with its share;
// what it gave is settled when Redis is back.
func TestRedisKilledAndBack(t *testing.T) {
	redis := envoytest.StartRedis(t)
	w := newWorld(t, newest(t), setup{policy: fmt.Sprintf(`
store: {redis: {addresses: [%q]}}
quotas:
  - {name: large, match: {tenant: acme}, by: [tenant], limits: [{requests: 100000, per: 10m}, {tokens: 100000000, per: 10m}]}
  - {name: small, match: {tenant: small}, by: [tenant], limits: [{requests: 3, per: 10m}]}
`, redis.Addr)})
	token := w.token(nil)
	l := w.load(t, 8, func(int) answer { return w.chat(token, 4, true) })
	envoytest.Eventually(t, longest, "50 answers with Redis", func() bool { return l.count(200) >= 50 })
	redis.Kill()
	envoytest.Eventually(t, longest, "the outage is seen", func() bool { return w.metric("weir_store_away") == 1 })
	served := l.count(200)
	envoytest.Eventually(t, longest, "50 answers without Redis", func() bool { return l.count(200) >= served+50 })
	small := w.token(claims{"tenant": "small"})
	for i := range 5 { // the local share holds limits too
		want := http.StatusOK
		if i >= 3 {
			want = http.StatusTooManyRequests
		}
		if a := w.chat(small, 4, false); a.code != want {
			t.Errorf("call %d of a tenant with 3 requests, without Redis: %d, want %d", i+1, a.code, want)
		}
	}
	redis.Restart(t)
	envoytest.Eventually(t, longest, "Redis decides again", func() bool { return w.metric("weir_store_away") == 0 })
	served = l.count(200)
	envoytest.Eventually(t, longest, "50 answers after Redis came back", func() bool { return l.count(200) >= served+50 })
	l.end()
	l.only(t, 200)
	w.idle(5 * time.Second)
	served = l.count(200)
	envoytest.Eventually(t, longest, "nothing is left to be replayed", func() bool { return w.metric("weir_store_pending") == 0 })
	if n := w.used("acme")["requests"]; n != int64(served) {
		t.Errorf("%d requests were served, Redis counts %d", served, n)
	}
	if n := w.used("small")["requests"]; n != 3 {
		t.Errorf("the small tenant's 3 requests without Redis show as %d after its return", n)
	}
	if n := w.metric("weir_store_local_decisions_total"); n < 50 {
		t.Errorf("%v local decisions are shown, at least 50 were made", n)
	}
}

// TestRedisHangsUnderLoad: a Redis that accepts and never answers costs no
// caller anything: all are served in time, nothing piles up, and when it goes
// on, what was given meanwhile is charged once.
func TestRedisHangsUnderLoad(t *testing.T) {
	redis := envoytest.StartRedis(t)
	w := newWorld(t, newest(t), setup{policy: fmt.Sprintf(`
store: {redis: {addresses: [%q]}}
quotas: [{name: large, match: {tenant: "*"}, by: [tenant], limits: [{requests: 100000, per: 10m}, {concurrency: 1000}]}]
`, redis.Addr)})
	token := w.token(nil)
	l := w.load(t, 8, func(int) answer { return w.chat(token, 2, false) })
	envoytest.Eventually(t, longest, "50 answers with Redis", func() bool { return l.count(200) >= 50 })
	goroutines := w.goroutines()
	redis.Signal(syscall.SIGSTOP)
	envoytest.Eventually(t, longest, "the outage is seen", func() bool { return w.metric("weir_store_away") == 1 })
	served := l.count(200)
	envoytest.Eventually(t, longest, "300 answers while Redis hangs", func() bool { return l.count(200) >= served+300 })
	if n := w.goroutines(); n > goroutines+100 {
		t.Errorf("%d goroutines while Redis hangs, %d before", n, goroutines)
	}
	redis.Signal(syscall.SIGCONT)
	envoytest.Eventually(t, longest, "Redis decides again", func() bool { return w.metric("weir_store_away") == 0 })
	l.end()
	l.only(t, 200)
	w.idle(5 * time.Second)
	envoytest.Eventually(t, longest, "nothing is left to be replayed", func() bool {
		return w.metric("weir_store_pending") == 0 && w.metric("weir_store_away") == 0
	})
	if used, served := w.used("acme"), int64(l.count(200)); used["requests"] != served || used["concurrency"] != 0 {
		t.Errorf("%d requests were served, Redis counts %v", served, used)
	}
}

// goroutines is how many weir runs.
func (w *world) goroutines() (n int) {
	w.t.Helper()
	if _, err := fmt.Sscanf(w.admin("/debug/pprof/goroutine?debug=1"), "goroutine profile: total %d", &n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// TestBreakerOpensAndRecovers: a pool that fails is left alone and tried again
// step by step (B1, B2).
func TestBreakerOpensAndRecovers(t *testing.T) {
	w := newWorld(t, newest(t), setup{policy: `
breaker: {window: 2s, minRequests: 10, open: 500ms, releaseStep: 500ms}
`})
	token := w.token(claims{"class": "critical"})
	for range 12 {
		w.chat(token, 4, false, "x-sim-fault", "status=500")
	}
	a := w.chat(token, 4, false)
	if a.code != http.StatusServiceUnavailable || a.header.Get("x-weir-reason") != "breaker_open" {
		t.Fatalf("after 12 failures: %d %s %s, want 503 breaker_open", a.code, a.header.Get("x-weir-reason"), a.body)
	}
	if a.header.Get("retry-after-ms") == "" {
		t.Error("the breaker gives no hint")
	}
	if n := w.metric("weir_breaker_state", `pool="chat-fp16"`, `state="hard"`); n != 1 {
		t.Errorf("weir_breaker_state does not say hard")
	}
	l := w.load(t, 4, func(int) answer { return w.chat(token, 4, false) })
	envoytest.Eventually(t, longest, "the breaker is closed again", func() bool {
		return w.metric("weir_breaker_state", `pool="chat-fp16"`, `state="closed"`) == 1
	})
	l.end()
	l.only(t, 200, 503)
	if a := w.chat(token, 4, false); a.code != 200 {
		t.Errorf("after recovery: %d %s", a.code, a.body)
	}
}
