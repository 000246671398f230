package admission

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// prepare fills in what the line wants to know (P2-P4, P6-P9, Q5, Q9). The
// tiers that share are those of the policy whose pools these are; a profile's
// weigh, but share nothing of their own.
func (p *Plan) prepare(tier string) {
	r := p.Request
	w := &p.waiter
	w.Class, w.Colour, w.Tenant = p.Class, r.Colour, r.Identity.Tenant
	w.Weight = r.Policy.TierWeight(tier)
	w.Cost = max(p.Input+p.Output, 1)
	w.Tokens = p.tokens(p.pool)
	w.Bytes = r.Body
	w.MaxWait, w.OnExpiry = r.wait(p.Class)
	w.Deadline = r.Deadline
	w.Stream, w.Priority, w.Returns = r.Stream, r.Priority, r.Attempt > 0
	w.Handicap = p.handicap(&r.Policy.Queue.Order)
	w.Owner = p
}

// handicap is how much later than it came a request is taken to have come,
// among the requests of its flow (P4, P6), so that nobody is overtaken by one
// that came more than ageing later:
//
//	quick                    0
//	streams, not quick       half of ageing; with order.streaming off, ageing
//	the rest                 ageing
func (p *Plan) handicap(o *policy.Order) time.Duration {
	switch {
	case o.Ageing <= 0 || p.quick(o):
		return 0
	case p.Request.Stream && o.Streaming:
		return o.Ageing / 2
	}
	return o.Ageing
}

// quick reports whether a request is cheap (P4): by the caller's own cap on
// output, by its kind, or by the run time that this pool has taught us to
// expect. A model that is cold here is not quick by that.
func (p *Plan) quick(o *policy.Order) bool {
	r := p.Request
	if r.MaxOut > 0 && r.MaxOut < o.CheapTokens || r.API != nil && r.API.Kind == policy.OpenAIEmbeddings {
		return true
	}
	run, known := p.pool.speeds.predict(p.model, p.Input, r.perChoice(p.Output))
	return known && run < o.CheapTime
}

// nonStreaming is P7's block where it holds for the request; nil = P3 holds.
func (r *Request) nonStreaming() *policy.NonStreaming {
	if r.Stream {
		return nil
	}
	return r.Policy.NonStreaming
}

// wants is the variant that the request is to run on (V1, P7).
func (p *Plan) wants() policy.Variant {
	if n := p.Request.nonStreaming(); n != nil {
		return n.Variant
	}
	return p.Request.Policy.Classes[p.Class].Variant
}

// longest is how long the request may be held as one of a class: its wait, and
// what follows.
func (r *Request) longest(c policy.Class) time.Duration {
	if n := r.nonStreaming(); n != nil {
		return n.MaxWait
	}
	return r.Policy.Longest(c)
}

// wait is how long the request may wait in the line as one of a class, and
// what follows (P3, P7).
func (r *Request) wait(c policy.Class) (time.Duration, policy.Expiry) {
	if n := r.nonStreaming(); n != nil {
		return n.MaxWait, policy.ExpireReject
	}
	return r.Policy.MaxWait[c], r.Policy.Classes[c].OnExpiry
}
