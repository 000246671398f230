package admission

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is an instant to count from.
var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// house is a default policy with few seats in each pool (fp16, dyn, int8).
func house(seats int64, edits ...func(*policy.Policy)) *policy.Policy {
	p := policy.Default()
	for i := range p.Pools {
		p.Pools[i].Seats = policy.Seats{Requests: seats}
	}
	for _, edit := range edits {
		edit(p)
	}
	return p.Finish()
}

func effective(t testing.TB, p *policy.Policy) *policy.Effective {
	t.Helper()
	e, err := p.For(policy.Overrides{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var chat = &policy.API{Method: "POST", Path: "/v1/chat/completions", Kind: policy.OpenAIChat}

// ask is a request of 400 bytes of prompt (100 tokens cold) for at most 100
// tokens of output.
func ask(e *policy.Effective, id, tenant string, class policy.Class) *Request {
	return &Request{
		ID: id, Identity: &identity.Identity{Tenant: tenant, Class: class}, Policy: e, API: chat,
		Model: "deepseek-v4", Class: class, Prompt: 400, MaxOut: 100, Body: 500,
	}
}

// newTestDesk opens a desk over a memory store and closes both.
func newTestDesk(t testing.TB, p *policy.Policy, observers ...Observer) *Desk {
	t.Helper()
	store := memstore.New(memstore.Options{})
	d := New(Options{Policy: p, Store: store, Rand: rand.New(rand.NewPCG(1, 2)), Observers: observers})
	t.Cleanup(func() {
		d.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// occupy takes every seat of the class's pool and returns the tickets.
func occupy(t *testing.T, d *Desk, e *policy.Effective, class policy.Class, n int) []*Ticket {
	t.Helper()
	var out []*Ticket
	for i := range n {
		ticket, dec := d.Admit(t.Context(), ask(e, name("occupant-"+class.String(), i), "occupant", class))
		if ticket == nil {
			t.Fatalf("occupant %d: %s", i, dec.Reason)
		}
		out = append(out, ticket)
	}
	return out
}

func endAll(t *testing.T, tickets []*Ticket) {
	t.Helper()
	for _, ticket := range tickets {
		if !ticket.Done(fine(10, 10)) {
			t.Errorf("ticket %s had ended already", ticket.ID)
		}
	}
}

// admit takes a seat for r.
func admit(t *testing.T, d *Desk, r *Request) *Ticket {
	t.Helper()
	ticket, dec := d.Admit(t.Context(), r)
	if ticket == nil {
		t.Fatalf("%s: %s %s", r.ID, dec.Reason, dec.Detail)
	}
	return ticket
}

// fullHouse is a desk with so many seats in each pool, the critical ones taken,
// and a request that waits for one of them.
func fullHouse(t *testing.T, seats int64) (d *Desk, e *policy.Effective, running []*Ticket, w *Visit) {
	t.Helper()
	p := house(seats)
	d, e = newTestDesk(t, p), effective(t, p)
	running = occupy(t, d, e, policy.Critical, int(seats))
	if w = d.Submit(t.Context(), ask(e, "w", "acme", policy.Critical)); !w.Waiting() {
		t.Fatal("a seat in a full pool")
	}
	return d, e, running, w
}

// newTestCore makes a core at start.
func newTestCore(p *policy.Policy) *Core {
	return NewCore(start, p, nil, rand.New(rand.NewPCG(1, 2)))
}

// log is an observer that remembers.
type log struct {
	mu      sync.Mutex
	decided map[string][]Decision
	ended   map[string]End
	charged map[string]int64
}

func newLog() *log {
	return &log{decided: map[string][]Decision{}, ended: map[string]End{}, charged: map[string]int64{}}
}

func (l *log) Decided(r *Request, d *Decision, _ time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.decided[r.ID] = append(l.decided[r.ID], *d)
}

func (l *log) Ended(r *Request, _ *Decision, e *End, charged int64, _ time.Duration, _ time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[r.ID] = *e
	l.charged[r.ID] = charged
}

// end is how a request ended, as far as it did.
func (l *log) end(id string) (e End, charged int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok = l.ended[id]
	return e, l.charged[id], ok
}

// decisions are those heard of a request.
func (l *log) decisions(id string) []Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Decision(nil), l.decided[id]...)
}

// quiet checks that nothing is held: no seat, no place, no byte, no ticket.
func quiet(t testing.TB, d *Desk) {
	t.Helper()
	s := d.Snapshot(time.Now())
	if s.Tickets != 0 || s.HeldBytes != 0 {
		t.Errorf("%d tickets and %d bytes are left", s.Tickets, s.HeldBytes)
	}
	for _, core := range []*Core{d.core, d.shadow} {
		for _, p := range core.Stats(time.Now()) {
			if p.Line.SeatsUsed != (policy.Seats{}) || p.Over != 0 || p.Line.Retrying != 0 || p.Line.Waiting != [policy.NumClasses]int{} {
				t.Errorf("pool %s: seats %+v, over %d, waiting %v, retrying %d are left", p.Name, p.Line.SeatsUsed, p.Over, p.Line.Waiting, p.Line.Retrying)
			}
			if p.Lane != 0 {
				t.Errorf("pool %s: %d seats of the lane are left", p.Name, p.Lane)
			}
			if l := core.floor.Load().pools[p.Name]; l.waiting.Load() != 0 || l.running.Load() != 0 || l.seated.head != nil {
				t.Errorf("pool %s: %d waiting, %d running in the desk's own count", p.Name, l.waiting.Load(), l.running.Load())
			}
		}
		if n := core.held.Load(); n != 0 {
			t.Errorf("%d bytes held", n)
		}
	}
}

func name(prefix string, i int) string { return fmt.Sprintf("%s-%d", prefix, i) }

// fine is the end of a whole answer.
func fine(in, out int64) End {
	return End{Result: ResultOK, Status: 200, GRPC: -1, Learn: true, Usage: Usage{Known: true, InputKnown: true, Input: in, Output: out}}
}

// withQuotas is one rule per tenant with these limits.
func withQuotas(limits ...policy.Limit) func(*policy.Policy) {
	return func(p *policy.Policy) {
		p.Quotas = []policy.QuotaRule{{Name: "per-tenant", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"}, Limits: limits}}
	}
}

func usage(t testing.TB, d *Desk, tenant string) []quota.Counter {
	t.Helper()
	counters, err := d.store.Usage(t.Context(), time.Time{}, tenant)
	if err != nil {
		t.Fatal(err)
	}
	return counters
}
