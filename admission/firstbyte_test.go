package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

// bounded has this firstByte in each pool.
func bounded(d time.Duration) func(*policy.Policy) {
	return func(p *policy.Policy) {
		for i := range p.Pools {
			p.Pools[i].FirstByte = d
		}
	}
}

// timed is ask for a request whose answer weir sees.
func timed(e *policy.Effective, id string, stream bool) *Request {
	r := ask(e, id, "acme", policy.Critical)
	r.Timed, r.Stream = true, stream
	return r
}

// B6: an engine that hangs before its first byte is known to when firstByte is
// over, while its callers still wait, streaming or not; the breaker opens, and
// who comes later is refused at once.
func TestFirstByteOfAHungEngine(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := house(100, bounded(2*time.Second))
			d, e := newTestDesk(t, p), effective(t, p)
			for i := range 40 {
				admit(t, d, timed(e, name("r", i), stream))
			}
			time.Sleep(2*time.Second - time.Millisecond)
			synctest.Wait()
			if all, _ := counts(d, "chat-fp16"); all != 0 {
				t.Errorf("%d ends before the bound", all)
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if all, failed := counts(d, "chat-fp16"); all != 20 || failed != 20 { // it opens with the 20th
				t.Errorf("%d of %d", failed, all)
			}
			if ticket, dec := d.Admit(t.Context(), timed(e, "late", stream)); ticket != nil || dec.Reason != BreakerOpen {
				t.Errorf("the 41st caller: %s", dec.Reason)
			}
			if n := d.Snapshot(time.Now()).Pools[0].NoBegin; n != 40 {
				t.Errorf("%d late in the metric", n)
			}
		})
	}
}

// Each is counted once, by what it was first.
func TestFirstByteCountsOnce(t *testing.T) {
	for _, c := range []struct {
		name        string
		edit        func(r *Request)
		begins      time.Duration // 0 = never
		ends        time.Duration
		end         End
		all, failed int
	}{
		{"in time", nil, 1 * time.Second, 5 * time.Second, fine(10, 10), 1, 0},
		{"a slow answer that began in time and broke off", nil, 1 * time.Second, 5 * time.Second, cutOff, 0, 0},
		{"late and well", nil, 3 * time.Second, 5 * time.Second, fine(10, 10), 1, 1},
		{"late and failed", nil, 0, 5 * time.Second, End{Result: ResultFailed, Status: 500, GRPC: -1}, 1, 1},
		{"failed in time", nil, 0, 1 * time.Second, End{Result: ResultFailed, Status: 500, GRPC: -1}, 1, 1},
		{"Envoy's own timeout after the bound", nil, 0, 3 * time.Second, reset, 1, 1},
		{"the caller left before the bound", nil, 0, 1999 * time.Millisecond, cutOff, 0, 0},
		{"the caller left after the bound", nil, 0, 2001 * time.Millisecond, cutOff, 1, 1},
		{"the caller left at the bound", nil, 0, 2 * time.Second, cutOff, 1, 1},
		{"an upload that weir does not see end", func(r *Request) { r.Timed = false }, 0, 5 * time.Second, cutOff, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := house(100, bounded(2*time.Second))
			d, e := newTestDesk(t, p), effective(t, p)
			r := timed(e, "r", true)
			if c.edit != nil {
				c.edit(r)
			}
			ticket := admit(t, d, r)
			time.Sleep(c.begins)
			if c.begins > 0 {
				ticket.Answering(time.Now())
			}
			time.Sleep(c.ends - c.begins)
			ticket.Done(c.end)
			if all, failed := counts(d, "chat-fp16"); all != c.all || failed != c.failed {
				t.Errorf("%s: %d failures of %d, want %d of %d", c.name, failed, all, c.failed, c.all)
			}
			d.Lost(time.Now(), "chat-fp16", 0)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := len(d.core.floor.Load().pools["chat-fp16"].begins); n != 0 {
				t.Errorf("%s: %d still wait", c.name, n)
			}
		})
	}
}

