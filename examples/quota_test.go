package examples_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// limits are rules for tenants by the first part of their name.
const limits = `
quotas:
  - {name: calls, match: {tenant: "calls*"}, by: [tenant], limits: [{requests: 3, per: 4s}]}
  - {name: two, match: {tenant: "two*"}, by: [tenant], limits: [{requests: 2, per: 2s}, {requests: 3, per: 5s}]}
  - {name: tokens, match: {tenant: "tokens*"}, by: [tenant], limits: [{tokens: 200, per: 4s}]}
  - {name: running, match: {tenant: "running*"}, by: [tenant], limits: [{concurrency: 2}]}
  - {name: parallel, match: {tenant: "parallel*"}, by: [tenant], limits: [{requests: 10, per: 1m}]}
  - {name: budget, match: {tenant: "budget*"}, by: [tenant], limits: [{tokens: 1000, per: 1m}]}
`

// roomy has a pool so large that nothing but the quota refuses.
const roomy = limits + `
pools: [{name: chat-fp16, variant: fp16, seats: {requests: 500}}]
models: [{name: deepseek-v4, pools: [chat-fp16]}, {name: alone, pools: [chat-fp16]}]
`

// T7: over quota with the true wait, in every unit.
func TestOverQuota(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: formOf(b), envoy: unhurried, policy: patience + roomy, sim: steady(2 * time.Millisecond), pools: []string{"chat-fp16"}})
		var all sync.WaitGroup // the cases wait more than they work
		for name, check := range map[string]func(t *testing.T, w *world){
			"requests": overRequests, "two windows": overTwoWindows, "tokens": overTokens,
			"concurrency": overConcurrency, "never": overNever, "parallel": overInParallel,
		} {
			all.Go(func() { t.Run(name, func(t *testing.T) { check(t, w) }) })
		}
		all.Wait()
		w.idle(5 * time.Second)
	})
}

