package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

func inMode(m policy.Mode, classes ...policy.Class) func(*policy.Policy) {
	return func(p *policy.Policy) {
		if len(classes) == 0 {
			p.Mode = m
			classes = []policy.Class{policy.Critical, policy.Standard, policy.Batch}
		}
		for _, c := range classes {
			p.Classes[c].Mode = m
		}
	}
}

// O4: shadow admits everything at once and records what would have been, with
// the waits of the line, by a second desk that is fed by the real ends.
func TestShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		p := house(1, inMode(policy.Shadow))
		d := newTestDesk(t, p, l)
		e := effective(t, p)
		submit := func(id string, intended Reason) *Ticket {
			t.Helper()
			v := d.Submit(t.Context(), ask(e, id, id, policy.Critical))
			if v.Waiting() {
				t.Fatalf("%s is held", id)
			}
			ticket, dec := v.Result()
			if ticket == nil || dec.Action != Admit || dec.Reason != Admitted || !dec.Shadow || dec.Intended != intended {
				t.Fatalf("%s: %s, shadow %v, intended %s, want %s", id, dec.Reason, dec.Shadow, dec.Intended, intended)
			}
			return ticket
		}
		heard := func(id string, want Reason) {
			t.Helper()
			synctest.Wait()
			got := l.decisions(id)
			if len(got) != 1 || got[0].Intended != want || got[0].Reason != Admitted {
				t.Errorf("%s: %d decisions heard, want one that intended %s", id, len(got), want)
			}
		}
		first := submit("first", Admitted)
		heard("first", Admitted)
		second := submit("second", Queued) // would be waiting
		third := submit("third", Queued)
		if n := len(l.decisions("second")); n != 0 {
			t.Errorf("%d decisions heard of a request that would still wait", n)
		}
		time.Sleep(100 * time.Millisecond)
		first.Done(fine(1, 1)) // gives its seat to the second
		heard("second", Admitted)
		time.Sleep(time.Second)
		heard("third", ExpiredDrop) // it would have been dropped, and runs
		third.Done(fine(1, 1))
		second.Done(fine(1, 1))
		quiet(t, d)
	})
}

// In shadow the ledger is kept as if it were enforced: what would have been
// refused is not charged, what would have run is charged by its count.
func TestShadowQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(5, inMode(policy.Shadow), withQuotas(policy.Limit{Unit: policy.Requests, Max: 1, Per: time.Hour}, policy.Limit{Unit: policy.Tokens, Max: 1000, Per: time.Hour}))
		d := newTestDesk(t, p)
		e := effective(t, p)
		first := admit(t, d, ask(e, "1", "acme", policy.Standard))
		second, dec := d.Admit(t.Context(), ask(e, "2", "acme", policy.Standard))
		if second == nil || dec.Intended != QuotaRequests || dec.RetryAfter != 0 {
			t.Fatalf("%+v", dec)
		}
		second.Done(fine(100, 100))
		first.Done(fine(20, 3))
		for _, c := range usage(t, d, "acme") {
			if want := map[policy.Unit]int64{policy.Requests: 1, policy.Tokens: 23}[c.Limit.Unit]; c.Used != want {
				t.Errorf("unit %d: %d used, want %d", c.Limit.Unit, c.Used, want)
			}
		}
		quiet(t, d)
	})
}

// One class in shadow: its intended decisions see the seats of the enforced
// classes too, and the enforced ones see its.
func TestShadowByClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(2, inMode(policy.Shadow, policy.Batch), func(p *policy.Policy) {
			for i := range p.Classes {
				p.Classes[i].Variant = policy.FP16
			}
		})
		d := newTestDesk(t, p)
		e := effective(t, p)
		enforced := admit(t, d, ask(e, "e", "acme", policy.Critical))
		one, dec := d.Admit(t.Context(), ask(e, "s1", "acme", policy.Batch))
		if dec.Intended != Admitted {
			t.Errorf("one free seat: intended %s", dec.Intended)
		}
		two, dec := d.Admit(t.Context(), ask(e, "s2", "acme", policy.Batch))
		if two == nil || dec.Intended != Queued {
			t.Errorf("no free seat: intended %s", dec.Intended)
		}
		if v := d.Submit(t.Context(), ask(e, "e2", "acme", policy.Critical)); !v.Waiting() {
			t.Error("the enforced class does not see the seats of the one in shadow")
		} else {
			v.Leave()
		}
		endAll(t, []*Ticket{enforced, one, two})
		quiet(t, d)
	})
}

