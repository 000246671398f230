package extproc

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/memstore"
)

// tally hears of every decision and end.
type tally struct {
	decided, ended, charged atomic.Int64
	mu                      sync.Mutex
	reasons                 map[admission.Reason]int
	last                    admission.End
}

func (o *tally) Decided(_ *admission.Request, d *admission.Decision, _ time.Time) {
	o.decided.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reasons == nil {
		o.reasons = map[admission.Reason]int{}
	}
	o.reasons[d.Reason]++
}

func (o *tally) Ended(_ *admission.Request, _ *admission.Decision, e *admission.End, charged int64, _ time.Duration, _ time.Time) {
	o.ended.Add(1)
	o.charged.Add(charged)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = *e
}

// openReal is a house with the real desk over a memory store.
func openReal(t *testing.T, p *policy.Policy) (*house, *admission.Desk, *tally) {
	t.Helper()
	seen := &tally{}
	d := admission.New(admission.Options{
		Policy: p, Store: memstore.New(memstore.Options{}), Rand: rand.New(rand.NewPCG(1, 2)), Observers: []admission.Observer{seen},
	})
	h := openWith(t, nil, p, func(o *Options) { o.Desk = NewDesk(d) })
	h.ends = make(chan Summary, 100000)
	t.Cleanup(d.Close)
	return h, d, seen
}

// scarce has one seat, in one pool.
func scarce(p *policy.Policy) {
	for i := range p.Pools {
		p.Pools[i].Seats = policy.Seats{Requests: 1}
	}
	p.Models[0].Pools = []string{"chat-dyn"}
}

// busy checks the desk's seats and lines.
func busy(t *testing.T, d *admission.Desk, running, waiting int) {
	t.Helper()
	r, w := 0, 0
	for _, p := range d.Snapshot(time.Now()).Pools {
		for c := range p.Line.Running {
			r += p.Line.Running[c]
			w += p.Line.Waiting[c]
		}
		w += p.Line.Retrying
	}
	if r != running || w != waiting {
		t.Errorf("%d running and %d waiting, want %d and %d", r, w, running, waiting)
	}
}

// TestRealWait: the second call waits for the first one's seat, a third one
// expires after its class's wait (P3), exact in virtual time.
func TestRealWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, d, _ := openReal(t, rules(scarce))
		first, second, third := h.call(), h.call(), h.call()
		for _, e := range []*envoy{first, second, third} {
			e.send(chatHead())
			e.want("request_headers")
		}
		first.send(reqBody(chatBody, true))
		first.want("request_body")
		second.send(reqBody(chatBody, true))
		second.want("override")
		synctest.Wait()
		busy(t, d, 1, 1)
		third.send(reqBody(chatBody, true))
		third.want("override")
		begin := time.Now()
		time.Sleep(300 * time.Millisecond)
		first.send(answered("200", via, false, "content-type", "application/json"))
		first.want("response_headers")
		first.send(chunk(`{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`, true))
		first.want("response_body")
		second.want("request_body")
		if waited := time.Since(begin); waited != 300*time.Millisecond {
			t.Errorf("granted after %v", waited)
		}
		checkRefusal(t, third.next(), admission.ExpiredDegrade, "")
		if waited := time.Since(begin); waited != 500*time.Millisecond {
			t.Errorf("expired after %v, want the class's 500ms", waited)
		}
		second.cancel()
		_ = first.hangUp(true)
		_ = third.hangUp(true)
		for range 3 {
			h.ended()
		}
		busy(t, d, 0, 0)
	})
}

// TestRealCharge: the pool's own count is what is charged, and a usage chunk
// that nobody asked for is hidden.
func TestRealCharge(t *testing.T) { // T8
	stream := `{"model":"deepseek-v4","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	event := func(s string) string { return "data: " + s + "\n\n" }
	word := event(`{"choices":[{"index":0,"delta":{"content":"word"}}]}`)
	stop := event(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	usage := event(`{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":11,"total_tokens":23}}`)
	answer := strings.Repeat(word, 11) + stop + usage + event("[DONE]")
	want := strings.Repeat(word, 11) + stop + event("[DONE]")
	for cut := 1; cut < len(answer); cut += 37 {
		h, d, seen := openReal(t, rules())
		e := h.call()
		e.send(chatHead())
		e.want("request_headers")
		e.send(reqBody(stream, true))
		e.want("request_body")
		e.send(answered("200", via, false, "content-type", "text/event-stream"))
		e.want("response_headers")
		got := ""
		for _, part := range []string{answer[:cut], answer[cut:], ""} {
			e.send(chunk(part, part == ""))
			r := e.next()
			if kindOf(r) != "response_body" {
				t.Fatalf("reply %v", r)
			}
			switch m := r.GetResponseBody().GetResponse().GetBodyMutation(); {
			case m == nil:
				got += part
			default:
				got += string(m.GetBody())
			}
		}
		if got != want {
			t.Fatalf("cut at %d: the client got\n%s", cut, got)
		}
		_ = e.hangUp(true)
		h.ended()
		busy(t, d, 0, 0)
		if c := seen.charged.Load(); c != 23 {
			t.Fatalf("cut at %d: charged %d tokens, want 23", cut, c)
		}
	}
}

// TestRealStorm: many callers who leave at any moment. Every seat comes back,
// every admission ends once, no goroutine stays.
func TestRealStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, d, seen := openReal(t, rules(scarce, func(p *policy.Policy) { p.Pools[1].Seats.Requests = 4 }))
		const callers = 400
		var wg sync.WaitGroup
		for i := range callers {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			wg.Go(func() { storm(h, rng) })
		}
		wg.Wait()
		for range callers {
			h.ended()
		}
		synctest.Wait()
		busy(t, d, 0, 0)
		if left := d.Drain(context.Background()); left != 0 {
			t.Errorf("%d tickets left", left)
		}
		admitted := 0
		for r, n := range seen.reasons {
			if r.Admits() {
				admitted += n
			}
		}
		if int64(admitted) != seen.ended.Load() || admitted == 0 {
			t.Errorf("%d admitted, %d ended", admitted, seen.ended.Load())
		}
	})
}

// storm is one caller: a usual call that may end after any message.
func storm(h *house, rng *rand.Rand) {
	e := h.call()
	defer func() {
		if rng.IntN(2) == 0 {
			_ = e.stream.CloseSend()
		} else {
			e.cancel()
		}
		for range e.in {
		}
	}()
	time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
	steps := chat(
		move{answered("200", via, false, "content-type", "text/event-stream"), ""},
		move{chunk(done, false), ""}, move{chunk("", true), ""})
	leave := rng.IntN(2 * len(steps))
	for i, m := range steps {
		e.send(m.message)
		if i == leave {
			time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
			return
		}
		r := e.next()
		if kindOf(r) == "override" {
			if rng.IntN(3) == 0 {
				time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
				if rng.IntN(2) == 0 {
					e.send(answered("504", "stream_idle_timeout", true))
				}
				return
			}
			r = e.next()
		}
		if kindOf(r) == "immediate" || r == nil {
			return
		}
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
	}
}
