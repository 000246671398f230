// Package watch looks at what Envoys count of their clusters: GOAWAYs, resets,
// connections and failures, from the MetricsService stream or by polling the
// admin address, and judges storms (B7) and pool health (B8).
//
// Sources: Envoy's cluster statistics (upstream_cx_close_notify, one for each
// connection that got a GOAWAY), envoy.service.metrics.v3.
package watch

import "time"

// Counters are one Envoy's absolute counters of one cluster at an instant.
// A gauge or counter that Envoy does not tell is 0.
type Counters struct {
	Node    string // node id of the Envoy
	Cluster string
	At      time.Time

	ActiveConnections int64 // upstream_cx_active
	ActiveRequests    int64 // upstream_rq_active
	Connections       int64 // upstream_cx_total
	CloseNotify       int64 // upstream_cx_close_notify: GOAWAYs, one per connection
	ConnectFail       int64 // upstream_cx_connect_fail
	DestroyActive     int64 // upstream_cx_destroy_remote_with_active_rq
	Resets            int64 // upstream_rq_rx_reset
	Requests          int64 // upstream_rq_total
	Errors            int64 // upstream_rq_5xx
	Timeouts          int64 // upstream_rq_timeout
	Retries           int64 // upstream_rq_retry
	RetryOverflow     int64 // upstream_rq_retry_overflow
	Overflow          int64 // upstream_rq_pending_overflow + upstream_rq_active_overflow
	TooManyPings      int64 // http2 GOAWAYs of ENHANCE_YOUR_CALM where Envoy tells them; 0 = unknown
	Members, Healthy  int64 // membership_total, membership_healthy
}

// Reading is what is known of one cluster over all Envoys that are heard.
type Reading struct {
	Cluster string
	At      time.Time
	Envoys  int // heard recently

	Connections       int64   // active now
	Normal            float64 // usual number of connections
	GoAways           int64   // within the window
	GoAwaysPerSecond  float64 // the highest one second of the last three
	GoAwayShare       float64 // of the connections within the window, 0..1
	ResetsPerSecond   float64
	FailuresPerSecond float64 // connects that failed
	RetriesPerSecond  float64
	RequestsPerSecond float64
	ActiveRequests    int64

	Storm   bool   // B7: pre-trips the gRPC breaker
	Protect bool   // B8
	Calm    bool   // GOAWAYs of a server that throws out pings (ENHANCE_YOUR_CALM)
	Because string // one sentence with figures
}
