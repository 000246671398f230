package examples_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// oneSeat has one pool of one seat, and callers who wait long enough to be
// aborted while they do.
const oneSeat = wideQuotas + `
pools: [{name: chat-dyn, variant: fp16-dyn, seats: {requests: 1}}]
models: [{name: deepseek-v4, pools: [chat-dyn]}]
classes: [{name: standard, maxWait: 25s, onExpiry: drop}]
apis:
  - {path: /v1/chat/completions, kind: openai.chat, function: chat_completion}
  - {path: /v1/audio/transcriptions, kind: opaque, cost: 300}
`

const uploadPath = "/v1/audio/transcriptions"

// clients are the two ways in which a caller goes away: HTTP/1.1 closes the
// connection, HTTP/2 resets the stream.
func clients(t *testing.T) map[string]*http.Client {
	t.Helper()
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	all := map[string]*http.Client{"http1": {Transport: &http.Transport{}}, "http2": {Transport: &http.Transport{Protocols: h2}}}
	for _, c := range all {
		t.Cleanup(c.CloseIdleConnections)
	}
	return all
}

// abortable is a call that its caller may leave.
type abortable struct {
	leave  context.CancelFunc
	done   chan struct{} // the caller has its answer, or an error
	begun  chan struct{} // the caller has seen two events
	events *counter
}

// counter counts the events of a stream that a client has seen.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func (c *counter) read() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// start makes a call in the background and reads its events as they come.
func (w *world) start(client *http.Client, tenant, path, body, fault string) *abortable {
	w.t.Helper()
	ctx, leave := context.WithCancel(w.t.Context())
	a := &abortable{leave: leave, done: make(chan struct{}), begun: make(chan struct{}), events: &counter{}}
	req := w.request(ctx, http.MethodPost, path, body, "Authorization", "Bearer "+w.token(claims{"tenant": tenant}))
	if fault != "" {
		req.Header.Set("X-Sim-Fault", fault)
	}
	go func() {
		defer close(a.done)
		res, err := client.Do(req)
		if err != nil {
			return // it was left before its answer
		}
		defer res.Body.Close()
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "data: {") && a.events.add() == 2 {
				close(a.begun)
			}
		}
	}()
	w.t.Cleanup(func() { leave(); <-a.done })
	return a
}

// stream waits until the answer is on its way.
func (a *abortable) stream(t *testing.T) {
	t.Helper()
	select {
	case <-a.begun:
	case <-a.done:
		t.Fatal("the answer ended before two events")
	}
}

// freed leaves a call and tells how long it took until what it held was free.
// The bound is wide, for loaded machines; the time is printed.
func (w *world) freed(what string, a *abortable, free func(queue) bool) {
	w.t.Helper()
	start := time.Now()
	a.leave()
	envoytest.Eventually(w.t, time.Second, what+" is free", func() bool { return free(w.queue()) })
	w.t.Logf("%s: free after %v", what, time.Since(start).Round(time.Millisecond))
	<-a.done
}

// TestClientAbortEachPhase: whoever leaves, in whatever phase, frees what it
// held and is charged what was delivered (T8), and no breaker counts it (B6).
func TestClientAbortEachPhase(t *testing.T) {
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: "one-filter.yaml", policy: oneSeat})
		for proto, client := range clients(t) {
			abortWaiting(w, client, proto+"-queue-headers", uploadPath, "not read")
			abortWaiting(w, client, proto+"-queue-body", chatPath, chatBody(12, true))
			abortUnanswered(w, client, proto+"-upstream")
			abortStream(w, client, proto+"-sse")
			if a := w.call(proto+"-next", chatPath, chatBody(3, false), ""); a.code != http.StatusOK {
				t.Errorf("%s: the next call gets %d %s", proto, a.code, a.body)
			}
		}
		if n := w.metric("weir_requests_ended_total", `result="failed"`); n != 0 {
			t.Errorf("%v aborts were counted as the pool's failures", n)
		}
	})
}

// abortWaiting leaves the line: the place is free, the request unit stays
// charged, the tokens do not, and who runs is not disturbed.
func abortWaiting(w *world, client *http.Client, tenant, path, body string) {
	w.t.Helper()
	gone := w.metric("weir_decisions_total", `reason="client_gone"`)
	first := w.start(w.client, tenant+"-first", chatPath, chatBody(100, true), "slow=50ms")
	first.stream(w.t)
	a := w.start(client, tenant, path, body, "")
	envoytest.Eventually(w.t, 5*time.Second, tenant+" waits", func() bool { return w.queue().Waiting == 1 })
	w.freed(tenant, a, func(q queue) bool { return q.Waiting == 0 })
	if q := w.queue(); q.Running != 1 {
		w.t.Errorf("%s: %d run after it left the line, want the first one", tenant, q.Running)
	}
	if n := w.metric("weir_decisions_total", `reason="client_gone"`) - gone; n != 1 {
		w.t.Errorf("%s: %v decisions client_gone, want 1", tenant, n)
	}
	w.freed(tenant+"-first", first, idleNow)
	w.settled(tenant, charge{requests: 1})
	if m := w.made(tenant); m.Started != 0 {
		w.t.Errorf("%s: left the line and reached the pool: %+v", tenant, m)
	}
}

