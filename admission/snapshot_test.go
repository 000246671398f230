package admission

import (
	"slices"
	"testing"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// The picture of a pool names whose seats are whose (P6, P8, P9) and between
// which bounds adaptive seats move (Q9).
func TestSnapshotOfShares(t *testing.T) {
	p := house(4, func(p *policy.Policy) {
		p.Shares.Priority = 0.25
		p.Tiers = []policy.Tier{{Name: "gold", Weight: 1, Share: 0.5}, {Name: "silver", Weight: 1, Share: 0.5}, {Name: "bronze", Weight: 1}}
		p.Pools[2].Adaptive = &policy.Adaptive{Min: 2, Max: 9}
	})
	core, e := newTestCore(p), effective(t, p)
	for i, r := range []struct {
		tier             string
		stream, priority bool
	}{{tier: "gold", stream: true}, {tier: "gold"}, {tier: "bronze", priority: true}, {tier: "bronze"}, {tier: "silver"}, {tier: "silver", priority: true}} {
		a := ask(e, name("r", i), "acme", policy.Critical)
		a.Identity.Tier, a.Stream, a.Priority = r.tier, r.stream, r.priority
		core.Enter(start, core.Plan(start, a), allowed)
	}
	s := core.Stats(start)
	seats := func(n int64) policy.Seats { return policy.Seats{Requests: n} }
	used := func(n int64) policy.Seats { return policy.Seats{Requests: n, Tokens: 200 * n} }
	if got, want := s[0].Priority, (queue.Part{Seats: seats(1), Used: used(1), Waiting: 1}); got != want {
		t.Errorf("the lane has %+v, want %+v", got, want)
	}
	if want := []Tier{
		{"gold", queue.Part{Seats: seats(2), Used: used(2), Streaming: 1}},
		{"silver", queue.Part{Seats: seats(1), Waiting: 2}},
		{"bronze", queue.Part{Used: used(1)}},
	}; !slices.Equal(s[0].Tiers, want) {
		t.Errorf("tiers have %+v, want %+v", s[0].Tiers, want)
	}
	if s[0].Least != 0 || s[0].Most != 0 || s[2].Least != 2 || s[2].Most != 9 || s[2].Wanted != 2 {
		t.Errorf("bounds %d..%d of fixed seats, %d..%d of %d adaptive ones; want none and 2..9 of 2", s[0].Least, s[0].Most, s[2].Least, s[2].Most, s[2].Wanted)
	}
	for i := range p.Tiers {
		p.Tiers[i].Share = 0
	}
	if got := newTestCore(p).Stats(start)[0].Tiers; len(got) != 1 || got[0].Name != "" || got[0].Seats != seats(3) {
		t.Errorf("without shares: %+v, want one without a name that has all but the lane's", got)
	}
}
