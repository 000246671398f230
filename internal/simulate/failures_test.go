package simulate

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

// lossy is a world without a queue of 1,000/s, where nobody comes back.
func lossy(list ...Failure) *Scenario {
	return places(1000, 20*time.Second, client(Client{Kind: Obedient, Tries: 1}), befalling(list...), service(func(v *Service) { v.Beyond = FailBeyond }))
}

func TestFailuresCostWhatTheySay(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, c := range []struct {
		name string
		f    Failure
		want float64 // requests that fail
	}{
		{"down", Failure{At: 5 * s, For: 5 * s, Kind: Down}, 1000*5 + 95},
		{"down for good", Failure{At: 15 * s, Kind: Down}, 1000*5 + 95},
		{"slow", Failure{At: 5 * s, For: 5 * s, Kind: Slow, Value: 2}, 1000 * 5 * erlangB(120, 190)},
		{"errors", Failure{At: 5 * s, For: 5 * s, Kind: Errors, Value: 0.3}, 1000 * 5 * 0.3},
		{"half as large", Failure{At: 5 * s, For: 5 * s, Kind: Resize, Value: 0.5}, 1000 * 5 * erlangB(60, 95)},
		{"cold", Failure{At: 5 * s, For: 5 * s, Kind: Cold}, 0},
		{"stale", Failure{At: 5 * s, For: 5 * s, Kind: Stale}, 0},
	} {
		r := play(t, lossy(c.f), one(1, pass))
		none := float64(r.Requests) * erlangB(120, 95)
		near(t, c.name+": failed", float64(r.Failed), c.want+none, 40+c.want*0.06)
	}
}

// A batch that breaks off and comes back, and one that is resized under load.
func TestFailuresOfABatch(t *testing.T) {
	engine := modelsim.EngineConfig{Running: 32, StepBase: 4 * time.Millisecond, PrefillChunk: 1024}
	run := func(list ...Failure) *Result {
		s := places(500, 20*time.Second, client(Client{Kind: Obedient, Tries: 1}), func(s *Scenario) {
			s.Engines = map[string]Engine{"chat-fp16": {Batch: engine}}
		}, befalling(list...))
		return play(t, s, one(100, func(p *policy.Policy) { p.Breaker.Off = true }))
	}
	whole := run().Goodput
	for _, c := range []struct {
		f    Failure
		want float64
	}{
		{Failure{At: 5 * time.Second, For: 5 * time.Second, Kind: Down}, 0.75},
		{Failure{At: 5 * time.Second, For: 10 * time.Second, Kind: Slow, Value: 2}, 0.75},
		{Failure{At: 10 * time.Second, Kind: Resize, Value: 0.5}, 0.5 + 0.5*(16/7.2)/(32/10.4)},
	} {
		near(t, "share of the goodput", run(c.f).Goodput/whole, c.want, 0.03)
	}
}

// Errors open the breaker, and callers hear of it.
func TestBreakerOpens(t *testing.T) {
	r := play(t, lossy(Failure{At: 5 * time.Second, For: 5 * time.Second, Kind: Errors, Value: 0.9}), one(120))
	if r.Reasons[admission.BreakerOpen.String()] < 1000 {
		t.Errorf("reasons %v: want a breaker that opens for seconds", r.Reasons)
	}
}

// sampleAt is the sample of a second.
func sampleAt(t *testing.T, r *Result, second int) Sample {
	t.Helper()
	s := r.Series[second-1]
	if s.At != time.Duration(second)*time.Second {
		t.Fatalf("sample %d is of %v", second-1, s.At)
	}
	return s
}

// New endpoints begin with Q4's short line, and a frozen or silent sensor
// leaves the gauge to its neutral value.
func TestSensorFailuresReachTheGauge(t *testing.T) {
	const s = time.Second
	idle := func(f Failure) *Result {
		return play(t, places(10, 30*s, befalling(f)), one(120))
	}
	r := idle(Failure{At: 5 * s, For: 2 * s, Kind: Cold})
	for second, length := range map[int]int{4: 200, 8: 50, 16: 50, 18: 75, 28: 100} {
		if got := sampleAt(t, r, second).Length; got != length {
			t.Errorf("cold at 7 s: length at %d s = %d, want %d", second, got, length)
		}
	}
	for _, kind := range []FailureKind{Stale, Cold, Down} {
		r := idle(Failure{At: 5 * s, For: 20 * s, Kind: kind})
		near(t, "pressure before", sampleAt(t, r, 5).Pressure, 0, 0.05)
		near(t, "pressure of a gauge without news", sampleAt(t, r, 24).Pressure, 0.5, 0.01)
		near(t, "pressure after", sampleAt(t, r, 30).Pressure, 0, 0.05)
	}
}

