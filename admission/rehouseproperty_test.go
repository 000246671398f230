package admission

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// Over any sequence of bodies that are awaited, arrivals, ends, departures and
// reloads, of the mode and the quotas too, and a drain: each request is decided
// once, nobody is refused with no_pool while its model has a pool, nobody is
// held longer than was told, and in the end nothing is held and nobody counts.
func TestReloadProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) { anyReloads(t, rt) })
	})
}

// reloads is one run of the property.
type reloads struct {
	t       *testing.T
	rt      *rapid.T
	d       *Desk
	log     *log
	e       *policy.Effective
	stale   *policy.Effective // of a policy before
	n       int
	waiting map[*Visit]time.Time
	running []*Ticket
	awaited []*Awaited
}

func anyReloads(t *testing.T, rt *rapid.T) {
	s := &reloads{t: t, rt: rt, log: newLog(), waiting: map[*Visit]time.Time{}}
	p := s.policy()
	s.d, s.e = newTestDesk(t, p, s.log), effective(t, p)
	s.stale = s.e
	for range rapid.IntRange(5, 60).Draw(rt, "steps") {
		switch rapid.IntRange(0, 12).Draw(rt, "step") {
		default:
			s.arrive()
		case 5, 6:
			if n := len(s.running); n > 0 {
				i := rapid.IntRange(0, n-1).Draw(rt, "ends")
				s.running[i].Done(fine(5, 5))
				s.running = slices.Delete(s.running, i, i+1)
			}
		case 7:
			time.Sleep(time.Duration(rapid.IntRange(0, 400).Draw(rt, "pass")) * time.Millisecond)
		case 8:
			s.reload()
		case 9:
			for v := range s.waiting {
				if rapid.Bool().Draw(rt, "leaves") {
					v.Leave()
					delete(s.waiting, v)
				}
				break
			}
		case 10, 11:
			s.await()
		case 12:
			if n := len(s.awaited); n > 0 {
				s.awaited[n-1].Leave()
				s.awaited = s.awaited[:n-1]
				s.arrive()
			}
		}
		s.look()
	}
	for _, a := range s.awaited {
		a.Leave()
		a.Leave()
	}
	if rapid.Bool().Draw(rt, "drains") {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.d.Drain(ctx)
		s.reload()
		s.arrive()
	}
	for len(s.running) > 0 || len(s.waiting) > 0 {
		endAll(t, s.running)
		s.running = nil
		time.Sleep(10 * time.Second) // nobody waits for ever
		s.look()
	}
	for i := range s.n {
		if got := len(s.log.decisions(name("r", i))); got != 1 {
			rt.Fatalf("request %d was decided %d times", i, got)
		}
	}
	for i := range 3 {
		for _, c := range usage(t, s.d, name("t", i)) {
			if c.Limit.Unit == policy.Concurrency {
				rt.Fatalf("%d of concurrency are left", c.Used)
			}
		}
	}
	quiet(t, s.d)
	nothingAwaited(t, s.d)
}

// policy is any of one model with one to three of the pools.
func (s *reloads) policy() *policy.Policy {
	first, n := rapid.IntRange(0, 2).Draw(s.rt, "first"), rapid.IntRange(0, 2).Draw(s.rt, "gone")
	gone := []string{"a", "b", "c", "a", "b"}[first : first+n]
	return trio(int64(rapid.IntRange(1, 3).Draw(s.rt, "seats")), withQuotas(policy.Limit{Unit: policy.Concurrency, Max: 1000}), func(p *policy.Policy) {
		if rapid.IntRange(0, 3).Draw(s.rt, "quiet") == 0 {
			inMode(rapid.SampledFrom([]policy.Mode{policy.Shadow, policy.Pass}).Draw(s.rt, "mode"))(p)
		}
		switch q := &p.Quotas[0]; rapid.IntRange(0, 4).Draw(s.rt, "quota") {
		case 1:
			p.Quotas = nil
		case 2:
			q.Limits = []policy.Limit{{Unit: policy.Requests, Max: 1000, Per: time.Hour}}
		case 3:
			q.Limits = []policy.Limit{{Unit: policy.Concurrency, Max: 3}}
		case 4:
			q.ID, q.Name = q.Name, "renamed"
		}
		for i := range p.Pools {
			if rapid.IntRange(0, 3).Draw(s.rt, "timed") == 0 {
				p.Pools[i].FirstByte = 300 * time.Millisecond
			}
			p.Pools[i].Variant = rapid.SampledFrom([]policy.Variant{policy.FP16, policy.FP16Dyn, policy.INT8}).Draw(s.rt, "variant")
		}
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Duration(rapid.IntRange(0, 10).Draw(s.rt, "wait")) * 100 * time.Millisecond
			p.Classes[i].OnExpiry = policy.Expiry(rapid.IntRange(0, 2).Draw(s.rt, "expiry"))
		}
		p.Queue.RetryQueue.Limit = time.Duration(rapid.IntRange(0, 5).Draw(s.rt, "retry")) * 100 * time.Millisecond
		if rapid.IntRange(0, 5).Draw(s.rt, "capped") == 0 {
			standard := policy.Standard
			p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "t-1"}, Class: &standard, Tier: "gold"}}
		}
		drop(gone...)(p)
	})
}

func (s *reloads) arrive() {
	e := s.e
	if rapid.IntRange(0, 4).Draw(s.rt, "stale") == 0 {
		e = s.stale
	}
	class := policy.Class(rapid.IntRange(0, 2).Draw(s.rt, "class"))
	tenant := name("t", rapid.IntRange(0, 2).Draw(s.rt, "tenant"))
	r := ask(e, name("r", s.n), tenant, class)
	r.Identity = &identity.Identity{Tenant: tenant, Class: class}
	r.Timed = true
	s.n++
	v := s.d.Submit(s.t.Context(), r)
	s.waiting[v] = time.Now().Add(v.Longest())
}

func (s *reloads) await() {
	r := unsent(s.e, name("r", s.n), name("t", rapid.IntRange(0, 2).Draw(s.rt, "tenant")))
	place, _, refused := s.d.Await(time.Now(), r, int64(rapid.IntRange(-1, 1000).Draw(s.rt, "bytes")))
	switch {
	case refused:
		s.n++ // it was decided
	case rapid.Bool().Draw(s.rt, "comes"):
		place.Leave()
		s.arrive()
	default:
		s.awaited = append(s.awaited, place)
	}
}

func (s *reloads) reload() {
	p := s.policy()
	s.stale, s.e = s.e, effective(s.t, p)
	s.d.Swap(p)
}

// look takes what was decided.
func (s *reloads) look() {
	synctest.Wait()
	for v, until := range s.waiting {
		if v.Waiting() {
			if time.Now().After(until) {
				s.rt.Fatalf("%s waits longer than was told", v.request.ID)
			}
			continue
		}
		delete(s.waiting, v)
		ticket, dec := v.Result()
		if dec.Reason == NoPool || dec.Reason == Internal || dec.Reason == ModelUnknown {
			s.rt.Fatalf("%s: %s", v.request.ID, dec.Reason)
		}
		if ticket != nil {
			s.running = append(s.running, ticket)
		}
	}
}