// O4: pass admits everything, asks no room and still counts what runs.
func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		p := house(1, inMode(policy.Pass), withQuotas(policy.Limit{Unit: policy.Requests, Max: 1, Per: time.Hour}), func(p *policy.Policy) {
			p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "bad"}, Block: true}}
		})
		d := newTestDesk(t, p, l)
		e := effective(t, p)
		fail(d.core.Breaker("chat-fp16"), time.Now(), 50)
		var tickets []*Ticket
		for i := range 10 {
			ticket, dec := d.Admit(t.Context(), ask(e, name("r", i), "bad", policy.Critical))
			if ticket == nil || dec.Reason != AdmittedPass || dec.Pool != "chat-fp16" || dec.Waited != 0 {
				t.Fatalf("%d: %+v", i, dec)
			}
			tickets = append(tickets, ticket)
		}
		s := d.Snapshot(time.Now())
		if s.Tickets != 10 || s.Pools[0].Line.SeatsUsed.Requests != 1 || s.Pools[0].Over != 9 {
			t.Errorf("%d tickets, %d seats, %d over", s.Tickets, s.Pools[0].Line.SeatsUsed.Requests, s.Pools[0].Over)
		}
		r := ask(e, "unknown", "acme", policy.Critical)
		r.Model = "no-such-model"
		ticket, dec := d.Admit(t.Context(), r)
		if ticket == nil || dec.Pool != "" {
			t.Errorf("a model unknown to the policy: %+v", dec)
		}
		endAll(t, append(tickets, ticket))
		quiet(t, d)
	})
}

// A switch from shadow to enforce loses no seat: what ran before holds the
// seats that come free, and newcomers wait for them.
func TestShadowToEnforce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(2, inMode(policy.Shadow))
		d := newTestDesk(t, p)
		var running []*Ticket
		for i := range 5 {
			running = append(running, admit(t, d, ask(effective(t, p), name("s", i), name("t", i), policy.Critical)))
		}
		p = house(2)
		d.Swap(p)
		v := d.Submit(t.Context(), ask(effective(t, p), "enforced", "acme", policy.Critical))
		if !v.Waiting() {
			t.Fatal("5 run on 2 seats and a newcomer enters")
		}
		time.Sleep(300 * time.Millisecond)
		if _, dec := v.Result(); dec.Reason != ExpiredDrop {
			t.Errorf("%s, want expired_drop", dec.Reason)
		}
		for i, ticket := range running {
			ticket.Done(fine(1, 1))
			s := d.Snapshot(time.Now()).Pools[0]
			left := int64(len(running) - 1 - i)
			if want := min(left, 2); s.Line.SeatsUsed.Requests != want || int64(s.Over) != left-want {
				t.Errorf("%d run on: %d seats, %d over", left, s.Line.SeatsUsed.Requests, s.Over)
			}
		}
		quiet(t, d)
	})
}

// Half-open: the ends of shadow requests are the probes' verdicts.
func TestShadowFeedsTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(10, inMode(policy.Shadow))
		d := newTestDesk(t, p)
		e := effective(t, p)
		intended := func(i int, end End) Reason {
			ticket, dec := d.Admit(t.Context(), ask(e, name("r", i), "acme", policy.Critical))
			ticket.Done(end)
			return dec.Intended
		}
		for i := range 20 {
			intended(i, End{Result: ResultFailed})
		}
		if got := intended(100, fine(1, 1)); got != BreakerOpen {
			t.Fatalf("after 20 failures: intended %s", got)
		}
		for i := range 5000 {
			time.Sleep(20 * time.Millisecond)
			if got := intended(1000+i, fine(1, 1)); got != Admitted && got != BreakerOpen {
				t.Fatalf("intended %s", got)
			}
		}
		if got := intended(99, fine(1, 1)); got != Admitted {
			t.Errorf("after 100 s of good ends: intended %s", got)
		}
		quiet(t, d)
	})
}
