package breaker

import (
	"cmp"
	"time"

	"github.com/weirproxy/weir/policy"
)

// KindOf is the kind of the breaker of pools that speak the protocol.
func KindOf(p policy.Protocol) Kind {
	if p == policy.GRPCProtocol {
		return GRPC
	}
	return HTTP
}

// profile is a policy as one kind of breaker reads it; immutable.
type profile struct {
	policy.Breaker
	kind Kind
	cool policy.CoolDown
}

// profileOf reads a policy for a kind (B5): pools open for Open, each time;
// HTTP pools with progressive cool-down for 30 s and on re-opening for 5 min;
// tenants for 5 min, each next time half as long again, 30 min at most.
func profileOf(kind Kind, c policy.Breaker) *profile {
	p := &profile{Breaker: c, kind: kind, cool: policy.CoolDown{First: c.Open, Factor: 1, Cap: c.Open}}
	switch {
	case kind == Tenant:
		t := &c.Tenant
		p.Off = c.Off || !t.On
		p.Soft, p.Hard = cmp.Or(t.Soft, c.Soft), cmp.Or(t.Hard, c.Hard)
		p.MinRequests = cmp.Or(t.MinRequests, c.MinRequests)
		p.cool = policy.CoolDown{
			First:  cmp.Or(t.CoolDown.First, 5*time.Minute),
			Factor: cmp.Or(t.CoolDown.Factor, 1.5),
			Cap:    cmp.Or(t.CoolDown.Cap, 30*time.Minute),
		}
	case kind == HTTP && c.Progressive:
		p.cool = policy.CoolDown{First: 30 * time.Second, Factor: 10, Cap: 5 * time.Minute}
	}
	return p
}

// again is the open time of a breaker that was closed for some time after its
// last one: opening before it has been closed for as long as it was open is
// re-opening, anything else begins anew.
func (p *profile) again(last, closed time.Duration) time.Duration {
	if closed < last {
		return p.next(last)
	}
	return p.cool.First
}

// next is the open time that follows on one when it re-opens; the first where
// there was none.
func (p *profile) next(last time.Duration) time.Duration {
	d := float64(last) * max(p.cool.Factor, 1)
	switch {
	case last <= 0 || d < float64(p.cool.First):
		return p.cool.First
	case d > float64(p.cool.Cap):
		return max(p.cool.Cap, p.cool.First)
	}
	return time.Duration(d)
}
