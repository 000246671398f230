package policy

import (
	"slices"
	"time"
)

// DefaultTier is the tier of tenants without one (P9's middle).
const DefaultTier = "silver"

// defaultNotice is what a client of a degraded answer reads (V2).
const defaultNotice = "served at lower precision: accuracy within 0.3 %, coherence 5-8 % lower"

// tierShares are P9's, for tiers that do not say another.
func tierShares() map[string]Ratio {
	return map[string]Ratio{"gold": 0.2, DefaultTier: 0.6, "bronze": 0.2}
}

// tierWords are the tiers that are always there, of weight 1 unless the
// policy says another.
func tierWords() []string { return []string{"gold", DefaultTier, "bronze"} }

// base is a policy with every default that does not depend on other fields,
// and with no models, pools, issuers or rules.
func base() *Policy {
	return &Policy{
		Version:    1,
		Mode:       Enforce,
		Server:     defaultServer(),
		Store:      Store{MaxTenants: 100_000},
		Identity:   defaultIdentity(),
		Envoy:      defaultEnvoy(),
		APIs:       defaultAPIs(),
		Classes:    defaultClasses(),
		Queue:      defaultQueue(),
		Gauge:      defaultGauge(),
		Breaker:    defaultBreaker(),
		Estimate:   defaultEstimate(),
		Body:       defaultBody(),
		RetryAfter: RetryAfter{Jitter: 0.2, Max: time.Minute, Share: 0.7, Grace: 5 * time.Second},
		Retry:      RetryControl{Base: 100 * time.Millisecond, Factor: 1.5, Max: 30 * time.Second, Jitter: 0.2, Storm: 10},
		Metering:   Metering{IncludeUsage: true, MaxEvent: 1 << 20},
		Shares:     Shares{Priority: 0.1, Streaming: 1},
		Variants:   Variants{Flip: 5 * time.Second, SessionFor: 10 * time.Minute, Notice: defaultNotice},
		Telemetry:  Telemetry{LogLevel: "info", Tenants: 50, Explain: 1000, Refusals: Refusals{Share: 1, PerSecond: 2, PerTenant: 20, Explain: 0.1}},

		PriorityHeaders: []string{"X-DeepSeek-Priority", "X-Traffic-Color"},
	}
}

func defaultServer() Server {
	return Server{
		GRPC:        "unix:/run/weir/weir.sock",
		Admin:       "127.0.0.1:9902",
		Drain:       25 * time.Second,
		MaxBody:     4 << 20,
		BodyTimeout: time.Minute,
		Replicas:    1,
		Workers:     64,
	}
}

func defaultRedis() Redis {
	return Redis{
		Timeout:          10 * time.Millisecond,
		Prefix:           "weir",
		Pool:             32,
		RetryAfterOutage: 250 * time.Millisecond,
	}
}

func defaultIdentity() Identity {
	return Identity{
		Algorithms:  algorithms(),
		Claims:      Claims{Tenant: "tenant", Class: "class", Colour: "colour", Tier: "tier", User: "sub", Key: "key", Scope: "scope"},
		Leeway:      30 * time.Second,
		MaxLifetime: 24 * time.Hour,
		CacheFor:    10 * time.Second,
		CacheSize:   100_000,
		MaxToken:    8 << 10,
		Service:     "llm_service",
		Realm:       "weir",
		Metadata:    MetadataSource{Namespace: "envoy.filters.http.jwt_authn"},
	}
}

func algorithms() []string { return []string{"EdDSA", "ES256", "RS256"} }

func defaultJWKS() JWKS {
	return JWKS{Refresh: 5 * time.Minute, MinRefresh: 10 * time.Second, StaleFor: 24 * time.Hour, Timeout: 2 * time.Second}
}

func defaultEnvoy() Envoy {
	return Envoy{
		MessageTimeout:    time.Second,
		MaxMessageTimeout: 30 * time.Second,
		MaxRequests:       50_000,
		Namespace:         "weir.policy",
		AuthzNamespace:    "envoy.filters.http.ext_authz",
		Watch:             defaultWatch(),
		Protection:        defaultProtection(),
	}
}

func defaultAPIs() []API {
	return []API{
		{Path: "/v1/chat/completions", Kind: OpenAIChat, Function: "chat_completion"},
		{Path: "/v1/completions", Kind: OpenAICompletions, Function: "completion"},
		{Path: "/v1/embeddings", Kind: OpenAIEmbeddings, Function: "embedding"},
		{Path: "/v1/models", Kind: ModelList},
	}
}

