package admission

import (
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// applyTenant applies the policy's word on the tenant, which wins over the
// claim, and gives its tier.
func (p *Plan) applyTenant(now time.Time) (tier string) {
	class, tier, blocked := p.Request.standing()
	p.Class = class
	if blocked {
		p.refuse(now, TenantBlocked, 0, "")
	}
	return tier
}

// standing is what the policy makes of the class and tier that the request
// comes with.
func (r *Request) standing() (class policy.Class, tier string, blocked bool) {
	class, tier = r.Policy.Cap(r.Class), r.Identity.Tier
	rule := r.Policy.Tenant(r.Identity.Tenant)
	if rule == nil {
		return class, tier, false
	}
	if rule.Class != nil {
		class = class.Lower(*rule.Class)
	}
	if rule.Tier != "" {
		tier = rule.Tier
	}
	return class, tier, rule.Block
}

// claim lists what the request asks of the ledger (T7, T8), at the rate of the
// pool where it wants to run (V2).
func (p *Plan) claim(tier string) {
	p.Amount = p.pool.bill(quota.Amount{Requests: 1, Input: p.Input, Output: p.Output, Concurrency: 1})
	p.Claims = quota.Claims(p.Request.Policy.Quotas, p.subject(tier), p.Amount)
	if len(p.Claims) > 0 {
		input, output := p.Request.least()
		bound(p.Claims, p.pool.bill(quota.Amount{Requests: 1, Input: input, Output: output, Concurrency: 1}))
	}
}

// subject is what quotas look at.
func (p *Plan) subject(tier string) policy.Subject {
	r := p.Request
	return policy.Subject{
		Tenant: r.Identity.Tenant, Tier: tier, User: r.Identity.User, Key: r.Identity.Key,
		Model: r.Model, Function: r.Function, Class: p.Class,
	}
}
