package examples_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// laneSeats are a pool's seats; a tenth is the lane's.
const laneSeats = 20

const lanePolicy = ledger + `
pools: [{name: chat-fp16, variant: fp16, seats: {requests: 20}}]
models: [{name: deepseek-v4, pools: [chat-fp16]}]
breaker: {minRequests: 5, hard: 50%, open: 10m}
retryControl: {storm: 1000} # one tenant makes all these calls
shares: {priority: 10%}
`

// TestPriorityLane (P8): while the breaker is open, requests with a priority
// header that their token allows get a tenth of the seats, and nobody else any.
func TestPriorityLane(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		e := newWitness(t, "chat-fp16")
		w := newWorld(t, b, setup{example: formOf(b), policy: patience + lanePolicy, pools: []string{}, envoy: func(tree envoytest.Tree) {
			unhurried(tree)
			pointAt(tree, "chat-fp16", e.addr)
		}})
		critical, standard := w.token(claims{"class": "critical"}), w.token(nil)
		call := func(token string, headers ...string) answer { return w.chat(token, 1, false, headers...) }
		envoytest.Eventually(t, longest, "the breaker opens", func() bool {
			a := call(standard, "X-Sim-Fault", "status=503")
			return a.header.Get("x-weir-reason") == "breaker_open"
		})
		before := len(e.seen())
		isRefusal(t, call(standard), http.StatusServiceUnavailable, "breaker_open")
		isRefusal(t, call(critical), http.StatusServiceUnavailable, "breaker_open")
		isRefusal(t, call(standard, "X-DeepSeek-Priority", "critical"), http.StatusServiceUnavailable, "breaker_open")
		isRefusal(t, call(critical, "X-DeepSeek-Priority", "batch"), http.StatusServiceUnavailable, "breaker_open")
		if n := len(e.seen()) - before; n != 0 {
			t.Errorf("%d requests without priority reached the pool", n)
		}
		for i, header := range []string{"X-DeepSeek-Priority", "x-deepseek-priority", "X-DeepSeek-Priority"} { // more than its seats, one after the other
			a := call(critical, header, "critical")
			if a.code != http.StatusOK || a.header.Get("x-weir-reason") != "admitted_lane" {
				t.Errorf("priority call %d: %d %s %s", i+1, a.code, a.header.Get("x-weir-reason"), a.body)
			}
			w.idle(10 * time.Second)
		}
		red := call(w.token(claims{"colour": "red"}), "X-Traffic-Color", "red")
		if red.code != http.StatusOK || red.header.Get("x-weir-reason") != "admitted_lane" {
			t.Errorf("red: %d %s %s", red.code, red.header.Get("x-weir-reason"), red.body)
		}
		w.idle(10 * time.Second)
		laneBound(t, w, e, critical)
		w.idle(10 * time.Second)
		w.sound()
	})
}

// laneBound: of many at once as many run as the lane has seats, and the rest
// gets what everybody gets.
func laneBound(t *testing.T, w *world, e *witness, token string) {
	t.Helper()
	const most, callers = laneSeats / 10, 10
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	before := len(e.seen())
	answers := make(chan answer, callers)
	for range callers {
		go func() {
			answers <- w.do(w.request(ctx, http.MethodPost, chatPath, chatBody(1, false), "Authorization", "Bearer "+token, "X-DeepSeek-Priority", "critical", "X-Sim-Fault", "hang"))
		}()
	}
	for range callers - most {
		isRefusal(t, <-answers, http.StatusServiceUnavailable, "breaker_open")
	}
	w.sees("the lane's seats are taken", func(q queue) bool { return q.Running == most && q.Waiting == 0 })
	envoytest.Eventually(t, longest, "the pool sees them", func() bool { return len(e.seen())-before == most })
	leave()
	for range most {
		if a := <-answers; a.err == nil {
			t.Errorf("a third seat of the lane's: %d %s", a.code, a.header.Get("x-weir-reason"))
		}
	}
}
