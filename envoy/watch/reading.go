// Package watch looks at what Envoys count of their clusters: GOAWAYs, resets,
// connections and failures, and judges storms of GOAWAYs (B7) and the health
// of a cluster's connections (B8).
//
// A Source brings absolute counters of one Envoy at an instant to a Sink.
// There are two: Metrics serves envoy.service.metrics.v3.MetricsService, to
// which an Envoy pushes, and Poller reads the admin addresses of the policy.
// Both feed one Core, a state machine without clock, goroutine or log, whose
// Step gives Readings, an immutable view, and Events. Watch is the shell
// around it:
//
//	w := watch.New(p, watch.Options{Log: log})  // p *policy.Policy; polls, steps and judges from here on
//	defer w.Close()
//	w.Metrics().Register(grpcServer)            // MetricsService; Options.Allow says who may speak
//	w.Configure(p)                              // a new policy
//	r, ok := w.Readings().Of("chat-fp16")       // lock-free
//	events, more := w.Journal().Since(seq)      // for a timeline
//	s := w.Stats()                              // for metrics and /debug/envoys
//
// # What Envoy counts
//
// upstream_cx_close_notify is one for each connection that got a GOAWAY,
// however many frames the server sent, with any error code; a response with
// Connection: close counts too. upstream_cx_total and upstream_cx_destroy
// count a connect that failed as well, which is taken off here. No counter
// names a GOAWAY's error code. (Seen with Envoy 1.36 to 1.40; cluster
// statistics: https://www.envoyproxy.io/docs/envoy/latest/configuration/upstream/cluster_manager/cluster_stats)
//
// # Rules
//
// Calls that broke (Counters.lost): streams that a host reset, and those whose
// connection it closed or that never got one; less those that Envoy tried again.
// Where the caller leaves, Envoy counts upstream_rq_tx_reset, which is not read.
//
// Storm (B7): GOAWAYs, many and on most connections, that cost calls. All of
//
//   - more than goaway.perSecond in the busiest second of the last three,
//   - goaway.share or more of the connections of goaway.window were told, those
//     that were made in place of told ones left out,
//   - in those three seconds at least one call failed for every two GOAWAYs, and
//     0.5 % of all calls: they broke, or were answered with 5xx.
//
// So hosts that end connections politely, a rolling restart or after so many
// calls each, are none, however often they do it. It ends when no second of the
// last three had too many. goaway.literal is the rate alone.
//
// Protect (B8): connections below protect.below of normal, and one sign that
// the cluster is sick rather than quiet: connects fail, requests wait for a
// connection, hosts are unhealthy, or as many requests are under way as usual
// on so few connections that each bears more than 1/below of its usual. It
// ends with protect.above of normal for protect.calm, or when no sign was seen
// for half a minute. Normal is learnt for each Envoy apart, in half a minute
// at first and then slowly, and not in trouble; an Envoy that comes or goes
// changes the sums on both sides.
//
// Calm: GOAWAYs as of a server that throws out keepalive pings
// (ENHANCE_YOUR_CALM, "too_many_pings"): again and again, behind nearly every
// close, on connections that carried hardly a request or were cut with
// requests under way. It is a likeness, not a proof, and Because says so.
//
// # Invariants
//
// A count is counted once: by one source for each Envoy, from the second
// sample on. What is counted between two samples is spread evenly over the
// time between them, so that a gap makes no burst. Time never goes back inside
// Core. Memory is bounded by MaxEnvoys and the clusters of the policy.
package watch

import (
	"slices"
	"strings"
	"time"
)

// Counters are one Envoy's absolute counters of one cluster at an instant.
// A gauge or counter that Envoy does not tell is 0.
type Counters struct {
	Node    string // node id of the Envoy
	Cluster string
	At      time.Time

	ActiveConnections int64 // upstream_cx_active
	ActiveRequests    int64 // upstream_rq_active
	Pending           int64 // upstream_rq_pending_active: requests that wait for a connection
	Connections       int64 // upstream_cx_total
	Destroyed         int64 // upstream_cx_destroy
	CloseNotify       int64 // upstream_cx_close_notify: GOAWAYs, one per connection
	ConnectFail       int64 // upstream_cx_connect_fail
	DestroyActive     int64 // upstream_cx_destroy_remote_with_active_rq
	Resets            int64 // upstream_rq_rx_reset
	Ejected           int64 // upstream_rq_pending_failure_eject
	Requests          int64 // upstream_rq_total
	Errors            int64 // upstream_rq_5xx
	Timeouts          int64 // upstream_rq_timeout
	Retries           int64 // upstream_rq_retry
	RetryOverflow     int64 // upstream_rq_retry_overflow
	Overflow          int64 // upstream_rq_pending_overflow + upstream_rq_active_overflow
	Members, Healthy  int64 // membership_total, membership_healthy
}

// Reading is what is known of one cluster over all Envoys that are heard.
type Reading struct {
	Cluster string
	At      time.Time
	Envoys  int // heard recently

	Connections       int64   // active now
	Live              int64   // of those, not told to go
	Normal            float64 // usual number of live connections of the Envoys that were heard long enough; 0 = not learnt yet
	Share             float64 // live / normal of those Envoys; 1 while nothing is learnt
	GoAways           int64   // within the window
	GoAwaysPerSecond  float64 // the busiest second of the last three
	GoAwayShare       float64 // of the connections known in the window, 0..1
	ResetsPerSecond   float64 // means over the last three seconds, like those that follow
	FailuresPerSecond float64 // connects that failed
	ErrorsPerSecond   float64 // answers of 5xx
	RetriesPerSecond  float64
	RequestsPerSecond float64
	ActiveRequests    int64
	Pending           int64 // requests that wait for a connection
	Lost              int64 // calls that broke and were not tried again, since the cluster is watched: it only grows
	Members, Healthy  int64 // hosts, as the Envoy that knows most of them says; healthy as the one that likes fewest. 0 where their statistics are left out

	Storm   bool   // B7: pre-trips the gRPC breaker
	Protect bool   // B8
	Calm    bool   // GOAWAYs look like those of a server that throws out pings (ENHANCE_YOUR_CALM)
	Because string // one sentence with figures for each of the three that holds; "" = none does
}

// Readings are those of all watched clusters at an instant. Immutable; the nil
// Readings have none.
type Readings struct {
	At   time.Time
	list []Reading // by cluster
}

// Of is the reading of a cluster; false when no Envoy ever told of it.
func (r *Readings) Of(cluster string) (Reading, bool) {
	if r == nil {
		return Reading{}, false
	}
	i, ok := slices.BinarySearchFunc(r.list, cluster, func(r Reading, name string) int { return strings.Compare(r.Cluster, name) })
	if !ok {
		return Reading{}, false
	}
	return r.list[i], true
}

// All are the readings in order of their clusters. They are shared: nobody may
// change them.
func (r *Readings) All() []Reading {
	if r == nil {
		return nil
	}
	return r.list
}
