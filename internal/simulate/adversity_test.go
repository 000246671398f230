package simulate

import (
	"reflect"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// flood is a burst of 10 s at twice what 20 places carry (200/s), all of it by
// twenty tenants of every class; edits follow. It is judged as a whole.
func flood(edits ...func(*Scenario)) *Scenario {
	s := places(400, 20*time.Second, service(func(v *Service) { v.Places, v.Time, v.Spread = 20, 100*time.Millisecond, 0.5 }))
	s.Warmup = 2 * time.Second
	s.Arrivals[0].To, s.Arrivals[0].Burst = 10*time.Second, true
	s.Tenants = Tenants{Count: 20}
	mix := s.Requests[0]
	s.Requests = nil
	for i, share := range []float64{0.2, 0.5, 0.3} {
		mix.Share, mix.Class = share, policy.Class(i)
		s.Requests = append(s.Requests, mix)
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

// seatsOf is a policy of one pool, whose classes drop who waited too long.
func seatsOf(n int64) *policy.Policy {
	return one(n, func(p *policy.Policy) {
		p.Queue.Headroom, p.Classes[policy.Standard].OnExpiry = 0, policy.ExpireDrop
	})
}

// unmoved holds that no capacity was wasted and that who obeys is let in, as
// hinted, in no wave (Q5).
func unmoved(t *testing.T, r *Result) {
	t.Helper()
	if *r.Throughput < 0.95 || r.Hints.FirstReturn < 0.9 || r.Hints.MedianError > 0.25 || r.Hints.WavePeakRatio > 1.2 {
		t.Errorf("%.3f of capacity, hints %+v", *r.Throughput, r.Hints)
	}
}

// What befalls a pool in a burst, one thing at a time. play holds the
// invariants in each.
func TestAdversityInABurst(t *testing.T) {
	at := 7 * time.Second
	resize := func(value float64) func(*Scenario) {
		return befalling(Failure{At: at, Kind: Resize, Value: value})
	}
	reload := func(s *Scenario) { s.Reloads = []Reload{{At: at}} }
	for _, c := range []struct {
		name    string
		s       *Scenario
		reloads []*policy.Policy
		hold    func(*testing.T, *Result)
	}{
		{"nothing", flood(), nil, unmoved},
		{"nobody marks returns", flood(func(s *Scenario) { s.Clients[0].Marks = false }), nil, unmoved},
		{"nobody comes back", flood(func(s *Scenario) { s.Clients[0].Tries = 1 }), nil, func(t *testing.T, r *Result) {
			near(t, "of capacity", *r.Throughput, 1, 0.05)
		}},
		{"the policy is reloaded", flood(reload), []*policy.Policy{seatsOf(20)}, unmoved},
		{"the pool is halved", flood(resize(0.5), reload), []*policy.Policy{seatsOf(10)}, func(t *testing.T, r *Result) {
			near(t, "of capacity", *r.Throughput, (7+0.5*3)/10, 0.04)
			near(t, "running", float64(sampleAt(t, r, 9).Running), 10, 0)
			if r.Hints.FirstReturn < 0.9 {
				t.Errorf("hints %+v", r.Hints)
			}
		}},
		{"the pool is doubled", flood(resize(2), reload), []*policy.Policy{seatsOf(40)}, func(t *testing.T, r *Result) {
			near(t, "of capacity", *r.Throughput, (7+2*3)/10., 0.065)
			if r.Hints.FirstReturn < 0.9 {
				t.Errorf("hints %+v", r.Hints)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.hold(t, play(t, c.s, seatsOf(20), c.reloads...))
		})
	}
}

// Waits, hints and seats know nothing of the wall clock.
func TestClockStepsMoveNoWait(t *testing.T) {
	t.Parallel()
	want := play(t, flood(), seatsOf(20))
	for _, step := range []time.Duration{-24 * time.Hour, -time.Second, time.Second, 24 * time.Hour} {
		s := flood(func(s *Scenario) { s.Clock = []ClockStep{{At: 7 * time.Second, Step: step}} })
		if got := play(t, s, seatsOf(20)); !reflect.DeepEqual(got, want) {
			t.Errorf("a step of %v: %+v, want %+v", step, got, want)
		}
	}
}

// One rogue beside a hundred tenants who ask for three quarters of the pool:
// all of them are served, and it gets what they leave (P2).
func TestOneRogueAmongAHundred(t *testing.T) {
	t.Parallel()
	s := duel(150, 1000, func(a *Arrival) {
		a.Clients = []Client{{Share: 1, Kind: Stubborn, Every: 20 * time.Millisecond, Tries: 10, Patience: time.Second}}
	})
	s.Arrivals[0].Tenants.Count = 100
	s.Clients[0].Tries = 5
	r := play(t, s, seatsOf(20))
	requests, failed := 0, 0
	for name, k := range r.Tenants {
		if name != "rogue" {
			requests, failed = requests+k.Requests, failed+k.Failed
		}
	}
	if failed > requests/100 {
		t.Errorf("%d of %d requests of the hundred failed", failed, requests)
	}
}

// A model has two pools alike and one goes down in mid burst: the other one has
// no seat idle, and with the breaker's last step the first one is full again.
func TestOneOfTwoPoolsDown(t *testing.T) {
	t.Parallel()
	s := flood(func(s *Scenario) {
		s.Engines["chat-dyn"] = s.Engines["chat-fp16"]
		s.Duration, s.Arrivals[0].To, s.Arrivals[0].Rate = 50*time.Second, 50*time.Second, 500
	}, befalling(Failure{At: 10 * time.Second, For: 10 * time.Second, Kind: Down}))
	p := policy.Default()
	p.Pools = p.Pools[:2]
	p.Models[0].Pools = p.Models[0].Pools[:2]
	for i := range p.Pools {
		p.Pools[i].Seats, p.Pools[i].Variant = policy.Seats{Requests: 20}, policy.FP16
	}
	p.Queue.Headroom = 0
	r := play(t, s, p.Finish())
	for second, want := range map[int]float64{9: 40, 12: 20, 15: 20, 19: 20, 45: 40, 49: 40} {
		near(t, "running", float64(sampleAt(t, r, second).Running), want, want/10)
	}
	if r.Hints.FirstReturn < 0.8 { // slots of before were half of the capacity
		t.Errorf("hints %+v", r.Hints)
	}
}
