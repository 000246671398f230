package admission

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

func TestAdmittedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		p := house(2)
		d := newTestDesk(t, p, l)
		e := effective(t, p)
		for class, pool := range []string{"chat-fp16", "chat-dyn", "chat-int8"} { // V1
			r := ask(e, name("r", class), "acme", policy.Class(class))
			v := d.Submit(t.Context(), r)
			if v.Waiting() {
				t.Fatalf("%s waits at an empty pool", r.Class)
			}
			<-v.Ready()
			ticket, dec := v.Result()
			if ticket == nil || dec.Reason != Admitted || dec.Pool != pool || dec.Cluster != pool || dec.Waited != 0 || dec.Degraded {
				t.Fatalf("%s: %+v", r.Class, dec)
			}
			if in, out := ticket.Estimate(); in != 100 || out != 100 {
				t.Errorf("estimate %d, %d, want 100, 100", in, out)
			}
			v.Leave() // the ticket was taken: nothing happens
			if !d.End(r.ID, fine(12, 11)) {
				t.Error("End by id did nothing")
			}
			if ticket.Done(fine(1, 1)) || d.End(r.ID, fine(1, 1)) {
				t.Error("a ticket ended twice")
			}
			if _, charged, _ := l.end(r.ID); charged != 23 || len(l.decisions(r.ID)) != 1 {
				t.Errorf("charged %d in %d decisions, want 23 in 1", charged, len(l.decisions(r.ID)))
			}
		}
		quiet(t, d)
	})
}

// P3: the waits are exact in virtual time with hundreds waiting, and each
// class ends as its policy says.
func TestWaitsAreExact(t *testing.T) {
	for _, c := range []struct {
		class  policy.Class
		wait   time.Duration
		reason Reason
		n      int
	}{
		{policy.Critical, 200 * time.Millisecond, ExpiredDrop, 200},
		{policy.Standard, 500 * time.Millisecond, ExpiredDegrade, 160},
		{policy.Batch, 6 * time.Second, ExpiredRetry, 160}, // 1 s in the line, 5 s in the retry queue
	} {
		synctest.Test(t, func(t *testing.T) {
			p := house(2)
			d := newTestDesk(t, p)
			e := effective(t, p)
			var running []*Ticket
			for class := range policy.Class(policy.NumClasses) {
				running = append(running, occupy(t, d, e, class, 2)...)
			}
			began := time.Now()
			var wg sync.WaitGroup
			for i := range c.n {
				wg.Go(func() {
					ticket, dec := d.Admit(t.Context(), ask(e, name("w", i), name("tenant", i), c.class))
					if ticket != nil || dec.Reason != c.reason || dec.Waited != c.wait || time.Since(began) != c.wait {
						t.Errorf("%s %d: %s after %s (clock %s), want %s after %s", c.class, i, dec.Reason, dec.Waited, time.Since(began), c.reason, c.wait)
					}
					if dec.RetryAfter <= 0 {
						t.Errorf("%s %d: no hint", c.class, i)
					}
				})
			}
			synctest.Wait()
			if s := d.Snapshot(time.Now()); s.HeldBytes != int64(c.n)*500 {
				t.Errorf("%d bytes held, want %d", s.HeldBytes, c.n*500)
			}
			wg.Wait()
			endAll(t, running)
			quiet(t, d)
		})
	}
}

// A waiting request gets the seat at the instant when it is freed.
func TestGrantOnRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, running, v := fullHouse(t, 1)
		if v.Longest() != 200*time.Millisecond {
			t.Fatalf("waits %s at the longest", v.Longest())
		}
		if _, dec := v.Result(); dec.Reason != Queued {
			t.Errorf("before the decision: %s", dec.Reason)
		}
		time.Sleep(150 * time.Millisecond)
		endAll(t, running)
		<-v.Ready()
		ticket, dec := v.Result()
		if ticket == nil || dec.Reason != Admitted || dec.Waited != 150*time.Millisecond {
			t.Fatalf("%+v", dec)
		}
		ticket.Done(fine(1, 1))
		quiet(t, d)
	})
}

// P3 and V2: at expiry standard takes a free seat of the next pool down, and
// runs there; the seat is that pool's.
func TestDegradeAtExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1)
		d := newTestDesk(t, p)
		e := effective(t, p)
		running := occupy(t, d, e, policy.Standard, 1)
		ticket, dec := d.Admit(t.Context(), ask(e, "down", "acme", policy.Standard))
		if ticket == nil || dec.Action != Degrade || dec.Reason != DegradedExpiry || !dec.Degraded ||
			dec.Pool != "chat-int8" || dec.Variant != policy.INT8 || dec.Waited != 500*time.Millisecond {
			t.Fatalf("%+v", dec)
		}
		// The lower pool is full now: the next one is refused.
		if other, dec := d.Admit(t.Context(), ask(e, "refused", "acme", policy.Standard)); other != nil || dec.Reason != ExpiredDegrade {
			t.Errorf("second: %s, want expired_degrade", dec.Reason)
		}
		// Batch, whose own pool it is, waits behind it.
		v := d.Submit(t.Context(), ask(e, "batch", "acme", policy.Batch))
		if !v.Waiting() {
			t.Error("batch found a seat in the full pool")
		}
		ticket.Done(fine(1, 1))
		<-v.Ready()
		if b, dec := v.Result(); b == nil || dec.Pool != "chat-int8" {
			t.Errorf("batch: %s", dec.Reason)
		} else {
			b.Done(fine(1, 1))
		}
		endAll(t, running)
		quiet(t, d)
	})
}

