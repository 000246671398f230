package policy

import "time"

// Queue is the waiting room (Q1, Q4-Q6, P2, P3).
type Queue struct {
	Length       Length
	SoftLimit    Ratio   // 80 %
	SoftExempt   []Class // may use the rest; default critical
	PerTenant    Ratio   // of a class cap, while others wait; default 50 %
	MaxHeldBytes int64   // 256 MiB of bodies held, over all pools
	ColdStart    []int   // 50, 75, 100
	ColdStartFor time.Duration
	RetryQueue   RetryQueue
	Price        Price
}

// Length is Q1's line: clamp(Intercept - Slope*pressure%, Min, Max).
type Length struct {
	Intercept, Slope float64
	Min, Max         int
}

// RetryQueue holds expired batch requests (P3).
type RetryQueue struct {
	Limit  time.Duration // 5s
	Length int           // 200
}

// Price is what fair queuing counts (P2).
type Price uint8

// ByTokens prices by predicted cost; ByRequests is the literal 3:2:1 round.
const (
	ByTokens Price = iota
	ByRequests
)

// Gauge is how samples become pressure (Q2, Q3, Q8).
type Gauge struct {
	Smoothing     [3]float64    // 0.7, 0.2, 0.1
	Neutral       Ratio         // 50 %
	StalePeriods  int           // 3
	WaitingTarget float64       // 5
	KVTarget      Ratio         // 80 %
	Literal       bool          // utilisation alone
	ColdGap       time.Duration // a gap in telemetry this long makes a pool cold; default 60s
	LiteralCold   bool          // Q4 literal: cold at process start
}

// Breaker is B1, B2, B4's switch and B5's.
type Breaker struct {
	Window           time.Duration // 10s
	Soft, Hard       Ratio         // 30 %, 50 %
	MinRequests      int           // 20
	Open             time.Duration // 5s
	Probes           Ratio         // 10 %
	Release          []Ratio       // 10, 25, 50, 100 %
	ReleaseStep      time.Duration // 5s a step
	Progressive      bool          // B5: 30s, then 5min
	DynamicThreshold bool          // B4
	Off              bool          // disabled in the file
}

// Estimate bounds the cost prediction.
type Estimate struct {
	BytesPerToken    float64 // cold value; 4
	MinBytesPerToken float64 // 1
	MaxBytesPerToken float64 // 8
	Output           int64   // cold p95 of output; 512
	MaxOutput        int64   // cap where the call has none; 4096
}

// RetryAfter is how hints are written (Q5-Q7).
type RetryAfter struct {
	Fractional bool          // literal: Retry-After: 1.5
	Jitter     Ratio         // 20 %
	Max        time.Duration // 60s
}

// Metering is the usage meter's policy.
type Metering struct {
	IncludeUsage bool  // inject stream_options.include_usage; default true
	MaxEvent     int64 // bytes of one SSE event kept; default 1 MiB
}

// Telemetry is logs and traces; metrics are always on.
type Telemetry struct {
	LogLevel string // debug, info, warn, error; default info
	OTLP     *OTLP  // nil = no traces
	Tenants  int    // tenant label values kept, the rest is "other"; default 50
	Explain  int    // decisions kept for explain; default 1000
}

// OTLP is a gRPC collector.
type OTLP struct {
	Endpoint string
	Insecure bool
	CA       string
	Sample   Ratio // of traces without a sampled parent; default 1 %
}

// Upgrade says what happens to Connection: Upgrade requests.
type Upgrade uint8

// RefuseUpgrade answers 400; OpaqueUpgrade decides at headers as kind Opaque.
const (
	RefuseUpgrade Upgrade = iota
	OpaqueUpgrade
)

// Ratio is a share, 0..1; written as 0.8 or 80%.
type Ratio float64
