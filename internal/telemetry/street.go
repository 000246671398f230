package telemetry

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/breaker"
)

// StreetStats picture breakers, what replicas say to each other, and Envoys,
// read at scrape time (B1-B11).
type StreetStats struct {
	Pools   []admission.PoolBreaker
	Tenants TenantBreakers
	Bus     *BusStats // nil = replicas do not speak to each other

	Watch    WatchStats
	Clusters []ClusterStats // that an Envoy told of
	XDS      *XDSStats      // nil = weir is no control plane

	Lookups         uint64 // readings of endpoint sources that failed
	SourcesTroubled int    // endpoint sources whose last reading failed
}

// TenantBreakers are sums: tenants are too many for a series each.
type TenantBreakers struct{ Known, Soft, Hard, HalfOpen, Held int }

// BusStats are of the way to the other replicas (B3).
type BusStats struct {
	Up             bool
	Age            time.Duration // of the latest word that was heard or delivered
	Said, Heard    uint64
	Failed, Losses uint64 // words not delivered; times that the bus went away
	Garbage        uint64 // what was no word
}

// WatchStats are of what Envoys tell (B7, B8).
type WatchStats struct {
	Envoys, Silent int
	Age            time.Duration     // of the newest sample of the Envoy that was heard longest ago
	Garbage        map[string]uint64 // what could not be used, by kind
	Missed         uint64            // looks at admin addresses without a result
}

// ClusterStats are of one cluster, over all Envoys.
type ClusterStats struct {
	Cluster                            string
	Connections                        int64
	Normal                             float64 // 0 = not learnt yet
	GoAways, Resets, Failures, Retries float64 // a second
	Storm, Protect, Calm               bool
}

// XDSStats are of the control plane (B10). Maps by type have rtds, eds, cds.
type XDSStats struct {
	Nodes, Streams, Unsupported, Unknown, Inherited int
	Pushes, Withdrawn                               uint64
	Sent, Acked, Nacked                             map[string]uint64
	Rejected                                        map[string]uint64 // streams, by reason
	Lag                                             time.Duration     // longest of all nodes and types
	StateErrors                                     uint64
	StateRefused                                    bool
}

// Street registers the series of StreetStats.
func (m *Metrics) Street(stats func() StreetStats) { m.Registry.MustRegister(&street{stats}) }

type street struct{ stats func() StreetStats }

