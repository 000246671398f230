package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// P4, P6: inside a flow the quick go first; with handicaps of at most A nobody
// is overtaken by one of its flow who came A later or more.
func TestAgeing(t *testing.T) {
	const most = 100 * ms
	for seed := range uint64(8) {
		r := dice(seed)
		l, held := full(t, standardConfig(1, 0))
		running := held[0]
		came := map[*Waiter]time.Duration{}
		overtaken := 0
		for now := time.Duration(0); now < 4*time.Second; now += ms {
			if now < 3*time.Second && r.IntN(4) != 0 {
				w := long(waiter(policy.Standard, fmt.Sprint("t", r.IntN(3))))
				w.Handicap = []time.Duration{0, most / 4, most, -most}[r.IntN(4)] // less than none is none
				mustWait(t, l, at(now), w, endless)
				came[w] = now
			}
			if r.IntN(2) == 0 {
				continue
			}
			ws := granted(l.Release(at(now), running))
			if len(ws) == 0 {
				running = waiter(policy.Standard, "again")
				l.Offer(at(now), running, endless)
				continue
			}
			running = ws[0]
			for w, c := range came {
				if w.Tenant != running.Tenant || c >= came[running] {
					continue
				}
				overtaken++
				if came[running]-c >= most {
					t.Fatalf("one who came at %v went before one who came at %v", came[running], c)
				}
			}
			delete(came, running)
		}
		if overtaken == 0 {
			t.Fatal("nobody was ever overtaken: the order is not used")
		}
	}
}

// P4: the order inside a flow, by example.
func TestOrderInsideAFlow(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	add := func(name string, came, handicap time.Duration) {
		w := long(waiter(policy.Standard, "a"))
		w.Handicap, w.Owner = handicap, name
		mustWait(t, l, at(came), w, endless)
	}
	add("slow", 0, 100*ms)
	add("stream", 10*ms, 50*ms)
	add("quick", 20*ms, 0)
	add("quick too", 20*ms, 0)
	add("quick, late", 100*ms, 0) // as if with slow, who came first
	add("quick, later", 101*ms, 0)
	running, got := held[0], []any{}
	for range 6 {
		running = granted(l.Release(at(102*ms), running))[0]
		got = append(got, running.Owner)
	}
	want := "[quick quick too stream slow quick, late quick, later]"
	if fmt.Sprint(got) != want {
		t.Fatalf("order %v, want %v", got, want)
	}
}

// P4: never across tenants: who only sends quick requests is served no more.
func TestOrderIsNotAcrossTenants(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	for range 200 {
		for name, handicap := range map[string]time.Duration{"quick": 0, "slow": time.Hour} {
			w := long(waiter(policy.Standard, name))
			w.Handicap = handicap
			mustWait(t, l, at(0), w, endless)
		}
	}
	got, _ := serve(t, l, held[0], 200, tenantName)
	if got["quick"] != 100 || got["slow"] != 100 {
		t.Fatalf("served %v", got)
	}
}

// P4: time waited before is credited inside the flow.
func TestWaitedBeforeIsCredited(t *testing.T) {
	l, held := full(t, standardConfig(1, 0))
	first, back := long(waiter(policy.Standard, "a")), long(waiter(policy.Standard, "a"))
	mustWait(t, l, at(50*ms), first, endless)
	l.tick(at(80 * ms))
	prepared(l, back)
	back.came = 40 * ms // refused then, and comes back
	l.enqueue(back, endless)
	if ws := granted(l.Release(at(90*ms), held[0])); ws[0] != back {
		t.Fatal("the credit is lost")
	}
	if w := back.granted - back.since; w != 10*ms {
		t.Fatalf("waited %v since the offer", w)
	}
}

