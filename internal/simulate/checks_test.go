package simulate

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

// still is a world of two seats at time 0 and a caller who has one of them.
func still(t *testing.T) (*world, *caller) {
	t.Helper()
	s := places(1, time.Second)
	w, err := newWorld(s, Candidate{Policy: one(2)})
	if err != nil {
		t.Fatal(err)
	}
	c := &caller{client: &s.Clients[0], identity: &identity.Identity{Tenant: "a"}, class: policy.Standard, prompt: 1, output: 1, counted: true}
	w.alive++
	w.tally.sent(c)
	w.try(c)
	if len(w.checks.faults) != 0 || c.state != onSeat {
		t.Fatalf("faults %q, state %d", w.checks.faults, c.state)
	}
	return w, c
}

// Each check sees what it is there for.
func TestChecksSee(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*world, *caller)
		want string
	}{
		{"decided twice", func(w *world, c *caller) { w.checkDecided(c) }, "decided twice"},
		{"a reason that does not fit", func(w *world, c *caller) {
			c.tries++
			c.plan.Decision.Reason = admission.QueueFull
			w.checkDecided(c)
		}, `reason "queue_full" does not fit`},
		{"waited too long", func(w *world, c *caller) {
			c.tries++
			w.now = 501 * time.Millisecond
			w.checkDecided(c)
		}, "waited 501ms, its limit is 500ms"},
		{"waited beyond its own deadline", func(w *world, c *caller) {
			c.tries++
			c.deadline, w.now = 10*time.Millisecond, 11*time.Millisecond
			w.checkDecided(c)
		}, "its own deadline is 10ms"},
		{"a seat too many", func(w *world, c *caller) {
			w.checkGrant(c)
			w.checkGrant(c)
		}, "gave out 3 seats"},
		{"a try without a decision", func(w *world, _ *caller) {
			w.checks.tries++
			w.checkEmpty()
		}, "2 tries, 1 decisions"},
		{"somebody is left", func(w *world, _ *caller) { w.checkEmpty() }, "1 callers are neither served nor gone"},
		{"a seat is left", func(w *world, _ *caller) { w.checkEmpty() }, "seats {Requests:1"},
		{"an engine still works", func(w *world, _ *caller) { w.checkEmpty() }, "1 requests are left, 1 of them running"},
		{"without end", func(w *world, _ *caller) {
			for range maxTurns {
				w.checks.turns(w, 0)
			}
		}, "without end"},
	} {
		w, k := still(t)
		c.do(w, k)
		if all := strings.Join(w.checks.list(), "; "); !strings.Contains(all, c.want) {
			t.Errorf("%s: %q, want %q", c.name, all, c.want)
		}
	}
}

// What a watchdog adds to a pool is there to be given, in both currencies.
func TestChecksKnowWhatAWatchdogAdds(t *testing.T) {
	s := places(40, 20*time.Second)
	s.Engines["chat-fp16"] = Engine{Batch: modelsim.EngineConfig{Running: 100, KVTokens: 1e6, StepBase: 50 * time.Millisecond}}
	p := one(100, endless, func(p *policy.Policy) {
		p.Pools[0].Seats.Tokens = 1200 // ten requests: the engine has room for more
		p.Queue.Watchdog = policy.Watchdog{After: 2 * time.Second, Step: 0.5, Max: 0.5}
	})
	most := 0
	for _, sample := range play(t, s, p).Series {
		most = max(most, sample.Running)
	}
	if most != 15 {
		t.Errorf("%d ran at a time, want half as many again as ten", most)
	}
}

// One defect that shows many times does not fill the memory.
func TestFaultsAreBounded(t *testing.T) {
	var k checks
	for i := range 1000 {
		k.fault("fault %d", i)
	}
	if got := k.list(); len(got) != maxFaults+1 || got[maxFaults] != "and 980 more" {
		t.Errorf("%d faults, the last one %q", len(got), got[len(got)-1])
	}
}
