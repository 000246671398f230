package policy

import "time"

// Queue is the waiting room (Q1, Q4-Q6, P2, P3).
type Queue struct {
	Length       Length
	SoftLimit    Ratio   // 80 %
	SoftExempt   []Class // may use the rest; default critical
	PerTenant    Ratio   // of a class cap, while others wait; default 50 %
	MaxHeldBytes int64   // 256 MiB of bodies held, over all pools
	MaxAwaited   int64   // 512 MiB of bodies still to come, over all tenants; two of maxBody at least
	MaxAwaitedBy int64   // of one tenant, 128 MiB; at most what it leaves free of MaxAwaited; one of maxBody at least
	ColdStart    []int   // 50, 75, 100
	ColdStartFor time.Duration
	RetryQueue   RetryQueue
	Price        Price
	Order        Order
	Headroom     Ratio    // T13: seats kept free, off the top; default 0
	Watchdog     Watchdog // Q9
}

// Order is the order inside one flow (P4, P6): quick requests first, streaming
// ones next. Nobody is overtaken by one who came more than Ageing later.
type Order struct {
	CheapTokens int64         // P4: a cap on output below this is quick; 50
	CheapTime   time.Duration // P4: a predicted run time below this is quick; 100ms
	Streaming   bool          // P6: streaming requests go ahead of the rest; true
	Ageing      time.Duration // the largest advantage; 100ms; 0 = first come first served
}

// Watchdog raises the seats of a pool whose engine is idle while requests
// wait (Q9), by Step of the seats each After, at most by Max above them.
type Watchdog struct {
	After     time.Duration // 10s; 0 = off
	Step, Max Ratio         // 10 %, 50 %
}

// Shares divide a pool's seats (P6, P8, P9), headroom off the top. Idle
// shares are lent and come back with the next freed seats.
type Shares struct {
	Priority  Ratio // P8: seats kept for requests with the priority header; 10 %
	Streaming Ratio // P6: what streaming requests may hold of their tier's seats while others of it wait; 1 = no bound
}

// NonStreaming is P7: a request that does not stream takes a free seat of
// Variant, else waits at most MaxWait, else 429. It goes before P3.
type NonStreaming struct {
	Variant Variant       // fp16
	MaxWait time.Duration // 200ms
}

// Variants is how a variant is chosen beyond the class's own (V1-V3).
type Variants struct {
	ByCost     bool          // V3: the cheapest pool at or below the class's variant; default false
	Flip       time.Duration // a choice by cost stands at least so long; 5s
	Session    string        // header that names a session, which keeps its variant while it can; "" = none
	SessionFor time.Duration // how long a silent session is remembered; 10m
	Notice     string        // text of x-weir-notice on degraded answers; "" = none
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

	FaultFor time.Duration // how long a GPU counts as faulty after a fatal XID without a new one; 10m
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
	DynamicLiteral   bool          // B4 without max(0, ...): thresholds also tighten below the usual load
	Off              bool          // "disabled" in the file

	GRPC    *Breaker      // what pools that speak gRPC have instead, its Tenant and Cascade empty; nil = the same, without Progressive, which has no effect there
	Tenant  TenantBreaker // B5, T2
	Cascade Cascade       // B3
}

// BreakerOf is the breaker profile of pools that speak the protocol. Its GRPC
// is nil for gRPC; Tenant and Cascade are the policy's for both.
func (p *Policy) BreakerOf(protocol Protocol) Breaker {
	b := p.Breaker
	if protocol != GRPCProtocol {
		return b
	}
	b.Progressive = false // B5 is for HTTP pools
	if p.Breaker.GRPC != nil {
		b = *p.Breaker.GRPC
		b.Tenant, b.Cascade = p.Breaker.Tenant, p.Breaker.Cascade
	}
	b.GRPC = nil
	return b
}

// Estimate bounds the cost prediction.
type Estimate struct {
	BytesPerToken    float64 // cold value; 4
	MinBytesPerToken float64 // 1
	MaxBytesPerToken float64 // 8
	Output           int64   // cold p95 of the output of one answer; 512
	MaxOutput        int64   // cap of one answer where the call has none; 4096

	FinalBytesPerToken float64 // no prompt has more bytes a token: what is refused for good stands on this; 16
	Tenants            int     // of whom something is kept, times their models; 10000
}

// RetryAfter is how hints are written (Q5-Q7).
type RetryAfter struct {
	Fractional bool          // literal: Retry-After: 1.5
	Jitter     Ratio         // 20 %
	Max        time.Duration // 60s
	Share      Ratio         // Q5: of the drain rate, what callers who come back at their hints may take; 50 %; 0 = nothing is booked
	Grace      time.Duration // how long after its instant a booking waits for its caller; 5s
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
	Refusals Refusals
}

// Refusals says which refusals are recorded, in the log and for explain; all
// of them are counted in metrics.
type Refusals struct {
	Share     Ratio // of those of callers without a verified identity; default 100 %
	PerSecond int   // of them, of each reason at most; default 2; 0 = none
	PerTenant int   // of one tenant, of each reason at most a second; default 20; 0 = none
	Explain   Ratio // records that callers without an identity have, beside Telemetry.Explain and as a share of it; default 10 %
}

// OTLP is a gRPC collector.
type OTLP struct {
	Endpoint string
	Insecure bool
	CA       string
	Sample   Ratio // of traces that begin here; default 1 %
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
