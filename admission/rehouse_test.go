package admission

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
)

// trio is a policy of one model with three pools a, b, c of the same
// precision, of so many seats; a class waits a second.
func trio(seats int64, edits ...func(*policy.Policy)) *policy.Policy {
	return house(seats, append([]func(*policy.Policy){func(p *policy.Policy) {
		p.Pools = nil
		p.Models[0].Pools = nil
		for _, name := range []string{"a", "b", "c"} {
			p.Pools = append(p.Pools, policy.Pool{Name: name, Cluster: name, Variant: policy.FP16, Seats: policy.Seats{Requests: seats}})
			p.Models[0].Pools = append(p.Models[0].Pools, name)
		}
		for i := range p.Classes {
			p.Classes[i] = policy.ClassPolicy{Class: policy.Class(i), Weight: 1, MaxWait: time.Second, OnExpiry: policy.ExpireDrop, Variant: policy.FP16}
		}
		p.Queue.Order.Ageing = 0
		p.Envoy.MaxMessageTimeout = 10 * time.Second
	}}, edits...)...)
}

// drop takes pools out of a policy.
func drop(names ...string) func(*policy.Policy) {
	return func(p *policy.Policy) {
		p.Pools = slices.DeleteFunc(p.Pools, func(q policy.Pool) bool { return slices.Contains(names, q.Name) })
		for i := range p.Models {
			p.Models[i].Pools = slices.DeleteFunc(slices.Clone(p.Models[i].Pools), func(n string) bool { return slices.Contains(names, n) })
		}
	}
}

// unlist takes pools from the model alone.
func unlist(names ...string) func(*policy.Policy) {
	return func(p *policy.Policy) {
		p.Models = append(slices.Clone(p.Models), policy.Model{Name: "other", Pools: p.Models[0].Pools})
		p.Models[0].Pools = slices.DeleteFunc(slices.Clone(p.Models[0].Pools), func(n string) bool { return slices.Contains(names, n) })
	}
}

// fillAndWait fills the pools and lets n requests of three tenants wait, a
// millisecond apart.
func fillAndWait(t *testing.T, d *Desk, e *policy.Effective, n int) (running []*Ticket, visits []*Visit) {
	t.Helper()
	for i := range 3 {
		running = append(running, admit(t, d, ask(e, name("run", i), "runner", policy.Standard)))
	}
	for i := range n {
		time.Sleep(time.Millisecond)
		v := d.Submit(t.Context(), ask(e, name("w", i), name("t", i%3), policy.Standard))
		if !v.Waiting() {
			t.Fatalf("request %d does not wait", i)
		}
		visits = append(visits, v)
	}
	return running, visits
}

// A reload that takes away the place where requests wait moves them: all are
// admitted elsewhere or wait on, in their order, and expire when they would
// have.
func TestReloadMovesWhoWaits(t *testing.T) {
	alias := func(p *policy.Policy) {
		p.Models[0].Name, p.Models[0].Aliases = "deepseek-v5", []string{"deepseek-v4"}
	}
	for _, c := range []struct {
		name string
		edit func(*policy.Policy)
	}{
		{"a pool is removed", drop("a")},
		{"two are removed", drop("a", "b")},
		{"pools are renamed", func(p *policy.Policy) {
			for i := range p.Pools {
				p.Pools[i].Name = "new-" + p.Pools[i].Name
				p.Models[0].Pools[i] = p.Pools[i].Name
			}
		}},
		{"the model lists one pool no more", unlist("a")},
		{"the model is an alias now", alias},
		{"alias and pool", func(p *policy.Policy) { alias(p); drop("b")(p) }},
		{"a pool is of a lower precision", func(p *policy.Policy) { p.Pools[0].Variant = policy.INT8 }},
		{"all are", func(p *policy.Policy) {
			for i := range p.Pools {
				p.Pools[i].Variant = policy.INT8
			}
		}},
		{"to other clusters", func(p *policy.Policy) {
			for i := range p.Pools {
				p.Pools[i].Cluster = "new-" + p.Pools[i].Name
			}
		}},
		{"tiers are removed", func(p *policy.Policy) { p.Tiers = p.Tiers[1:] }},
		{"a class is capped", func(p *policy.Policy) {
			batch := policy.Batch
			p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "*"}, Class: &batch}}
		}},
		{"nothing changes", func(*policy.Policy) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { reloadMoves(t, c.edit) })
		})
	}
}

