package examples_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/examples"
	"github.com/weirproxy/weir/internal/envoytest"
)

// chatPools are the chat model's pools with so many seats each.
func chatPools(fp16, dyn, int8 int) string {
	return fmt.Sprintf(`
pools:
  - {name: chat-fp16, variant: fp16, seats: {requests: %d}}
  - {name: chat-dyn, variant: fp16-dyn, seats: {requests: %d}}
  - {name: chat-int8, variant: int8, seats: {requests: %d}}
models:
  - {name: deepseek-v4, aliases: ["deepseek-*"], pools: [chat-fp16, chat-dyn, chat-int8]}
`, fp16, dyn, int8)
}

// formOf spreads the two example files over the releases, for tests whose
// subject is the same in both and that take their time.
func formOf(b envoytest.Binary) string {
	if b.Minor() >= 38 {
		return "two-filters.yaml"
	}
	return "one-filter.yaml"
}

// unhurried widens the example's timeouts that run while Envoy and weir only
// wait for a processor, for tests of a busy machine; patience is the policy's
// part of it.
func unhurried(tree envoytest.Tree) {
	filter := envoytest.Filter(tree, "envoy.filters.http.ext_proc")
	filter["message_timeout"], filter["max_message_timeout"] = "30s", "60s"
	if authz := envoytest.Filter(tree, "envoy.filters.http.ext_authz"); authz != nil {
		examples.Set(authz, "30s", "grpc_service", "timeout")
	}
	for _, c := range examples.Get(tree, "static_resources", "clusters").([]any) {
		examples.Set(c, "30s", "connect_timeout")
	}
}

const patience = "envoy: {messageTimeout: 30s, maxMessageTimeout: 60s}\n"

// occupy takes a seat of the class's pool with a call that the model never
// answers; leave gives it back.
func (w *world) occupy(class string) (leave func()) {
	w.t.Helper()
	running := w.queue().Running
	ctx, cancel := context.WithCancel(w.t.Context())
	req := w.request(ctx, http.MethodPost, "/v1/chat/completions", chatBody(1, false), "Authorization", "Bearer "+w.token(claims{"class": class}), "X-Sim-Fault", "hang")
	var over sync.WaitGroup
	over.Go(func() { _ = w.do(req) }) // its end is ours
	leave = func() { cancel(); over.Wait() }
	w.t.Cleanup(leave)
	w.sees("a call of class "+class+" runs", func(q queue) bool { return q.Running == running+1 })
	return leave
}

// sees waits until /debug/queue is as wanted.
func (w *world) sees(what string, ok func(queue) bool) {
	w.t.Helper()
	envoytest.Eventually(w.t, 30*time.Second, what, func() bool { return ok(w.queue()) })
}

// later sends a chat completion of a class and gives its answer when asked.
func (w *world) later(class string, n int, headers ...string) (get func() answer) {
	token := w.token(claims{"class": class})
	got := make(chan answer, 1)
	go func() { got <- w.chat(token, n, false, headers...) }()
	return sync.OnceValue(func() answer { return <-got })
}

// number is a header's value as a number; NaN when there is none.
func (a answer) number(name string) float64 {
	v, err := strconv.ParseFloat(a.header.Get(name), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

func (a answer) waited() time.Duration {
	return time.Duration(a.number("x-weir-waited-ms") * float64(time.Millisecond))
}

// isRefusal checks a refusal of ours: status, reason, the OpenAI shape, and a
// hint in its three forms that agree with each other (Q7).
func isRefusal(t *testing.T, a answer, code int, reasons ...string) {
	t.Helper()
	reason := a.header.Get("x-weir-reason")
	if a.err != nil || a.code != code || !slices.Contains(reasons, reason) || a.errorCode() == "" {
		t.Errorf("%d %s %v %s, want %d for one of %v in OpenAI's shape", a.code, reason, a.err, a.body, code, reasons)
		return
	}
	ms := a.number("retry-after-ms")
	whole, err := strconv.Atoi(a.header.Get("retry-after"))
	if !(ms > 0) || err != nil || whole < 1 || whole != max(1, int(math.Ceil(ms/1000))) {
		t.Errorf("%s: retry-after %q for retry-after-ms %q", reason, a.header.Get("retry-after"), a.header.Get("retry-after-ms"))
	}
	// The instant was made before the answer was read: wide for a slow machine.
	if late := a.number("x-ratelimit-reset") - (float64(time.Now().UnixMilli())+ms)/1000; !(late > -30 && late < 1.5) {
		t.Errorf("%s: x-ratelimit-reset is %.1f s off its hint", reason, late)
	}
	if a.header.Get("x-envoy-ratelimited") != "true" || a.header.Get("x-should-retry") != "" {
		t.Errorf("%s: x-envoy-ratelimited %q, x-should-retry %q", reason, a.header.Get("x-envoy-ratelimited"), a.header.Get("x-should-retry"))
	}
}

// One seat: the second request waits longer than Envoy's message timeout and
// is granted when the first ends, with one override of the timeout sent, or
// without any where the message timeout covers the hold.
func TestQueueWaitAndGrant(t *testing.T) {
	const patient = "classes: [{name: standard, maxWait: 10s, onExpiry: drop}]\n"
	cases := []struct {
		name      string
		setup     setup
		overrides int64
	}{
		{"override", setup{policy: patient + "envoy: {messageTimeout: 1s, maxMessageTimeout: 30s}\n"}, 1},
		{"no overrides", setup{
			example: "one-filter.yaml",
			policy:  patient + "envoy: {messageTimeout: 15s, maxMessageTimeout: 0s}\n",
			envoy: func(tree envoytest.Tree) {
				filter := envoytest.Filter(tree, "envoy.filters.http.ext_proc")
				filter["message_timeout"] = "15s"
				delete(filter, "max_message_timeout")
			},
		}, 0},
	}
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				s := c.setup
				s.policy += chatPools(1, 1, 1)
				s.args = []string{"--file-flush-interval-msec", "20"}
				w := newWorld(t, b, s)
				first := w.later("standard", 2, "X-Sim-Fault", "late-headers=1700ms")
				w.sees("the first runs", func(q queue) bool { return q.Running == 1 })
				second := w.later("standard", 2)
				w.sees("the second waits", func(q queue) bool { return q.Waiting == 1 })
				if a := first(); a.code != http.StatusOK || a.header.Get("x-weir-waited-ms") != "0" {
					t.Errorf("first: %d %v, waited %q", a.code, a.err, a.header.Get("x-weir-waited-ms"))
				}
				a := second()
				if a.code != http.StatusOK || a.header.Get("x-weir-reason") != "admitted" {
					t.Errorf("second: %d %v %s", a.code, a.err, a.body)
				}
				if a.waited() <= time.Second || a.waited() > a.took {
					t.Errorf("the second waited %v in a call of %v, want more than the message timeout", a.waited(), a.took)
				}
				w.idle(5 * time.Second)
				if peak := w.sims["chat-dyn"].Totals().Peak; peak != 1 {
					t.Errorf("%d ran at once on one seat", peak)
				}
				w.published(a)
				stats := w.envoy.Stats(t, `ext_proc\.weir\..*override_message_timeout_(received|ignored)$`)
				if len(stats) != 2 {
					t.Errorf("Envoy's counters of overrides: %v", stats)
				}
				for name, n := range stats {
					if want := c.overrides; strings.HasSuffix(name, "received") && n != want || strings.HasSuffix(name, "ignored") && n != 0 {
						t.Errorf("%s = %d, want %d received and none ignored", name, n, want)
					}
				}
			})
		}
	})
}

