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
	Tiers    []Tier // gold, silver and bronze are always there, of weight 1 by default
	Tenants  []TenantRule
	Quotas   []QuotaRule

	Queue      Queue
	Gauge      Gauge
	Breaker    Breaker
	Estimate   Estimate
	Body       Body
	RetryAfter RetryAfter
	Retry      RetryControl
	Metering   Metering
	Telemetry  Telemetry
	Engines    []EngineMetrics // kinds of engine beyond those built in
	Shares     Shares
	Variants   Variants

	NonStreaming *NonStreaming // P7; nil = off

	PriorityHeaders []string // P1: headers that may lower the class, or raise it up to what the token allows
	Upgrade         Upgrade  // Connection: Upgrade requests

	profiles map[string]*Policy // fully merged
	profile  string             // its own name; "" = the base
	dir      string             // of the file, for relative names; "" = none
	notes    []string
	index    *index
	cache    *effectiveCache
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

// String is the name used in YAML, metrics and headers.
func (m Mode) String() string {
	switch m {
	case Enforce:
		return "enforce"
	case Shadow:
		return "shadow"
	case Pass:
		return "pass"
	}
	return "unknown"
}

// Server is this process. Changing it needs a restart.
type Server struct {
	GRPC       string // "unix:/path", "unix:@abstract" or "host:port"; default unix:/run/weir/weir.sock
	Insecure   bool   // GRPC may be reached from other machines without proof of who connects; default false
	Admin      string // the same forms; a TCP host must be loopback unless AdminToken is set
	AdminToken Secret
	TLS        *TLS          // of the gRPC port; nil = plaintext
	Drain      time.Duration // SIGTERM: how long running answers may take; default 25s
	MaxBody    int64         // bytes of one request body; default 4 MiB

	BodyTimeout time.Duration // from a request's headers to the end of its body; default 60s
	Replicas    int           // how many weirs share the seats and, without Redis, the limits; default 1
	Workers     int           // grpc stream workers; default 64, 0 = goroutine per stream
}

// TLS names PEM files. ClientCA demands client certificates signed by it,
// Clients that they have one of these names.
type TLS struct {
	Cert, Key, ClientCA string
	Clients             []string // URI or DNS names, * at the end for a prefix; none = every certificate of ClientCA
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
	SentinelUsername string // of the sentinels' own users; empty = their default user
	SentinelPassword Secret // of the sentinels; empty = they want none
	TLS              bool
	CA               string // PEM file; empty = system roots
	Cert, Key        string
	ServerName       string
	Timeout          time.Duration
	Prefix           string        // of every key; default "weir"
	Pool             int           // connections; default 32
	RetryAfterOutage time.Duration // background probe interval while away; default 250ms
}
