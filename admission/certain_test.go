package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// A guess refuses nobody for good; what is too large by its least is.
func TestNothingFinalStandsOnAGuess(t *testing.T) {
	tokens := func(seats, limit int64) *policy.Policy {
		return house(4, withQuotas(policy.Limit{Unit: policy.Tokens, Max: limit, Per: 60e9}, policy.Limit{Unit: policy.InputTokens, Max: limit, Per: 60e9}),
			func(p *policy.Policy) {
				for i := range p.Pools {
					p.Pools[i].Seats.Tokens = seats
				}
			})
	}
	for _, c := range []struct {
		name         string
		seats, limit int64
		edit         func(*Request)
		want         Reason
	}{
		{"the guess is larger than the pool", 8000, 1e6, func(r *Request) { r.Prompt = 100_000 }, Admitted},
		{"choices are, as guessed", 8000, 1e6, func(r *Request) { r.Choices = 128 }, Admitted},
		{"the guess is larger than the limit", 1e6, 8000, func(r *Request) { r.Prompt = 100_000 }, Admitted},
		{"its output alone is", 1e6, 400, func(r *Request) { r.Choices = 64 }, Admitted},
		{"the least is larger than the pool", 6000, 1e6, func(r *Request) { r.Prompt = 100_000 }, TooLarge},
		{"ids are", 6000, 1e6, func(r *Request) { r.Tokens = 6001 }, TooLarge},
		{"what is demanded is", 6000, 1e6, func(r *Request) { r.Choices, r.MinOut, r.MaxOut = 3, 7000, 0 }, TooLarge},
		{"the least is larger than the limit", 1e6, 6000, func(r *Request) { r.Prompt = 100_000 }, QuotaNever},
		{"ids are larger than the limit", 1e6, 6000, func(r *Request) { r.Tokens = 6001 }, QuotaNever},
	} {
		p := tokens(c.seats, c.limit)
		d := newTestDesk(t, p)
		r := ask(effective(t, p), "a", "acme", policy.Standard)
		c.edit(r)
		ticket, dec := d.Admit(t.Context(), r)
		if dec.Reason != c.want {
			t.Errorf("%s: %s %s, want %s", c.name, dec.Reason, dec.Detail, c.want)
		}
		if ticket != nil {
			ticket.Done(End{Result: ResultOK})
		}
	}
}

// The case of acceptance: short prompts of one tenant, then a long one of
// another, in a pool of 8,000 tokens and under a limit of 10,000.
func TestShortPromptsThenALongOne(t *testing.T) {
	p := house(10, withQuotas(policy.Limit{Unit: policy.Tokens, Max: 10_000, Per: 60e9}), func(p *policy.Policy) {
		for i := range p.Pools {
			p.Pools[i].Seats.Tokens = 8000
		}
	})
	e := effective(t, p)
	d := newTestDesk(t, p)
	for i := range 100 {
		r := ask(e, fmt.Sprint("a", i), "a", policy.Standard)
		r.Prompt = 2
		ticket, dec := d.Admit(t.Context(), r)
		if ticket == nil {
			t.Fatalf("%d: %s", i, dec.Reason)
		}
		ticket.Done(End{Result: ResultOK, Learn: true, Usage: Usage{Known: true, InputKnown: true, Input: 9, Output: 1}})
	}
	for _, tenant := range []string{"b", "a"} {
		r := ask(e, "long-"+tenant, tenant, policy.Standard)
		r.Prompt, r.MaxOut = 12_000, 0
		ticket, dec := d.Admit(t.Context(), r)
		if ticket == nil {
			t.Fatalf("%s: %s %s", tenant, dec.Reason, dec.Detail)
		}
		if in, _ := ticket.Estimate(); in < 3000 || in > 3030 {
			t.Errorf("%s: %d in, want 3000", tenant, in)
		}
		ticket.Done(End{Result: ResultOK})
	}
}

// What is reserved, what the seat takes and what the queue counts are one sum.
func TestOneSum(t *testing.T) {
	p := house(10, withQuotas(policy.Limit{Unit: policy.Tokens, Max: 1e9, Per: 60e9}), func(p *policy.Policy) {
		for i := range p.Pools {
			p.Pools[i].Seats.Tokens = 1e9
		}
	})
	r := ask(effective(t, p), "a", "acme", policy.Standard)
	r.Choices, r.MaxOut = 128, 0
	plan := newTestCore(p).Plan(start, r)
	const want = 100 + 128*512
	if got := plan.Claims[0].Amount.Of(policy.Tokens); got != want || plan.waiter.Tokens != want || plan.waiter.Cost != want {
		t.Errorf("reserved %d, seat %d, price %d, want %d", got, plan.waiter.Tokens, plan.waiter.Cost, want)
	}
}

// Claims are cut to limits, never below the least, in any order of limits.
func TestBoundKeepsTheLeast(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	units := []policy.Unit{policy.Tokens, policy.InputTokens, policy.OutputTokens, policy.Requests, policy.Concurrency}
	for range 20_000 {
		least := quota.Amount{Requests: 1, Input: rng.Int64N(100), Output: rng.Int64N(100), Concurrency: 1}
		a := least
		a.Input += rng.Int64N(1000)
		a.Output += rng.Int64N(1000)
		claim := quota.Claim{Amount: a}
		for range 1 + rng.IntN(4) {
			claim.Limits = append(claim.Limits, policy.Limit{Unit: units[rng.IntN(len(units))], Max: rng.Int64N(1500)})
		}
		bound([]quota.Claim{claim}, least)
		claims := []quota.Claim{claim}
		bound(claims, least)
		got := claims[0].Amount
		if got.Input < least.Input || got.Output < least.Output || got.Input > a.Input || got.Output > a.Output {
			t.Fatalf("%+v became %+v, at least %+v", a, got, least)
		}
		for _, l := range claim.Limits {
			if least.Of(l.Unit) <= l.Max && got.Of(l.Unit) > l.Max {
				t.Fatalf("%+v is above %+v, though %+v is not", got, l, least)
			}
		}
	}
}
