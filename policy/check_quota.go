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
			if p.Quotas[j].CountedAs() == q.CountedAs() {
				d.failAt(at+".id", q.CountedAs(), fmt.Sprintf("is the id, or the name, under which quotas[%d] counts: they would share their counters", j))
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
