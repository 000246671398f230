// Package envoy is the street: what Envoy has to be told. It generates the
// filter sections that fit a policy (Snippet), so that timeouts, buffer limits
// and the header allow list stand in one place; the section of each protected
// cluster, with a connection pool and isolation of hosts for a model's traffic
// (Cluster for CDS, ClusterGuide for people; B11); and how Envoy hears weir
// (RTDS layer, EDS) and weir Envoy (MetricsService).
//
// Sources: Envoy's ext_authz, ext_proc, HTTP connection manager, cluster,
// bootstrap and metrics v3 protos; grpc-go's keepalive enforcement.
// Invariants: what is generated parses strictly into these protos, passes
// their rules, and is taken by Envoy 1.36 to 1.40 (tests hold that); both
// filters fail closed; a time in the output is the policy's; every stream to
// weir is opened again within a second or so after weir was away; a cluster's
// connections are never pinged more often than its servers permit.
package envoy