// idleNow reports that nothing waits and no seat is taken.
func idleNow(q queue) bool { return q.Waiting == 0 && q.Running == 0 }

// abortUnanswered leaves while the model has yet to answer: the prompt is
// charged, and no output.
func abortUnanswered(w *world, client *http.Client, tenant string) {
	w.t.Helper()
	unknown := w.metric("weir_requests_ended_total", `result="unknown"`)
	a := w.start(client, tenant, chatPath, chatBody(12, true), "hang")
	envoytest.Eventually(w.t, 5*time.Second, tenant+" is at the pool", func() bool { return w.made(tenant).Started == 1 })
	w.freed(tenant, a, idleNow)
	w.settled(tenant, charge{1, promptGuess, 0})
	w.cutOff(tenant, unknown)
}

// abortStream leaves an answer in its middle.
func abortStream(w *world, client *http.Client, tenant string) {
	w.t.Helper()
	unknown := w.metric("weir_requests_ended_total", `result="unknown"`)
	a := w.start(client, tenant, chatPath, chatBody(100, true), "slow=50ms")
	a.stream(w.t)
	w.freed(tenant, a, idleNow)
	w.cutOff(tenant, unknown)
	var got charge
	seen, made := int64(a.events.read()), w.made(tenant)
	envoytest.Eventually(w.t, 5*time.Second, tenant+" gives back what it had reserved", func() bool {
		got = w.charged(tenant)
		return got.output <= made.Delivered
	})
	if got.requests != 1 || got.input != promptGuess || got.output < seen {
		w.t.Errorf("%s: charged %+v; the client saw %d tokens, the pool delivered %d", tenant, got, seen, made.Delivered)
	}
}

// cutOff holds an abort against what the pool and the metrics say of it.
func (w *world) cutOff(tenant string, unknown float64) {
	w.t.Helper()
	envoytest.Eventually(w.t, 5*time.Second, tenant+" is cut off at the pool", func() bool { return w.made(tenant).Aborted == 1 })
	if n := w.metric("weir_requests_ended_total", `result="unknown"`) - unknown; n != 1 {
		w.t.Errorf("%s: %v ended as unknown, want 1", tenant, n)
	}
}

// TestCancelledCallsKeepNothing: 200 calls with a large cap are left in the
// middle of their answers. What they had reserved would fill the limit many
// times over; what was delivered does not.
func TestCancelledCallsKeepNothing(t *testing.T) {
	const calls, together = 200, 20
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		w := newWorld(t, b, setup{example: "one-filter.yaml", policy: `
estimate: {output: 4000}
pools: [{name: chat-dyn, variant: fp16-dyn, seats: {requests: 100}}]
models: [{name: deepseek-v4, pools: [chat-dyn]}]
quotas: [{name: per-tenant, match: {tenant: "*"}, by: [tenant], limits: [{tokens: 100000, per: 1h}]}]
`})
		var group sync.WaitGroup
		for range together {
			group.Go(func() {
				for range calls / together {
					a := w.start(w.client, "acme", chatPath, chatBody(4000, true), "slow=10ms")
					select {
					case <-a.begun:
					case <-a.done: // refused: the counts below tell
					}
					a.leave()
					<-a.done
				}
			})
		}
		group.Wait()
		w.idle(5 * time.Second)
		envoytest.Eventually(t, 5*time.Second, "all calls were admitted, and cut off at the pool", func() bool {
			return w.made("acme").Aborted == calls
		})
		prompts, delivered := calls*promptGuess, w.made("acme").Delivered
		envoytest.Eventually(t, 5*time.Second, "all that was not delivered is given back", func() bool {
			return w.used("acme")["tokens"] <= prompts+delivered
		})
		if used := w.used("acme")["tokens"]; used < prompts+2*calls {
			t.Errorf("%d tokens are charged; every caller saw two, and the prompts are %d", used, prompts)
		}
		if a := w.call("acme", chatPath, chatBody(4, false), ""); a.code != http.StatusOK {
			t.Errorf("the next call gets %d %s", a.code, a.body)
		}
	})
}
