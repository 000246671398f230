package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// fakeStore answers as told and remembers what was settled.
type fakeStore struct {
	err   error         // of Reserve
	delay time.Duration // of Reserve, unless ctx ends first
	block chan struct{} // Settle waits for it; nil = does not

	mu       sync.Mutex
	reserved int
	settled  map[string][]quota.Amount
}

func (s *fakeStore) Known(time.Time, []quota.Claim) (quota.Verdict, bool) {
	return quota.Verdict{}, false
}

func (s *fakeStore) Reserve(ctx context.Context, _ time.Time, _ string, _ []quota.Claim) (quota.Verdict, error) {
	if s.delay > 0 {
		select {
		case <-time.After(s.delay):
		case <-ctx.Done():
			return quota.Verdict{}, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved++
	return quota.Verdict{Allowed: s.err == nil}, s.err
}

func (s *fakeStore) Settle(_ context.Context, _ time.Time, id string, _ []quota.Claim, final quota.Amount) error {
	if s.block != nil {
		<-s.block
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled == nil {
		s.settled = map[string][]quota.Amount{}
	}
	s.settled[id] = append(s.settled[id], final)
	return nil
}

func (s *fakeStore) Usage(context.Context, time.Time, string) ([]quota.Counter, error) {
	return nil, nil
}
func (s *fakeStore) Close() error { return nil }

// final is the one settlement of an id.
func (s *fakeStore) final(t *testing.T, id string) quota.Amount {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.settled[id]) != 1 {
		t.Fatalf("%s was settled %d times", id, len(s.settled[id]))
	}
	return s.settled[id][0]
}

func deskOver(t *testing.T, p *policy.Policy, s *fakeStore, workers int) *Desk {
	t.Helper()
	d := New(Options{Policy: p, Store: s, Rand: rand.New(rand.NewPCG(1, 2)), Settlers: workers})
	t.Cleanup(d.Close)
	return d
}

func oneRule() *policy.Policy {
	return house(1, withQuotas(policy.Limit{Unit: policy.Requests, Max: 1000, Per: time.Minute}))
}

// A store that cannot decide closes the door (503); what it may have taken
// after all goes back.
func TestStoreUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{err: errors.New("away")}
		p := oneRule()
		d := deskOver(t, p, s, 0)
		ticket, dec := d.Admit(t.Context(), ask(effective(t, p), "a", "acme", policy.Critical))
		if ticket != nil || dec.Reason != StoreUnavailable || dec.Action != Shed || dec.RetryAfter <= 0 {
			t.Errorf("%+v", dec)
		}
		if got := s.final(t, "a"); got != (quota.Amount{}) {
			t.Errorf("settled %+v, want nothing", got)
		}
		quiet(t, d)
	})
}

// A caller that leaves while the store is asked is gone, not refused.
func TestCallerLeavesDuringReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{delay: time.Hour}
		p := oneRule()
		d := deskOver(t, p, s, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if ticket, dec := d.Admit(ctx, ask(effective(t, p), "a", "acme", policy.Critical)); ticket != nil || dec.Reason != ClientGone {
			t.Errorf("%+v", dec)
		}
		quiet(t, d)
	})
}

// The wait begins when the line is entered: a slow store does not shorten it.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{delay: 8 * time.Millisecond}
		p := oneRule()
		d := deskOver(t, p, s, 0)
		e := effective(t, p)
		first := admit(t, d, ask(e, "first", "acme", policy.Critical))
		began := time.Now()
		_, dec := d.Admit(t.Context(), ask(e, "second", "acme", policy.Critical))
		if dec.Waited != 200*time.Millisecond || time.Since(began) != 208*time.Millisecond {
			t.Errorf("waited %s of %s", dec.Waited, time.Since(began))
		}
		first.Done(fine(12, 11))
		if got := s.final(t, "first"); got != (quota.Amount{Requests: 1, Input: 12, Output: 11}) {
			t.Errorf("settled %+v", got)
		}
		quiet(t, d)
	})
}

// A request that no rule matches does not ask the store.
func TestNoRuleNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{}
		p := house(1)
		d := deskOver(t, p, s, 0)
		admit(t, d, ask(effective(t, p), "a", "acme", policy.Critical)).Done(fine(1, 1))
		if s.reserved != 0 || len(s.settled) != 0 {
			t.Errorf("%d reserved, %d settled", s.reserved, len(s.settled))
		}
	})
}

// With settlers an end does not wait for the store; when they are behind the
// caller settles itself; Close leaves nothing unsettled.
func TestSettlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{block: make(chan struct{})}
		p := house(1000, withQuotas(policy.Limit{Unit: policy.Requests, Max: 1 << 30, Per: time.Minute}))
		d := deskOver(t, p, s, 2)
		e := effective(t, p)
		var tickets []*Ticket
		const within = 2*backlog + 2 // two at work, the rest in the backlog
		for i := range within + 1 {
			tickets = append(tickets, admit(t, d, ask(e, name("r", i), "acme", policy.Critical)))
		}
		endAll(t, tickets[:2])
		synctest.Wait() // both settlers are at work
		endAll(t, tickets[2:within])
		last := make(chan struct{})
		go func() {
			tickets[within].Done(fine(10, 10))
			close(last)
		}()
		synctest.Wait()
		select {
		case <-last:
			t.Error("a settlement beyond the backlog did not wait")
		default:
		}
		close(s.block)
		<-last
		d.Close()
		for i := range tickets {
			s.final(t, name("r", i))
		}
		// After Close ends are settled on the caller's goroutine.
		d.settler.settle("late", nil, quota.Amount{Requests: 1})
		s.final(t, "late")
	})
}

// Precheck refuses without taking anything.
func TestPrecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(1, func(p *policy.Policy) {
			p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "bad"}, Block: true}}
		})
		d := newTestDesk(t, p)
		e := effective(t, p)
		check := func(tenant string, class policy.Class, want Reason) {
			t.Helper()
			r := ask(e, "x", tenant, class)
			r.Model = "" // the body is not read yet
			dec, refused := d.Precheck(time.Now(), r)
			if refused != !want.Admits() || refused && dec.Reason != want {
				t.Errorf("%s %s: refused %v as %s, want %s", tenant, class, refused, dec.Reason, want)
			}
		}
		check("acme", policy.Critical, Admitted)
		check("bad", policy.Critical, TenantBlocked)
		for i, pool := range []string{"chat-fp16", "chat-dyn", "chat-int8"} {
			check("acme", policy.Batch, Admitted) // a pool is left that could be reached
			b := d.core.Breaker(pool)
			if i == 0 {
				succeed(b, time.Now(), 65)
				fail(b, time.Now(), 35)
				continue
			}
			fail(b, time.Now(), 20)
		}
		check("acme", policy.Critical, Admitted) // the soft level lets it pass
		check("acme", policy.Batch, BreakerShed)
		fail(d.core.Breaker("chat-fp16"), time.Now(), 60)
		check("acme", policy.Critical, BreakerOpen)
		time.Sleep(7 * time.Second)
		check("acme", policy.Critical, Admitted) // half-open: dice decide, at the desk
		quiet(t, d)
	})
}

func Example() {
	dec := Decide(QueueFull, "")
	row := dec.Reason.Row()
	fmt.Println(row.HTTP, row.Name, dec.Action)
	// Output: 503 queue_full shed
}
