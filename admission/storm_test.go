package admission

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// storm drives a core with everything that can happen to it, in any order,
// and keeps its own books of who waits, who runs and who was decided.
type storm struct {
	t       *testing.T
	rng     *rand.Rand
	core    *Core
	e       *policy.Effective
	now     time.Time // what the core is told
	n       int
	planned []*Plan
	waiting []*Plan
	running []*Plan
	decided map[*Plan]bool
	reasons map[Reason]int
	used    map[*pool]policy.Seats
	laned   map[*pool]int64
}

func newStorm(t *testing.T, seed uint64) *storm {
	s := &storm{
		t: t, rng: rand.New(rand.NewPCG(seed, 9)), now: start,
		decided: map[*Plan]bool{}, reasons: map[Reason]int{}, used: map[*pool]policy.Seats{}, laned: map[*pool]int64{},
	}
	p := s.policy()
	s.core, s.e = newTestCore(p), effective(t, p)
	return s
}

// policy is any policy: seats, shares, tiers, bookings, order, P7, pools.
func (s *storm) policy() *policy.Policy {
	r := s.rng
	ratio := func(most float64) policy.Ratio { return policy.Ratio(float64(r.IntN(3)) * most / 2) }
	return house(1, func(p *policy.Policy) {
		for i := range p.Pools {
			p.Pools[i].Seats = policy.Seats{Requests: 1 + r.Int64N(6*int64(1+i*i))}
			if r.IntN(2) == 0 {
				p.Pools[i].Seats.Tokens = 200 + r.Int64N(2000)
			}
			p.Pools[i].MaxHold = time.Duration(1+r.IntN(20)) * time.Second
		}
		if r.IntN(4) == 0 {
			gone := r.IntN(len(p.Pools))
			p.Models[0].Pools = append(p.Models[0].Pools[:gone:gone], p.Models[0].Pools[gone+1:]...)
			p.Pools = append(p.Pools[:gone:gone], p.Pools[gone+1:]...)
		}
		p.Tiers = []policy.Tier{{Name: "gold", Weight: 4, Share: ratio(0.4)}, {Name: "silver", Weight: 1, Share: ratio(0.4)}, {Name: "bronze", Weight: 1, Share: ratio(0.2)}}[:1+r.IntN(3)]
		p.Shares = policy.Shares{Priority: ratio(0.4), Streaming: ratio(1)}
		p.Queue.Headroom = ratio(0.4)
		p.Queue.Order.Ageing = time.Duration(r.IntN(3)) * 50 * time.Millisecond
		p.Queue.Length.Min, p.Queue.Length.Max = r.IntN(5), 5+r.IntN(10)
		p.Queue.RetryQueue.Length = r.IntN(5)
		p.Queue.MaxHeldBytes = 5000 + r.Int64N(10000)
		p.RetryAfter.Share = ratio(1)
		p.Variants.ByCost = r.IntN(2) == 0
		if r.IntN(2) == 0 { // claims to make: a full line is asked before the store
			p.Quotas = []policy.QuotaRule{{Name: "all", By: []string{"tenant"}, Limits: []policy.Limit{{Unit: policy.Concurrency, Max: 1000}}}}
		}
		if r.IntN(2) == 0 { // all classes in one line
			for i := range p.Classes {
				p.Classes[i].Variant = policy.FP16
			}
		}
		if r.IntN(3) == 0 {
			p.Pools[0].Adaptive = &policy.Adaptive{Min: 1 + r.Int64N(3), Max: 4 + r.Int64N(20), TTFT: time.Duration(r.IntN(500)) * time.Millisecond}
		}
		p.Queue.Watchdog = policy.Watchdog{After: time.Duration(r.IntN(3)) * time.Second, Step: 0.2, Max: ratio(1)}
		if r.IntN(3) == 0 {
			p.NonStreaming = &policy.NonStreaming{Variant: policy.FP16, MaxWait: time.Duration(r.IntN(200)) * time.Millisecond}
		}
	})
}

func (s *storm) request() *Request {
	r := s.rng
	s.n++
	q := ask(s.e, name("r", s.n), name("t", r.IntN(4)), policy.Class(r.IntN(policy.NumClasses)))
	q.Identity.Tier = []string{"gold", "silver", "bronze", "", "tin"}[r.IntN(5)]
	q.Stream, q.Priority, q.Attempt = r.IntN(2) == 0, r.IntN(3) == 0, r.IntN(2)
	q.MaxOut, q.Body = 1+r.Int64N(200), r.Int64N(1000)
	if r.IntN(4) == 0 {
		q.Colour = policy.Red
	}
	if r.IntN(10) == 0 {
		q.Deadline = s.now.Add(time.Duration(r.IntN(500)) * time.Millisecond)
	}
	return q
}

