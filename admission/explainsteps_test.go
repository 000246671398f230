package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// steps of a decision that a room of that name left.
func steps(d *Decision, what string) (found []Step) {
	for _, s := range d.Trail.Steps[:d.Trail.N] {
		if s.What == what {
			found = append(found, s)
		}
	}
	return found
}

// P9: who waits or is refused is told the seats of its tier, in the trail; who
// finds a seat at once, and where tiers have no shares, nothing.
func TestTrailShowsTheTiersShare(t *testing.T) {
	shares := func(p *policy.Policy) {
		p.Shares.Priority = 0
		p.Tiers = []policy.Tier{{Name: "gold", Weight: 1, Share: 0.4}, {Name: "silver", Weight: 1, Share: 0.6}}
	}
	p := house(5, shares, func(p *policy.Policy) { p.Queue.Length.Min, p.Queue.Length.Max = 2, 2 })
	core, e := newTestCore(p), effective(t, p)
	enter := func(id, tier string) *Decision {
		r := ask(e, id, tier, policy.Critical)
		r.Identity.Tier = tier
		plan := core.Plan(start, r)
		if !plan.Refused() {
			core.Enter(start, plan, allowed)
		}
		return &plan.Decision
	}
	for i := range 5 {
		if d := enter(name("s", i), "silver"); len(steps(d, "tier_share")) != 0 {
			t.Errorf("at once: %+v", d.Trail)
		}
	}
	for i, c := range []struct {
		tier string
		want Step
	}{
		{"gold", Step{RoomQueue, "tier_share", 0, 2, true}},    // waits
		{"silver", Step{RoomQueue, "tier_share", 5, 3, false}}, // waits
		{"silver", Step{RoomQueue, "tier_share", 5, 3, false}}, // the line is full
	} {
		d := enter(name("w", i), c.tier)
		if got := steps(d, "tier_share"); len(got) != 1 || got[0] != c.want {
			t.Errorf("%d: %+v, want %+v", i, d.Trail, c.want)
		}
		if last := d.Trail.Steps[d.Trail.N-1]; last.What == "tier_share" {
			t.Errorf("%d: the line's own word is missing: %+v", i, d.Trail)
		}
	}
	var text strings.Builder
	rec := Record{Decision: *enter("x", "silver")}
	if err := rec.Render(&text); err != nil || !strings.Contains(text.String(), "tier_share") {
		t.Errorf("%v: %s", err, text.String())
	}

	p = house(1, func(p *policy.Policy) {
		for i := range p.Tiers {
			p.Tiers[i].Share = 0
		}
	})
	core, e = newTestCore(p), effective(t, p)
	enter("a", "gold")
	if d := enter("b", "gold"); len(steps(d, "tier_share")) != 0 || len(steps(d, "position")) != 1 {
		t.Errorf("without shares: %+v", d.Trail)
	}
}

// Q5: who claims a booking has that in its trail, whether it waits, gets a seat
// at once or finds the line full; who comes for the first time, or early, not.
func TestTrailShowsAClaimedBooking(t *testing.T) {
	for _, ends := range []int{0, 1, 3} { // of 1 that runs and 2 that wait
		p := house(1, func(p *policy.Policy) { p.Queue.Length.Min, p.Queue.Length.Max = 2, 2 })
		core, e := newTestCore(p), effective(t, p)
		var plans []*Plan
		enter := func(now time.Time, tenant string, attempt int) *Plan {
			r := ask(e, fmt.Sprint(tenant, attempt), tenant, policy.Critical)
			r.Attempt = attempt
			plan := core.Plan(now, r)
			if !plan.Refused() {
				core.Enter(now, plan, allowed)
			}
			return plan
		}
		for i := range 3 {
			plans = append(plans, enter(start, name("t", i), 0))
		}
		first := &enter(start, "late", 0).Decision
		if first.RetryAfter <= 0 || len(steps(first, "booking")) != 0 {
			t.Fatalf("first try: %+v", first)
		}
		back := start.Add(first.RetryAfter)
		if ends < 3 {
			for i := range plans { // nobody's time ends meanwhile
				core.Cancel(back.Add(-1), plans[i])
			}
			for i := range 2 {
				plans[1+i] = enter(back.Add(-1), name("u", i), 0)
			}
		}
		for _, plan := range plans[:ends] {
			if plan.seat != nil {
				core.Done(back, plan, &End{Usage: Usage{Known: true}})
			} else {
				core.Cancel(back, plan)
			}
		}
		d := &enter(back, "late", 1).Decision
		limit := (e.RetryAfter.Max + e.RetryAfter.Grace).Seconds()
		want := Step{RoomQueue, "booking", first.RetryAfter.Seconds(), limit, true}
		if got := steps(d, "booking"); len(got) != 1 || got[0] != want {
			t.Errorf("%d ended, %s: %+v, want %+v", ends, d.Reason, d.Trail.Steps[:d.Trail.N], want)
		}
	}
}
