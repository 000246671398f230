package admission

import (
	"fmt"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// What a request will take is a guess, and a guess refuses nobody for good:
// where it is larger than there is room for, and the least that the request
// can take is not, the request asks for all the room there is.

// fits refuses what no seat of the pool could ever hold (Q9).
func (p *Plan) fits(now time.Time) bool {
	limit := p.pool.spec.Load().Seats.Tokens
	if limit <= 0 {
		return true
	}
	input, output := p.Request.least()
	if need := input + output; need > limit {
		p.giveProbeBack(now)
		p.refuse(now, TooLarge, 0, fmt.Sprintf("needs at least %d tokens, the model has room for %d", need, limit))
		return false
	}
	return true
}

// tokens is what the plan takes of the pool's seats (Q9).
func (p *Plan) tokens(l *pool) int64 {
	need := p.Input + p.Output
	if limit := l.spec.Load().Seats.Tokens; limit > 0 {
		return min(need, limit)
	}
	return need
}

// bound keeps claims within their limits where the least of the request is
// within them: what is larger by its least alone stays, and is refused.
func bound(claims []quota.Claim, least quota.Amount) {
	for i := range claims {
		for _, l := range claims[i].Limits {
			if a := &claims[i].Amount; a.Of(l.Unit) > l.Max && least.Of(l.Unit) <= l.Max {
				*a = cutTo(*a, l, least)
			}
		}
	}
}

// cutTo is an amount cut to a limit of tokens: of both kinds the output goes
// first, which nobody knows.
func cutTo(a quota.Amount, l policy.Limit, least quota.Amount) quota.Amount {
	switch l.Unit {
	case policy.InputTokens:
		a.Input = l.Max
	case policy.OutputTokens:
		a.Output = l.Max
	case policy.Tokens:
		a.Input = min(a.Input, l.Max-least.Output)
		a.Output = l.Max - a.Input
	}
	return a
}