// step does one thing.
func (s *storm) step() {
	switch r := s.rng; r.IntN(20) {
	default:
		p := s.core.Plan(s.now, s.request())
		if p.Refused() {
			s.decide(p)
		} else {
			s.planned = append(s.planned, p)
		}
	case 4, 5, 6, 14, 15, 16, 17:
		s.enter()
	case 7:
		if p := s.draw(&s.running); p != nil {
			e := fine(r.Int64N(200), r.Int64N(200))
			e.FirstByte = time.Duration(r.IntN(1000)) * time.Millisecond
			if r.IntN(3) == 0 {
				e.Result = Result(r.IntN(int(ResultStage) + 1))
			}
			_, exits := s.core.Done(s.now, p, &e)
			s.take(exits)
		}
	case 9:
		if p := s.draw(&s.waiting); p != nil {
			if !s.core.Cancel(s.now, p) {
				s.t.Fatal("a waiting plan cannot be cancelled")
			}
			s.decide(p)
		}
	case 10, 18:
		s.pass(time.Duration(r.IntN(100)) * time.Millisecond)
	case 11: // the clock steps back
		if r.IntN(4) == 0 {
			s.now = s.now.Add(-time.Duration(r.IntN(3000)) * time.Millisecond)
		}
	case 12:
		if l := s.core.floor.Load().order; r.IntN(20) == 0 {
			b := l[r.IntN(len(l))].breaker
			succeed(b, s.now, 20+r.IntN(20))
			fail(b, s.now, 10+r.IntN(30))
		}
	case 13:
		if r.IntN(20) == 0 {
			p := s.policy()
			s.e = effective(s.t, p)
			s.take(s.core.Swap(s.now, p))
		}
	}
}

// enter lets a planned request go on, or not.
func (s *storm) enter() {
	p := s.draw(&s.planned)
	if p == nil {
		return
	}
	v := quota.Verdict{Allowed: s.rng.IntN(8) > 0}
	if s.rng.IntN(16) == 0 {
		s.core.Abandon(s.now, p, StoreUnavailable)
		s.decide(p)
		return
	}
	switch s.core.Enter(s.now, p, v) {
	case Refused:
		s.decide(p)
	case Entered:
		s.decide(p)
		s.running = append(s.running, p)
	case InTheLine:
		s.waiting = append(s.waiting, p)
	}
}

// pass lets time go by; every pool is advanced at the instants that it wants.
func (s *storm) pass(d time.Duration) {
	end := s.now.Add(d)
	for {
		next, pool := end, ""
		for _, l := range s.core.floor.Load().order {
			at, ok := l.nextAt()
			if l.last.After(end) && !at.After(l.last) {
				at = end // the pool's time does not go back
			}
			if ok && !at.After(next) {
				next, pool = at, l.name
			}
		}
		if pool == "" {
			break
		}
		if next.After(s.now) {
			s.now = next
		}
		decided, overdue := s.core.Advance(s.now, pool)
		s.take(decided)
		for _, p := range overdue {
			s.forget(&s.running, p)
			_, decided := s.core.Done(s.now, p, &End{Result: ResultUnknown})
			s.take(decided)
		}
	}
	s.now = end
}

// take books what the core hands back.
func (s *storm) take(plans []*Plan) {
	for _, p := range plans {
		s.forget(&s.waiting, p)
		s.decide(p)
		if !p.refused {
			s.running = append(s.running, p)
		}
	}
}

func (s *storm) decide(p *Plan) {
	d := &p.Decision
	if s.decided[p] {
		s.t.Fatalf("%s is decided twice", p.Request.ID)
	}
	if p.refused == d.Reason.Admits() || d.Action != d.Reason.Row().Action || d.Reason == NoPool { // every policy has pools for every model
		s.t.Fatalf("%s: refused %v, action %s, as %s", p.Request.ID, p.refused, d.Action, d.Reason)
	}
	r := p.Request
	longest := r.Policy.Queue.RetryQueue.Limit + max(r.Policy.Classes[p.Class].MaxWait, 200*time.Millisecond)
	if d.Waited < 0 || d.Waited > longest || d.Waited > p.longest { // p.longest: what Envoy was told, whatever the policy has become
		s.t.Fatalf("%s waited %s: %s", r.ID, d.Waited, d.Reason)
	}
	s.decided[p] = true
	s.reasons[d.Reason]++
}

func (s *storm) draw(from *[]*Plan) *Plan {
	if len(*from) == 0 {
		return nil
	}
	p := (*from)[s.rng.IntN(len(*from))]
	s.forget(from, p)
	return p
}

func (s *storm) forget(from *[]*Plan, p *Plan) {
	for i, q := range *from {
		if q == p {
			*from = append((*from)[:i], (*from)[i+1:]...)
			return
		}
	}
	s.t.Fatalf("%s is not where it should be: %s", p.Request.ID, p.Decision.Reason)
}

