package simulate

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
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

// endless makes a line that nobody is refused at or leaves.
func endless(p *policy.Policy) {
	p.Queue.Length = policy.Length{Min: 1 << 20, Max: 1 << 20}
	p.Queue.ColdStart, p.Queue.SoftLimit, p.Queue.PerTenant = nil, 0, 0
	p.Queue.MaxHeldBytes = 0
	for i := range p.Classes {
		p.Classes[i].MaxWait, p.Classes[i].OnExpiry = time.Hour, policy.ExpireDrop
	}
}

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

// fails lets these failures befall the engine.
func befalling(list ...Failure) func(*Scenario) {
	return func(s *Scenario) {
		e := s.Engines["chat-fp16"]
		e.Failures = list
		s.Engines["chat-fp16"] = e
	}
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

// play runs a scenario and holds the invariants and the books.
func play(t testing.TB, s *Scenario, p *policy.Policy, reloads ...*policy.Policy) *Result {
	t.Helper()
	r, err := Run(s, Candidate{Name: "test", Policy: p, Reloads: reloads}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Violated {
		t.Error(v)
	}
	requests, failed := 0, 0
	for name, k := range r.Tenants {
		if k.Served+k.Failed != k.Requests {
			t.Errorf("tenant %s: %d served and %d failed of %d", name, k.Served, k.Failed, k.Requests)
		}
		requests, failed = requests+k.Requests, failed+k.Failed
	}
	if len(r.Tenants) < MaxTenants && (requests != r.Requests || failed != r.Failed) {
		t.Errorf("tenants sum up to %d requests and %d failed, the run to %d and %d", requests, failed, r.Requests, r.Failed)
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

// A known system: no queue, Poisson arrivals, 120 places, 1,500/s. At a
// capacity of 1,256/s it loses 18.9 %.
func TestLossSystemLosesByErlangB(t *testing.T) {
	t.Parallel()
	near(t, "Erlang B", erlangB(120, 1500*120/1256.), 0.189, 0.0005)
	for _, spread := range []float64{0, 1} {
		s := places(1500, 40*time.Second, service(func(v *Service) {
			v.Time, v.Spread, v.Beyond = 120*time.Second/1256, spread, FailBeyond
		}))
		r := play(t, s, one(1, pass))
		near(t, "lost", float64(r.Failed)/float64(r.Requests), 0.189, 0.005)
		near(t, "answers/s", r.Goodput, 1500*(1-0.189), 10)
		near(t, "capacity used at most", r.UtilisationMax, 0.98, 0.02)
	}
}

// meanWait is the mean over a run's samples, and the mean number that waited.
func meanWait(r *Result, class policy.Class) (wait, waiting float64) {
	admitted := 0.0
	for _, s := range r.Series {
		wait += s.Wait[class].Seconds() * s.Admitted[class]
		admitted += s.Admitted[class]
		waiting += float64(s.Waiting)
	}
	return wait / admitted, waiting / float64(len(r.Series))
}

// One seat, Poisson arrivals: the mean wait is that of Pollaczek and
// Khinchine, and Little's law joins it to the number that waits.
func TestWaitIsKnown(t *testing.T) {
	t.Parallel()
	const rate, mean = 80.0, 0.010 // 80 % busy
	for _, spread := range []float64{0, 1} {
		s := places(rate, 600*time.Second, service(func(v *Service) {
			v.Places, v.Time, v.Spread = 1, 10*time.Millisecond, spread
		}))
		r := play(t, s, one(1, endless))
		square := mean * mean * (1 + spread*spread/3) // E[S²], spread evenly
		want := rate * square / (2 * (1 - rate*mean))
		wait, waiting := meanWait(r, policy.Standard)
		near(t, "mean wait", wait, want, want*0.1)
		near(t, "Little's law", waiting, rate*wait, rate*wait*0.1)
		near(t, "failed", float64(r.Failed), 0, 0)
		near(t, "answers/s", r.Goodput, rate, 1)
	}
}

// A batch engine alone: every step counts.
func TestBatchTakesItsSteps(t *testing.T) {
	s := places(1, 100*time.Second, func(s *Scenario) {
		s.Engines = map[string]Engine{"chat-fp16": {Batch: modelsim.EngineConfig{
			Running: 8, StepBase: 10 * time.Millisecond, StepPerSequence: time.Millisecond,
			PrefillPerToken: 100 * time.Microsecond, PrefillChunk: 40,
		}}}
		s.Arrivals[0].Even, s.Arrivals[0].Burst = true, true
	})
	r := play(t, s, one(8))
	// 100 tokens in chunks of 40: three steps, the third yields; 19 more.
	near(t, "latency", *r.LatencyP99, 22*11+100*0.1, 0.001)
	near(t, "wait", *r.WaitP99, 0, 0)
	near(t, "admitted", *r.BurstAdmittedFirst, 1, 0)
}

// An engine does not wait for who gets a seat by the end of a step: its next
// step has begun by then.
func TestSeatFreedByAStepMissesTheNext(t *testing.T) {
	s := places(80, 35*time.Millisecond, func(s *Scenario) {
		s.Engines = map[string]Engine{"chat-fp16": {Batch: modelsim.EngineConfig{
			StepBase: 10 * time.Millisecond, StepPerSequence: time.Nanosecond, PrefillPerToken: time.Nanosecond,
		}}}
		s.Arrivals[0].Even, s.Arrivals[0].Burst = true, true
		s.Requests[0].Output = Dist{A: 3}
	})
	r := play(t, s, one(2))
	// They come at 6.25, 18.75 and 31.25 ms; steps end at 16.25, 26.25, ... The
	// third gets the seat of the first at 36.25 and its tokens from 46.25 on.
	near(t, "requests", float64(r.Requests), 3, 0)
	near(t, "wait", *r.WaitP99, 5, 0.01)
	near(t, "latency", *r.LatencyP99, 76.25-31.25, 0.01)
}

// Overloaded, a batch carries what its capacity is said to be.
func TestBatchCarriesItsCapacity(t *testing.T) {
	t.Parallel()
	for _, kv := range []int64{1 << 20, 2000} { // 2000: 16 sequences of 120
		engine := modelsim.EngineConfig{Running: 32, KVTokens: kv, StepBase: 4 * time.Millisecond, PrefillPerToken: 10 * time.Microsecond, PrefillChunk: 1024}
		s := places(2000, 15*time.Second, client(Client{Kind: Obedient, Tries: 1}), func(s *Scenario) {
			s.Warmup, s.Arrivals[0].Burst = 5*time.Second, true
			s.Engines = map[string]Engine{"chat-fp16": {Batch: engine}}
		})
		r := play(t, s, one(200, endless, func(p *policy.Policy) {
			p.Classes[policy.Standard].MaxWait = time.Second
		}))
		near(t, "throughput of capacity", *r.Throughput, 1, 0.05)
		near(t, "utilisation", r.UtilisationMax, 1, 0.05)
	}
}

// More than the engines carry over the whole run: no policy can help, and the
// result says how much is missing. A burst alone is what a queue is for.
func TestAdviceSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	const want = "no policy can help: 1890.0 requests/s are offered over the whole run and the engines carry 1260.0/s; " +
		"630.0/s are missing, 50 % more engines (about 60 more seats)"
	exact := service(func(v *Service) { v.Time = 120 * time.Second / 1260 })
	even := func(s *Scenario) { s.Arrivals[0].Even, s.Clients[0].Tries = true, 1 }
	for _, c := range []struct {
		name string
		s    *Scenario
		want string
	}{
		{"too much", places(1890, 10*time.Second, exact, even), want},
		{"enough", places(1250, 10*time.Second, exact, even), ""},
		{"chance", places(1265, 10*time.Second, exact, even), ""},
		{"a burst", places(1890, 10*time.Second, exact, even, func(s *Scenario) {
			s.Arrivals[0].Kind, s.Arrivals[0].Length = Pulse, 5*time.Second
		}), ""},
		{"half the time down", places(945, 10*time.Second, exact, even, befalling(Failure{At: 5 * time.Second, For: 5 * time.Second})),
			"no policy can help: 945.0 requests/s are offered over the whole run and the engines carry 630.0/s; " +
				"315.0/s are missing, 50 % more engines (about 60 more seats)"},
		{"down", places(100, 10*time.Second, exact, even, befalling(Failure{})), "no policy can help: 100.0 requests/s are offered and no engine stands for any part of the run"},
	} {
		if r := play(t, c.s, one(120)); r.Advice != c.want {
			t.Errorf("%s: advice %q, want %q", c.name, r.Advice, c.want)
		}
	}
}

// Where more is offered than the engines carry and some of them idle, for want
// of seats or because no model uses them, a policy can help.
func TestAdviceNamesIdlePools(t *testing.T) {
	t.Parallel()
	alone := policy.Default()
	alone.Pools = alone.Pools[:2]
	alone.Pools[0].Seats.Requests, alone.Pools[1].Seats.Requests = 20, 20
	alone.Models[0].Pools = alone.Models[0].Pools[:1]
	for _, c := range []struct {
		name string
		p    *policy.Policy
		busy string
	}{
		{"half the seats", one(10), "; but chat-fp16 is 50 % busy while requests are refused, and a policy that sends it more serves more"},
		{"a pool of no model", alone, "; but chat-dyn is 0 % busy while requests are refused, and a policy that sends it more serves more"},
		{"all seats", one(20), ""},
	} {
		s := places(600, 10*time.Second, service(func(v *Service) { v.Places, v.Time = 20, 100*time.Millisecond }), client(Client{Kind: Obedient, Tries: 1}))
		s.Arrivals[0].Even = true
		if len(c.p.Pools) > 1 {
			s.Engines["chat-dyn"] = s.Engines["chat-fp16"]
		}
		verdict := "no policy can help: 600.0"
		if c.busy != "" {
			verdict = "no policy can serve all: 600.0"
		}
		if r := play(t, s, c.p); !strings.HasPrefix(r.Advice, verdict) || !strings.HasSuffix(r.Advice, " more seats)"+c.busy) {
			t.Errorf("%s: advice %q, want %s ...%s", c.name, r.Advice, verdict, c.busy)
		}
	}
}

// A trace plays what it tells, and draws the rest.
func TestTraceIsPlayed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/calls.csv", "at,tenant,class,prompt_tokens,output_tokens\n0,a,critical,10,5\n0.5,b,batch,20,7\n1,a,critical,10,5\n9,late,batch,1,1\n")
	s := places(0, 5*time.Second, func(s *Scenario) {
		s.File = dir + "/scenario.yaml"
		s.Arrivals = []Arrival{{Kind: Trace, Trace: &TraceFile{Name: "calls.csv"}, From: time.Second, To: 5 * time.Second}}
	})
	r := play(t, s, one(10))
	if r.Requests != 3 || r.Tenants["a"].Served != 2 || r.Tenants["b"].Served != 1 || r.Classes["critical"].Requests != 2 || r.Classes["batch"].Requests != 1 {
		t.Errorf("%+v, a %+v, b %+v", r, r.Tenants["a"], r.Tenants["b"])
	}
	write(t, dir+"/calls.csv", "at,tenant\n0,a\nnever,b\n1,c\n")
	if _, err := Run(s, Candidate{Policy: one(10)}, false); err == nil {
		t.Error("a bad line went through")
	}
	skipping, err := Run(s, Candidate{Policy: one(10)}, true)
	if err != nil || skipping.Requests != 2 || skipping.Skipped != 1 {
		t.Errorf("%+v, %v", skipping, err)
	}
}
