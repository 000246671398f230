// Package protect decides what Envoy should be told (B10): from breaker
// states, what is watched and policy to one desired Settings for each cluster
// (desired.go), and from what is desired to what is told (Keeper), with
// hysteresis and a bound on the rate of changes. Both are pure.
//
// # What is desired
//
// Numbers are those of the cluster in the policy, which are those of Envoy's
// own file; "file" means that nothing is told. Retries stop by three zeros:
// budget_percent alone leaves Envoy min_retry_concurrency retries (default 3),
// max_retries is inert where a budget is, and both budget keys make a budget
// where the file has none.
//
//	cause                          retries       max_requests     dropped by Envoy
//	all pools closed               file          file             0
//	a pool open, soft level        halved        file             softDrop
//	a pool open, hard level        none          file             hardDrop
//	a pool half-open               none          file             its level's, of what is not released
//	storm of GOAWAYs (B7)          none          file             0
//	protect mode (B8)              none          share of file's  0
//
// Several pools on one cluster: for retries the worst of them counts, since
// Envoy has one budget. What Envoy drops is the mean of the pools' shares,
// weighed by seats, rounded down to whole percents, and only while no pool of
// the cluster is closed: the dice would hit the traffic of the others too. By
// default softDrop and hardDrop are 0: the desk sheds, request by request, so
// that probes, the lane of P8 and classes get through.
//
// Protect mode scales max_requests by the share of connections that are left,
// in twentieths of the file's number, rounded up: below
// protection.floor of it, below the seats that the lane of P8 keeps in the
// cluster's pools, and below the requests under way it never goes. The number
// binds each Envoy by itself.
//
// An unwell endpoint is told as UNHEALTHY, or as DEGRADED where more than half
// of the cluster's hosts are unwell, or nobody knows how many there are:
// Envoy still uses degraded hosts when it has nothing better, so that a gauge
// which is wrong about everything takes no cluster away.
//
// Outlier numbers are left alone. Envoy's runtime keys for them hold for all
// clusters at once, and a host whose count is already above a threshold that
// is lowered is not ejected before a success resets it. They are in the
// cluster section that "weir envoy cluster" prints.
//
// # What is told
//
// Number by number, tightening is told at once, loosening when nothing within
// the last protection.calm asked for the tighter number. What could not be
// told in time and is not desired any more is not told later. Two changes of one cluster are at least
// protection.interval apart; within any second at most protection.maxPerSecond
// clusters change. Where more want to, tightening goes first and otherwise who
// has waited longest; a loosening that has waited a second ranks as a
// tightening that just came, so that nobody starves.
//
// # Invariants
//
// max_requests is never lowered below floor, lane, or what runs at that time.
// The same input again changes nothing. Once inputs stop, what is told is what
// is desired after calm, but for the bounds on the rate. Every Settings that
// differs from the file says why.
//
// Sources: Envoy's circuit breaking runtime keys (circuit_breakers.<cluster>.
// <priority>.*), upstream.maintenance_mode, EDS ClusterLoadAssignment.Policy
// drop_overloads and core.v3.HealthStatus, as Envoy 1.36 to 1.40 were seen to
// obey them; mechanisms B7, B8, B10, P8.
package protect
