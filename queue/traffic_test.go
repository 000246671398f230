package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// source sends requests of one kind at random, so many a second.
type source struct {
	class  policy.Class
	tenant string
	rate   float64
	cost   int64

	due             time.Duration
	sent, served    int
	answered, waits []time.Duration // from arrival to the end, to the seat
}

// rig runs sources against a line in virtual time.
type rig struct {
	l       *Line
	r       *rand.Rand
	now     time.Duration
	hold    func() time.Duration
	bounds  Bounds
	running []run // by end
}

func (g *rig) start(w *Waiter, waited time.Duration) {
	s := w.Owner.(*source)
	hold := g.hold()
	s.served++
	s.waits, s.answered = append(s.waits, waited), append(s.answered, waited+hold)
	r := run{g.now + hold, w}
	i, _ := slices.BinarySearchFunc(g.running, r, func(a, b run) int { return int(a.end - b.end) })
	g.running = slices.Insert(g.running, i, r)
}

func (g *rig) exits(xs []Exit) {
	for _, x := range xs {
		if x.Granted {
			g.start(x.Waiter, x.Waited)
		}
	}
}

// play runs the sources for a time.
func (g *rig) play(until time.Duration, sources ...*source) {
	for g.now < until {
		first := sources[0]
		for _, s := range sources {
			if s.due < first.due {
				first = s
			}
		}
		g.now = first.due
		if len(g.running) > 0 {
			g.now = min(g.now, g.running[0].end)
		}
		due, ok := g.l.Next()
		if ok {
			g.now = min(g.now, max(due.Sub(epoch), g.l.now))
		}
		switch {
		case len(g.running) > 0 && g.running[0].end == g.now:
			w := g.running[0].w
			g.running = g.running[1:]
			g.exits(g.l.Release(at(g.now), w))
		case ok && !due.After(at(g.now)):
			g.exits(g.l.Advance(at(g.now)))
		default:
			g.send(first)
		}
	}
}

func (g *rig) send(s *source) {
	s.due = g.now + time.Duration(g.r.ExpFloat64()/s.rate*float64(time.Second))
	s.sent++
	w := waiter(s.class, s.tenant)
	w.Owner, w.Cost = s, max(1, s.cost)
	if o := g.l.Offer(at(g.now), w, g.bounds); o.Granted {
		g.start(w, 0)
	}
}

func newRig(seats int64, seed uint64) *rig {
	r := dice(seed)
	return &rig{
		l: New(standardConfig(seats, 0), nil), r: r,
		hold:   func() time.Duration { return time.Duration(50+r.IntN(101)) * ms },
		bounds: Bounds{Length: 200, Soft: 160, PerTenant: 0.5, RetryLimit: 5 * time.Second, RetryLen: 200},
	}
}

func mean(ds []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range ds {
		sum += d
	}
	return sum / time.Duration(max(1, len(ds)))
}

func p99(ds []time.Duration) time.Duration {
	ds = slices.Sorted(slices.Values(ds))
	return ds[len(ds)*99/100]
}

// P2: a tenant that sends one in a hundred is served like an only tenant while
// another sends a hundred times its share: its answers take no more than twice
// as long, and they are given: but for its second of two at once, while the
// flood has filled the line to the soft limit.
func TestSmallTenantBesideAFlood(t *testing.T) {
	answers := func(others ...*source) (*source, []time.Duration) {
		small := &source{class: policy.Standard, tenant: "small", rate: 0.8}
		newRig(4, 3).play(400*time.Second, append(others, small)...)
		return small, small.answered
	}
	_, alone := answers()
	flood := &source{class: policy.Standard, tenant: "flood", rate: 2000} // the pool serves 40 a second
	small, beside := answers(flood)
	if small.served < small.sent*99/100 {
		t.Errorf("%d of %d served", small.served, small.sent)
	}
	if flood.served < 40*400*95/100 {
		t.Errorf("the flood was served %d times: the pool stood idle", flood.served)
	}
	if m, a := mean(beside), mean(alone); m > 2*a {
		t.Errorf("mean answer after %v, alone %v", m, a)
	}
	if m, a := p99(beside), p99(alone); m > 2*a {
		t.Errorf("99th percentile %v, alone %v", m, a)
	}
}

