package policy

import "time"

// Policy is one loaded weir.yaml: checked, with every default filled in. It
// is immutable: readers share it without locks and hold one pointer for the
// whole life of a request. A profile is a Policy of its own (see Effective).
type Policy struct {
	Hash    string // first 12 hex digits of SHA-256 over the effective document
	Version int    // 1
	Mode    Mode
	Server  Server
	Store   Store

	Identity Identity
	Envoy    Envoy
	APIs     []API   // in file order; the most specific template wins
	Models   []Model // in file order
	Pools    []Pool  // in file order
	Classes  [NumClasses]ClassPolicy
	Tiers    []Tier // default: one tier "silver" of weight 1 is always there
	Tenants  []TenantRule
	Quotas   []QuotaRule

	Queue      Queue
	Gauge      Gauge
	Breaker    Breaker
	Estimate   Estimate
	RetryAfter RetryAfter
	Metering   Metering
	Telemetry  Telemetry

	PriorityHeaders []string // P1: headers that may lower the class, or raise it up to what the token allows
	Upgrade         Upgrade  // Connection: Upgrade requests

	profiles map[string]*Policy // fully merged
}

// Mode says what becomes of a decision (O4).
type Mode uint8

// Enforce acts on decisions, Shadow records them and admits, Pass admits
// everything and keeps identity.
const (
	Enforce Mode = iota
	Shadow
	Pass
)

// Server is this process. Changing it needs a restart.
type Server struct {
	GRPC       string // "host:port", "unix:/path" or "unix:@abstract"
	Admin      string // the same forms; a TCP host must be loopback unless AdminToken is set
	AdminToken Secret
	TLS        *TLS          // of the gRPC port; nil = plaintext
	Drain      time.Duration // SIGTERM: how long running answers may take; default 25s
	MaxBody    int64         // bytes of one request body; default 4 MiB
	Replicas   int           // how many weirs share the seats and, without Redis, the limits; default 1
	Workers    int           // grpc stream workers; default 64, 0 = goroutine per stream
}

// Secret is a value read from a file at load; it never appears in dumps.
type Secret struct {
	File  string
	value string
}

// TLS names PEM files. ClientCA demands client certificates signed by it.
type TLS struct {
	Cert, Key, ClientCA string
}

// Store is where quota counters live. Redis nil = memory.
type Store struct {
	MaxTenants int // memory store: tenants kept; default 100000
	Redis      *Redis
}

// Redis is the shared store. Timeout bounds one decision (default 10 ms).
type Redis struct {
	Addresses        []string // more than one: cluster, unless Master is set (then sentinels)
	Master           string   // sentinel master name
	DB               int
	Username         string
	Password         Secret
	TLS              bool
	CA               string // PEM file; empty = system roots
	Cert, Key        string
	ServerName       string
	Timeout          time.Duration
	Prefix           string        // of every key; default "weir"
	Pool             int           // connections; default 32
	RetryAfterOutage time.Duration // background probe interval while away; default 250ms
}

// Identity says where identity comes from (K1, K2).
type Identity struct {
	From        IdentityFrom
	Issuers     []Issuer
	Algorithms  []string // default EdDSA, ES256, RS256
	Claims      Claims
	Leeway      time.Duration // of exp, nbf, iat; default 30s
	MaxLifetime time.Duration // exp - iat (or - now without iat); default 24h, 0 = unbounded
	CacheFor    time.Duration // verified tokens; default and max 10s, 0 = off
	CacheSize   int           // default 100000
	MaxToken    int64         // bytes; default 8 KiB
	Service     string        // scope that every call needs; default llm_service
	Realm       string        // of WWW-Authenticate; default weir
	Preflight   bool          // let CORS preflights pass without a token
	Forward     bool          // keep Authorization towards the model; default false (stripped)
	Metadata    MetadataSource
}

// IdentityFrom is one of the three forms of design section 2.
type IdentityFrom uint8

// The forms: our ext_authz as dynamic metadata; verified inside ext_proc;
// another filter's verified claims.
const (
	FromAuthz IdentityFrom = iota
	FromExtProc
	FromMetadata
)

// Issuer is one trusted token issuer.
type Issuer struct {
	Issuer     string
	Audiences  []string // any of them; empty is refused
	Algorithms []string // default: Identity.Algorithms
	JWKS       JWKS
}

// JWKS is a key set: File (watched) or URL (fetched).
type JWKS struct {
	File       string
	URL        string
	CA         string        // PEM for https
	Refresh    time.Duration // default 5m
	MinRefresh time.Duration // least time between fetches for unknown kids; default 10s
	StaleFor   time.Duration // keys served while the key server is away; default 24h
	Timeout    time.Duration // one fetch; default 2s
}

// Claims names the claims of the token that make an identity. Dots descend
// ("realm_access.tenant"). Empty = not read.
type Claims struct {
	Tenant, Class, Colour, Tier, User, Key, Scope string
}

