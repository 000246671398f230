package policy

import "time"

// Protocol is what a pool's engine speaks; it chooses the profile of the
// pool's breaker (B1).
type Protocol uint8

// The protocols. HTTP is the default.
const (
	HTTP Protocol = iota
	GRPCProtocol
)

// String is the name used in YAML and metrics.
func (p Protocol) String() string {
	if p == GRPCProtocol {
		return "grpc"
	}
	return "http"
}

// CoolDown is B5's growing open time: First, and each time the breaker opens
// again before it has been closed as long as it was open, the last one times
// Factor, at most Cap.
type CoolDown struct {
	First, Cap time.Duration
	Factor     float64 // at least 1
}

// TenantBreaker is the breaker of one tenant (B5, T2). Its ends count only
// while the pool that served them is closed, so that a pool's failure is not
// taken for the tenant's.
type TenantBreaker struct {
	On          bool // default false
	Soft, Hard  Ratio
	MinRequests int
	CoolDown    CoolDown // 5m, x1.5, 30m
	Max         int      // tenants kept; default 10000
}

// Cascade is B3: how replicas learn of an open breaker.
type Cascade struct {
	Bus     BusKind       // default auto
	Etcd    *Etcd         // with Bus etcd
	Literal bool          // one open word is enough and batch is shed on every pool
	TTL     time.Duration // a word not renewed for so long is forgotten; default 15s
	Renew   time.Duration // how often a word is renewed; default 5s
}

// BusKind says what carries the words.
type BusKind uint8

// The buses. Auto is Redis where the store is Redis, else none.
const (
	BusAuto BusKind = iota
	BusOff
	BusRedis
	BusEtcd
)

// Etcd is an etcd cluster. A nil TLS is plaintext.
type Etcd struct {
	Endpoints []string // host:port
	Prefix    string   // default /weir/
	Username  string
	Password  Secret
	CA        string // PEM file; "" with TLS true = system roots
	Cert, Key string
	TLS       bool
}

// Cluster is what Envoy's file says of one cluster that weir protects, with
// nothing wrong: the numbers that protection starts from (B10), and where its
// endpoints come from when weir serves them (EDS). In Envoy.Clusters 0
// MaxRequests is "not said"; Policy.ProtectedClusters has all defaults.
type Cluster struct {
	Name           string
	Protocol       Protocol // default that of its pools
	MaxConnections int64    // 1024
	MaxPending     int64    // 1024
	MaxRequests    int64    // default seats of its pools + the longest line
	MaxRetries     int64    // 3; used where Budget is 0
	Budget         Ratio    // retry budget; 20 %; 0 = none
	MinRetries     int64    // min_retry_concurrency; 50
	Endpoints      *Endpoints
	Subsets        []map[string]string // of its pools, each once, in their order; Policy.ProtectedClusters has them

	protocolSet bool // the file says it
}

// Endpoints are a cluster's hosts by priority (0 first).
type Endpoints struct {
	Priorities []EndpointSet // 1..8
	Return     time.Duration // a failed region is used again when it was well for so long; default 30s
	Heartbeat  time.Duration // of each host, where there are several regions; default 500ms; 0 = none
}

// Priority is that of a set of Priorities: what it says, else its place.
func (e *Endpoints) Priority(set int) int {
	if p := e.Priorities[set].Priority; p != nil {
		return *p
	}
	return set
}

// EndpointSet is one region's hosts, by exactly one of the sources.
type EndpointSet struct {
	Region   string            // locality; "" = none
	Static   []string          // ip:port
	File     string            // YAML list of host:port with optional health, weight, subset
	DNS      string            // host:port, looked up each Every
	Slices   string            // file with Kubernetes EndpointSlices (YAML or JSON, one or a list)
	Port     string            // with Slices: name or number of the port
	Every    time.Duration     // of all but Static: how often it is read again; default 5s
	Subset   map[string]string // envoy.lb metadata of its hosts; what a File says of a host goes before it
	Priority *int              // 0..7; nil = its place in the list
}

// Watch is what weir looks at in Envoy (B7, B8).
type Watch struct {
	Admin   []EnvoyAdmin  // polled
	Metrics bool          // serve MetricsService on server.grpc; default true
	Every   time.Duration // of polling; default 500ms

	GoAway  GoAway
	Protect Protect
}

// EnvoyAdmin is the admin address of one Envoy.
type EnvoyAdmin struct {
	Node string // its node id
	URL  string // http://127.0.0.1:9901 or unix:/path
}

// GoAway is B7's trip wire.
type GoAway struct {
	PerSecond float64       // more than; 5
	Share     Ratio         // and at least this share of the connections within Window; 50 %
	Window    time.Duration // 10s
	Literal   bool          // the rate alone
}

// Protect is B8: protect mode starts when connections fall below Below of
// normal and ends when they are back at Above of it for Calm.
type Protect struct {
	Below, Above Ratio         // 50 %, 80 %
	Calm         time.Duration // 5s
}

// Protection is how breaker states become Envoy settings (B10).
type Protection struct {
	Off       bool
	Calm      time.Duration // what loosens waits until things have been calm so long; 1s
	Interval  time.Duration // two changes of one cluster are at least so far apart; 200ms
	MaxPerSec int           // changes a second over all clusters; 100
	Floor     Ratio         // concurrency is never lowered below this share of normal; 10 %
	SoftDrop  Ratio         // share that Envoy drops by itself at the soft level; 0
	HardDrop  Ratio         // and at the hard level; 0: the desk sheds, and lane and probes must pass
	Shedding  Shedding      // by which means it drops
}

// Shedding is the means by which Envoy drops.
type Shedding uint8

// DropOverload is EDS drop_overloads, for clusters whose endpoints weir
// serves; Maintenance is the runtime key, whole percents.
const (
	DropOverload Shedding = iota
	Maintenance
)

// XDS is the control plane that Envoys connect to (on server.grpc).
type XDS struct {
	State string     // directory of the last state; "" = none kept
	Nodes []XDSGroup // who may connect and what each gets; none = every node that reaches the socket gets all
	CDS   bool       // serve the clusters themselves, for Envoys that weir owns; default false
	Layer string     // name of the RTDS layer; default weir
}

// XDSGroup admits nodes. All of what is set must match; names end in * for a
// prefix.
type XDSGroup struct {
	Name     string
	ID       string   // node.id
	Cluster  string   // node.cluster
	SANs     []string // of the client certificate, URI or DNS; needs server.tls.clientCA; none = Unix socket or no TLS
	Clusters []string // what it gets; none = all
}

// RetryControl is B9: how callers are told to try again.
type RetryControl struct {
	Off    bool
	Base   time.Duration // 100ms
	Factor float64       // 1.5
	Max    time.Duration // 30s
	Jitter Ratio         // 20 %
	Storm  int           // consecutive failures of a tenant at a pool from which on it is told not to try again; 10
}