// The series of the street, in the order of docs/metrics.md.
var (
	breakerRelease   = desc("breaker_release_ratio", "Share of requests that the breaker admits.")
	breakerHeld      = desc("breaker_held", "1 while an operator holds it.")
	breakerElsewhere = desc("breaker_elsewhere", "1 for what the council says of the pool at other replicas (B3).", "state")
	breakerVotes     = desc("breaker_votes", "Fresh words with evidence, and those of them that say open (B3).", "word")
	tenantBreakers   = houseDesc("tenant_breakers", "Breakers of tenants that are not closed, by state; held ones also of any state (B5, T2).", "state")
	tenantKnown      = houseDesc("tenant_breakers_known", "Tenants that have a breaker.")

	busUp     = houseDesc("bus_up", "1 while the bus between replicas carries words (B3).")
	busAge    = houseDesc("bus_age_seconds", "Time since a word was heard or delivered.")
	busWords  = houseDesc("bus_words_total", "Words heard, own ones included, and said.", "direction")
	busErrors = houseDesc("bus_errors_total", "Words not delivered, times that the bus went away, and what was no word.", "kind")

	watchEnvoys  = houseDesc("envoy_watch_envoys", "Envoys whose counters are heard, or were until lately.", "state")
	watchAge     = houseDesc("envoy_watch_age_seconds", "Age of the newest sample of the Envoy that was heard longest ago.")
	watchGarbage = houseDesc("envoy_watch_garbage_total", "What Envoys told and could not be used, by kind; absent until it happened.", "kind")
	watchMissed  = houseDesc("envoy_watch_missed_total", "Looks at Envoys' admin addresses without a result.")

	clusterCX       = clusterDesc("connections", "Active connections, over all Envoys.")
	clusterNormal   = clusterDesc("connections_normal", "Usual number of connections; absent until it is learnt (B8).")
	clusterGoAways  = clusterDesc("goaways_per_second", "GOAWAYs in the busiest of the last three seconds (B7).")
	clusterResets   = clusterDesc("resets_per_second", "Requests that the upstream reset, mean of three seconds.")
	clusterFailures = clusterDesc("connect_failures_per_second", "Connects that failed, mean of three seconds.")
	clusterRetries  = clusterDesc("retries_per_second", "Envoy's retries, mean of three seconds.")
	clusterStorm    = clusterDesc("storm", "1 during a storm of GOAWAYs (B7).")
	clusterProtect  = clusterDesc("protect", "1 in protect mode (B8).")
	clusterCalm     = clusterDesc("calm", "1 while GOAWAYs look like those of a server that throws out pings (ENHANCE_YOUR_CALM).")

	xdsNodes       = houseDesc("xds_nodes", "Connected Envoys.")
	xdsUnsupported = houseDesc("xds_nodes_unsupported", "Connected Envoys of releases that are not tested.")
	xdsStreams     = houseDesc("xds_streams", "Open xDS streams.")
	xdsPushes      = houseDesc("xds_pushes_total", "Snapshots that changed something.")
	xdsSent        = houseDesc("xds_responses_total", "Answers sent, by type.", "type")
	xdsAcked       = houseDesc("xds_acks_total", "Answers that Envoys took, by type.", "type")
	xdsNacked      = houseDesc("xds_nacks_total", "Answers that Envoys refused, by type.", "type")
	xdsLag         = houseDesc("xds_lag_seconds", "How long the oldest answer waits for its acknowledgement.")
	xdsRejected    = houseDesc("xds_rejected_total", "Streams refused, by reason; absent until it happened.", "reason")
	xdsUnknown     = houseDesc("xds_unknown", "Names that connected Envoys ask for and the policy does not have.")
	xdsInherited   = houseDesc("xds_inherited", "Clusters whose numbers are those of the state on disk.")
	xdsWithdrawn   = houseDesc("xds_withdrawn_total", "Clusters whose inherited numbers nobody renewed.")
	xdsStateErrors = houseDesc("xds_state_errors_total", "Times that the state could not be written.")
	xdsStateBroken = houseDesc("xds_state_refused", "1 when the state on disk could not be read at the start.")

	lookupsFailed = houseDesc("discovery_failed_total", "Readings of endpoint sources that failed (G2).")
	lookupsBroken = houseDesc("discovery_sources_failing", "Endpoint sources whose last reading failed; their last good list stays.")
)

func clusterDesc(name, help string) *prometheus.Desc {
	return houseDesc("envoy_watch_"+name, help, "cluster")
}

// Describe sends nothing: pools and clusters follow the policy.
func (s *street) Describe(chan<- *prometheus.Desc) {}

// Collect reads the picture once.
func (s *street) Collect(out chan<- prometheus.Metric) {
	st := s.stats()
	c := &collector{out}
	for i := range st.Pools {
		c.breaker(&st.Pools[i])
	}
	c.tenants(&st.Tenants)
	c.bus(st.Bus)
	c.watch(&st.Watch)
	for i := range st.Clusters {
		c.cluster(&st.Clusters[i])
	}
	c.xds(st.XDS)
	c.count(lookupsFailed, st.Lookups)
	c.gauge(lookupsBroken, float64(st.SourcesTroubled))
}

type collector struct{ out chan<- prometheus.Metric }

