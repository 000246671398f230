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

// A request that is at the store when the process begins to end, and whose pool
// a reload takes away meanwhile, waits in no new pool.
func TestEnterAfterDrainAndReload(t *testing.T) {
	now := time.Now()
	p := trio(1, drop("b", "c"))
	c := NewCore(now, p, nil, rand.New(rand.NewPCG(1, 2)))
	plan := c.Plan(now, ask(effective(t, p), "r", "acme", policy.Standard))
	c.Drain(now)
	c.Swap(now, trio(1, drop("a")))
	if got := c.Enter(now, plan, quota.Verdict{Allowed: true}); got != Refused || plan.Decision.Reason != Draining {
		t.Errorf("outcome %d, %s; want it refused as draining", got, plan.Decision.Reason)
	}
}

// Bodies that come or do not, cancels, ends and reloads of pools, modes and
// quotas race on real goroutines: every place, unit, seat and byte comes back.
func TestReloadRacesEverything(t *testing.T) {
	const n, workers = 6000, 24
	quick := func(p *policy.Policy) {
		p.Queue.RetryQueue.Limit = 5 * time.Millisecond
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Duration(1+i) * time.Millisecond
		}
		for i := range p.Pools {
			p.Pools[i].FirstByte = time.Millisecond
		}
	}
	units := withQuotas(policy.Limit{Unit: policy.Concurrency, Max: 500})
	policies := []*policy.Policy{
		trio(2, units, quick),
		trio(1, units, quick, drop("a")),
		trio(2, units, quick, inMode(policy.Shadow)),
		trio(1, withQuotas(policy.Limit{Unit: policy.Requests, Max: 1 << 30, Per: time.Hour}), quick, drop("b", "c")),
		trio(1, quick, inMode(policy.Pass)),
	}
	d := newTestDesk(t, policies[0])
	var effectives []*policy.Effective
	for _, p := range policies {
		effectives = append(effectives, effective(t, p))
	}
	var next, ran atomic.Int64
	var now atomic.Int32
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				now.Store(int32(i % len(policies)))
				d.Swap(policies[i%len(policies)])
			}
		}
	})
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for i := next.Add(1); i <= n; i = next.Add(1) {
				e, tenant := effectives[now.Load()], name("t", int(i%5))
				place, _, refused := d.Await(time.Now(), unsent(e, name("a", int(i)), tenant), 100)
				if refused || rng.IntN(4) == 0 {
					work.Go(place.Leave)
					place.Leave()
					continue
				}
				place.Leave()
				r := ask(e, name("r", int(i)), tenant, policy.Class(rng.IntN(3)))
				r.Timed = true
				v := d.Submit(t.Context(), r)
				switch rng.IntN(4) {
				case 0:
					v.Leave()
				case 1:
					work.Go(v.Leave)
				}
				<-v.Ready()
				ticket, _ := v.Result()
				if ticket == nil {
					continue
				}
				ran.Add(1)
				if rng.IntN(2) == 0 {
					ticket.Answering(time.Now())
				}
				work.Go(func() { ticket.Done(fine(1, 1)) })
				ticket.Done(End{Result: ResultUnknown, GRPC: -1})
				d.Lost(time.Now(), "a", 1)
			}
		})
	}
	work.Wait()
	close(stop)
	wg.Wait()
	waitFor(t, func() bool { return d.Snapshot(time.Now()).Tickets == 0 })
	d.Swap(policies[0])
	waitFor(t, func() bool {
		for _, l := range d.shadow.floor.Load().order {
			if l.waiting.Load() != 0 {
				return false
			}
		}
		return true
	})
	quiet(t, d)
	nothingAwaited(t, d)
	for tenant := range 5 {
		for _, c := range usage(t, d, name("t", tenant)) {
			if c.Limit.Unit == policy.Concurrency && c.Used != 0 {
				t.Errorf("tenant %d holds %d of its concurrency", tenant, c.Used)
			}
		}
	}
	for _, c := range [2]*Core{d.core, d.shadow} {
		for name, l := range c.leaving {
			t.Errorf("pool %s is leaving still: %d run, %d wait", name, l.running.Load(), l.waiting.Load())
		}
	}
	if ran.Load() == 0 {
		t.Error("nothing ran")
	}
}