// Degrade never goes up: batch at a full int8 pool does not take fp16 seats.
func TestNeverUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1, func(p *policy.Policy) { p.Classes[policy.Batch].OnExpiry = policy.ExpireDegrade })
		d := newTestDesk(t, p)
		e := effective(t, p)
		running := occupy(t, d, e, policy.Batch, 1)
		ticket, dec := d.Admit(t.Context(), ask(e, "b", "acme", policy.Batch))
		if ticket != nil || dec.Reason != ExpiredDegrade {
			t.Errorf("batch: %s in %s", dec.Reason, dec.Pool)
		}
		endAll(t, running)
		quiet(t, d)
	})
}

// T8: refusals of ours give all back; a cancel in the queue keeps its request
// unit and frees the tokens; what ran is charged by its count.
func TestRefunds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1, withQuotas(
			policy.Limit{Unit: policy.Requests, Max: 100, Per: time.Hour},
			policy.Limit{Unit: policy.Tokens, Max: 100000, Per: time.Hour},
			policy.Limit{Unit: policy.Concurrency, Max: 20},
		))
		d := newTestDesk(t, p)
		e := effective(t, p)
		check := func(when string, requests, tokens, concurrency int64) {
			t.Helper()
			want := map[policy.Unit]int64{policy.Requests: requests, policy.Tokens: tokens, policy.Concurrency: concurrency}
			for _, c := range usage(t, d, "acme") {
				if c.Used != want[c.Limit.Unit] {
					t.Errorf("%s: %d of unit %d used, want %d", when, c.Used, c.Limit.Unit, want[c.Limit.Unit])
				}
			}
		}
		first, _ := d.Admit(t.Context(), ask(e, "first", "acme", policy.Critical))
		check("running", 1, 200, 1)
		waiting := d.Submit(t.Context(), ask(e, "left", "acme", policy.Critical))
		check("waiting", 2, 400, 2)
		waiting.Leave()
		waiting.Leave()
		if _, dec := waiting.Result(); dec.Reason != ClientGone {
			t.Errorf("after Leave: %s", dec.Reason)
		}
		check("left the queue", 2, 200, 1)
		if _, dec := d.Admit(t.Context(), ask(e, "expired", "acme", policy.Critical)); dec.Reason != ExpiredDrop {
			t.Errorf("want expired_drop, got %s", dec.Reason)
		}
		check("expired", 2, 200, 1)
		first.Done(fine(30, 12))
		check("ended", 2, 42, 0)
		again, _ := d.Admit(t.Context(), ask(e, "local reply", "acme", policy.Critical))
		again.Done(End{Result: ResultNoAnswer, Failed: true})
		check("local reply", 2, 42, 0)
		quiet(t, d)
	})
}

// Over quota is 429 with the true wait, and nothing is taken.
func TestOverQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(10, withQuotas(policy.Limit{Unit: policy.Requests, Max: 2, Per: time.Minute}))
		d := newTestDesk(t, p)
		e := effective(t, p)
		endAll(t, []*Ticket{admit(t, d, ask(e, "1", "acme", policy.Standard)), admit(t, d, ask(e, "2", "acme", policy.Standard))})
		ticket, dec := d.Admit(t.Context(), ask(e, "3", "acme", policy.Standard))
		if ticket != nil || dec.Action != Reject || dec.Reason != QuotaRequests || dec.RetryAfter <= 0 || dec.RetryAfter > 62*time.Second {
			t.Fatalf("%+v", dec)
		}
		if dec.Quota == nil || dec.Quota.Rule != "per-tenant" || dec.Quota.Remaining != 0 {
			t.Errorf("quota view %+v", dec.Quota)
		}
		admit(t, d, ask(e, "other", "other", policy.Standard)).Done(fine(1, 1))
		time.Sleep(dec.RetryAfter)
		admit(t, d, ask(e, "4", "acme", policy.Standard)).Done(fine(1, 1)) // the hint was true
		quiet(t, d)
	})
}

func TestQuotaNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(10, withQuotas(policy.Limit{Unit: policy.Tokens, Max: 20, Per: time.Minute}))
		d := newTestDesk(t, p)
		_, dec := d.Admit(t.Context(), ask(effective(t, p), "1", "acme", policy.Standard))
		if dec.Reason != QuotaNever || dec.RetryAfter != 0 {
			t.Errorf("%+v", dec)
		}
	})
}