// check holds the pools against the books.
func (s *storm) check() {
	for _, l := range s.core.floor.Load().order {
		var runs, waits, lane int64
		for _, p := range s.running {
			if p.seat == l {
				runs++
			}
			if p.lane == l {
				lane++
			}
		}
		for _, p := range s.waiting {
			if p.pool == l {
				waits++
			}
			if p.lane == l {
				lane++
			}
		}
		for _, p := range s.planned {
			if p.lane == l {
				lane++
			}
		}
		stats := l.stats(s.now)
		used, total := stats.Line.SeatsUsed, stats.Line.SeatsTotal
		if used.Requests != runs || l.running.Load() != runs || l.waiting.Load() != waits || l.laned.Load() != lane {
			s.t.Fatalf("%s: %d seats used, %d run, %d wait, %d in the lane; want %d, %d, %d", l.name, used.Requests, l.running.Load(), l.waiting.Load(), l.laned.Load(), runs, waits, lane)
		}
		if used.Requests > max(total.Requests, s.used[l].Requests) || total.Tokens > 0 && used.Tokens > max(total.Tokens, s.used[l].Tokens) {
			s.t.Fatalf("%s: %+v used of %+v, before %+v", l.name, used, total, s.used[l])
		}
		if lane > max(l.lane.Load(), s.laned[l]) {
			s.t.Fatalf("%s: %d in a lane of %d", l.name, lane, l.lane.Load())
		}
		s.used[l], s.laned[l] = used, lane
	}
}

// calm ends everything.
func (s *storm) calm() {
	for len(s.planned) > 0 {
		s.enter()
	}
	s.pass(time.Minute)
	for p := s.draw(&s.running); p != nil; p = s.draw(&s.running) {
		_, exits := s.core.Done(s.now, p, &End{})
		s.take(exits)
		s.pass(0)
	}
	s.check()
	if len(s.waiting) != 0 || len(s.decided) != s.n || s.core.held.Load() != 0 {
		s.t.Fatalf("%d still wait, %d of %d decided, %d bytes held", len(s.waiting), len(s.decided), s.n, s.core.held.Load())
	}
}

// Whatever happens in whatever order, with shares, lane, bookings, reloads,
// resizes and clocks that step: every request is decided once, no seat is
// lost or given twice, and nobody waits beyond its limit.
func TestStorm(t *testing.T) {
	reasons := map[Reason]int{}
	for seed := range uint64(40) {
		s := newStorm(t, seed)
		for range 1500 {
			s.step()
			s.pass(0) // what is due at once
			s.check()
		}
		s.calm()
		for r, n := range s.reasons {
			reasons[r] += n
		}
	}
	t.Log(reasons)
	for _, r := range []Reason{
		Admitted, AdmittedLane, DegradedExpiry, DegradedBreaker, QueueFull, QueueSoft, HeldBytes, ExpiredDrop, ExpiredDegrade,
		ExpiredRetry, RetryFull, NonStreamingFull, Deadline, BreakerOpen, BreakerShed, ClientGone, StoreUnavailable,
	} {
		if reasons[r] == 0 {
			t.Errorf("nobody was decided as %s", r)
		}
	}
}

// The same on real goroutines, where a reload meets a burst.
func TestStormOnTheDesk(t *testing.T) {
	const n, workers = 6000, 16
	l := newLog()
	weather := newStorm(t, 99) // of its policies and requests
	edit := func() *policy.Policy {
		p := weather.policy()
		p.Quotas = []policy.QuotaRule{{Name: "all", By: []string{"tenant"}, Limits: []policy.Limit{{Unit: policy.Concurrency, Max: 1000}}}}
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Duration(1+i) * time.Millisecond
		}
		p.Queue.RetryQueue.Limit = 2 * time.Millisecond
		return p.Finish()
	}
	p := edit()
	d := newTestDesk(t, p, l)
	var now atomic.Pointer[policy.Effective]
	now.Store(effective(t, p))
	var next atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for next.Load() <= n {
			p := edit()
			d.Swap(p)
			now.Store(effective(t, p))
			fail(d.core.floor.Load().order[0].breaker, time.Now(), 10)
		}
	})
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 5))
			for i := next.Add(1); i <= n; i = next.Add(1) {
				r := ask(now.Load(), name("r", int(i)), name("t", int(i%5)), policy.Class(rng.IntN(3)))
				r.Stream, r.Priority, r.Attempt = rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(2)
				v := d.Submit(t.Context(), r)
				if rng.IntN(4) == 0 {
					wg.Go(v.Leave)
				}
				<-v.Ready()
				if ticket, _ := v.Result(); ticket != nil {
					ticket.Done(fine(1, 1))
				}
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool { return d.Snapshot(time.Now()).Tickets == 0 })
	quiet(t, d)
	for i := 1; i <= n; i++ {
		if got := len(l.decisions(name("r", i))); got != 1 {
			t.Fatalf("request %d was decided %d times", i, got)
		}
	}
	for tenant := range 5 {
		for _, c := range usage(t, d, name("t", tenant)) {
			if c.Used != 0 {
				t.Errorf("tenant %d holds %d of its concurrency", tenant, c.Used)
			}
		}
	}
}