func defaultClasses() [NumClasses]ClassPolicy {
	return [NumClasses]ClassPolicy{
		Critical: {Class: Critical, Weight: 3, MaxWait: 200 * time.Millisecond, OnExpiry: ExpireDrop, Variant: FP16},
		Standard: {Class: Standard, Weight: 2, MaxWait: 500 * time.Millisecond, OnExpiry: ExpireDegrade, Variant: FP16Dyn},
		Batch:    {Class: Batch, Weight: 1, MaxWait: time.Second, OnExpiry: ExpireRetry, Variant: INT8},
	}
}

func defaultQueue() Queue {
	return Queue{
		Length:       Length{Intercept: 1000, Slope: 10, Min: 50, Max: 200},
		SoftLimit:    0.8,
		SoftExempt:   []Class{Critical},
		PerTenant:    0.5,
		MaxHeldBytes: 256 << 20,
		MaxAwaited:   512 << 20,
		MaxAwaitedBy: 128 << 20,
		ColdStart:    []int{50, 75, 100},
		ColdStartFor: 30 * time.Second,
		RetryQueue:   RetryQueue{Limit: 5 * time.Second, Length: 200},
		Price:        ByTokens,
		Order:        Order{CheapTokens: 50, CheapTime: 100 * time.Millisecond, Streaming: true, Ageing: 100 * time.Millisecond},
		Watchdog:     Watchdog{After: 10 * time.Second, Step: 0.1, Max: 0.5},
	}
}

func defaultEstimate() Estimate {
	return Estimate{
		BytesPerToken: 4, MinBytesPerToken: 1, MaxBytesPerToken: 8, FinalBytesPerToken: 16,
		Output: 512, MaxOutput: 4096, Tenants: 10_000,
	}
}

func defaultNonStreaming() NonStreaming {
	return NonStreaming{Variant: FP16, MaxWait: 200 * time.Millisecond}
}

func defaultGauge() Gauge {
	return Gauge{
		Smoothing:     [3]float64{0.7, 0.2, 0.1},
		Neutral:       0.5,
		StalePeriods:  3,
		WaitingTarget: 5,
		KVTarget:      0.8,
		ColdGap:       time.Minute,
		FaultFor:      10 * time.Minute,
	}
}

func defaultBreaker() Breaker {
	return Breaker{
		Window:      10 * time.Second,
		Soft:        0.3,
		Hard:        0.5,
		MinRequests: 20,
		Open:        5 * time.Second,
		Probes:      0.1,
		Release:     []Ratio{0.1, 0.25, 0.5, 1},
		ReleaseStep: 5 * time.Second,
		Tenant: TenantBreaker{
			Soft:        0.3,
			Hard:        0.5,
			MinRequests: 20,
			CoolDown:    CoolDown{First: 5 * time.Minute, Factor: 1.5, Cap: 30 * time.Minute},
			Max:         10_000,
		},
		Cascade: Cascade{TTL: 15 * time.Second, Renew: 5 * time.Second},
	}
}

// Default is the default policy over three pools (chat-fp16, chat-dyn and
// chat-int8) that serve the model deepseek-v4 (alias deepseek-*), without an
// issuer, quota or telemetry source: what tests start from. Each call gives a
// policy of its own.
func Default() *Policy {
	p := base()
	p.Models = []Model{{Name: "deepseek-v4", Aliases: []string{"deepseek-*"}, Pools: []string{"chat-fp16", "chat-dyn", "chat-int8"}}}
	p.Pools = []Pool{
		{Name: "chat-fp16", Variant: FP16, Seats: Seats{Requests: 64, Tokens: 400_000}, MaxHold: maxHold},
		{Name: "chat-dyn", Variant: FP16Dyn, Seats: Seats{Requests: 64, Tokens: 400_000}, MaxHold: maxHold},
		{Name: "chat-int8", Variant: INT8, Seats: Seats{Requests: 128, Tokens: 800_000}, MaxHold: maxHold},
	}
	p.complete()
	return p.seal()
}

const maxHold = 10 * time.Minute

func defaultLearnt() LearntFirstByte { return LearntFirstByte{Factor: 5, Min: 10 * time.Second} }

// Finish makes the look-up tables of a policy that was changed after Default,
// as tests do, and returns it. Nothing may change it afterwards.
func (p *Policy) Finish() *Policy {
	p.index = newIndex(p)
	p.index.clusters = p.protectedClusters()
	p.cache = &effectiveCache{}
	return p
}