func (c *collector) gauge(d *prometheus.Desc, v float64, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (c *collector) count(d *prometheus.Desc, v uint64, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (c *collector) flag(d *prometheus.Desc, on bool, labels ...string) {
	v := 0.
	if on {
		v = 1
	}
	c.gauge(d, v, labels...)
}

func (c *collector) breaker(b *admission.PoolBreaker) {
	c.gauge(breakerRelease, b.View.Release, b.Pool)
	c.flag(breakerHeld, b.View.Held, b.Pool)
	for _, s := range []breaker.State{breaker.Closed, breaker.Soft, breaker.Hard} {
		c.flag(breakerElsewhere, b.Ruling.Elsewhere == s, b.Pool, s.String())
	}
	c.gauge(breakerVotes, float64(b.Ruling.Votes), b.Pool, "any")
	c.gauge(breakerVotes, float64(b.Ruling.Open), b.Pool, "open")
}

func (c *collector) tenants(t *TenantBreakers) {
	c.gauge(tenantBreakers, float64(t.Soft), breaker.Soft.String())
	c.gauge(tenantBreakers, float64(t.Hard), breaker.Hard.String())
	c.gauge(tenantBreakers, float64(t.HalfOpen), breaker.HalfOpen.String())
	c.gauge(tenantBreakers, float64(t.Held), "held")
	c.gauge(tenantKnown, float64(t.Known))
}

func (c *collector) bus(b *BusStats) {
	if b == nil {
		return
	}
	c.flag(busUp, b.Up)
	c.gauge(busAge, b.Age.Seconds())
	c.count(busWords, b.Said, "said")
	c.count(busWords, b.Heard, "heard")
	c.count(busErrors, b.Failed, "publish")
	c.count(busErrors, b.Losses, "lost")
	c.count(busErrors, b.Garbage, "garbage")
}

func (c *collector) watch(w *WatchStats) {
	c.gauge(watchEnvoys, float64(w.Envoys-w.Silent), "heard")
	c.gauge(watchEnvoys, float64(w.Silent), "silent")
	c.gauge(watchAge, w.Age.Seconds())
	for kind, n := range w.Garbage {
		c.count(watchGarbage, n, kind)
	}
	c.count(watchMissed, w.Missed)
}

func (c *collector) cluster(s *ClusterStats) {
	c.gauge(clusterCX, float64(s.Connections), s.Cluster)
	if s.Normal > 0 {
		c.gauge(clusterNormal, s.Normal, s.Cluster)
	}
	c.gauge(clusterGoAways, s.GoAways, s.Cluster)
	c.gauge(clusterResets, s.Resets, s.Cluster)
	c.gauge(clusterFailures, s.Failures, s.Cluster)
	c.gauge(clusterRetries, s.Retries, s.Cluster)
	c.flag(clusterStorm, s.Storm, s.Cluster)
	c.flag(clusterProtect, s.Protect, s.Cluster)
	c.flag(clusterCalm, s.Calm, s.Cluster)
}

func (c *collector) xds(x *XDSStats) {
	if x == nil {
		return
	}
	c.gauge(xdsNodes, float64(x.Nodes))
	c.gauge(xdsUnsupported, float64(x.Unsupported))
	c.gauge(xdsStreams, float64(x.Streams))
	c.count(xdsPushes, x.Pushes)
	for d, by := range map[*prometheus.Desc]map[string]uint64{xdsSent: x.Sent, xdsAcked: x.Acked, xdsNacked: x.Nacked, xdsRejected: x.Rejected} {
		for label, n := range by {
			c.count(d, n, label)
		}
	}
	c.gauge(xdsLag, x.Lag.Seconds())
	c.gauge(xdsUnknown, float64(x.Unknown))
	c.gauge(xdsInherited, float64(x.Inherited))
	c.count(xdsWithdrawn, x.Withdrawn)
	c.count(xdsStateErrors, x.StateErrors)
	c.flag(xdsStateBroken, x.StateRefused)
}

// Transition counts a breaker's change of state. Tenants have no series of
// their own: their pool is "".
func (m *Metrics) Transition(t *breaker.Transition) {
	pool := t.Breaker
	if t.Kind == breaker.Tenant {
		pool = ""
	}
	m.transitions.WithLabelValues(pool, t.Kind.String(), t.To.String(), t.Cause.String()).Inc()
}

// ProtectionChanged counts a number that a cluster was told anew, by what kind
// of number it is: key is that of protect.Change.
func (m *Metrics) ProtectionChanged(key string) {
	m.protection.WithLabelValues(ProtectionKey(key)).Inc()
}

// ProtectionKey is a number's kind: the last part of a threshold's runtime key,
// maintenance, drop_overloads or health.
func ProtectionKey(key string) string {
	switch {
	case strings.HasPrefix(key, "upstream.maintenance_mode."):
		return "maintenance"
	case strings.HasPrefix(key, "health "):
		return "health"
	case strings.HasPrefix(key, "circuit_breakers."):
		return key[strings.LastIndexByte(key, '.')+1:]
	}
	return key
}

// elsewhere counts what was shed because peers say that a pool is open (B3).
func (m *Metrics) elsewhere(d *admission.Decision) {
	if d.Reason != admission.BreakerShed {
		return
	}
	for i := range d.Trail.Steps[:d.Trail.N] {
		if s := &d.Trail.Steps[i]; s.Room == admission.RoomBreaker && s.What == "elsewhere" {
			m.cascade.Inc()
			return
		}
	}
}
