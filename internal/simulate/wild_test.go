package simulate

import (
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// wild is a scenario drawn by chance: every shape, habit, failure and kind of
// adversary can come up.
func wild(seed uint64) *Scenario {
	rng := rand.New(rand.NewPCG(seed, 11))
	last := 10 * time.Second
	when := func() time.Duration { return time.Duration(rng.Int64N(int64(last))) }
	s := &Scenario{Name: "wild", Seed: seed, Duration: last, Warmup: time.Duration(rng.IntN(3)) * time.Second, Engines: map[string]Engine{}}
	for _, pool := range []string{"chat-fp16", "chat-dyn", "chat-int8"} {
		e := Engine{Batch: modelsim.EngineConfig{Running: 8 + rng.IntN(60), KVTokens: 2000 + rng.Int64N(20000), StepBase: 2 * time.Millisecond, Jitter: rng.Float64()}}
		if rng.IntN(2) == 0 {
			e.Service = &Service{Places: 5 + rng.IntN(60), Time: time.Duration(1+rng.IntN(200)) * time.Millisecond, Spread: rng.Float64(), Beyond: Beyond(rng.IntN(2))}
		}
		e.Sensor = Sensor{Every: time.Duration(rng.IntN(3)) * time.Second, Delay: time.Duration(rng.IntN(3000)) * time.Millisecond}
		for range rng.IntN(4) {
			f := Failure{At: when(), For: when(), Kind: FailureKind(rng.IntN(6)), Value: rng.Float64()}
			if f.Kind == Slow {
				f.Value = 1 + 3*rng.Float64()
			}
			if f.Kind == Resize {
				f.Value = 0.2 + 2*rng.Float64()
			}
			e.Failures = append(e.Failures, f)
		}
		s.Engines[pool] = e
	}
	for range 1 + rng.IntN(3) {
		s.Arrivals = append(s.Arrivals, Arrival{
			Kind: ArrivalKind(rng.IntN(4)), Even: rng.IntN(2) == 0, Rate: 20 + 300*rng.Float64(), Most: 600, Every: 5 * time.Second,
			Length: 2 * time.Second, Swing: rng.Float64(), From: when() / 2, To: last, Burst: rng.IntN(2) == 0,
			Tenants: &Tenants{Name: "t", Count: 1 + rng.IntN(50), Zipf: rng.Float64(), Keys: rng.IntN(5000)},
		})
	}
	for i := range 3 {
		s.Requests = append(s.Requests, Mix{
			Share: 1. / 3, Class: policy.Class(i), Colour: policy.Colour(rng.IntN(4)), Stream: rng.Float64(), Priority: rng.IntN(2) == 0,
			Tier: []string{"", "gold", "bronze"}[rng.IntN(3)], Embedding: rng.IntN(5) == 0, Deadline: time.Duration(rng.IntN(2)*rng.IntN(3000)) * time.Millisecond,
			Prompt: Dist{Kind: LogNormal, A: 50, B: 400}, Output: Dist{Kind: Uniform, A: 1, B: 100},
			MaxTokens: rng.Int64N(200), Understate: float64(rng.IntN(2)) * 0.1,
		})
	}
	for i := range 4 {
		s.Clients = append(s.Clients, Client{
			Share: 0.25, Kind: ClientKind(i), Marks: rng.IntN(2) == 0, Patience: time.Duration(1+rng.IntN(8000)) * time.Millisecond,
			Tries: 1 + rng.IntN(20), Early: 0.1 + 0.9*rng.Float64(), Every: time.Duration(1+rng.IntN(500)) * time.Millisecond,
		})
	}
	for range rng.IntN(3) {
		s.Reloads = append(s.Reloads, Reload{At: when()})
	}
	s.Clock = []ClockStep{{At: when(), Step: -time.Minute}, {At: when(), Step: time.Hour}}
	return s
}

// wildPolicy is a policy drawn by chance, over one to three pools.
func wildPolicy(rng *rand.Rand) *policy.Policy {
	p := policy.Default()
	p.Pools = p.Pools[:1+rng.IntN(3)]
	p.Models[0].Pools = p.Models[0].Pools[:len(p.Pools)]
	for i := range p.Pools {
		p.Pools[i].Seats = policy.Seats{Requests: 1 + rng.Int64N(60), Tokens: rng.Int64N(2) * (3000 + rng.Int64N(20000))}
		p.Pools[i].MaxHold = time.Duration(100+rng.IntN(5000)) * time.Millisecond
		if rng.IntN(3) == 0 {
			p.Pools[i].Adaptive = &policy.Adaptive{Min: 1 + rng.Int64N(8), Max: 8 + rng.Int64N(100), TTFT: time.Duration(rng.IntN(2000)) * time.Millisecond}
		}
	}
	for i := range p.Classes {
		p.Classes[i].MaxWait = time.Duration(rng.IntN(2000)) * time.Millisecond
		p.Classes[i].OnExpiry = policy.Expiry(rng.IntN(3))
	}
	p.Queue.Length.Max = rng.IntN(300)
	p.Queue.Length.Min = min(p.Queue.Length.Min, p.Queue.Length.Max)
	p.Shares = policy.Shares{Priority: policy.Ratio(rng.IntN(3)) / 10, Streaming: policy.Ratio(1+rng.IntN(10)) / 10}
	p.Tiers = []policy.Tier{{Name: "gold", Weight: 2, Share: 0.2}, {Name: "silver", Weight: 1, Share: 0.6}, {Name: "bronze", Weight: 0.5, Share: 0.2}}
	p.Queue.Headroom, p.Queue.Price = policy.Ratio(rng.IntN(3))/10, policy.Price(rng.IntN(2))
	p.Variants.ByCost = rng.IntN(2) == 0
	if rng.IntN(3) == 0 {
		p.NonStreaming = &policy.NonStreaming{Variant: policy.FP16, MaxWait: 200 * time.Millisecond}
	}
	p.Quotas = []policy.QuotaRule{{
		Name: "per-tenant", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"},
		Limits: []policy.Limit{{Unit: policy.Concurrency, Max: 1 + rng.Int64N(100)}, {Unit: policy.Tokens, Max: 10000 + rng.Int64N(100000), Per: 10 * time.Second}},
	}}
	return p.Finish()
}

// wildRun is a wild scenario with a wild policy and those it is reloaded to.
func wildRun(seed uint64) (*Scenario, Candidate) {
	rng := rand.New(rand.NewPCG(seed, 12))
	s := wild(seed)
	c := Candidate{Name: "wild", Policy: wildPolicy(rng)}
	for range s.Reloads {
		c.Reloads = append(c.Reloads, wildPolicy(rng))
	}
	return s, c
}

// The invariants hold, and the books balance, whatever befalls whom.
func TestInvariantsHoldInTheWild(t *testing.T) {
	t.Parallel()
	seeds := uint64(6)
	if os.Getenv("WEIR_LONG") != "" {
		seeds = 100
	}
	for seed := range seeds {
		s, c := wildRun(seed)
		r := play(t, s, c.Policy, c.Reloads...)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if r.Requests == 0 || r.UtilisationMin < 0 {
			t.Errorf("seed %d: %+v", seed, r)
		}
	}
}

// Equal seeds give equal results, others do not.
func TestSameSeedSameResult(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		s, c := wildRun(seed)
		_, again := wildRun(seed)
		a, b := play(t, s, c.Policy, c.Reloads...), play(t, s, again.Policy, again.Reloads...)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d: two runs differ", seed)
		}
		s.Seed += 1000
		if reflect.DeepEqual(a, play(t, s, c.Policy, c.Reloads...)) {
			t.Errorf("seed %d: another seed gives the same", seed)
		}
	}
}