// P2, kubernetes-sigs/gateway-api-inference-extension#1861: while critical
// saturates the pool for 60 s, standard and batch get what they weigh.
func TestSaturationForAMinute(t *testing.T) {
	g := newRig(16, 4)
	sources := []*source{{class: policy.Critical, tenant: "c", rate: 2000}, {class: policy.Standard, tenant: "s", rate: 500}, {class: policy.Batch, tenant: "b", rate: 500}}
	g.play(60*time.Second, sources...)
	all := 0
	for _, s := range sources {
		all += s.served
	}
	for i, want := range []float64{3. / 6, 2. / 6, 1. / 6} {
		if got := float64(sources[i].served) / float64(all); got < want*0.95 || got > want*1.05 {
			t.Errorf("%v has %.3f of %d seats, want %.3f", sources[i].class, got, all, want)
		}
	}
}

// P2: 200 tenants of one class are served within 5 % of equal, whatever their
// requests cost.
func TestTwoHundredTenants(t *testing.T) {
	r := dice(5)
	l, running := full(t, standardConfig(16, 0))
	offer := func(tenant int) {
		w := long(waiter(policy.Standard, fmt.Sprint("t", tenant)))
		w.Cost = 1 + r.Int64N(1+int64(tenant)*10)
		mustWait(t, l, at(0), w, endless)
	}
	for i := range 400 {
		offer(i % 200)
	}
	spent := map[string]int64{}
	var all int64
	for range 80_000 {
		seat := r.IntN(len(running))
		w := granted(l.Release(at(0), running[seat]))[0]
		running[seat] = w
		spent[w.Tenant] += w.Cost
		all += w.Cost
		var n int
		if _, err := fmt.Sscanf(w.Tenant, "t%d", &n); err != nil {
			t.Fatal(err)
		}
		offer(n)
	}
	for tenant, n := range spent {
		if d := float64(n)/(float64(all)/200) - 1; d < -0.05 || d > 0.05 {
			t.Errorf("%s is %.1f %% from equal", tenant, 100*d)
		}
	}
}

// P3: with 5,000 waiting each one's time ends to the nanosecond, whoever stands
// before it, and is over in that order.
func TestExpiryIsExactFor5000(t *testing.T) {
	r := dice(6)
	l, _ := full(t, standardConfig(1, 0))
	ends := map[*Waiter]time.Duration{}
	for i := range 5000 {
		now := time.Duration(i) * 10 * time.Microsecond
		w := waiter(policy.Class(i%3), fmt.Sprint("t", i%200))
		w.MaxWait, w.Handicap = 60*ms+time.Duration(r.Int64N(int64(time.Second))), time.Duration(r.IntN(100))*ms
		ends[w] = now + w.MaxWait
		if i%7 == 0 {
			w.Deadline = at(now + 55*ms + time.Duration(r.Int64N(int64(time.Second))))
			ends[w] = min(ends[w], w.Deadline.Sub(epoch))
		}
		mustWait(t, l, at(now), w, endless)
	}
	for len(ends) > 0 {
		due, ok := l.Next()
		if !ok {
			t.Fatalf("%d are left and nothing is due", len(ends))
		}
		for _, e := range l.Advance(due) {
			if end := ends[e.Waiter]; due.Sub(epoch) != end || e.Granted {
				t.Fatalf("out at %v, its time ends at %v: %+v", due.Sub(epoch), end, e)
			}
			delete(ends, e.Waiter)
		}
	}
	if _, ok := l.Next(); ok {
		t.Fatal("something is due in an empty line")
	}
}
