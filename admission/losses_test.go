package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/policy"
)

var (
	cutOff = End{Result: ResultUnknown, GRPC: -1}                                            // in the middle of its answer
	reset  = End{Result: ResultNoAnswer, Failed: true, GRPC: -1, Usage: Usage{Refund: true}} // before it, by Envoy's word
)

// runs makes n requests that end so.
func runs(t *testing.T, d *Desk, e *policy.Effective, class policy.Class, n int, ends ...End) {
	t.Helper()
	for i := range n {
		ticket, dec := d.Admit(t.Context(), ask(e, name("r", i), "acme", class))
		if ticket == nil {
			t.Fatalf("request %d: %s", i, dec.Reason)
		}
		ticket.Done(ends[i%len(ends)])
	}
}

func counts(d *Desk, pool string) (all, failed int) {
	v := d.Breaker(pool).View(time.Now())
	return v.Requests, v.Failures
}

// B6: a host that breaks off half of its answers in the middle opens the breaker
// once Envoy has told of it. Callers that leave in the middle open none, whatever
// else Envoy counts of calls that this weir knows.
func TestLostCalls(t *testing.T) {
	for _, c := range []struct {
		name   string
		ends   []End
		n      int
		lost   int64
		after  time.Duration
		failed int
		rest   int64
	}{
		{"half broken off", []End{fine(10, 10), cutOff}, 40, 20, time.Second, 20, 0},
		{"heard five seconds later", []End{fine(10, 10), cutOff}, 40, 20, 6 * time.Second, 20, 0},
		{"heard too late", []End{fine(10, 10), cutOff}, 40, 20, time.Minute, 0, 20},
		{"callers left", []End{fine(10, 10), cutOff}, 40, 0, time.Second, 0, 0},
		{"a few of those that left were broken off", []End{fine(10, 10), cutOff}, 40, 3, time.Second, 3, 0},
		{"callers left, and other calls broke before their answer", []End{cutOff, reset}, 40, 20, time.Second, 20, 0},
		{"both", []End{cutOff, cutOff, reset, fine(1, 1)}, 40, 15, time.Second, 15, 0},
		{"calls of others broke", []End{fine(10, 10)}, 40, 100, time.Second, 0, 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := house(100, func(p *policy.Policy) { p.Breaker.MinRequests = 1000; p.Breaker.Window = 5 * time.Minute })
			d, e := newTestDesk(t, p), effective(t, p)
			runs(t, d, e, policy.Critical, c.n, c.ends...)
			time.Sleep(c.after)
			if rest := d.Lost(time.Now(), "chat-fp16", c.lost); rest != c.rest {
				t.Errorf("%s: %d of no end, want %d", c.name, rest, c.rest)
			}
			if _, failed := counts(d, "chat-fp16"); failed != c.failed {
				t.Errorf("%s: %d failures, want %d", c.name, failed, c.failed)
			}
			d.Lost(time.Now(), "other", 1000)
			if _, failed := counts(d, "chat-fp16"); failed != c.failed {
				t.Errorf("%s: another cluster's calls count", c.name)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p := house(100)
		d, e := newTestDesk(t, p), effective(t, p)
		runs(t, d, e, policy.Critical, 40, fine(10, 10), cutOff)
		d.Lost(time.Now(), "chat-fp16", 20)
		if s := d.Breaker("chat-fp16").View(time.Now()).State; s != breaker.Hard {
			t.Errorf("%v after half of the answers broke off", s)
		}
	})
}

// B6: pools that share a cluster have each its part of the calls that broke.
func TestLostCallsOfASharedCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := house(100, func(p *policy.Policy) {
			for i := range p.Pools {
				p.Pools[i].Cluster = "chat"
			}
			p.Breaker.MinRequests = 1000
		})
		d, e := newTestDesk(t, p), effective(t, p)
		runs(t, d, e, policy.Critical, 40, cutOff)
		runs(t, d, e, policy.Standard, 20, cutOff)
		d.Lost(time.Now(), "chat", 30)
		for pool, want := range map[string]int{"chat-fp16": 20, "chat-dyn": 10, "chat-int8": 0} {
			if _, failed := counts(d, pool); failed != want {
				t.Errorf("%s: %d failures, want %d", pool, failed, want)
			}
		}
		d.Lost(time.Now(), "chat", 100)
		for pool, want := range map[string]int{"chat-fp16": 40, "chat-dyn": 20, "chat-int8": 0} {
			if _, failed := counts(d, pool); failed != want {
				t.Errorf("%s: %d failures in all, want %d", pool, failed, want)
			}
		}
	})
}

// B2, B6: a probe that was broken off in the middle opens the breaker again when
// Envoy tells of it; one whose caller left does not, and neither does what ran
// before recovery.
func TestLostProbe(t *testing.T) {
	for _, lost := range []int64{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			p := house(100, func(p *policy.Policy) { p.Breaker.ReleaseStep = 30 * time.Second })
			d, e := newTestDesk(t, p), effective(t, p)
			b := d.Breaker("chat-fp16")
			fail(b, time.Now(), 30)
			time.Sleep(7 * time.Second)
			runs(t, d, e, policy.Critical, 1, cutOff)
			d.Lost(time.Now(), "chat-fp16", lost)
			if s := b.View(time.Now()).State; (s == breaker.Hard) != (lost > 0) {
				t.Errorf("%d lost: %v", lost, s)
			}
		})
	}
}
