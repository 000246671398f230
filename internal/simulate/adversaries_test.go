package simulate

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// duel is a world of 20 places in which two tenants, honest and rogue, ask for
// what they please; what the rogue's stream differs in, edit says.
func duel(rate, rogue float64, edit func(*Arrival)) *Scenario {
	s := places(rate, 10*time.Second, service(func(v *Service) { v.Places, v.Time, v.Spread = 20, 100*time.Millisecond, 0.5 }))
	s.Warmup = 2 * time.Second
	s.Clients[0].Tries = 1
	s.Arrivals[0].Tenants = &Tenants{Name: "honest"}
	other := s.Arrivals[0]
	other.Rate, other.Tenants = rogue, &Tenants{Name: "rogue"}
	edit(&other)
	s.Arrivals = append(s.Arrivals, other)
	return s
}

// patient lets requests of every class wait for two seconds.
func patient(p *policy.Policy) {
	for i := range p.Classes {
		p.Classes[i].MaxWait, p.Classes[i].OnExpiry = 2*time.Second, policy.ExpireDrop
	}
}

func served(r *Result, tenant string) float64 { return float64(r.Tenants[tenant].Served) }

// Whoever understates max_tokens, has thousands of keys or storms the line and
// hangs up gets no more than an honest tenant (P2, T8), nor who sends what goes
// first in its own flow (P6).
func TestRoguesGainNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		rate float64
		edit func(*Arrival)
	}{
		{"equals", 300, func(*Arrival) {}},
		{"asks ten times as often", 2000, func(*Arrival) {}},
		{"understates", 300, func(a *Arrival) {
			a.Requests = []Mix{{Share: 1, Class: policy.Standard, Prompt: Dist{A: 100}, Output: Dist{A: 20}, MaxTokens: 20, Understate: 0.05}}
		}},
		{"thousands of keys", 2000, func(a *Arrival) { a.Tenants.Keys = 5000 }},
		{"stubborn", 300, func(a *Arrival) {
			a.Clients = []Client{{Share: 1, Kind: Stubborn, Every: 20 * time.Millisecond, Tries: 100, Patience: 300 * time.Millisecond}}
		}},
		{"streams", 300, func(a *Arrival) {
			a.Requests = []Mix{{Share: 1, Class: policy.Standard, Prompt: Dist{A: 100}, Output: Dist{A: 20}, MaxTokens: 20, Stream: 1}}
		}},
		{"cancel storm", 2000, func(a *Arrival) {
			a.Clients = []Client{{Share: 1, Kind: Impatient, Patience: 50 * time.Millisecond, Tries: 1}}
		}},
	} {
		r := play(t, duel(300, c.rate, c.edit), one(20, patient))
		if h, g := served(r, "honest"), served(r, "rogue"); g > 1.1*h {
			t.Errorf("%s: the rogue got %v answers, the honest one %v", c.name, g, h)
		}
	}
}

// A tenant with little traffic waits as if it were alone with equals, whatever
// another sends (P2).
func TestSmallTenantHardlyWaits(t *testing.T) {
	t.Parallel()
	r := play(t, duel(5, 1000, func(*Arrival) {}), one(20, patient))
	k := r.Tenants["honest"]
	if k.Failed != 0 || k.WaitP99 > 100 {
		t.Errorf("the small tenant: %+v: want none failed, and a wait of less than an answer's 100 ms", k)
	}
}
