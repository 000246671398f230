package admission

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// B9: many tenants, each with few failures, at a pool that is away: nobody is
// to try again; the first success of anybody ends it.
func TestOutageIsForAll(t *testing.T) {
	p := house(1000, func(p *policy.Policy) { p.Breaker.Off = true })
	core, e := newTestCore(p), effective(t, p)
	end := func(now time.Time, n int, result Result) (b Pushback) {
		plan := core.Plan(now, ask(e, name("r", n), name("tenant", n), policy.Critical))
		if plan.Refused() || core.Enter(now, plan, allowed) != Entered {
			t.Fatalf("%d: %s", n, plan.Decision.Reason)
		}
		if result == ResultFailed {
			b = core.Failing(now, plan, true)
		}
		core.Done(now, plan, &End{Result: result})
		return b
	}
	for n := range 30 { // as of one connection that was lost, at one instant
		if b := end(start, n, ResultFailed); b.Stop {
			t.Fatalf("failure %d at one instant: told to stop", n+1)
		}
	}
	now := start.Add(p.Retry.Base)
	if b := end(now, 30, ResultFailed); !b.Stop {
		t.Error("31 failures and nothing else within the base of the back-off: not told to stop")
	}
	if b := end(now, 31, ResultOK); b.Stop {
		t.Error("a success was told to stop")
	}
	for n := range 2*p.Retry.Storm - 1 {
		if b := end(now.Add(time.Duration(n)*p.Retry.Base), 40+n, ResultFailed); b.Stop {
			t.Errorf("failure %d after a success: told to stop", n+1)
		}
	}
	now = now.Add(2 * time.Duration(p.Retry.Storm) * p.Retry.Base)
	if b := end(now, 60, ResultFailed); !b.Stop {
		t.Errorf("failure %d after a success: not told to stop", 2*p.Retry.Storm)
	}
	if b := end(now.Add(remembered(&p.Retry)+ms), 61, ResultFailed); b.Stop {
		t.Error("a failure long after the others: told to stop")
	}
}

// Who is refused at a pool that is away is told to stop too, whoever it is.
func TestOutageAtTheDoor(t *testing.T) {
	p := house(1000, only)
	core, e := newTestCore(p), effective(t, p)
	for n := range 20 {
		now := start.Add(time.Duration(n) * 10 * ms)
		plan := core.Plan(now, ask(e, name("r", n), name("tenant", n), policy.Critical))
		if core.Enter(now, plan, allowed) == Entered {
			core.Done(now, plan, &End{Result: ResultFailed})
		}
	}
	d := core.Plan(start.Add(200*ms), ask(e, "r", "another", policy.Critical)).Decision
	if d.Reason != BreakerOpen || !d.NoRetry {
		t.Errorf("%s, stop %v: want breaker_open and stop", d.Reason, d.NoRetry)
	}
}

// Where the breaker opens before so many have failed, those that it refuses
// count with them, if what failed failed in a row.
func TestOutageOfAQuietPool(t *testing.T) {
	for _, tt := range []struct {
		name string
		ends string // of the calls before: ok or failed
		stop bool
	}{
		{"fourteen and then none", "oooooooooooooo" + "ffffff", true},
		{"now and then one", "ooof" + "ooof" + "ooof" + "oofof" + "off", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := house(1000, only)
			core, e := newTestCore(p), effective(t, p)
			now := start
			for n, end := range tt.ends {
				now = now.Add(50 * ms)
				plan := core.Plan(now, ask(e, name("r", n), name("tenant", n), policy.Critical))
				if core.Enter(now, plan, allowed) != Entered {
					t.Fatalf("%d: %s", n, plan.Decision.Reason)
				}
				core.Done(now, plan, &End{Result: map[rune]Result{'o': ResultOK, 'f': ResultFailed}[end]})
			}
			for n := range 30 {
				now = now.Add(10 * ms)
				d := core.Plan(now, ask(e, name("late", n), name("other", n), policy.Batch)).Decision
				if d.Reason != BreakerShed {
					t.Fatalf("refusal %d: %s, want breaker_shed", n+1, d.Reason)
				}
				if want := tt.stop && n+1 >= 14; d.NoRetry != want { // 6 failed and 14 refused are 2 * storm
					t.Errorf("refusal %d: told to stop %v, want %v", n+1, d.NoRetry, want)
				}
			}
		})
	}
}
