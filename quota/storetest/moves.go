package storetest

import (
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// ruled is a policy of one rule.
func ruled(q policy.QuotaRule) *policy.Policy {
	p := policy.Default()
	q.By = []string{"tenant"}
	p.Quotas = []policy.QuotaRule{q}
	return p.Finish()
}

// follow tells the store of a new policy and gives the claim that it makes.
func (h *house) follow(m *quota.Moves, old, next *policy.Policy, a quota.Amount) quota.Claim {
	h.Helper()
	mover, ok := h.store.(quota.Mover)
	if !ok {
		h.Fatal("the store takes no usage along")
	}
	*m = m.MovesOf(old, next)
	mover.Move(*m)
	return quota.Claims(next.Quotas, policy.Subject{Tenant: "acme"}, a)[0]
}

// A limit whose period changes begins with what the old one counts, each cell
// as if all of it had been used at the cell's end: never with less.
func moves(h *house) {
	for i, c := range []struct {
		per   time.Duration
		then  map[time.Duration]int64 // after the first of three calls, one each 10 s
		fresh time.Duration           // by then nothing counts
	}{
		{2 * time.Minute, map[time.Duration]int64{30 * time.Second: 300, 119 * time.Second: 300, 124 * time.Second: 200}, 3 * time.Minute},
		{30 * time.Second, map[time.Duration]int64{30 * time.Second: 300, 33 * time.Second: 200, 43 * time.Second: 100}, time.Minute},
		{time.Hour, map[time.Duration]int64{30 * time.Second: 300, 59 * time.Minute: 300}, 63 * time.Minute},
		{10 * time.Second, map[time.Duration]int64{30 * time.Second: 100}, 45 * time.Second},
	} {
		name := string(rune('a' + i))
		old := ruled(policy.QuotaRule{Name: name, Limits: []policy.Limit{tokens(1000, time.Minute), atOnce(100)}})
		before := quota.Claims(old.Quotas, policy.Subject{Tenant: "acme"}, call(100))[0]
		for n := range 3 {
			id := name + string(rune('0'+n))
			h.admit(time.Duration(n)*10*time.Second, id, before)
			h.settle(time.Duration(n)*10*time.Second, id, call(100), before)
		}
		limit := tokens(1000, c.per)
		var m quota.Moves
		after := h.follow(&m, old, ruled(policy.QuotaRule{Name: name, Limits: []policy.Limit{limit, atOnce(100)}}), call(0))
		probe := after
		probe.Amount = call(1001 - c.then[30*time.Second])
		if v := h.refuse(30*time.Second, name+"-probe", probe); v.Used != c.then[30*time.Second] {
			h.Errorf("per %v: %d are used, want %d", c.per, v.Used, c.then[30*time.Second])
		}
		for at, want := range c.then {
			h.wantUsed(at, "acme", name, limit, want)
		}
		h.wantUsed(c.fresh, "acme", name, limit, 0)
	}
}

// What a period took over goes on to the next, also where nobody came between,
// and back.
func movesAgain(h *house) {
	policies := []*policy.Policy{}
	for _, per := range []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, time.Minute} {
		policies = append(policies, ruled(policy.QuotaRule{Name: "r", Limits: []policy.Limit{tokens(1000, per)}}))
	}
	first := quota.Claims(policies[0].Quotas, policy.Subject{Tenant: "acme"}, call(900))[0]
	h.admit(0, "a", first)
	h.settle(0, "a", call(900), first)
	var m quota.Moves
	h.follow(&m, policies[0], policies[1], call(0)) // nobody comes
	c := h.follow(&m, policies[1], policies[2], call(200))
	if v := h.refuse(time.Second, "b", c); v.Used != 900 {
		h.Errorf("%d are used, want 900", v.Used)
	}
	c = h.follow(&m, policies[2], policies[3], call(200))
	if v := h.refuse(2*time.Second, "c", c); v.Used != 900 {
		h.Errorf("back again %d are used, want 900", v.Used)
	}
}

// A renamed rule that keeps its id keeps its usage.
func renames(h *house) {
	limit := tokens(1000, time.Minute)
	old := ruled(policy.QuotaRule{Name: "old", Limits: []policy.Limit{limit}})
	next := ruled(policy.QuotaRule{Name: "new", ID: "old", Limits: []policy.Limit{limit}})
	first := quota.Claims(old.Quotas, policy.Subject{Tenant: "acme"}, call(900))[0]
	h.admit(0, "a", first)
	var m quota.Moves
	c := h.follow(&m, old, next, call(200))
	if v := h.refuse(time.Second, "b", c); v.Used != 900 || v.Rule != "new" {
		h.Errorf("%+v, want 900 used of the rule new", v)
	}
	h.settle(time.Second, "a", call(100), first)
	h.wantUsed(2*time.Second, "acme", "old", limit, 100)
}
