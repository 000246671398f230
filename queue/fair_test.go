package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// fluid is the reference: a server that works at all flows at once, in
// proportion to their weights (generalized processor sharing). It knows
// nothing of tags.
type fluid struct {
	weight, left, served map[string]float64
}

func newFluid() *fluid {
	return &fluid{map[string]float64{}, map[string]float64{}, map[string]float64{}}
}

func (g *fluid) arrive(name string, weight, work float64) {
	g.weight[name] = weight
	g.left[name] += work
}

// serve does an amount of work.
func (g *fluid) serve(work float64) {
	for work > 1e-9 {
		var sum float64
		for name, left := range g.left {
			if left > 1e-9 {
				sum += g.weight[name]
			}
		}
		if sum == 0 {
			return
		}
		part := work / sum // per weight, until the first flow runs dry
		for name, left := range g.left {
			if left > 1e-9 {
				part = min(part, left/g.weight[name])
			}
		}
		for name, left := range g.left {
			if left > 1e-9 {
				g.left[name] -= part * g.weight[name]
				g.served[name] += part * g.weight[name]
			}
		}
		work -= part * sum
	}
}

// account compares what a level handed out with its fluid reference.
type account struct {
	*fluid
	handed, largest map[string]float64
	mistake         float64 // the most that those in seats were ever mistaken by
}

func newAccount() *account {
	return &account{fluid: newFluid(), handed: map[string]float64{}, largest: map[string]float64{}}
}

func (a *account) hand(name string, work float64) {
	a.handed[name] += work
	a.serve(work)
}

// check asserts the bound of the package comment.
func (a *account) check(t *testing.T, level string) {
	t.Helper()
	const eps = 1e-3
	for name, m := range a.largest {
		var others, late float64
		for o, n := range a.largest {
			if o != name {
				others += n
				late += n * a.weight[name] / (a.weight[name] + a.weight[o])
			}
		}
		if ahead := a.handed[name] - a.served[name]; ahead > m+late+a.mistake+eps {
			t.Fatalf("%s: %s is %v ahead of the fluid server, may be %v", level, name, ahead, m+late+a.mistake)
		} else if -ahead > others+late+a.mistake+eps {
			t.Fatalf("%s: %s is %v behind the fluid server, may be %v", level, name, -ahead, others+late+a.mistake)
		}
	}
}

// P2: on random traces the line stays within the stated bound of the fluid
// server, among classes and among the tenants of each class, with one seat and
// with several that end in any order.
func TestFairnessAgainstFluidServer(t *testing.T) {
	for seed := range uint64(30) {
		r := dice(seed)
		cfg := standardConfig([]int64{1, 3, 16}[seed%3], 0)
		l, running := full(t, cfg)
		b := Bounds{Length: 1 << 20}
		root := newAccount()
		inside := map[policy.Class]*account{0: newAccount(), 1: newAccount(), 2: newAccount()}
		tenants := 1 + r.IntN(8)
		for step := range 3000 {
			for range r.IntN(4) * (step / 100 % 2) { // bursts, then quiet
				w := long(waiter(policy.Class(r.IntN(3)), fmt.Sprint("t", r.IntN(tenants))))
				w.Cost = 1 + r.Int64N(1+r.Int64N(1000))
				w.Weight = float64(1 + len(w.Tenant)%2 + int(w.Tenant[1]-'0')%3)
				w.Handicap = time.Duration(r.IntN(3)) * 100 * ms // the order inside a flow is none of its neighbours' business
				mustWait(t, l, at(0), w, b)
				cost := float64(w.Cost)
				root.arrive(w.Class.String(), float64(cfg.Weights[w.Class]), cost)
				root.largest[w.Class.String()] = max(cost, root.largest[w.Class.String()])
				in := inside[w.Class]
				in.arrive(w.Tenant, w.Weight, cost)
				in.largest[w.Tenant] = max(cost, in.largest[w.Tenant])
			}
			seat := r.IntN(len(running))
			ws := granted(l.Release(at(0), running[seat]))
			if len(ws) == 0 { // empty: take the seat again
				if !l.TryTake(at(0), running[seat]) {
					t.Fatal("seat lost")
				}
				continue
			}
			w := ws[0]
			running[seat] = w
			root.hand(w.Class.String(), float64(w.Cost))
			root.check(t, "classes")
			inside[w.Class].hand(w.Tenant, float64(w.Cost))
			inside[w.Class].check(t, w.Class.String())
		}
	}
}

// serve releases the running seat n times and counts who is served, by key.
func serve(t *testing.T, l *Line, running *Waiter, n int, key func(*Waiter) string) (map[string]int, *Waiter) {
	t.Helper()
	got := map[string]int{}
	for range n {
		ws := granted(l.Release(at(0), running))
		if len(ws) != 1 {
			t.Fatalf("%d granted", len(ws))
		}
		running = ws[0]
		got[key(running)]++
	}
	return got, running
}

func className(w *Waiter) string  { return w.Class.String() }
func tenantName(w *Waiter) string { return w.Tenant }