// A seat held beyond maxHold is taken back at that instant, outcome unknown.
func TestMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		p := house(1, func(p *policy.Policy) { p.Pools[0].MaxHold = time.Minute })
		d := newTestDesk(t, p, l)
		e := effective(t, p)
		lost := admit(t, d, ask(e, "lost", "acme", policy.Critical))
		time.Sleep(time.Minute - 100*time.Millisecond)
		next, dec := d.Admit(t.Context(), ask(e, "next", "acme", policy.Critical))
		if next == nil || dec.Waited != 100*time.Millisecond {
			t.Fatalf("next: %s after %s, want the seat after 100ms", dec.Reason, dec.Waited)
		}
		synctest.Wait()
		if e, _, ok := l.end("lost"); lost.Done(fine(1, 1)) || !ok || e.Result != ResultUnknown {
			t.Errorf("lost ticket ended %v as %s", ok, e.Result)
		}
		if s := d.Snapshot(time.Now()).Pools[0]; s.Overdue != 1 {
			t.Errorf("overdue %d, want 1", s.Overdue)
		}
		next.Done(fine(1, 1))
		quiet(t, d)
	})
}

// SIGTERM: who waits gets 503 with a hint, newcomers too, who runs runs on.
func TestDrainWith200Running(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, e, running, waiting := fullHouse(t, 200)
		done := make(chan int)
		go func() { done <- d.Drain(context.WithoutCancel(t.Context())) }()
		<-waiting.Ready()
		if ticket, dec := waiting.Result(); ticket != nil || dec.Reason != Draining || dec.RetryAfter <= 0 {
			t.Errorf("waiting: %+v", dec)
		}
		if _, dec := d.Admit(t.Context(), ask(e, "late", "acme", policy.Critical)); dec.Reason != Draining {
			t.Errorf("newcomer: %s", dec.Reason)
		}
		if dec, refused := d.Precheck(time.Now(), ask(e, "late", "acme", policy.Critical)); !refused || dec.Reason != Draining {
			t.Errorf("precheck: %s", dec.Reason)
		}
		for i, ticket := range running {
			time.Sleep(time.Millisecond)
			select {
			case n := <-done:
				t.Fatalf("Drain ended with %d left before ticket %d", n, i)
			default:
			}
			ticket.Done(fine(1, 1))
		}
		if n := <-done; n != 0 {
			t.Errorf("%d left", n)
		}
		quiet(t, d)
	})
}

func TestDrainEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(5)
		d := newTestDesk(t, p)
		running := occupy(t, d, effective(t, p), policy.Critical, 3)
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		if n := d.Drain(ctx); n != 3 {
			t.Errorf("%d left, want 3", n)
		}
		endAll(t, running)
		quiet(t, d)
	})
}

// The caller's own deadline shortens the wait and never lengthens it.
func TestOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1)
		d := newTestDesk(t, p)
		e := effective(t, p)
		running := occupy(t, d, e, policy.Critical, 1)
		r := ask(e, "short", "acme", policy.Critical)
		r.Deadline = time.Now().Add(50 * time.Millisecond)
		v := d.Submit(t.Context(), r)
		if v.Longest() > 50*time.Millisecond {
			t.Errorf("held for %s at the longest", v.Longest())
		}
		<-v.Ready()
		if _, dec := v.Result(); dec.Reason != Deadline || dec.Waited > 50*time.Millisecond {
			t.Errorf("%s after %s", dec.Reason, dec.Waited)
		}
		endAll(t, running)
		quiet(t, d)
	})
}

// maxHeldBytes bounds the bodies that wait over all lines.
func TestHeldBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1, func(p *policy.Policy) { p.Queue.MaxHeldBytes = 1000 })
		d := newTestDesk(t, p)
		e := effective(t, p)
		running := append(occupy(t, d, e, policy.Critical, 1), occupy(t, d, e, policy.Standard, 1)...)
		a := d.Submit(t.Context(), ask(e, "a", "a", policy.Critical))
		b := d.Submit(t.Context(), ask(e, "b", "b", policy.Standard))
		if !a.Waiting() || !b.Waiting() {
			t.Fatal("1000 bytes do not fit in 1000")
		}
		if _, dec := d.Admit(t.Context(), ask(e, "c", "c", policy.Critical)); dec.Reason != HeldBytes || dec.RetryAfter <= 0 {
			t.Errorf("1500 bytes in 1000: %+v", dec)
		}
		a.Leave()
		c := d.Submit(t.Context(), ask(e, "d", "d", policy.Critical))
		if !c.Waiting() {
			t.Error("the bytes of a caller that left are still held")
		}
		b.Leave()
		c.Leave()
		endAll(t, running)
		quiet(t, d)
	})
}
