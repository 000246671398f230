package simulate

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// plain is what a stream needs of a scenario.
func plain(a Arrival) *Scenario {
	if a.To == 0 {
		a.To = time.Hour
	}
	return &Scenario{
		Seed: 7, Duration: a.To, Arrivals: []Arrival{a},
		Requests: []Mix{{Share: 1, Class: policy.Batch, Prompt: Dist{A: 1}, Output: Dist{A: 1}}},
		Clients:  []Client{{Share: 1}},
	}
}

// sendsOf are the instants of a stream's sends.
func sendsOf(t *testing.T, s *Scenario) (at []time.Duration) {
	t.Helper()
	stream, err := newStream(s, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	for {
		more, err := stream.next()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return at
		}
		if n := len(at); n > 0 && stream.at < at[n-1] {
			t.Fatalf("send %d at %v, after one at %v", n, stream.at, at[n-1])
		}
		at = append(at, stream.at)
	}
}

// within counts the sends in [from, to).
func within(at []time.Duration, from, to time.Duration) (n float64) {
	for _, t := range at {
		if t >= from && t < to {
			n++
		}
	}
	return n
}

func TestShapesSendWhatTheySay(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name     string
		a        Arrival
		from, to time.Duration
		want     float64
	}{
		{"steady", Arrival{Rate: 10}, 0, time.Hour, 36000},
		{"steady, between", Arrival{Rate: 10, From: 600 * s, To: 1200 * s}, 0, time.Hour, 6000},
		{"pulse, once", Arrival{Kind: Pulse, Rate: 1200, Length: 10 * s, From: 30 * s}, 30 * s, 40 * s, 12000},
		{"pulse, once, nothing after", Arrival{Kind: Pulse, Rate: 1200, Length: 10 * s}, 10 * s, time.Hour, 0},
		{"pulse, each two minutes", Arrival{Kind: Pulse, Rate: 100, Every: 120 * s, Length: 10 * s}, 0, time.Hour, 30000},
		{"pulse, its third", Arrival{Kind: Pulse, Rate: 100, Every: 120 * s, Length: 10 * s}, 240 * s, 250 * s, 1000},
		{"pulse, between the third and the fourth", Arrival{Kind: Pulse, Rate: 100, Every: 120 * s, Length: 10 * s}, 250 * s, 360 * s, 0},
		{"diurnal", Arrival{Kind: Diurnal, Rate: 10, Every: time.Hour, Swing: 1}, 0, time.Hour, 36000},
		// The quarter around the peak holds 1/4 + 1/(π√2) of a day's sends.
		{"diurnal, peak", Arrival{Kind: Diurnal, Rate: 10, Every: time.Hour, Swing: 1}, 22*time.Minute + 30*s, 37*time.Minute + 30*s, 36000 * (0.25 + 1/(math.Pi*math.Sqrt2))},
		{"diurnal, night", Arrival{Kind: Diurnal, Rate: 10, Every: time.Hour, Swing: 1}, 0, 36 * s, 0.24},
	} {
		for _, even := range []bool{false, true} {
			c.a.Even = even
			got := within(sendsOf(t, plain(c.a)), c.from, c.to)
			bound := 1 + c.want/10000
			if !even {
				bound = 4*math.Sqrt(c.want) + 1
			}
			if math.Abs(got-c.want) > bound {
				t.Errorf("%s, even %v: %v sends, want %v within %.0f", c.name, even, got, c.want, bound)
			}
		}
	}
}

// Even sends stand a gap apart, Poisson ones have exponential gaps: as large a
// deviation as the mean.
func TestSpacing(t *testing.T) {
	for _, even := range []bool{true, false} {
		at := sendsOf(t, plain(Arrival{Rate: 100, Even: even, To: 1000 * time.Second}))
		var sum, square float64
		for i := 1; i < len(at); i++ {
			gap := (at[i] - at[i-1]).Seconds()
			sum, square = sum+gap, square+gap*gap
		}
		n := float64(len(at) - 1)
		mean := sum / n
		deviation := math.Sqrt(max(square/n-mean*mean, 0))
		want := 0.01
		if even {
			want = 0
		}
		near(t, "mean gap", mean, 0.01, 0.0002)
		near(t, "deviation", deviation, want, 0.0003)
	}
}

// The rate of mixed traffic is drawn anew each second, evenly between its ends.
func TestMixedDrawsEachSecond(t *testing.T) {
	at := sendsOf(t, plain(Arrival{Kind: Mixed, Rate: 350, Most: 1100, Every: time.Second, Even: true, To: 1000 * time.Second}))
	least, most, sum := math.Inf(1), 0.0, 0.0
	seconds := make([]float64, 1000)
	for _, t := range at {
		seconds[t/time.Second]++
	}
	for _, n := range seconds {
		least, most, sum = min(least, n), max(most, n), sum+n
	}
	near(t, "mean", sum/1000, 725, 30)
	near(t, "least", least, 350, 10)
	near(t, "most", most, 1100, 10)
}

