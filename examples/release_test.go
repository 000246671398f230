package examples_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// manyFiles lets this process and those that it starts from now on open so
// many files.
func manyFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < n {
		t.Fatalf("this test opens %d files and the hard limit is %d: raise it (ulimit -Hn)", n, limit.Max)
	}
	limit.Cur = max(limit.Cur, n)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// rewrite replaces text in weir's policy file, which weir watches.
func (w *world) rewrite(old, new string) {
	w.t.Helper()
	raw, err := os.ReadFile(w.weir.Config)
	if err != nil {
		w.t.Fatal(err)
	}
	if strings.Count(string(raw), old) != 1 {
		w.t.Fatalf("the policy has %q not once", old)
	}
	if err := os.WriteFile(w.weir.Config, []byte(strings.Replace(string(raw), old, new, 1)), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// 5,000 requests are held and then released at once, by a policy reload that
// gives the pool as many seats: all are answered 200. The example's limits
// allow it. Only its timeouts are wider here: one worker of Envoy on a busy
// machine may take many seconds for so many, and its own lag counts in them.
func TestReleaseOf5000(t *testing.T) {
	const n, step = 5000, 100
	manyFiles(t, 12_000)
	machine := steady(20 * time.Millisecond)
	machine.Engine.Running = 100 // answers come one batch after the other, as from a real engine
	w := newWorld(t, envoytest.Envoys(t)[0], setup{
		pools: []string{"chat-fp16"}, sim: machine,
		envoy: unhurried, policy: patience + `
classes: [{name: standard, maxWait: 50s, onExpiry: drop}]
queue: {length: {min: 6000, max: 6000}, softLimit: 100%, perTenant: 100%, coldStart: []}
` + sharedPool(1),
	})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	w.client = &http.Client{Transport: &http.Transport{Protocols: protocols}, Timeout: 90 * time.Second}
	t.Cleanup(w.client.CloseIdleConnections)
	leave, token := w.occupy("standard"), w.token(nil)
	answers := make([]answer, n)
	var all sync.WaitGroup
	began := time.Now()
	for i := range n {
		all.Go(func() { answers[i] = w.chat(token, 2, i%2 == 0) })
		if (i+1)%step == 0 {
			w.sees(fmt.Sprint(i+1, " wait"), func(q queue) bool { return q.Waiting == i+1 })
		}
	}
	held := time.Since(began)
	w.rewrite("{requests: 1}", "{requests: 6000}")
	w.sees("nobody waits", func(q queue) bool { return q.Waiting == 0 })
	leave()
	all.Wait()
	t.Logf("held after %v, all answered after %v", held, time.Since(began))
	bad := map[string]int{}
	for i, a := range answers {
		if a.code != http.StatusOK || a.err != nil || i%2 == 0 && !a.done() {
			bad[fmt.Sprintf("%d %s, cut %v, %.80s", a.code, a.header.Get("x-weir-reason"), a.err != nil, a.body)]++
		}
	}
	if len(bad) > 0 {
		t.Errorf("not answered: %v; %v", bad, w.envoy.Stats(t, `(chat-fp16|ext_proc|weir).*(pending_overflow|connect_timeout|control_flood|keepalive_timeout|message_timeouts|streams_failed|cx_destroy_remote|cx_destroy_local)$`))
	}
	w.idle(10 * time.Second)
}

// Seats change while callers press: each change is in force for the next
// grant, no seat is lost or counted twice, and no call is lost by it.
func TestSeatsChangeUnderLoad(t *testing.T) {
	w := newWorld(t, envoytest.Envoys(t)[0], setup{
		pools: []string{"chat-fp16"}, sim: steady(10 * time.Millisecond),
		envoy: unhurried, policy: patience + "classes: [{name: standard, maxWait: 20s, onExpiry: drop}]\n" + sharedPool(4),
	})
	sim, token := w.sims["chat-fp16"], w.token(nil)
	l := w.load(t, 24, func(i int) answer { return w.chat(token, 3, i%2 == 0) })
	seats := 4
	for _, next := range []int{16, 2, 8, 1, 12} {
		w.sees(fmt.Sprint(seats, " seats are taken"), func(q queue) bool { return q.Running == seats })
		sim.Reset()
		served := l.count(http.StatusOK)
		envoytest.Eventually(t, longest, "some are served", func() bool { return l.count(http.StatusOK) > served+2*seats })
		if peak := sim.Totals().Peak; peak > int64(seats) {
			t.Errorf("%d ran at once on %d seats", peak, seats)
		}
		w.rewrite(fmt.Sprintf("{requests: %d}", seats), fmt.Sprintf("{requests: %d}", next))
		seats = next
	}
	w.sees("the last change is in force", func(q queue) bool { return q.Running == seats })
	l.end()
	l.only(t, http.StatusOK)
	if cut := l.count(0); cut > 0 {
		t.Errorf("%d answers were cut", cut)
	}
	w.idle(10 * time.Second)
}