// P2 literal: three FIFOs, 3:2:1 requests a round, whatever they cost and
// whoever they are from.
func TestByRequests(t *testing.T) {
	cfg := standardConfig(1, 0)
	cfg.Price = policy.ByRequests
	l, held := full(t, cfg)
	b := Bounds{Length: 10000}
	for i := range 300 {
		for c := range policy.Class(3) {
			w := long(waiter(c, fmt.Sprint("t", i*i%7)))
			w.Cost, w.Weight = int64(1+i*int(c+1)), float64(i%5)
			mustWait(t, l, at(0), w, b)
		}
	}
	running := held[0]
	var last [3]uint64
	for round := range 100 {
		var got map[string]int
		got, running = serve(t, l, running, 6, func(w *Waiter) string {
			if w.seq < last[w.Class] {
				t.Fatalf("not first come first served in %v", w.Class)
			}
			last[w.Class] = w.seq
			return w.Class.String()
		})
		if got["critical"] != 3 || got["standard"] != 2 || got["batch"] != 1 {
			t.Fatalf("round %d: %v", round, got)
		}
	}
}

// P2: by tokens, a class of large requests gets no more tokens than its weight.
func TestByTokens(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 10000}
	for range 1200 {
		for c, cost := range []int64{100, 200, 50} {
			w := long(waiter(policy.Class(c), "t"))
			w.Cost = cost
			mustWait(t, l, at(0), w, b)
		}
	}
	// 6000 tokens are 3000, 2000, 1000: 30, 10, 20 requests.
	got, _ := serve(t, l, held[0], 600, className)
	if d := got["critical"] - 300; d < -2 || d > 2 {
		t.Errorf("critical %d, want 300", got["critical"])
	}
	if d := got["standard"] - 100; d < -2 || d > 2 {
		t.Errorf("standard %d, want 100", got["standard"])
	}
	if d := got["batch"] - 200; d < -4 || d > 4 {
		t.Errorf("batch %d, want 200", got["batch"])
	}
}

// P2: tenants weigh by their tier inside a class.
func TestTenantWeights(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	for range 500 {
		for name, weight := range map[string]float64{"a": 1, "b": 4, "c": -1} {
			w := long(waiter(policy.Standard, name))
			w.Weight = weight
			mustWait(t, l, at(0), w, Bounds{Length: 10000})
		}
	}
	got, _ := serve(t, l, held[0], 600, tenantName)
	if got["a"] != 100 || got["b"] != 400 || got["c"] != 100 {
		t.Fatalf("served %v, want 1:4:1", got)
	}
}

// P1: red is a strict lane before all weights.
func TestRedGoesFirst(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	for range 10 {
		mustWait(t, l, at(0), waiter(policy.Critical, "a"), wide)
		red := waiter(policy.Batch, "r")
		red.Colour = policy.Red
		mustWait(t, l, at(0), red, wide)
	}
	got, _ := serve(t, l, held[0], 10, className)
	if got["batch"] != 10 {
		t.Fatalf("served %v before the last red", got)
	}
}

// P2: strict shares starve nobody: while critical saturates, batch gets its
// weight's share.
func TestNoClassStarves(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 100000}
	running, batch := held[0], 0
	for range 200 {
		mustWait(t, l, at(0), long(waiter(policy.Batch, "b")), b)
	}
	for range 400 {
		for range 3 {
			mustWait(t, l, at(0), long(waiter(policy.Critical, "c")), b)
		}
		running = granted(l.Release(at(0), running))[0]
		if running.Class == policy.Batch {
			batch++
		}
	}
	if batch < 99 || batch > 101 {
		t.Fatalf("batch served %d of 400, want a quarter", batch)
	}
}

// P2: a stream of tenants who come once cannot hold back one who waits.
func TestNewcomersDoNotStarveAWaiter(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 10000}
	running := held[0]
	for i := range 3 {
		mustWait(t, l, at(0), long(waiter(policy.Standard, "old")), b)
		mustWait(t, l, at(0), long(waiter(policy.Standard, fmt.Sprint("n", i))), b)
	}
	served := 0
	for i := range 100 {
		mustWait(t, l, at(0), long(waiter(policy.Standard, fmt.Sprint("one", i))), b)
		if running = granted(l.Release(at(0), running))[0]; running.Tenant == "old" {
			served++
		}
	}
	if served != 3 {
		t.Fatalf("the old tenant was served %d of 3 times in 100 turns", served)
	}
}

// P2: having been idle brings no credit.
func TestIdleBringsNoCredit(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 10000}
	for range 1000 {
		mustWait(t, l, at(0), long(waiter(policy.Standard, "busy")), b)
	}
	_, running := serve(t, l, held[0], 500, tenantName)
	for range 100 {
		mustWait(t, l, at(0), long(waiter(policy.Standard, "late")), b)
		mustWait(t, l, at(0), long(waiter(policy.Batch, "late")), b)
	}
	got, _ := serve(t, l, running, 100, func(w *Waiter) string { return w.Class.String() + w.Tenant })
	// Standard to batch is 2:1, inside standard 1:1.
	for key, want := range map[string]int{"standardbusy": 33, "standardlate": 33, "batchlate": 33} {
		if d := got[key] - want; d < -2 || d > 2 {
			t.Fatalf("served %v, want about %d each", got, want)
		}
	}
}
