// Package xds is the control plane that Envoys connect to (B10): numbers of
// circuit breakers by RTDS, endpoints with health, priorities and
// drop_overloads by EDS, and, for Envoys that weir owns, the clusters
// themselves by CDS. It serves ADS and separate streams, delta and
// state-of-the-world, on go-control-plane's caches.
//
// Sources: xDS protocol (ACK, NACK, nonces, warming); what Envoy 1.36 to 1.40
// were seen to do:
//
//   - A delta client takes back at once what a server that knows nothing does
//     not name. So no answer is given before the first content is there: the
//     last state on disk, or the first Set. The RTDS layer is never removed; a
//     withdrawn override is an update.
//   - A change of drop_overloads alone is not applied. So one endpoint carries
//     a metadata value that changes with it.
//   - On ADS a cluster that changed warms until its endpoints come again; Envoy
//     does not ask for them, and does not acknowledge clusters either until
//     then. So they are sent again behind the cluster.
//   - Moving an endpoint to another priority drains its connection. So
//     fail-over is told by health alone (G2), and the way back as well: hosts
//     of a region that had failed are degraded until it has been well for the
//     policy's endpoints.return.
//
// Invariants: equal content sends nothing. What an Envoy refuses (NACK) is
// kept with its text and not sent again to it; in its place it is served the
// last content of that resource that nobody refused. An override that was
// inherited from the state on disk ends when the cluster has one of its own,
// when the caller says that what it knows is settled, or after Options.Grace.
// A cluster's endpoints are never lost to a source that was not read yet.
//
// The content (book, outage, state) is pure and takes now; Server is the
// shell that owns the streams, the disk and the clock.
package xds