func reloadMoves(t *testing.T, edit func(*policy.Policy)) {
	const n = 10
	l := newLog()
	p := trio(1, withQuotas(policy.Limit{Unit: policy.Concurrency, Max: 100}, policy.Limit{Unit: policy.Requests, Max: 100, Per: time.Hour}))
	d := newTestDesk(t, p, l)
	e := effective(t, p)
	running, visits := fillAndWait(t, d, e, n)
	time.Sleep(100 * time.Millisecond)
	next := trio(1, withQuotas(policy.Limit{Unit: policy.Concurrency, Max: 100}, policy.Limit{Unit: policy.Requests, Max: 100, Per: time.Hour}), edit)
	done := d.Swap(next)
	if done.Waited != n || done.Refused != 0 {
		t.Errorf("%+v", done)
	}
	pools := map[string]bool{}
	for _, name := range next.Models[0].Pools {
		pools[name] = true
	}
	clusters := map[string]string{}
	for _, q := range next.Pools {
		clusters[q.Name] = q.Cluster
	}
	start := time.Now()
	served, order := 0, map[string]int{}
	for served < n-2 { // one of those that run ends each 10 ms; the last two expire
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		progress := false
		for i, v := range visits {
			if v == nil || v.Waiting() {
				continue
			}
			ticket, dec := v.Result()
			visits[i] = nil
			if ticket == nil {
				t.Fatalf("request %d: %s", i, dec.Reason)
			}
			if !pools[dec.Pool] || dec.Cluster != clusters[dec.Pool] {
				t.Errorf("request %d runs in %s of %s", i, dec.Pool, dec.Cluster)
			}
			if came := start.Add(-100*time.Millisecond - time.Duration(n-1-i)*time.Millisecond); dec.Waited < start.Sub(came) {
				t.Errorf("request %d waited %s: its time before the reload is not counted", i, dec.Waited)
			}
			tenant := dec.Pool + name(" t", i%3)
			if last, ok := order[tenant]; ok && i < last {
				t.Errorf("request %d of %s is served after its %d", i, tenant, last)
			}
			order[tenant] = i
			running = append(running, ticket)
			served++
			progress = true
		}
		if len(running) > 0 {
			running[0].Done(fine(1, 1))
			running = running[1:]
		} else if !progress {
			t.Fatal("nothing runs and nobody is served")
		}
	}
	endAll(t, running)
	synctest.Wait()
	for i, v := range visits {
		if v == nil {
			continue
		}
		if v.Waiting() {
			t.Fatalf("request %d waits although seats are free", i)
		}
		if ticket, dec := v.Result(); ticket == nil {
			t.Errorf("request %d: %s", i, dec.Reason)
		} else {
			ticket.Done(fine(1, 1))
		}
	}
	for i := range n {
		if got := len(l.decisions(name("w", i))); got != 1 {
			t.Errorf("request %d was decided %d times", i, got)
		}
	}
	for _, tenant := range []string{"t-0", "t-1", "t-2"} {
		for _, c := range usage(t, d, tenant) {
			if c.Limit.Unit == policy.Concurrency && c.Used != 0 {
				t.Errorf("%s holds %d of concurrency", tenant, c.Used)
			}
		}
	}
	quiet(t, d)
}

// The time of who waits ends by the new policy's own rule, counted from its
// arrival, and never later than Envoy was told.
func TestReloadEndsWaitsByTheNewRule(t *testing.T) {
	wait := func(d time.Duration, on policy.Expiry) func(*policy.Policy) {
		return func(p *policy.Policy) {
			for i := range p.Classes {
				p.Classes[i].MaxWait, p.Classes[i].OnExpiry = d, on
			}
		}
	}
	retry := func(d time.Duration) func(*policy.Policy) {
		return func(p *policy.Policy) { p.Queue.RetryQueue.Limit = d }
	}
	for _, c := range []struct {
		name   string
		before func(*policy.Policy)
		edit   func(*policy.Policy)
		reason Reason
		waited time.Duration // from the arrival; the reload is 100 ms after it
	}{
		{"it stays", nil, nil, ExpiredDrop, time.Second},
		{"shorter", nil, wait(300*time.Millisecond, policy.ExpireDrop), ExpiredDrop, 300 * time.Millisecond},
		{"over by now", nil, wait(50*time.Millisecond, policy.ExpireDrop), ExpiredDrop, 100 * time.Millisecond},
		{"longer than Envoy waits", nil, wait(3*time.Second, policy.ExpireDrop), ExpiredDrop, time.Second},
		{"then the retry queue", nil, func(p *policy.Policy) {
			wait(300*time.Millisecond, policy.ExpireRetry)(p)
			retry(200 * time.Millisecond)(p)
		}, ExpiredRetry, 500 * time.Millisecond},
		{"in the retry queue at once", nil, func(p *policy.Policy) {
			wait(60*time.Millisecond, policy.ExpireRetry)(p)
			retry(200 * time.Millisecond)(p)
		}, ExpiredRetry, 260 * time.Millisecond},
		{"was in the retry queue", wait(50*time.Millisecond, policy.ExpireRetry), func(p *policy.Policy) {
			wait(50*time.Millisecond, policy.ExpireRetry)(p)
			retry(300 * time.Millisecond)(p)
		}, ExpiredRetry, 350 * time.Millisecond},
		{"was in the retry queue, which is no more", wait(50*time.Millisecond, policy.ExpireRetry), wait(time.Second, policy.ExpireDrop), ExpiredDrop, time.Second},
		{"does not wait any more", nil, wait(0, policy.ExpireDrop), ExpiredDrop, 100 * time.Millisecond},
		{"degrades to nowhere", nil, wait(300*time.Millisecond, policy.ExpireDegrade), ExpiredDegrade, 300 * time.Millisecond},
	} {
		for _, moved := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, moved %v", c.name, moved), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					edits := []func(*policy.Policy){func(*policy.Policy) {}}
					if c.before != nil {
						edits = append(edits, c.before)
					}
					p := trio(1, edits...)
					d := newTestDesk(t, p)
					running, visits := fillAndWait(t, d, effective(t, p), 1)
					time.Sleep(100 * time.Millisecond)
					next := []func(*policy.Policy){}
					if c.edit != nil {
						next = append(next, c.edit)
					} else if c.before != nil {
						next = append(next, c.before)
					}
					if moved { // its pool is gone; the others are full
						next = append(next, drop(visits[0].plan.pool.name))
					}
					d.Swap(trio(1, next...))
					<-visits[0].Ready()
					if ticket, dec := visits[0].Result(); ticket != nil || dec.Reason != c.reason || dec.Waited != c.waited {
						t.Errorf("%s after %s, want %s after %s", dec.Reason, dec.Waited, c.reason, c.waited)
					}
					endAll(t, running)
					quiet(t, d)
				})
			})
		}
	}
}

