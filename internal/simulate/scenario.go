package simulate

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/modelsim"
	"github.com/weirproxy/weir/policy"
)

// Scenario is one world to try policies in: who sends what and when, how the
// clients behave, what the engines can do and when they fail. The rules are
// the policies'; what there is to share out (Overlay) is the scenario's. It
// is immutable once read. Times are from the start of the run.
type Scenario struct {
	Name     string // default: the file's, without extension
	File     string // where it was read; names of traces and policies are relative to its directory
	Seed     uint64 // default 1
	Duration time.Duration
	Warmup   time.Duration // played before the start, with the arrivals of time 0, and not counted
	Capacity float64       // requests a second; 0 = what the engines come to

	// Overlay is laid over every policy before it is loaded: mappings key by
	// key, classes by name, anything else replaced. nil = policies stand as
	// they are. See Lay.
	Overlay *yaml.Node

	Engines  map[string]Engine // by pool; every pool of a policy that is played has one
	Arrivals []Arrival
	Requests []Mix // at least one; shares add up to 1
	Tenants  Tenants
	Clients  []Client // at least one; shares add up to 1
	Reloads  []Reload // by time
	Clock    []ClockStep
	Policies []string // compared when the caller names none: files, or "default" and "source"; default: both
}

// Engine is what stands behind a pool. Service set = a server of places;
// else a machine under continuous batching (zero fields take modelsim's
// defaults).
type Engine struct {
	Batch    modelsim.EngineConfig
	Service  *Service
	Sensor   Sensor
	Failures []Failure // by time
}

// Service is an engine of so many places, each taken for a time that does
// not depend on the others.
type Service struct {
	Places int
	Time   time.Duration // mean; of a whole answer
	Spread float64       // 0..1: times lie evenly within ± this share of the mean
	Beyond Beyond
}

// Beyond is what an engine does with a request when all places are taken.
type Beyond uint8

// QueueBeyond lets it wait inside the engine, in order of arrival; FailBeyond
// answers 503 at once and without a hint: such a try does not count as
// admitted.
const (
	QueueBeyond Beyond = iota
	FailBeyond
)

// Sensor is how weir sees the engine: what it reads is Delay old.
type Sensor struct {
	Every time.Duration // 0 = as the pool's telemetry sources say, without any 1s
	Delay time.Duration
}

// Failure is something that befalls an engine for a while.
type Failure struct {
	At, For time.Duration
	Kind    FailureKind
	Value   float64
}

// FailureKind is what befalls an engine.
type FailureKind uint8

// The failures, and what Value means to them.
const (
	Down   FailureKind = iota // running answers break off, new ones fail to connect; no value
	Slow                      // everything takes Value times as long; >= 1
	Errors                    // this share of requests is answered 500; 0..1
	Resize                    // places, batch and cache are Value times as large; > 0
	Cold                      // the sensor says nothing, then the endpoints are new; no value
	Stale                     // the sensor goes on with its last reading; no value
)

// Arrival is one stream of first sends. Streams add up.
type Arrival struct {
	Kind     ArrivalKind
	Even     bool          // evenly spaced instead of Poisson
	Rate     float64       // per second: steady, pulse (while it lasts), diurnal (mean), mixed (at least)
	Most     float64       // mixed: the rate is drawn anew between Rate and Most each Every
	Every    time.Duration // pulse: from start to start, 0 = once; mixed: how long a drawn rate stands; diurnal: the period
	Length   time.Duration // pulse: how long it lasts
	Swing    float64       // diurnal: Rate * (1 - Swing*cos(2π t/Every)); 0..1
	Trace    *TraceFile    // trace
	From, To time.Duration // within these; To = Duration by default
	Burst    bool          // its time is the burst that a run is judged by

	// What differs from the scenario's; nil = the scenario's.
	Requests []Mix
	Tenants  *Tenants
	Clients  []Client
}

// ArrivalKind is the shape of a stream (Q10).
type ArrivalKind uint8

// The shapes.
const (
	Steady ArrivalKind = iota
	Pulse
	Mixed
	Diurnal
	Trace
)

// At is the rate in force at a time, for the shapes that need no draw; 0
// outside From..To. Mixed is its mean, Trace 0.
func (a *Arrival) At(t time.Duration) float64 {
	if t < a.From || t >= a.To {
		return 0
	}
	switch a.Kind {
	case Steady:
		return a.Rate
	case Mixed:
		return (a.Rate + a.Most) / 2
	case Diurnal:
		return a.Rate * (1 - a.Swing*math.Cos(2*math.Pi*t.Seconds()/a.Every.Seconds()))
	case Pulse:
		if t -= a.From; a.Every > 0 {
			t %= a.Every
		}
		if t < a.Length {
			return a.Rate
		}
	}
	return 0
}

// Span is a stretch of time, To excluded.
type Span struct{ From, To time.Duration }

// Spans are the times in which a stream sends, in order.
func (a *Arrival) Spans() []Span {
	if a.Kind != Pulse {
		return []Span{{a.From, a.To}}
	}
	var spans []Span
	for from := a.From; from < a.To; from += a.Every {
		spans = append(spans, Span{from, min(from+a.Length, a.To)})
		if a.Every <= 0 {
			break
		}
	}
	return spans
}

// InBurst says whether a time belongs to the burst.
func (s *Scenario) InBurst(t time.Duration) bool {
	for i := range s.Arrivals {
		a := &s.Arrivals[i]
		if !a.Burst || t < a.From || t >= a.To {
			continue
		}
		if a.Kind != Pulse || a.At(t) > 0 {
			return true
		}
	}
	return false
}