// Callers who open and leave, however many, do nothing to a pool that is well;
// nor do requests with priority, past an open breaker.
func TestFirstByteOfCallersWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1000, bounded(2*time.Second))
		d, e := newTestDesk(t, p), effective(t, p)
		for round := range 20 {
			var all []*Ticket
			for i := range 50 {
				all = append(all, admit(t, d, timed(e, name("r", 50*round+i), true)))
			}
			time.Sleep(1900 * time.Millisecond)
			for _, ticket := range all {
				ticket.Done(cutOff)
			}
		}
		if v := d.Breaker("chat-fp16").View(time.Now()); v.Requests != 0 || v.State != breaker.Closed {
			t.Errorf("%+v", v)
		}
	})
}

// B2: a probe of an engine that still hangs opens the breaker again when its
// first byte is late, not when its caller's patience ends.
func TestFirstByteOfAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(100, bounded(2*time.Second))
		d, e := newTestDesk(t, p), effective(t, p)
		b := d.Breaker("chat-fp16")
		fail(b, time.Now(), 30)
		time.Sleep(7 * time.Second)
		ticket := admit(t, d, timed(e, "probe", true))
		if s := b.View(time.Now()).State; s != breaker.HalfOpen {
			t.Fatal(s)
		}
		time.Sleep(2001 * time.Millisecond)
		synctest.Wait()
		if s := b.View(time.Now()); s.State != breaker.Hard || s.Cause != breaker.ByProbe {
			t.Errorf("%v by %v", s.State, s.Cause)
		}
		ticket.Done(fine(1, 1))
		if s := b.View(time.Now()).State; s != breaker.Hard {
			t.Errorf("%v when it ended well after all", s)
		}
	})
}

// The learnt bound follows the model and the length of the prompt, is off while
// the pool is cold, and is never above firstByte.
func TestFirstByteLearnt(t *testing.T) {
	late := func(t *testing.T, fixed time.Duration, warm bool, prompt int64, stream bool) time.Duration {
		t.Helper()
		var at time.Duration
		synctest.Test(t, func(t *testing.T) {
			p := house(100, bounded(fixed), func(p *policy.Policy) {
				p.Pools[0].Learnt = &policy.LearntFirstByte{Factor: 4, Min: 500 * time.Millisecond}
				p.Pools[0].MaxHold = 24 * time.Hour
			})
			d, e := newTestDesk(t, p), effective(t, p)
			l := d.core.floor.Load().pools["chat-fp16"]
			for i := range int64(200) {
				if warm { // 100 ms, 1 ms for each token of prompt, 10 ms for each of output
					n := 100 + 1000*(i%2)
					first := 100*time.Millisecond + time.Duration(n)*time.Millisecond
					l.speeds.learn(time.Now(), "deepseek-v4", true, first, first+time.Second, &Usage{Known: true, InputKnown: true, Input: n, Output: 100})
				}
			}
			r := timed(e, "r", stream)
			r.Prompt = prompt
			began := time.Now()
			admit(t, d, r)
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				if _, failed := counts(d, "chat-fp16"); failed > 0 {
					at = time.Since(began)
					return
				}
			}
		})
		return at
	}
	for _, c := range []struct {
		name   string
		fixed  time.Duration
		warm   bool
		prompt int64
		stream bool
		want   time.Duration
	}{
		{"cold", 0, false, 400, true, 0},
		{"cold, with a bound", 3 * time.Second, false, 400, true, 3 * time.Second},
		{"warm, 100 tokens of prompt", 0, true, 400, true, 800 * time.Millisecond},
		{"warm, 1,000 tokens of prompt", 0, true, 4000, true, 4400 * time.Millisecond},
		{"warm, 1,000 tokens, with a bound", 3 * time.Second, true, 4000, true, 3 * time.Second},
		{"warm, not streaming: with 100 tokens of output", 0, true, 400, false, 4800 * time.Millisecond},
	} {
		if got := late(t, c.fixed, c.warm, c.prompt, c.stream); got < c.want-200*time.Millisecond || got > c.want+300*time.Millisecond {
			t.Errorf("%s: late after %v, want %v", c.name, got, c.want)
		}
	}
}

// A reload that lifts the bound holds for those who wait already.
func TestFirstByteLifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(100, bounded(2*time.Second))
		d, e := newTestDesk(t, p), effective(t, p)
		for i := range 30 {
			admit(t, d, timed(e, name("r", i), true))
		}
		time.Sleep(time.Second)
		d.Swap(house(100))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if all, _ := counts(d, "chat-fp16"); all != 0 {
			t.Errorf("%d counted", all)
		}
	})
}