// The warm-up sends at the rate of time 0.
func TestWarmUp(t *testing.T) {
	for _, c := range []struct {
		a    Arrival
		want float64
	}{
		{Arrival{Rate: 100}, 1000},
		{Arrival{Kind: Pulse, Rate: 100, Length: time.Second}, 1000},
		{Arrival{Rate: 100, From: time.Second}, 0},
		{Arrival{Kind: Diurnal, Rate: 100, Every: time.Hour, Swing: 0.5}, 500},
		{Arrival{Kind: Mixed, Rate: 100, Most: 100, Every: time.Second}, 1000},
	} {
		c.a.Even = true
		s := plain(c.a)
		s.Warmup = 10 * time.Second
		near(t, "sends", within(sendsOf(t, s), -s.Warmup, 0), c.want, 1)
	}
}

func TestTenantsShareTheLoad(t *testing.T) {
	count := func(tenants Tenants) map[sender]float64 {
		s := plain(Arrival{Rate: 100, To: 1000 * time.Second})
		s.Tenants = tenants
		stream, err := newStream(s, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		n := map[sender]float64{}
		for range 100_000 {
			n[stream.senders.pick(stream.rng)]++
		}
		return n
	}
	if n := count(Tenants{}); n[sender{name: "tenant"}] != 100_000 {
		t.Errorf("one tenant: %v", n)
	}
	n := count(Tenants{Name: "x", Count: 4})
	for _, name := range []string{"x-1", "x-2", "x-3", "x-4"} {
		near(t, name, n[sender{name: name}], 25_000, 600)
	}
	n = count(Tenants{Count: 100, HighPart: 0.2, HighLoad: 0.8})
	near(t, "a high-frequency tenant", n[sender{name: "tenant-20"}], 4000, 300)
	near(t, "another", n[sender{name: "tenant-21"}], 250, 70)
	n = count(Tenants{Count: 3, Zipf: 1})
	near(t, "first", n[sender{name: "tenant-1"}], 100_000*6/11., 700)
	near(t, "third", n[sender{name: "tenant-3"}], 100_000*2/11., 700)
	n = count(Tenants{Count: 2, Keys: 1000})
	if len(n) != 2000 {
		t.Errorf("%d keys of 2 tenants, want 2000", len(n))
	}
}

// What a call says and what it gets.
func TestDrawsOfARequest(t *testing.T) {
	for _, c := range []struct {
		name           string
		m              Mix
		output, maxOut int64
	}{
		{"says nothing", Mix{Output: Dist{A: 100}}, 100, 0},
		{"a cap above", Mix{Output: Dist{A: 100}, MaxTokens: 200}, 100, 200},
		{"a cap below", Mix{Output: Dist{A: 100}, MaxTokens: 20}, 20, 20},
		{"understates", Mix{Output: Dist{A: 100}, MaxTokens: 20, Understate: 0.1}, 100, 10},
		{"embedding", Mix{Output: Dist{A: 100}, MaxTokens: 20, Embedding: true}, 0, 0},
	} {
		s := plain(Arrival{Rate: 1})
		c.m.Share, c.m.Prompt = 1, Dist{A: 9}
		s.Requests = []Mix{c.m}
		stream, err := newStream(s, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := stream.draw(); got.output != c.output || got.maxOut != c.maxOut || got.prompt != 9 {
			t.Errorf("%s: prompt %d, output %d, says %d, want 9, %d, %d", c.name, got.prompt, got.output, got.maxOut, c.output, c.maxOut)
		}
	}
}

// Every policy meets the same requests, whatever it does with them.
func TestPoliciesMeetTheSameRequests(t *testing.T) {
	s := places(1300, 3*time.Second, func(s *Scenario) {
		s.Requests[0].Prompt = Dist{Kind: LogNormal, A: 100, B: 1000}
		s.Tenants = Tenants{Count: 5, Zipf: 1}
	})
	a, b := play(t, s, one(120)), play(t, s, one(10))
	if a.Requests != b.Requests || a.Failed == b.Failed {
		t.Errorf("%d and %d requests, %d and %d failed", a.Requests, b.Requests, a.Failed, b.Failed)
	}
	for name, k := range a.Tenants {
		if !strings.HasPrefix(name, "tenant-") || b.Tenants[name] == nil || b.Tenants[name].Requests != k.Requests {
			t.Errorf("%s: %+v and %+v", name, k, b.Tenants[name])
		}
	}
}