// Stretch gives a scenario that lasts, to the second, until at least n first
// sends are to be expected: streams that end with it go on. It is never
// shorter than s, and s itself where 30 days would not be enough.
func (s *Scenario) Stretch(n int) *Scenario {
	want := float64(n) + 3*math.Sqrt(float64(n)) // so that chance hardly ever leaves less
	enough := func(more int) bool { return s.lasting(more).expected() >= want }
	most := int((30*24*time.Hour - s.Duration) / time.Second)
	more := sort.Search(most, enough)
	if more == most {
		return s
	}
	return s.lasting(more)
}

// lasting is the scenario made so many seconds longer.
func (s *Scenario) lasting(more int) *Scenario {
	longer := *s
	longer.Duration += time.Duration(more) * time.Second
	longer.Arrivals = slices.Clone(s.Arrivals)
	for i := range longer.Arrivals {
		if a := &longer.Arrivals[i]; a.To == s.Duration {
			a.To = longer.Duration
		}
	}
	return &longer
}

// expected is the mean number of first sends, without traces.
func (s *Scenario) expected() (sum float64) {
	for i := range s.Arrivals {
		a := &s.Arrivals[i]
		for _, span := range a.Spans() {
			switch length := (span.To - span.From).Seconds(); a.Kind {
			case Trace:
			case Mixed:
				sum += (a.Rate + a.Most) / 2 * length
			default:
				sum += a.Rate * length
			}
		}
	}
	return sum
}

// Mix is one kind of request.
type Mix struct {
	Share      float64 // 0..1
	Class      policy.Class
	Colour     policy.Colour
	Tier       string        // "" = none
	Model      string        // "" = the policy's first
	Embedding  bool          // reads a prompt and yields no tokens
	Stream     float64       // share that streams, 0..1
	Priority   bool          // sends the priority header (P8)
	Deadline   time.Duration // the client's own, from each try; 0 = none
	Prompt     Dist          // tokens
	Output     Dist          // tokens
	MaxTokens  int64         // what the call says; 0 = it says nothing
	Understate float64       // the call says this share of the output that it will get, whatever MaxTokens is; 0 = off
}

// Dist is a distribution of whole numbers >= 1 (0 where A and B are 0).
type Dist struct {
	Kind DistKind
	A, B float64 // fixed: A; uniform: A..B; lognormal: median A, 95th percentile B
}

// DistKind is a family of distributions.
type DistKind uint8

// The families.
const (
	Fixed DistKind = iota
	Uniform
	LogNormal
)

// z95 is the 95th percentile of the standard normal distribution.
const z95 = 1.6448536269514722

// Draw takes a number; a log-normal one is at most 100 medians.
func (d Dist) Draw(rng *rand.Rand) int64 {
	v := d.A
	switch d.Kind {
	case Uniform:
		v = d.A + (d.B-d.A)*rng.Float64()
	case LogNormal:
		v = min(d.A*math.Exp(math.Log(d.B/d.A)/z95*rng.NormFloat64()), 100*d.A)
	}
	if d.A == 0 && d.B == 0 {
		return 0
	}
	return max(int64(math.Round(v)), 1)
}

// Mean is the mean of Draw, without its bounds.
func (d Dist) Mean() float64 {
	switch d.Kind {
	case Uniform:
		return (d.A + d.B) / 2
	case LogNormal:
		sigma := math.Log(d.B/d.A) / z95
		return d.A * math.Exp(sigma*sigma/2)
	}
	return d.A
}

// Tenants are who sends. One is called Name, more are Name-1, Name-2, ...
type Tenants struct {
	Name     string  // default "tenant"
	Count    int     // default 1
	Zipf     float64 // 0 = equal shares; else tenant i sends in proportion to i^-Zipf
	HighPart float64 // high-frequency tenants: this part of them (the first ones) ...
	HighLoad float64 // ... sends this part of the load; both 0 = none
	Keys     int     // keys of each tenant, used in turn; default 1
}

// Client is how a caller takes a refusal.
type Client struct {
	Share    float64 // 0..1
	Kind     ClientKind
	Marks    bool          // says on a return which attempt it is (Request.Attempt)
	Patience time.Duration // from the first send: no try begins after it; impatient: also from each try, it hangs up. Default 60s
	Tries    int           // at most, the first included; default 10
	Early    float64       // comes back after this share of the hint; default 1; 0 < Early <= 1
	Every    time.Duration // stubborn: pause between tries, default 100ms; backoff: the first pause, doubled each time, default 500ms
}

// ClientKind is a habit.
type ClientKind uint8

// The habits. Obedient comes back at the hint and gives up without one;
// Backoff doubles its pause each time, drawn between half and all of it, but
// never comes back before the hint; Stubborn sends again every Every,
// whatever it was told; Impatient hangs up Patience after a try and never
// comes back.
const (
	Obedient ClientKind = iota
	Backoff
	Stubborn
	Impatient
)

// Reload swaps the policy in mid run, as a changed file does.
type Reload struct {
	At     time.Duration
	Policy string // a file, "default" or "source"
}

// ClockStep moves the clock that weir reads, as NTP or an operator does.
type ClockStep struct {
	At   time.Duration
	Step time.Duration // may be negative
}

// Candidate is one policy to be run: laid over by the scenario, with those it
// is reloaded to (Reloads' order).
type Candidate struct {
	Name    string // file name without extension; weir's own are "default" and "source"
	Policy  *policy.Policy
	Reloads []*policy.Policy
}