// published checks that Envoy's access log has the wait of an answer.
func (w *world) published(a answer) {
	w.t.Helper()
	line := regexp.MustCompile(`\{[^\n]*"id":"` + a.header.Get("x-weir-request-id") + `"[^\n]*`)
	wait := regexp.MustCompile(`"waited_ms":([0-9.]+)`)
	envoytest.Eventually(w.t, 10*time.Second, "the decision is in the access log", func() bool {
		m := wait.FindStringSubmatch(line.FindString(w.envoy.Log()))
		if m == nil {
			return false
		}
		ms, err := strconv.ParseFloat(m[1], 64)
		if err != nil || math.Abs(ms-a.number("x-weir-waited-ms")) > 0.001 {
			w.t.Fatalf("weir.decision says waited_ms %s, the header %s", m[1], a.header.Get("x-weir-waited-ms"))
		}
		return true
	})
}

// P3: what follows when a class's wait ends, by the default policy. Waits are
// never short; how late they are is bounded widely on a shared machine.
func TestExpiryPerClass(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: formOf(b), policy: chatPools(1, 1, 1)})
		_, _, leaveInt8 := w.occupy("critical"), w.occupy("standard"), w.occupy("batch")
		critical, standard, batch := w.later("critical", 2), w.later("standard", 2), w.later("batch", 2)
		for _, c := range []struct {
			get    func() answer
			wait   time.Duration
			code   int
			reason string
		}{
			{critical, 200 * time.Millisecond, http.StatusServiceUnavailable, "expired_drop"},
			{standard, 500 * time.Millisecond, http.StatusTooManyRequests, "expired_degrade"},
			{batch, 6 * time.Second, http.StatusTooManyRequests, "expired_retry"}, // 1 s in the line, 5 s in the retry queue
		} {
			a := c.get()
			isRefusal(t, a, c.code, c.reason)
			if a.waited() < c.wait || a.waited() > c.wait+2*time.Second || a.took < a.waited() {
				t.Errorf("%s: waited %v in a call of %v, want %v", c.reason, a.waited(), a.took, c.wait)
			}
		}
		leaveInt8()
		w.sees("int8 is free", func(q queue) bool { return q.Running == 2 })
		a := w.later("standard", 2)()
		if a.code != http.StatusOK || a.header.Get("x-weir-reason") != "degraded_expiry" || a.header.Get("x-weir-variant") != "int8" || a.waited() < 500*time.Millisecond {
			t.Errorf("with int8 free: %d %s on %s after %v", a.code, a.header.Get("x-weir-reason"), a.header.Get("x-weir-variant"), a.waited())
		}
		w.sees("int8 is free", func(q queue) bool { return q.Running == 2 })
		leaveInt8 = w.occupy("batch")
		batch = w.later("batch", 2)
		w.sees("the batch call is in the retry queue", func(q queue) bool { return q.Pools[2].Retrying == 1 })
		leaveInt8()
		if a := batch(); a.code != http.StatusOK || a.header.Get("x-weir-variant") != "int8" || a.waited() < time.Second {
			t.Errorf("from the retry queue: %d %s on %s after %v", a.code, a.header.Get("x-weir-reason"), a.header.Get("x-weir-variant"), a.waited())
		}
	})
}
