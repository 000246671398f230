package lint

const (
	feed = `{resource_api_version: V3, initial_fetch_timeout: 1s, api_config_source: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: weir, retry_policy: {retry_back_off: {base_interval: 0.2s, max_interval: 1s}}}}]}}`
	sink = `stats_flush_interval: 1s
stats_sinks:
- name: envoy.stat_sinks.metrics_service
  typed_config:
    "@type": type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig
    transport_api_version: V3
    emit_tags_as_labels: true
    grpc_service: {envoy_grpc: {cluster_name: weir, retry_policy: {retry_back_off: {base_interval: 0.2s, max_interval: 1s}}}}
`
	pushed = "layers:\n  - {name: weir, rtds_layer: {name: weir, rtds_config: " + feed + "}}"
	eds    = "- name: infer                                      # a gRPC model server: HTTP/2; no keepalive pings below its own policy\n    type: EDS\n    eds_cluster_config: {eds_config: " + feed + "}\n    common_lb_config: {update_merge_window: 0s}\n    connect"
	static = "- name: infer                                      # a gRPC model server: HTTP/2; no keepalive pings below its own policy\n    type: STATIC\n    connect"
	served = "server:\n"
	serves = "envoy: {xds: {}}\nserver:\n"
)

func with(edits ...string) []string { return edits }

// What weir is to push and to watch. The first is well: the base of the rest.
var corpusXDS = []sick{
	{name: "a runtime layer of another name", edits: with("layers:", pushed, "rtds_layer: {name: weir", "rtds_layer: {name: wier"), policy: with(served, serves), rule: "rtds", on: "layered_runtime:", message: "there is wier", advice: "name: weir"},
	{name: "an Envoy without a name", edits: with("layers:", pushed, "node: {id: edge-1, cluster: llm-edge}", ""), rule: "node", warning: true, on: "admin:", message: "node.id and node.cluster: Envoy does not start", advice: "--service-node"},
	{name: "an Envoy without a name to watch", edits: with("static_resources:", sink+"static_resources:", "node: {id: edge-1, cluster: llm-edge}", "node: {cluster: llm-edge}"), rule: "node", warning: true, on: "node: {cluster", message: "no node.id: weir takes no counters", advice: "id of its own"},
	{name: "no runtime layer", policy: with(served, serves), rule: "rtds", on: "layered_runtime:", advice: "rtds_layer"},
	{name: "a runtime layer from nowhere", edits: with("layers:", pushed, "cluster_name: weir, retry_policy", "cluster_name: wier, retry_policy"), rule: "xds-cluster", on: "cluster_name: wier", advice: "did you mean weir?"},
	{name: "a source that is EDS itself", edits: with("layers:", pushed, static, eds, "rtds_config: {resource_api_version: V3, initial_fetch_timeout: 1s, api_config_source: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: weir,", "rtds_config: {resource_api_version: V3, initial_fetch_timeout: 1s, api_config_source: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: infer,"), rule: "xds-cluster", on: "cluster_name: infer,", advice: "STATIC"},
	{name: "endpoints not asked for", edits: with("layers:", pushed), policy: with(served, "envoy: {xds: {}, clusters: [{name: infer, endpoints: {priorities: [{static: [\"10.0.0.1:80\"]}]}}]}\nserver:\n"), rule: "eds", on: "type: STATIC\n    connect_timeout: 5s\n    circuit_breakers: *model_breakers\n    typed_extension", advice: "type: EDS"},
	{name: "never listens", edits: with("layers:", pushed, "initial_fetch_timeout: 1s", "initial_fetch_timeout: 0s"), rule: "fetch-timeout", on: "initial_fetch_timeout: 0s", message: "never listens", advice: "1s"},
	{name: "listens late", edits: with("layers:", pushed, "initial_fetch_timeout: 1s, ", ""), rule: "fetch-timeout", warning: true, on: "rtds_layer: {name: weir", message: "15 s", advice: "1s"},
	{name: "half a minute away", edits: with("layers:", pushed, ", retry_policy: {retry_back_off: {base_interval: 0.2s, max_interval: 1s}}", ""), rule: "retry-back-off", warning: true, on: "rtds_layer: {name: weir", message: "30 s", advice: "retry_back_off"},
	{name: "a sink half a minute away", edits: with("static_resources:", sink+"static_resources:", ", retry_policy: {retry_back_off: {base_interval: 0.2s, max_interval: 1s}}", ""), rule: "retry-back-off", warning: true, on: "    grpc_service: {envoy_grpc: {cluster_name: weir}}", advice: "retry_back_off"},
	{name: "a sink to nowhere", edits: with("static_resources:", sink+"static_resources:", "cluster_name: weir, retry_policy", "cluster_name: sidecar, retry_policy"), rule: "cluster-missing", on: "cluster_name: sidecar", advice: "define it"},
	{name: "shedding a second late", edits: with(static, eds, "    common_lb_config: {update_merge_window: 0s}\n", ""), rule: "merge-window", warning: true, on: "- name: infer      ", advice: "update_merge_window: 0s"},
	{name: "deltas", edits: with("static_resources:", sink+"static_resources:", "emit_tags_as_labels: true", "report_counters_as_deltas: true"), rule: "stats", on: "report_counters_as_deltas", advice: "remove"},
	{name: "flushed late", edits: with("static_resources:", sink+"static_resources:", "stats_flush_interval: 1s\n", ""), rule: "stats", warning: true, on: "stats_sinks:", advice: "stats_flush_interval: 1s"},
	{name: "dropped by a list", edits: with("static_resources:", sink+"stats_config: {stats_matcher: {inclusion_list: {patterns: [{prefix: http.}]}}}\nstatic_resources:"), rule: "stats", on: "stats_matcher", message: "upstream_cx_close_notify", advice: "keep"},
	{name: "all dropped, and the admin is polled", edits: with("static_resources:", "stats_config: {stats_matcher: {reject_all: true}}\nstatic_resources:"), policy: with(served, "envoy: {watch: {admin: [{node: edge-1, url: \"unix:/run/envoy/admin.sock\"}]}}\nserver:\n"), rule: "stats", on: "stats_matcher", advice: "keep"},
	{name: "a dot in a name", edits: with("static_resources:", sink+"static_resources:", "- name: infer   ", "- name: infer.a   ", "cluster_name: infer,", "cluster_name: infer.a,", "cluster: infer,", "cluster: infer.a,"), rule: "cluster-name", warning: true, on: "- name: infer.a", message: "dot", advice: "- in place"},
	{name: "the admin answers 403", edits: with("mode: 384}}}", "mode: 384}}, allow_paths: [{prefix: /clusters}, {exact: /ready}]}"), release: 40, rule: "admin-paths", warning: true, on: "allow_paths", message: "/stats", advice: "/stats"},
}