// within waits for an instant.
func within(t *testing.T, at time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// trueWait checks a refusal's hint: at 90 % of it the same call is refused
// still, with what is left of it as hint; after it the call is admitted.
func trueWait(t *testing.T, refused answer, at time.Time, reason string, call func() answer) {
	t.Helper()
	isRefusal(t, refused, http.StatusTooManyRequests, reason)
	hint := time.Duration(refused.number("retry-after-ms") * float64(time.Millisecond))
	due := at.Add(hint)
	within(t, due.Add(-hint/10))
	early := call()
	switch now := time.Now(); {
	case now.Before(due): // else the machine was too slow for it to say anything
		isRefusal(t, early, http.StatusTooManyRequests, reason)
		left := time.Duration(early.number("retry-after-ms") * float64(time.Millisecond))
		if off := now.Add(left).Sub(due); off < -300*time.Millisecond || off > time.Second {
			t.Errorf("the first hint and that of a call at 90 %% of it are %v apart", off)
		}
	case early.code == http.StatusOK:
		return
	}
	within(t, due)
	if a := call(); a.code != http.StatusOK {
		t.Errorf("after the hint of %v: %d %s, hint %s ms", hint, a.code, a.header.Get("x-weir-reason"), a.header.Get("retry-after-ms"))
	}
}

// calls sends n admitted calls and gives the last answer.
func calls(t *testing.T, n int, call func() answer) (last answer) {
	t.Helper()
	for i := range n {
		if last = call(); last.code != http.StatusOK {
			t.Fatalf("call %d: %d %s %v", i+1, last.code, last.header.Get("x-weir-reason"), last.err)
		}
	}
	return last
}

func sees(t *testing.T, a answer, want ...string) {
	t.Helper()
	for i := 0; i+1 < len(want); i += 2 {
		if got := a.header.Get(want[i]); got != want[i+1] {
			t.Errorf("%s is %q, want %q", want[i], got, want[i+1])
		}
	}
}

func overRequests(t *testing.T, w *world) {
	token := w.token(claims{"tenant": "calls"})
	call := func() answer { return w.chat(token, 1, false) }
	last := calls(t, 3, call)
	sees(t, last, "x-ratelimit-limit-requests", "3", "x-ratelimit-remaining-requests", "0")
	refused := call()
	at := time.Now()
	sees(t, refused, "x-ratelimit-limit-requests", "3", "x-ratelimit-remaining-requests", "0")
	// T1: a cell expires by its unexpired part, so a call is wholly forgotten
	// when the cell it fell into is: at most one of the 30 cells after the window.
	const window = 4 * time.Second
	if reset, err := time.ParseDuration(refused.header.Get("x-ratelimit-reset-requests")); err != nil || reset <= 0 || reset > window+window/30 {
		t.Errorf("x-ratelimit-reset-requests is %q, want at most the window and one cell", refused.header.Get("x-ratelimit-reset-requests"))
	}
	trueWait(t, refused, at, "quota_requests", call)
	if other := w.chat(w.token(claims{"tenant": "calls-2"}), 1, false); other.code != http.StatusOK {
		t.Errorf("another tenant: %d", other.code)
	}
}

// Two windows at once: first the short one binds, then the long one.
func overTwoWindows(t *testing.T, w *world) {
	token := w.token(claims{"tenant": "two"})
	call := func() answer { return w.chat(token, 1, false) }
	calls(t, 2, call)
	refused := call()
	trueWait(t, refused, time.Now(), "quota_requests", call) // the third call
	refused = call()
	hint := time.Duration(refused.number("retry-after-ms") * float64(time.Millisecond))
	sees(t, refused, "x-ratelimit-limit-requests", "3")
	if hint < 1500*time.Millisecond || hint > 5*time.Second {
		t.Errorf("hint %v, want what the window of 5 s needs", hint)
	}
	trueWait(t, refused, time.Now(), "quota_requests", call)
}

func overTokens(t *testing.T, w *world) {
	token := w.token(claims{"tenant": "tokens"})
	// A model of its own: what other calls teach the estimate would change the
	// cost between the hint and the call that follows it.
	body := strings.Replace(chatBody(100, false), "deepseek-v4", "alone", 1)
	call := func() answer {
		return w.do(w.request(t.Context(), http.MethodPost, "/v1/chat/completions", body, "Authorization", "Bearer "+token))
	}
	calls(t, 1, call)
	made := w.sims["chat-fp16"].Totals().Tenants["tokens"]
	used := made.Prompt + made.Output
	envoytest.Eventually(t, 5*time.Second, "what the model counted is charged", func() bool { return w.used("tokens")["tokens"] == used })
	refused := call()
	at := time.Now()
	sees(t, refused, "x-ratelimit-limit-tokens", "200", "x-ratelimit-remaining-tokens", fmt.Sprint(200-used))
	if !strings.Contains(refused.body, `"type":"tokens"`) {
		t.Errorf("error %s, want type tokens", refused.body)
	}
	trueWait(t, refused, at, "quota_tokens", call)
}

func overConcurrency(t *testing.T, w *world) {
	c := claims{"tenant": "running"}
	token := w.token(c)
	slow := func() (get func() answer) {
		got := make(chan answer, 1)
		go func() { got <- w.chat(token, 1, false, "X-Sim-Fault", "late-headers=1500ms") }()
		return func() answer { return <-got }
	}
	first, second := slow(), slow()
	envoytest.Eventually(t, 10*time.Second, "two run", func() bool { return w.used("running")["concurrency"] == 2 })
	a := w.chat(token, 1, false)
	isRefusal(t, a, http.StatusTooManyRequests, "quota_concurrency")
	sees(t, a, "retry-after", "1", "x-ratelimit-limit-concurrency", "2", "x-ratelimit-remaining-concurrency", "0")
	for _, get := range []func() answer{first, second} {
		if a := get(); a.code != http.StatusOK {
			t.Errorf("%d %v", a.code, a.err)
		}
	}
	envoytest.Eventually(t, 5*time.Second, "none runs", func() bool { return w.used("running")["concurrency"] == 0 })
	calls(t, 1, func() answer { return w.chat(token, 1, false) })
}

// A call whose prompt alone is larger than the limit is told that no wait
// helps; one of which that is a guess is not.
func overNever(t *testing.T, w *world) {
	long := strings.Replace(chatBody(1, false), "a weir", strings.Repeat("a weir ", 600), 1)
	a := w.do(w.request(t.Context(), http.MethodPost, "/v1/chat/completions", long, "Authorization", "Bearer "+w.token(claims{"tenant": "tokens-never"})))
	if a.code != http.StatusTooManyRequests || a.header.Get("x-weir-reason") != "quota_never" || a.errorCode() != "request_too_large" {
		t.Errorf("%d %s %s", a.code, a.header.Get("x-weir-reason"), a.body)
	}
	sees(t, a, "x-should-retry", "false", "retry-after", "", "retry-after-ms", "")
	if used := w.used("tokens-never"); used["tokens"] != 0 {
		t.Errorf("a refused call holds %v", used)
	}
	calls(t, 1, func() answer { return w.chat(w.token(claims{"tenant": "tokens-guess"}), 1000, false) })
}

// T8: a hundred at once cannot pass a limit together, of requests or tokens.
func overInParallel(t *testing.T, w *world) {
	for tenant, most := range map[string]int{"parallel": 10, "budget": 9} { // 9 x (prompt + 100) fit 1000 tokens
		token := w.token(claims{"tenant": tenant})
		n := 100
		codes := make(chan int, n)
		start := make(chan struct{})
		for range n {
			go func() { <-start; codes <- w.chat(token, 100, false).code }()
		}
		close(start)
		got := map[int]int{}
		for range n {
			got[<-codes]++
		}
		if got[http.StatusOK]+got[http.StatusTooManyRequests] != n || got[http.StatusOK] > most || tenant == "parallel" && got[http.StatusOK] != most {
			t.Errorf("%s: %v, want at most %d admitted and the rest 429", tenant, got, most)
		}
		used := w.used(tenant)
		if used["requests"] > 10 || used["tokens"] > 1000 {
			t.Errorf("%s: used %v", tenant, used)
		}
	}
}