// A reload that lets everything pass lets those pass who wait; one that blocks
// a tenant, or has its model no more, refuses them as it would at arrival.
func TestReloadDecidesAsAtArrival(t *testing.T) {
	for _, c := range []struct {
		name   string
		edit   func(*policy.Policy)
		reason Reason
	}{
		{"pass", func(p *policy.Policy) { p.Mode = policy.Pass }, AdmittedPass},
		{"blocked", func(p *policy.Policy) {
			p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "t-0"}, Block: true}}
		}, TenantBlocked},
		{"the model is gone", func(p *policy.Policy) { p.Models[0].Name, p.Models[0].Aliases = "else", nil }, ModelUnknown},
		{"too large for what is left", func(p *policy.Policy) {
			drop("a")(p)
			for i := range p.Pools {
				p.Pools[i].Seats.Tokens = 10
			}
		}, TooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := trio(1)
				d := newTestDesk(t, p)
				running, visits := fillAndWait(t, d, effective(t, p), 1)
				d.Swap(trio(1, c.edit))
				<-visits[0].Ready()
				ticket, dec := visits[0].Result()
				if dec.Reason != c.reason {
					t.Errorf("%s, want %s", dec.Reason, c.reason)
				}
				if ticket != nil {
					ticket.Done(fine(1, 1))
				}
				endAll(t, running)
				quiet(t, d)
			})
		})
	}
}

// A route whose profile the new policy does not have keeps those who wait by
// the rules that they came with, in the pools of now.
func TestReloadWithoutTheProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := func(profiles string) *policy.Policy {
			p, err := policy.Load("weir.yaml", []byte(`version: 1
identity: {from: metadata}
models: [{name: deepseek-v4, pools: [POOL]}]
pools: [{name: POOL, variant: fp16, seats: {requests: 1}}]
`+profiles))
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		with := load("profiles: {edge: {queue: {softLimit: 70%}}}\n")
		d := newTestDesk(t, with)
		e, err := with.For(policy.Overrides{Profile: "edge"})
		if err != nil {
			t.Fatal(err)
		}
		running := admit(t, d, ask(e, "run", "acme", policy.Critical))
		v := d.Submit(t.Context(), ask(e, "w", "acme", policy.Critical))
		d.Swap(load(""))
		if !v.Waiting() {
			t.Fatal("it does not wait any more")
		}
		running.Done(fine(1, 1))
		<-v.Ready()
		if ticket, dec := v.Result(); ticket == nil {
			t.Errorf("%s", dec.Reason)
		} else {
			ticket.Done(fine(1, 1))
		}
		quiet(t, d)
	})
}

// A request that was planned before a reload and enters after it has its pool
// chosen again.
func TestReloadBetweenPlanAndEnter(t *testing.T) {
	p := trio(1)
	core, e := newTestCore(p), effective(t, p)
	plan := core.Plan(start, ask(e, "r", "acme", policy.Standard))
	core.Swap(start, trio(1, drop("a", "b")))
	if out := core.Enter(start, plan, allowed); out != Entered || plan.Decision.Pool != "c" {
		t.Errorf("outcome %d: %s in %q", out, plan.Decision.Reason, plan.Decision.Pool)
	}
	core.Done(start, plan, &End{})
}