// A cancel in the middle of a flow keeps the order of the rest.
func TestCancelInsideAFlow(t *testing.T) {
	r := dice(9)
	l, held := full(t, standardConfig(1, 0))
	var ws []*Waiter
	for i := range 500 {
		w := long(waiter(policy.Standard, "a"))
		w.Handicap = time.Duration(r.IntN(100)) * ms
		mustWait(t, l, at(time.Duration(i)*ms), w, endless)
		ws = append(ws, w)
	}
	r.Shuffle(len(ws), func(i, j int) { ws[i], ws[j] = ws[j], ws[i] })
	for _, w := range ws[:300] {
		if _, ok := l.Cancel(at(time.Second), w); !ok {
			t.Fatal("lost")
		}
	}
	running, last := held[0], time.Duration(-1)
	for range 200 {
		running = granted(l.Release(at(time.Second), running))[0]
		if running.standing() < last {
			t.Fatalf("%v after %v", running.standing(), last)
		}
		last = running.standing()
	}
}

// P2 literal with P4: where requests are the price, cheap ones go first among
// those of their tenant and class alone: the turns of tenants are those of one
// FIFO, whatever is cheap, and each turn is taken by the tenant's cheapest.
func TestCheapFirstByRequests(t *testing.T) {
	cfg := standardConfig(1, 0)
	cfg.Price = policy.ByRequests
	l, held := full(t, cfg)
	came := map[string]time.Duration{}
	add := func(tenant, name string, handicap time.Duration) *Waiter {
		w := long(waiter(policy.Standard, tenant))
		w.Handicap, w.Owner = handicap, name
		came[name] = time.Duration(len(came)) * ms
		mustWait(t, l, at(came[name]), w, endless)
		return w
	}
	add("a", "a slow 1", 100*ms)
	add("b", "b slow 2", 100*ms)
	add("a", "a slow 3", 100*ms)
	gone := add("a", "a slow 4", 100*ms)
	add("b", "b slow 5", 100*ms)
	add("a", "a quick 6", 0)
	add("b", "b quick 7", 0)
	add("a", "a quick 8", 0)
	if _, ok := l.Cancel(at(20*ms), gone); !ok {
		t.Fatal("lost")
	}
	running, got := held[0], []any{}
	for range 7 {
		running = granted(l.Release(at(20*ms), running))[0]
		got = append(got, running.Owner)
	}
	// By arrival the tenants are a b a b a b a.
	want := "[a quick 6 b quick 7 a quick 8 b slow 2 a slow 1 b slow 5 a slow 3]"
	if fmt.Sprint(got) != want {
		t.Fatalf("order %v, want %v", got, want)
	}
}

// The same at random: the sequence of tenants does not depend on who is cheap,
// ageing holds inside each, and a change of price in between leaves nobody out.
func TestCheapFirstByRequestsIsNotAcrossTenants(t *testing.T) {
	for seed := range uint64(20) {
		var order [2][]string
		for run := range order {
			r := dice(seed)
			cfg := standardConfig(1, 0)
			cfg.Price = policy.ByRequests
			l, held := full(t, cfg)
			running := held[0]
			for step := range 400 {
				now := at(time.Duration(step) * ms)
				cheap := time.Duration(r.IntN(2)) * 50 * ms
				if r.IntN(2) == 0 || step < 50 {
					w := long(waiter(policy.Class(r.IntN(3)), fmt.Sprint("t", r.IntN(4))))
					w.Handicap = cheap * time.Duration(run)
					mustWait(t, l, now, w, endless)
					continue
				}
				if ws := granted(l.Release(now, running)); len(ws) > 0 {
					running = ws[0]
					order[run] = append(order[run], running.Class.String()+running.Tenant)
				} else if o := l.Offer(now, running, endless); !o.Granted {
					t.Fatal("seat lost")
				}
			}
			left := l.total
			cfg.Price = policy.ByTokens
			l.Configure(at(time.Second), cfg)
			cfg.Price = policy.ByRequests
			l.Configure(at(time.Second), cfg)
			for range left {
				running = granted(l.Release(at(time.Second), running))[0]
			}
		}
		if fmt.Sprint(order[0]) != fmt.Sprint(order[1]) {
			t.Fatalf("seed %d: with cheap ones %v, without %v", seed, order[1], order[0])
		}
	}
}
