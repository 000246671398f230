package admission

import (
	"strconv"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// BenchmarkPlanEnter is one decision of the core with a free seat, and its
// end.
func BenchmarkPlanEnter(b *testing.B) {
	p := house(1000)
	core, e := newTestCore(p), effective(b, p)
	r := ask(e, "r", "acme", policy.Standard)
	end := fine(100, 100)
	end.Learn = false
	b.ReportAllocs()
	for b.Loop() {
		plan := core.Plan(start, r)
		if core.Enter(start, plan, allowed) != Entered {
			b.Fatal(plan.Decision.Reason)
		}
		core.Done(start, plan, &end)
	}
}

// BenchmarkAdmit is the whole desk, uncontended, with the memory store.
func BenchmarkAdmit(b *testing.B) {
	for _, c := range []struct {
		name string
		edit func(*policy.Policy)
	}{
		{"no quota", func(*policy.Policy) {}},
		{"one rule", withQuotas(policy.Limit{Unit: policy.Requests, Max: 1 << 40, Per: time.Minute}, policy.Limit{Unit: policy.Tokens, Max: 1 << 40, Per: time.Minute})},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := house(1000, c.edit)
			d := newTestDesk(b, p)
			e := effective(b, p)
			ctx := b.Context()
			end := fine(100, 100)
			r := ask(e, "", "acme", policy.Standard)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				r.ID = strconv.Itoa(i)
				ticket, dec := d.Admit(ctx, r)
				if ticket == nil {
					b.Fatal(dec.Reason)
				}
				ticket.Done(end)
			}
		})
	}
}

// BenchmarkAdmitParallel is many goroutines of many tenants at one pool.
func BenchmarkAdmitParallel(b *testing.B) {
	p := house(100000, withQuotas(policy.Limit{Unit: policy.Requests, Max: 1 << 40, Per: time.Minute}))
	d := newTestDesk(b, p)
	e := effective(b, p)
	end := fine(100, 100)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		tenant := strconv.Itoa(int(d.tickets.count.Add(0))) + name("t", b.N)
		for i := 0; pb.Next(); i++ {
			r := ask(e, tenant+strconv.Itoa(i), tenant, policy.Standard)
			if ticket, _ := d.Admit(b.Context(), r); ticket != nil {
				ticket.Done(end)
			}
		}
	})
}
