package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Notes say what a valid policy means where that may surprise: a precision
// that stands in for another (V1), degrading to nowhere, tiers and waits that
// others may always go before, shares of a quota.
func (p *Policy) Notes() []string { return slices.Clone(p.notes) }

func notesOf(p *Policy) []string {
	notes := append(p.Insecure(), requestNotes(p)...)
	for _, name := range p.ProfileNames() {
		for _, n := range requestNotes(p.profiles[name]) {
			if !slices.Contains(notes, n) {
				notes = append(notes, "profile "+name+": "+n)
			}
		}
	}
	notes = append(notes, seatNotes(p)...)
	notes = append(notes, streetNotes(p)...)
	notes = append(notes, peerNotes(p)...)
	for i := range p.Quotas {
		f := p.Quotas[i].Match.Function
		if f != "" && !slices.ContainsFunc(p.APIs, func(a API) bool { return fits(f, a.Function) }) {
			notes = append(notes, fmt.Sprintf("quota %s: no API has the function %q: it binds only where a route sets it", p.Quotas[i].Name, f))
		}
	}
	if p.Server.Replicas > 1 && p.Store.Redis == nil {
		notes = append(notes, fmt.Sprintf("server.replicas is %d and there is no redis: each weir enforces 1/%d of every quota", p.Server.Replicas, p.Server.Replicas))
	}
	if p.Mode != Enforce {
		notes = append(notes, "mode is "+p.Mode.String()+": nothing is refused by admission")
	}
	return notes
}

// requestNotes are on what a profile may set.
func requestNotes(p *Policy) []string {
	var notes []string
	for i := range p.Models {
		m := &p.Models[i]
		for c := range p.Classes {
			notes = append(notes, classNotes(p, m, &p.Classes[c])...)
		}
		if n := p.NonStreaming; n != nil {
			notes = append(notes, standInNotes(p, m, "nonStreaming", n.Variant)...)
		}
	}
	if p.Body.Priority == KeepPriority {
		notes = append(notes, "body.priority is keep: engines that serve by priority serve the callers first who ask for it")
	}
	for i := range p.Classes {
		c := &p.Classes[i]
		if c.MaxWait > 0 && c.MaxWait <= p.Queue.Order.Ageing && p.Queue.Length.Max > 0 {
			notes = append(notes, fmt.Sprintf("class %s waits %s, no longer than queue.order.ageing, %s: its long requests may be overtaken as long as they wait",
				c.Class, formatDuration(c.MaxWait), formatDuration(p.Queue.Order.Ageing)))
		}
	}
	return notes
}

// classNotes: V1's mapping and what degrading (V2) comes to.
func classNotes(p *Policy, m *Model, c *ClassPolicy) []string {
	notes := standInNotes(p, m, "class "+c.Class.String(), c.Variant)
	if pools := p.PoolsFor(m, c.Variant); len(pools) > 0 && c.OnExpiry == ExpireDegrade && c.MaxWait > 0 && !p.degrades(m, c) {
		notes = append(notes, fmt.Sprintf("model %s: class %s degrades when its wait is over, but no pool is below %s: it gets 429 then", m.Name, c.Class, pools[0].Variant))
	}
	return notes
}

// standInNotes names the pools of another precision that serve one who asks
// for want (V1).
func standInNotes(p *Policy, m *Model, who string, want Variant) []string {
	pools := p.PoolsFor(m, want)
	if len(pools) == 0 || pools[0].Variant == want {
		return nil
	}
	got, names := pools[0].Variant, make([]string, len(pools))
	for i := range pools {
		names[i] = pools[i].Name
	}
	why := "the next higher precision"
	if got.Rank() < want.Rank() {
		why = "the highest precision there is"
	}
	return []string{fmt.Sprintf("model %s: %s asks for %s, no pool has it: %s (%s) is used, %s", m.Name, who, want, strings.Join(names, ", "), got, why)}
}

// seatNotes: who may find no seat while others keep coming (P8, P9).
func seatNotes(p *Policy) []string {
	var notes []string
	guaranteed := slices.ContainsFunc(p.Tiers, func(t Tier) bool { return t.Share > 0 })
	for _, t := range p.Tiers {
		if guaranteed && t.Share == 0 {
			notes = append(notes, "tier "+t.Name+" has no share of the seats: it runs only on what other tiers leave")
		}
	}
	for i := range p.Pools {
		if pool := &p.Pools[i]; p.Shares.Priority > 0 && len(p.PriorityHeaders) > 0 && p.usable(pool) == 1 {
			notes = append(notes, fmt.Sprintf("pool %s: each weir has one seat to give: there is none for the priority lane", pool.Name))
		}
	}
	return notes
}