// completeLimits fills in more than what the models of today take and write.
func (m *Model) completeLimits() {
	if m.ContextLimit == 0 {
		m.ContextLimit = 2 << 20
	}
	if m.OutputLimit == 0 {
		m.OutputLimit = max(256<<10, m.MaxOutput)
	}
}

// complete fills what depends on other fields. Doing it twice changes nothing.
func (p *Policy) complete() {
	for i := range p.APIs {
		p.APIs[i].complete()
	}
	for i := range p.Models {
		if p.Models[i].MaxOutput == 0 {
			p.Models[i].MaxOutput = p.Estimate.MaxOutput
		}
		p.Models[i].completeLimits()
	}
	for i := range p.Pools {
		p.Pools[i].complete()
	}
	for i := range p.Envoy.Clusters {
		p.Envoy.Clusters[i].Endpoints.complete()
	}
	for i := range p.Classes {
		if !p.Classes[i].modeSet {
			p.Classes[i].Mode = p.Mode
		}
	}
	for i := range p.Identity.Issuers {
		if s := &p.Identity.Issuers[i]; s.Algorithms == nil {
			s.Algorithms = slices.Clone(p.Identity.Algorithms)
		}
	}
	p.Tiers = slices.Clip(p.Tiers)
	for _, name := range tierWords() {
		if !hasTier(p, name) {
			p.Tiers = append(p.Tiers, Tier{Name: name, Weight: 1, Share: tierShares()[name]})
		}
	}
	p.Queue.complete()
}

const defaultCost = 1000

func (a *API) complete() {
	if a.Method == "" {
		switch a.Kind {
		case ModelList:
			a.Method = "GET"
		case Free:
			a.Method = "*"
		default:
			a.Method = "POST"
		}
	}
	if a.Cost == 0 && a.Kind.fixedCost() {
		a.Cost = defaultCost
	}
}

// fixedCost says whether calls of a kind are charged API.Cost.
func (k Kind) fixedCost() bool { return k == JSON || k == GRPC || k == Opaque }

func (p *Pool) complete() {
	if p.Adaptive != nil {
		p.Seats.Requests = p.Adaptive.Min
		if p.Adaptive.TTFT == 0 {
			p.Adaptive.TTFT = 2 * time.Second
		}
	}
	if p.Cost.Base == 0 {
		p.Cost.Base = 1
	}
	if p.Cost.SLA == 0 {
		p.Cost.SLA = 500 * time.Millisecond
	}
	if p.Rate == 0 {
		p.Rate = 1
	}
	if p.Cluster == "" {
		p.Cluster = p.Name
	}
	for i := range p.Telemetry {
		t := &p.Telemetry[i]
		if t.Every == 0 {
			t.Every = time.Second
			if k, ok := builtInKind(t.Kind); ok && k.slow {
				t.Every = 5 * time.Second
			}
		}
		if t.Timeout == 0 {
			t.Timeout = min(t.Every, time.Second)
		}
	}
}

// complete caps the cold lengths by the line's longest (Q4 under Q1); a line
// whose longest is 0 does not wait at all, whatever its least is.
func (q *Queue) complete() {
	if q.Length.Max == 0 {
		q.Length.Min = 0
	}
	var cold []int // its own: profiles share what they were made from
	for _, n := range q.ColdStart {
		cold = append(cold, min(n, q.Length.Max))
	}
	q.ColdStart = cold
}

// The kinds of telemetry source.
const (
	KindDCGMExporter = "dcgm-exporter"
	KindVLLM         = "vllm"
	KindScript       = "script"
	KindSGLang       = "sglang"
	KindTGI          = "tgi"
	KindTriton       = "triton"        // Triton's own counters
	KindTritonLLM    = "triton-trtllm" // Triton with TensorRT-LLM
	KindTRTLLM       = "trtllm-serve"
	KindORCA         = "orca"          // response headers
	KindORCAGRPC     = "orca-grpc"     // out of band
	KindAgent        = "agent"         // weir-gpu-agent over gRPC
	KindDCGM         = "dcgm"          // weir-gpu-agent as a child of weir (Q3, literal)
	KindNodeExporter = "node-exporter" // T4
	KindCAdvisor     = "cadvisor"      // T4
	KindCgroup       = "cgroup"        // T4: weir's own
)