// MetadataSource is another filter's namespace in dynamic metadata.
type MetadataSource struct {
	Namespace string // default envoy.filters.http.jwt_authn
	Key       string // struct inside the namespace that holds the claims; empty = the namespace itself
}

// Envoy states what the Envoy in front is configured to (generated snippets
// use it).
type Envoy struct {
	MessageTimeout    time.Duration // default 1s
	MaxMessageTimeout time.Duration // default 30s; 0 = no overrides to be had
	MaxRequests       int           // default 50000
	AllowLoosen       bool          // route overrides may loosen (E2)
	Namespace         string        // route metadata namespace; default weir.policy
	AuthzNamespace    string        // where our ext_authz publishes; default envoy.filters.http.ext_authz
}

// Kind is how an API's calls are read.
type Kind uint8

// The kinds. JSON is parsed strictly and charged Cost; Opaque is decided at
// headers at Cost; GRPC is decided at headers and ended by trailers; Free
// passes with identity and no desk; ModelList is GET /v1/models.
const (
	OpenAIChat Kind = iota
	OpenAICompletions
	OpenAIEmbeddings
	JSON
	GRPC
	Opaque
	Free
	ModelList
)

// API maps method and path template to a kind. Templates are segments:
// literal, {name} (one segment) or a last {name...} (any rest).
type API struct {
	Method   string // default POST; GET for ModelList; "*" any
	Path     string
	Kind     Kind
	Function string // scope needed (K1 function level); empty = none beyond the service
	Model    string // for calls whose body names no model (GRPC, Opaque); empty = first model
	Cost     int64  // tokens charged by default for JSON, GRPC, Opaque; default 1000
}

// Model is what callers ask for.
type Model struct {
	Name      string
	Aliases   []string // exact, or a trailing * glob
	Pools     []string // pool names, any variant
	MaxOutput int64    // cap assumed for calls without one; default Estimate.MaxOutput
}

// Pool is one set of endpoints of one precision behind one Envoy cluster.
type Pool struct {
	Name      string
	Variant   Variant
	Cluster   string            // Envoy cluster; default Name
	Subset    map[string]string // envoy.lb metadata, when pools share a cluster
	Seats     Seats
	MaxHold   time.Duration // longest a seat is held; default 10m
	Telemetry []TelemetrySource
}

// Variant is a precision. Higher rank = higher precision.
type Variant string

// The precisions of V1.
const (
	FP16    Variant = "fp16"
	FP16Dyn Variant = "fp16-dyn"
	INT8    Variant = "int8"
)

// Seats are a pool's capacity in two currencies (Q9); 0 tokens = unbounded.
// They are the pool's, over all replicas: Server.Replicas divides them.
type Seats struct {
	Requests int64 // >= 1
	Tokens   int64
}

// TelemetrySource is one place where the load of a pool is read.
type TelemetrySource struct {
	Kind    string // dcgm-exporter, vllm, script
	URL     string // for text sources
	File    string // for script: a YAML curve
	Every   time.Duration
	Timeout time.Duration
	Match   map[string]string // labels a series must have (which GPUs, which engine)
}

// ClassPolicy is one of the three classes (P1, P3).
type ClassPolicy struct {
	Class    Class
	Weight   int           // 3, 2, 1
	MaxWait  time.Duration // 200ms, 500ms, 1s
	OnExpiry Expiry
	Variant  Variant // V1
	Mode     Mode    // shadow by class; default the policy's
}

// Expiry is what follows when MaxWait ends (P3).
type Expiry uint8

// ExpireDrop = 503; ExpireDegrade = a free seat of the next pool down, else
// 429; ExpireRetry = still held, served from spare seats only, then 429.
const (
	ExpireDrop Expiry = iota
	ExpireDegrade
	ExpireRetry
)

// Tier weighs tenants inside a class (P2).
type Tier struct {
	Name   string
	Weight float64 // default 1
}

// TenantRule overrides what the token claims; the first match wins.
type TenantRule struct {
	Match  Match
	Tier   string
	Class  *Class // caps the class; nil = the token's
	Models []string
	Block  bool // refuse every call
}

// Match selects requests; every non-empty field must match. "*" matches any
// non-empty value, a trailing * is a prefix glob.
type Match struct {
	Tenant, Tier, User, Key, Model, Function string
	Class                                    *Class
}

// QuotaRule is one counter family (T7): match selects, by names the counter;
// every matching rule binds.
type QuotaRule struct {
	Name   string
	Match  Match
	By     []string // tenant, key, user, model, function, class; empty = one counter for all
	Limits []Limit
}

// Limit is one bound of a rule. Per is 0 for Concurrency.
type Limit struct {
	Unit Unit
	Max  int64
	Per  time.Duration
}

// Unit is what a limit counts (T7).
type Unit uint8

// The units of this release; Tokens counts input plus output.
const (
	Requests Unit = iota
	Tokens
	InputTokens
	OutputTokens
	Concurrency
)

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
	Off              bool
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
