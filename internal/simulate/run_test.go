package simulate

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// one is a policy of one pool with so many seats and no bound in tokens, that
// serves every class; edits follow.
func one(seats int64, edits ...func(*policy.Policy)) *policy.Policy {
	p := policy.Default()
	p.Pools = p.Pools[:1]
	p.Pools[0].Seats = policy.Seats{Requests: seats}
	p.Models[0].Pools = p.Models[0].Pools[:1]
	for _, edit := range edits {
		edit(p)
	}
	return p.Finish()
}

func pass(p *policy.Policy) { p.Mode = policy.Pass }

// places is a world of one service: 120 places of 95 ms by default.
func places(rate float64, duration time.Duration, edits ...func(*Scenario)) *Scenario {
	s := &Scenario{
		Name: "test", Seed: 1, Duration: duration,
		Engines:  map[string]Engine{"chat-fp16": {Service: &Service{Places: 120, Time: 95 * time.Millisecond}}},
		Arrivals: []Arrival{{Kind: Steady, Rate: rate, To: duration}},
		Requests: []Mix{{Share: 1, Class: policy.Standard, Prompt: Dist{A: 100}, Output: Dist{A: 20}, MaxTokens: 20}},
		Clients:  []Client{{Share: 1, Kind: Obedient, Marks: true, Patience: time.Minute, Tries: 10, Early: 1}},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func service(f func(*Service)) func(*Scenario) {
	return func(s *Scenario) { f(s.Engines["chat-fp16"].Service) }
}

func client(c Client) func(*Scenario) {
	if c.Tries == 0 {
		c.Tries = 10
	}
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	c.Share = 1
	return func(s *Scenario) { s.Clients = []Client{c} }
}

// play runs a scenario and holds the invariants.
func play(t testing.TB, s *Scenario, p *policy.Policy, reloads ...*policy.Policy) *Result {
	t.Helper()
	r, err := Run(s, Candidate{Name: "test", Policy: p, Reloads: reloads}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Violated {
		t.Error(v)
	}
	return r
}

func near(t testing.TB, what string, got, want, within float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > within {
		t.Errorf("%s = %v, want %v within %v", what, got, want, within)
	}
}

// erlangB is the share that a loss system of n places loses at a load of a
// (A. K. Erlang, 1917), whatever the distribution of service times.
func erlangB(n int, a float64) float64 {
	b := 1.0
	for i := 1; i <= n; i++ {
		b = a * b / (float64(i) + a*b)
	}
	return b
}

// A known system: no queue, Poisson arrivals, 120 places of 95 ms, 1,500/s.
func TestLossSystemLosesByErlangB(t *testing.T) {
	want := erlangB(120, 1500*0.095)
	near(t, "Erlang B", want, 0.185, 0.0005)
	for _, spread := range []float64{0, 1} {
		s := places(1500, 100*time.Second, service(func(v *Service) { v.Spread, v.Beyond = spread, FailBeyond }))
		r := play(t, s, one(1, pass))
		near(t, "lost", float64(r.Failed)/float64(r.Requests), want, 0.005)
		near(t, "answers/s", r.Goodput, 1500*(1-want), 10)
		near(t, "capacity used", r.UtilisationMax, 0.95, 0.05)
	}
}

func TestSame(t *testing.T) {
	s := places(1500, 20*time.Second)
	p := one(120)
	a, b := play(t, s, p), play(t, s, p)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%+v\n%+v", a, b)
	}
}
