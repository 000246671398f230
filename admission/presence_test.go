package admission

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// unsent is a request as it is known at its headers.
func unsent(e *policy.Effective, id, tenant string) *Request {
	r := ask(e, id, tenant, policy.Standard)
	r.Model, r.Prompt, r.MaxOut, r.Body = "", 0, 0, 0
	return r
}

// limited is a house where each tenant has limits.
func limited(limits ...policy.Limit) func(*policy.Policy) {
	return func(p *policy.Policy) {
		p.Quotas = []policy.QuotaRule{{Name: "per-tenant", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"}, Limits: limits}}
	}
}

// nothingAwaited checks that all places were given back.
func nothingAwaited(t *testing.T, d *Desk) {
	t.Helper()
	if s := d.Snapshot(time.Now()); s.Awaited != 0 || s.AwaitedBytes != 0 {
		t.Errorf("%d bodies of %d bytes are awaited, want none", s.Awaited, s.AwaitedBytes)
	}
	for i := range d.presence.shards {
		if s := &d.presence.shards[i]; len(s.counters) != 0 || len(s.tenants) != 0 {
			t.Errorf("%d counters and %d tenants are left", len(s.counters), len(s.tenants))
		}
	}
}

// A body that is awaited takes its part of the concurrency, beside those that
// wait and run; each place comes back once, whatever is called twice.
func TestAwaitedCountsForConcurrency(t *testing.T) {
	p := house(8, limited(policy.Limit{Unit: policy.Concurrency, Max: 5}))
	d, e := newTestDesk(t, p), effective(t, p)
	running := []*Ticket{admit(t, d, ask(e, "r1", "acme", policy.Standard)), admit(t, d, ask(e, "r2", "acme", policy.Standard))}
	var places []*Awaited
	for i := range 400 {
		a, dec, refused := d.Await(time.Now(), unsent(e, name("a", i), "acme"), 100)
		if refused {
			if dec.Reason != QuotaConcurrency || dec.Action != Reject || dec.RetryAfter <= 0 || dec.Quota == nil {
				t.Fatalf("%d: %+v", i, dec)
			}
			continue
		}
		places = append(places, a)
	}
	if len(places) != 3 {
		t.Fatalf("%d bodies are awaited beside 2 that run, want 3 of 5", len(places))
	}
	if s := d.Snapshot(time.Now()); s.Awaited != 3 || s.AwaitedBytes != 300 {
		t.Errorf("%d awaited, %d bytes", s.Awaited, s.AwaitedBytes)
	}
	if _, _, refused := d.Await(time.Now(), unsent(e, "b", "other"), 100); refused {
		t.Error("another tenant was refused")
	} else {
		d.presence.arrived("other", 100)
		d.presence.drop(early(unsent(e, "b", "other")))
	}
	places[0].Leave()
	places[0].Leave()
	for i, want := range []bool{false, true} {
		a, _, refused := d.Await(time.Now(), unsent(e, name("c", i), "acme"), 100)
		if refused != want {
			t.Errorf("after one left, newcomer %d: refused %v", i, refused)
		}
		defer a.Leave()
		if a != nil {
			places = append(places, a)
		}
	}
	for _, a := range places {
		a.Leave()
	}
	endAll(t, running)
	nothingAwaited(t, d)
}

// What a quota is known to have no room for is refused at the headers, as the
// store would; rules that need the model are not asked.
func TestKnownFullIsRefusedAtTheHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		limit  policy.Limit
		reason Reason
	}{
		"requests": {policy.Limit{Unit: policy.Requests, Max: 2, Per: time.Minute}, QuotaRequests},
		"tokens":   {policy.Limit{Unit: policy.Tokens, Max: 400, Per: time.Minute}, QuotaTokens},
	} {
		t.Run(name, func(t *testing.T) {
			p := house(8, limited(c.limit))
			d, e := newTestDesk(t, p), effective(t, p)
			tickets := []*Ticket{admit(t, d, ask(e, "1", "acme", policy.Standard)), admit(t, d, ask(e, "2", "acme", policy.Standard))}
			_, want := d.Admit(t.Context(), ask(e, "3", "acme", policy.Standard))
			_, got, refused := d.Await(time.Now(), unsent(e, "4", "acme"), 100)
			if !refused || got.Reason != c.reason || want.Reason != c.reason || got.RetryAfter <= 0 || got.Quota.Rule != "per-tenant" {
				t.Errorf("at the headers %v %s %v, with the body %s %v", refused, got.Reason, got.RetryAfter, want.Reason, want.RetryAfter)
			}
			if _, refused := d.Precheck(time.Now(), ask(e, "5", "acme", policy.Standard)); !refused {
				t.Error("a call that is judged by its headers alone goes on")
			}
			endAll(t, tickets)
		})
	}
	p := house(8, limited(policy.Limit{Unit: policy.Requests, Max: 1, Per: time.Minute}), func(p *policy.Policy) { p.Quotas[0].By = []string{"tenant", "model"} })
	d, e := newTestDesk(t, p), effective(t, p)
	ticket := admit(t, d, ask(e, "1", "acme", policy.Standard))
	if a, dec, refused := d.Await(time.Now(), unsent(e, "2", "acme"), 100); refused {
		t.Errorf("refused by a rule that counts by model: %s", dec.Reason)
	} else {
		a.Leave()
	}
	ticket.Done(fine(1, 1))
	nothingAwaited(t, d)
}