// What weir sees of an engine is as old as the sensor's delay.
func TestSensorLags(t *testing.T) {
	for _, delay := range []time.Duration{0, 3 * time.Second} {
		s := places(500, 20*time.Second, func(s *Scenario) {
			s.Arrivals[0].From = 5 * time.Second
			e := s.Engines["chat-fp16"]
			e.Service.Places, e.Sensor = 10, Sensor{Every: 500 * time.Millisecond, Delay: delay}
			s.Engines["chat-fp16"] = e
		})
		r := play(t, s, one(100))
		for second := range 15 {
			got := sampleAt(t, r, second+1).Pressure
			sees := time.Duration(second+1)*time.Second > 5*time.Second+delay
			if sees && got < 0.6 || !sees && second > 5 && got > 0.1 {
				t.Errorf("delay %v: pressure after %d s = %v", delay, second+1, got)
			}
		}
	}
}

// GPUs without an engine's word: utilisation is what they worked since the
// last look.
func TestUtilisationIsWorkDone(t *testing.T) {
	for _, batch := range []bool{false, true} {
		s := places(631.5, 60*time.Second, func(s *Scenario) {
			s.Arrivals[0].Even = true
			if batch {
				s.Arrivals[0].Rate = 5 // each runs alone for 100 ms
				s.Engines = map[string]Engine{"chat-fp16": {Batch: modelsim.EngineConfig{StepBase: 5 * time.Millisecond, StepPerSequence: time.Nanosecond, PrefillPerToken: time.Nanosecond}}}
			}
		})
		r := play(t, s, one(120, func(p *policy.Policy) {
			p.Pools[0].Telemetry = []policy.TelemetrySource{{Kind: "dcgm-exporter", URL: "http://gpu/metrics", Every: 5 * time.Second}}
		}))
		near(t, "pressure", sampleAt(t, r, 59).Pressure, 0.5, 0.02)
	}
}

// A policy is reloaded in mid run: seats change, and a pool may be gone.
func TestReload(t *testing.T) {
	s := places(1500, 10*time.Second, func(s *Scenario) {
		s.Reloads = []Reload{{At: 2 * time.Second}, {At: 4 * time.Second}, {At: 6 * time.Second}}
		s.Engines["chat-dyn"] = s.Engines["chat-fp16"]
	})
	other := one(90, func(p *policy.Policy) {
		p.Pools[0].Name, p.Models[0].Pools = "chat-dyn", []string{"chat-dyn"}
	})
	r := play(t, s, one(120), one(20), other, one(120))
	for second, want := range map[int]int{1: 120, 3: 20, 5: 90, 7: 120, 9: 120} {
		got := sampleAt(t, r, second)
		if got.Seats != want || got.Running != want {
			t.Errorf("after %d s: %d seats, %d running, want %d of them", second, got.Seats, got.Running, want)
		}
	}
	if n := r.Reasons[admission.NoPool.String()]; n > 0 {
		t.Errorf("reasons %v: %d heard that there is no pool, while another served", r.Reasons, n)
	}
	if _, err := Run(s, Candidate{Policy: one(1)}, false); err == nil {
		t.Error("a run without the policies of its reloads")
	}
}

// The wall clock steps: windows of the ledger are empty an hour later, and
// waits do not care.
func TestClockSteps(t *testing.T) {
	quota := func(p *policy.Policy) {
		p.Quotas = []policy.QuotaRule{{
			Name: "r", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"},
			Limits: []policy.Limit{{Unit: policy.Requests, Max: 100, Per: time.Hour}},
		}}
	}
	for step, want := range map[time.Duration]int{0: 100, 2 * time.Hour: 200} {
		s := places(20, 20*time.Second, client(Client{Kind: Obedient, Tries: 1}))
		s.Clock = []ClockStep{{At: 10 * time.Second, Step: step}}
		if r := play(t, s, one(120, quota)); r.Requests-r.Failed != want {
			t.Errorf("a step of %v: %d served, want %d", step, r.Requests-r.Failed, want)
		}
	}
}
