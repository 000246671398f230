package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// checkQuotas finds rules that can never bind.
func (d *decoder) checkQuotas(p *Policy, prefix string) {
	for i := range p.Quotas {
		q := &p.Quotas[i]
		at := prefix + "quotas[" + strconv.Itoa(i) + "]"
		for j := range i {
			if p.Quotas[j].Name == q.Name {
				d.failAt(at+".name", q.Name, fmt.Sprintf("is the name of quotas[%d] too: they would share their counters", j))
				break
			}
		}
		d.checkQuotaMatch(p, &q.Match, at+".match")
		d.checkUnreadClaims(p, q, at)
		for j, l := range q.Limits {
			for k, m := range q.Limits[:j] {
				if l.Unit == m.Unit && l.Per == m.Per {
					d.failAt(fmt.Sprintf("%s.limits[%d]", at, j), "", fmt.Sprintf("limits what limits[%d] limits: keep the smaller one", k))
					break
				}
			}
		}
	}
}

// checkQuotaMatch: whatever the rule names must be there to be met.
func (d *decoder) checkQuotaMatch(p *Policy, m *Match, at string) {
	if m.Model != "" && !slices.ContainsFunc(p.Models, func(o Model) bool { return fits(m.Model, o.Name) }) {
		d.failAt(at+".model", m.Model, listOf("can never match: the models are", modelNames(p.Models), "there are no models"))
	}
	if m.Tier != "" && !slices.ContainsFunc(p.Tiers, func(t Tier) bool { return fits(m.Tier, t.Name) }) {
		d.failAt(at+".tier", m.Tier, listOf("can never match: the tiers are", tierNames(p.Tiers), ""))
	}
	if m.Tenant == "" {
		return
	}
	for i := range p.Tenants {
		t := &p.Tenants[i]
		if covers(t.Match.Tenant, m.Tenant) {
			if t.Block {
				d.failAt(at+".tenant", m.Tenant, fmt.Sprintf("can never match: tenants[%d] blocks every such call", i))
			}
			return
		}
	}
}

// checkUnreadClaims: a counter by what no token says would be one for all.
func (d *decoder) checkUnreadClaims(p *Policy, q *QuotaRule, at string) {
	for _, claim := range []struct{ key, claim, match string }{
		{"user", p.Identity.Claims.User, q.Match.User},
		{"key", p.Identity.Claims.Key, q.Match.Key},
	} {
		if claim.claim != "" {
			continue
		}
		if i := slices.Index(q.By, claim.key); i >= 0 {
			d.failAt(fmt.Sprintf("%s.by[%d]", at, i), claim.key, "no token says it: identity.claims."+claim.key+` is ""`)
		}
		if claim.match != "" {
			d.failAt(at+".match."+claim.key, claim.match, "can never match: identity.claims."+claim.key+` is ""`)
		}
	}
	if q.Match.Function != "" && strings.HasSuffix(q.Match.Function, "*") && q.Match.Function != "*" {
		if !slices.ContainsFunc(p.APIs, func(a API) bool { return fits(q.Match.Function, a.Function) }) {
			d.failAt(at+".match.function", q.Match.Function, "can never match: no API has such a function")
		}
	}
}

// notesOf says what the policy means where that is not what it says.
func notesOf(p *Policy) []string {
	var notes []string
	notes = append(notes, classNotes(p)...)
	for _, name := range p.ProfileNames() {
		for _, n := range classNotes(p.profiles[name]) {
			if !slices.Contains(notes, n) {
				notes = append(notes, "profile "+name+": "+n)
			}
		}
	}
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

func classNotes(p *Policy) []string {
	var notes []string
	for i := range p.Models {
		for c := range p.Classes {
			notes = append(notes, variantNotes(p, &p.Models[i], &p.Classes[c])...)
		}
	}
	return notes
}

// variantNotes: V1's mapping and what degrading (V2) comes to.
func variantNotes(p *Policy, m *Model, c *ClassPolicy) []string {
	var notes []string
	pools := p.PoolsFor(m, c.Variant)
	if len(pools) == 0 {
		return nil
	}
	got := pools[0].Variant
	if got != c.Variant {
		why := "the next higher precision"
		if got.Rank() < c.Variant.Rank() {
			why = "the highest precision there is"
		}
		notes = append(notes, fmt.Sprintf("model %s: class %s asks for %s, no pool has it: %s is used, %s", m.Name, c.Class, c.Variant, got, why))
	}
	if c.OnExpiry == ExpireDegrade && c.MaxWait > 0 && !hasLower(p, m, got) {
		notes = append(notes, fmt.Sprintf("model %s: class %s degrades when its wait is over, but no pool is below %s: it gets 429 then", m.Name, c.Class, got))
	}
	return notes
}

func hasLower(p *Policy, m *Model, v Variant) bool {
	for _, name := range m.Pools {
		if pool, ok := p.Pool(name); ok && pool.Variant.Rank() < v.Rank() {
			return true
		}
	}
	return false
}

// Notes say what a valid policy means where that may surprise: a precision
// that stands in for another (V1), degrading to nowhere, shares of a quota.
func (p *Policy) Notes() []string { return slices.Clone(p.notes) }