// The bytes of bodies that are awaited are bounded for a tenant, and for all
// together; who splits itself over tenants leaves room for a newcomer.
func TestAwaitedBytes(t *testing.T) {
	p := house(8, func(p *policy.Policy) {
		p.Server.MaxBody, p.Queue.MaxAwaited, p.Queue.MaxAwaitedBy = 1000, 100_000, 20_000
	})
	d, e := newTestDesk(t, p), effective(t, p)
	var places []*Awaited
	each := int64(1000)
	fill := func(tenant string) (n int, last Decision) {
		for range 1000 {
			a, dec, refused := d.Await(time.Now(), unsent(e, "x", tenant), each)
			if refused {
				return n, dec
			}
			places = append(places, a)
			n++
		}
		return n, last
	}
	if n, dec := fill("one"); n != 20 || dec.Reason != AwaitedBytes || dec.Action != Reject || dec.RetryAfter <= 0 {
		t.Errorf("one tenant has %d bodies, then %+v; want 20, then 429", n, dec)
	}
	for i := range 30 {
		fill(fmt.Sprint("split-", i)) // as many as there may be
	}
	if s := d.Snapshot(time.Now()); s.AwaitedBytes > 100_000 {
		t.Errorf("%d bytes are awaited of all, want at most 100,000", s.AwaitedBytes)
	}
	if _, dec := fill("late"); dec.Reason != HeldBytes {
		t.Errorf("a large body of a newcomer, when nearly all is awaited: %s", dec.Reason)
	}
	each = 10
	if n, _ := fill("newcomer"); n < 20 {
		t.Errorf("a newcomer has %d small bodies", n)
	}
	each = 1000
	for _, a := range places {
		a.Leave()
	}
	nothingAwaited(t, d)
	if n, _ := fill("again"); n != 20 {
		t.Errorf("after all have left a tenant has %d bodies", n)
	}
}

// Where nothing is enforced nothing is refused, and all is counted.
func TestAwaitedInShadow(t *testing.T) {
	p := house(8, limited(policy.Limit{Unit: policy.Concurrency, Max: 1}), inMode(policy.Shadow), func(p *policy.Policy) { p.Queue.MaxAwaitedBy = 1024 })
	d, e := newTestDesk(t, p), effective(t, p)
	var places []*Awaited
	for i := range 10 {
		a, dec, refused := d.Await(time.Now(), unsent(e, name("a", i), "acme"), 4<<20)
		if refused {
			t.Fatalf("%d: %s", i, dec.Reason)
		}
		places = append(places, a)
	}
	if s := d.Snapshot(time.Now()); s.Awaited != 10 || s.AwaitedBytes != 40<<20 {
		t.Errorf("%d awaited, %d bytes", s.Awaited, s.AwaitedBytes)
	}
	for _, a := range places {
		a.Leave()
	}
	nothingAwaited(t, d)
}

// Many callers at once: never more than the limit awaited, waiting and running
// together, and nothing left at the end.
func TestAwaitedTogether(t *testing.T) {
	const limit = 5
	p := house(100, limited(policy.Limit{Unit: policy.Concurrency, Max: limit}))
	d, e := newTestDesk(t, p), effective(t, p)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for n := range 200 {
				a, _, refused := d.Await(time.Now(), unsent(e, fmt.Sprint(i, "-", n), "acme"), 10)
				if refused {
					continue
				}
				if now := d.Snapshot(time.Now()).Awaited; now > limit {
					t.Errorf("%d bodies are awaited, the limit is %d", now, limit)
				}
				if a.Leave(); rng.IntN(2) == 0 {
					continue
				}
				if ticket, _ := d.Admit(t.Context(), ask(e, fmt.Sprint(i, "+", n), "acme", policy.Standard)); ticket != nil {
					ticket.Done(fine(1, 1))
				}
				a.Leave()
			}
		})
	}
	wg.Wait()
	nothingAwaited(t, d)
}

func BenchmarkRefusedAtTheHeaders(b *testing.B) {
	p := house(8, limited(policy.Limit{Unit: policy.Requests, Max: 1, Per: time.Hour}, policy.Limit{Unit: policy.Concurrency, Max: 1}))
	d, e := newTestDesk(b, p), effective(b, p)
	d.Admit(b.Context(), ask(e, "1", "acme", policy.Standard))
	r := unsent(e, "2", "acme")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, refused := d.Await(time.Now(), r, 100); !refused {
			b.Fatal("admitted")
		}
	}
}
