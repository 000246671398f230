package policy

import "time"

// Envoy states what the Envoy in front is configured to (generated snippets
// use it).
type Envoy struct {
	MessageTimeout    time.Duration // default 1s
	MaxMessageTimeout time.Duration // default 30s; 0 = no overrides to be had
	MaxRequests       int           // default 50000
	AllowLoosen       bool          // route overrides may loosen (E2)
	TrustCallers      bool          // callers are proxies of ours: their trace context and attempt count are heeded and handed on; default false
	Namespace         string        // route metadata namespace; default weir.policy
	AuthzNamespace    string        // where our ext_authz publishes; default envoy.filters.http.ext_authz

	Clusters   []Cluster // what is protected; a cluster of a pool that is not listed has the defaults
	Watch      Watch
	Protection Protection
	XDS        *XDS // nil = no control plane
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

// ReadsBody reports whether calls of the kind are decided by their bodies.
func (k Kind) ReadsBody() bool { return k <= JSON }

// API maps method and path template to a kind. Templates are segments:
// literal, {name} (one segment) or a last {name...} (any rest).
type API struct {
	Method   string // default POST; GET for ModelList, "*" (any) for Free
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
	// What one prompt holds at most, and one answer, in tokens (1 to
	// 100,000,000; defaults 2,097,152 and 262,144, or MaxOutput where that is
	// larger). A model's count beyond is not believed.
	ContextLimit, OutputLimit int64
}

// Pool is one set of endpoints of one precision behind one Envoy cluster.
type Pool struct {
	Name      string
	Variant   Variant
	Protocol  Protocol          // of its engine; default http
	Cluster   string            // Envoy cluster; default Name
	Subset    map[string]string // envoy.lb metadata, when pools share a cluster
	Seats     Seats
	Adaptive  *Adaptive     // Q9: the number of seats follows the engine; nil = fixed
	MaxHold   time.Duration // longest a seat is held; default 10m
	Telemetry []TelemetrySource
	Cost      Cost           // V3
	Rate      Ratio          // V2: what one of its tokens costs in token quotas; default 1
	Priority  EnginePriority // whether its engine takes a priority in the body
	Stage     bool           // E4: another weir stands behind this cluster; its refusals travel up

	FirstByte time.Duration    // B6: an answer that has not begun so long after its request has its seat is a failure; 0 = no bound
	Learnt    *LearntFirstByte // and so is one that is late by what the pool has learnt; nil = off
}

// LearntFirstByte is a bound for the first byte of an answer (B6) from what a
// pool has learnt of a model: Factor times as long as such a request usually
// takes, and at least Min.
type LearntFirstByte struct {
	Factor float64       // default 5
	Min    time.Duration // default 10s
}

// Adaptive bounds the seats of a pool that follows its engine (Q9). The seats
// start at Min and stay within Min..Max, over all replicas.
type Adaptive struct {
	Min, Max int64
	TTFT     time.Duration // target of the 95th percentile of time to first token; default 2s
}

// Cost is what choosing a pool costs (V3): Base * (1 + min(1, max(0, (latency
// - SLA) / SLA))), latency being the pool's recent time to first token.
type Cost struct {
	Base float64       // default 1
	SLA  time.Duration // default 500ms
}

// EnginePriority says in which form an engine is told a request's class.
type EnginePriority uint8

// NoPriority tells nothing; VLLMPriority sets the body's "priority" (lower =
// earlier): the class's number, -1 for red.
const (
	NoPriority EnginePriority = iota
	VLLMPriority
)

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
	Kind    string // see the Kind constants, or the name of one of Policy.Engines
	URL     string // text sources: http(s); agent, orca-grpc: host:port or unix:/path
	File    string // script: a YAML curve
	Every   time.Duration
	Timeout time.Duration
	Match   map[string]string // labels a series must have (which GPUs, which engine)

	TLS   *ClientTLS // agent, orca-grpc: TLS; text sources: beyond what https does by itself
	Token Secret     // bearer token sent to the source

	Endpoint      string // which model endpoint its GPUs serve
	EndpointLabel string // or the label that names it (pod)
	EndpointsFile string // or a YAML file: card id or host/index -> endpoint

	Agent string // dcgm: path of weir-gpu-agent; default: beside weir
}

// ClientTLS is how weir proves itself and checks whom it calls.
type ClientTLS struct {
	CA, Cert, Key, ServerName string
}

// EngineMetrics names an engine's metrics (Q8): for each signal candidates in
// order of preference, "name" or "name{label=\"value\"}".
type EngineMetrics struct {
	Name                 string
	Waiting, Running, KV []string
}
