package lint

const (
	authzBlock = `          - name: envoy.filters.http.ext_authz
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
              transport_api_version: V3
              grpc_service: {envoy_grpc: {cluster_name: weir}, timeout: 0.5s, retry_policy: {retry_on: "connect-failure,refused-stream,reset", num_retries: 4, retry_back_off: {base_interval: 0.025s, max_interval: 0.5s}, retry_host_predicate: [{name: envoy.retry_host_predicates.previous_hosts, typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}], host_selection_retry_max_attempts: 5}}
              failure_mode_allow: false
              status_on_error: {code: ServiceUnavailable}
              validate_mutations: true
              encode_raw_headers: true
              charge_cluster_response_stats: false   # our refusals are not the cluster's failures
              route_metadata_context_namespaces: [weir.policy]
              disallowed_headers: {patterns: [{exact: cookie}]}
              stat_prefix: weir
`
	routerLine = "          - name: envoy.filters.http.router\n"
	procMode   = "processing_mode: {request_header_mode: SEND, request_body_mode: NONE, request_trailer_mode: SEND, response_header_mode: SEND, response_body_mode: NONE, response_trailer_mode: SEND}"
	routeMode  = "processing_mode: {request_header_mode: SEND, request_body_mode: BUFFERED, request_trailer_mode: SEND, response_header_mode: SEND, response_body_mode: STREAMED, response_trailer_mode: SEND}"
	allowList  = `"(x-weir-|x-ratelimit-|ratelimit|retry-after|content-|grpc-|www-auth|endpoint-load-metrics|x-b3-).*|x-should-retry|x-envoy-(ratelimited|attempt-count)|accept-encoding|authorization|trace(parent|state)|baggage|b3|x-deepseek-priority|x-traffic-color"`
	strip      = "remove_on_match: {key_matcher: {prefix: x-weir-}}"
	procOpen   = "failure_mode_allow: false\n              status_on_error: {code: ServiceUnavailable}   # timeouts"
)

// Filters that do not do what weir needs.
var corpusFilters = []sick{
	{name: "nobody asks weir", base: "one-filter", edits: []string{"extensions.filters.http.ext_proc.v3.ExternalProcessor\n", "extensions.filters.http.cors.v3.Cors\n            x:\n"}, rule: "weir-absent", warning: true, on: "http_filters:", advice: "weir envoy snippet",
		also: []string{"unknown-field", "per-route"}},
	{name: "ext_proc first", edits: []string{authzBlock, "", routerLine, authzBlock + routerLine}, rule: "order", on: "- name: envoy.filters.http.ext_proc\n", advice: "first"},
	{name: "nothing stripped", edits: []string{strip, "remove: x-other"}, rule: "forgery", on: "early_header_mutation_extensions", advice: "prefix: x-weir-"},
	{name: "one header stripped", edits: []string{strip, "remove: x-weir-pool"}, rule: "forgery", on: "early_header_mutation_extensions", message: "x-weir-tenant", advice: "prefix: x-weir-"},
	{name: "stripped in upper case", edits: []string{strip, "remove_on_match: {key_matcher: {prefix: X-Weir-}}"}, rule: "header-name", on: "X-Weir-", advice: "lower case", also: []string{"forgery"}},
	{name: "a header with a blank", edits: []string{"- " + strip, "- " + strip + "\n              - remove: \"x bad\""}, rule: "header-name", on: "x bad", advice: "letters"},
	{name: "a log word of nobody", edits: []string{"%BYTES_RECEIVED%", "%BYTES_RECEIVD%"}, rule: "log-format", on: "json_format: {start", advice: "BYTES_RECEIVED"},
	{name: "a lone percent", edits: []string{"%BYTES_RECEIVED%", "%BYTES_RECEIVED"}, rule: "log-format", on: "json_format: {start", advice: "%%"},
	{name: "double slashes", edits: []string{"merge_slashes: true", "merge_slashes: false"}, rule: "paths", warning: true, on: "merge_slashes", advice: "set it"},
	{name: "ext_authz open", edits: []string{"failure_mode_allow: false", "failure_mode_allow: true"}, rule: "fail-open", on: "failure_mode_allow: true", advice: "false"},
	{name: "ext_proc open", edits: []string{procOpen, "failure_mode_allow: true\n              #"}, rule: "fail-open", warning: true, on: "failure_mode_allow: true", advice: "false"},
	{name: "ext_proc open, policy closed", edits: []string{procOpen, "failure_mode_allow: true\n              #"}, policy: held, rule: "fail-open", on: "failure_mode_allow: true", advice: "mode: shadow"},
	{name: "open on a route", edits: []string{"overrides:\n", "overrides:\n                      failure_mode_allow: true\n"}, policy: held, rule: "fail-open", on: "failure_mode_allow: true", advice: "false"},
	{name: "off on a route", edits: []string{"match: {path: /v1/audio/transcriptions}", "match: {path: /v1/audio/transcriptions}\n                typed_per_filter_config: {envoy.filters.http.ext_authz: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute, disabled: true}}"}, rule: "fail-open", warning: true, on: "disabled: true", advice: "remove"},
	{name: "off on a route, wrapped", edits: []string{"match: {path: /v1/audio/transcriptions}", "match: {path: /v1/audio/transcriptions}\n                typed_per_filter_config: {envoy.filters.http.ext_authz: {\"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}"}, rule: "fail-open", warning: true, on: "disabled: true", advice: "remove"},
	{name: "wrapped and of another type", edits: []string{"match: {path: /v1/audio/transcriptions}", "match: {path: /v1/audio/transcriptions}\n                typed_per_filter_config: {envoy.filters.http.ext_authz: {\"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, overrides: {}}}}"}, rule: "per-route", on: "FilterConfig", advice: "ExtAuthzPerRoute"},
	{name: "403 while weir is away", edits: []string{"status_on_error: {code: ServiceUnavailable}\n              validate", "validate"}, rule: "status-on-error", warning: true, on: `"@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz`, advice: "ServiceUnavailable"},
	{name: "headers joined", edits: []string{"encode_raw_headers: true", "encode_raw_headers: false"}, rule: "authz-settings", warning: true, on: "encode_raw_headers", advice: "true"},
	{name: "refusals charged", edits: []string{"charge_cluster_response_stats: false", "charge_cluster_response_stats: true"}, rule: "authz-settings", warning: true, on: "charge_cluster", advice: "false"},
	{name: "trailers skipped", edits: []string{procMode, "processing_mode: {request_header_mode: SEND, request_trailer_mode: SEND, response_header_mode: SEND, response_trailer_mode: SKIP}"}, rule: "mode", on: "response_trailer_mode: SKIP", advice: "SEND"},
	{name: "trailers left out on a route", edits: []string{routeMode, "processing_mode: {request_body_mode: BUFFERED, request_trailer_mode: SEND, response_body_mode: STREAMED}"}, rule: "mode", on: "processing_mode: {request_body_mode: BUFFERED, req", advice: "response_trailer_mode: SEND"},
	{name: "answers held", edits: []string{"response_body_mode: STREAMED", "response_body_mode: BUFFERED"}, rule: "mode", on: "response_body_mode: BUFFERED", advice: "STREAMED"},
	{name: "duplex", edits: []string{"request_body_mode: BUFFERED", "request_body_mode: FULL_DUPLEX_STREAMED"}, rule: "mode", on: "FULL_DUPLEX", advice: "BUFFERED"},
	{name: "chat without its body", edits: []string{"request_body_mode: BUFFERED", "request_body_mode: NONE"}, rule: "mode", on: "request_body_mode: NONE, request_trailer_mode: SEND, response_header_mode: SEND, response_body_mode: STREAMED", message: "by their bodies", advice: "BUFFERED"},
	{name: "a prefix without its body", edits: []string{"match: {path: /v1/chat/completions}", "match: {prefix: /v1/}", `metadata: {filter_metadata: {weir.policy: {function: "chat_completion"}}}` + "\n                typed_per_filter_config: *json_filters\n", "\n"}, rule: "mode", on: "- name: chat  ", message: "by their bodies", advice: "BUFFERED"},
	{name: "Envoy 1.36 says nothing of its own answers", release: 36, rule: "local-reply", on: "layered_runtime:", message: "dead pool", advice: "skip_ext_proc_on_local_reply: false"},
	{name: "a path of the policy without its body", edits: []string{"match: {path: /v1/embeddings}\n                route: {cluster: chat-fp16, timeout: 0s, idle_timeout: 300s, retry_policy: *safe_retry}\n                typed_per_filter_config: *json_filters", "match: {path: /v1/embeddings}\n                route: {cluster: chat-fp16, timeout: 0s, idle_timeout: 300s, retry_policy: *safe_retry}"}, policy: held, rule: "mode", on: "- name: embeddings", advice: "BUFFERED"},
	{name: "observed only", edits: []string{"allow_mode_override: true", "observability_mode: true"}, rule: "replies-ignored", on: "observability_mode", advice: "remove"},
	{name: "no refusals", edits: []string{"allow_mode_override: true", "disable_immediate_response: true"}, rule: "replies-ignored", on: "disable_immediate", advice: "remove"},
	{name: "the route is kept", edits: []string{"allow_mode_override: true", "route_cache_action: RETAIN"}, rule: "replies-ignored", on: "RETAIN", advice: "DEFAULT"},
	{name: "retry-after dropped", edits: []string{allowList, `"(x-weir-|x-ratelimit-|content-|grpc-|www-auth).*|x-should-retry|x-envoy-ratelimited"`}, rule: "header-list", on: "allow_expression", message: "retry-after", advice: "snippet"},
	{name: "all dropped", edits: []string{"allow_expression: {regex: " + allowList + "}", "allow_all_routing: false"}, rule: "header-list", on: "disallow_all", message: "x-weir-pool", advice: "snippet"},
	{name: "our headers forbidden", edits: []string{"disallow_all: true", `disallow_expression: {regex: "x-weir-.*"}`}, rule: "header-list", on: "disallow_expression", message: "x-weir-pool", advice: "snippet"},
	{name: "the refusal's mark dropped", edits: []string{"x-envoy-(ratelimited|attempt-count)", "x-envoy-attempt-count"}, rule: "header-list", warning: true, on: "allow_expression", message: "x-envoy-ratelimited", advice: "snippet"},
	{name: "identity not handed on", edits: []string{"forwarding_namespaces: {untyped: [envoy.filters.http.ext_authz]}", "forwarding_namespaces: {untyped: [other]}"}, rule: "namespaces", on: "metadata_options:", advice: "envoy.filters.http.ext_authz"},
	{name: "policy asks ext_authz, chain has none", base: "one-filter", policy: held, rule: "namespaces", on: "http_filters:", advice: "identity.from"},
	{name: "the decision not kept", edits: []string{"weir.decision, envoy.lb", "envoy.lb"}, rule: "namespaces", warning: true, on: "metadata_options:", advice: "weir.decision"},
	{name: "subsets not taken", edits: []string{"weir.decision, envoy.lb", "weir.decision"}, policy: []string{"    variant: int8\n", "    variant: int8\n    envoy: {subset: {precision: int8}}\n"}, rule: "namespaces", on: "metadata_options:", advice: "envoy.lb"},
}

const chatMetadata = `{weir.policy: {function: "chat_completion"}}`

// Overrides that weir refuses or never sees, and expressions.
var corpusOverrides = []sick{
	{name: "override of nobody", edits: []string{chatMetadata, `{weir.policy: {functoin: "chat_completion"}}`}, rule: "override-key", on: "functoin", advice: "did you mean function?"},
	{name: "context extension of nobody", edits: []string{"match: {path: /v1/audio/transcriptions}", "match: {path: /v1/audio/transcriptions}\n                typed_per_filter_config: {envoy.filters.http.ext_authz: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute, check_settings: {context_extensions: {klass: batch}}}}"}, rule: "override-key", on: "klass", advice: "did you mean class?"},
	{name: "initial metadata of nobody", base: "edge", edits: []string{"key: weir-profile", "key: weir-profil"}, policy: []string{"from: authz", "from: extproc"}, rule: "override-key", on: "weir-profil,", advice: "did you mean profile?",
		also: []string{"pool-cluster", "keepalive", "per-route", "mode"}},
	{name: "initial metadata with another prefix", base: "edge", edits: []string{"key: weir-profile", "key: x-weir-profile"}, rule: "override-key", warning: true, on: "x-weir-profile", advice: "weir-profile", also: []string{"keepalive"}},
	{name: "a number for a class", edits: []string{chatMetadata, "{weir.policy: {class: 2}}"}, rule: "override-value", on: "class: 2", advice: "quote it"},
	{name: "a word Envoy takes for a boolean", edits: []string{chatMetadata, "{weir.policy: {models: on}}"}, rule: "override-value", on: "models: on", advice: "quote it", also: []string{"scalar"}},
	{name: "a number that Envoy takes for a string", edits: []string{chatMetadata, "{weir.policy: {models: 1.5}}"}, rule: "scalar", warning: true, on: "models: 1.5", advice: "quote it"},
	{name: "class of nobody", edits: []string{chatMetadata, `{weir.policy: {class: "vip"}}`}, rule: "override-value", on: `class: "vip"`, message: "critical, standard or batch", advice: "correct"},
	{name: "wait without a unit", edits: []string{chatMetadata, `{weir.policy: {maxWait: "300"}}`}, rule: "override-value", on: `maxWait: "300"`, message: "300ms", advice: "correct"},
	{name: "wait that loosens", edits: []string{chatMetadata, `{weir.policy: {maxWait: "20s"}}`}, policy: held, rule: "override-value", on: `maxWait: "20s"`, message: "may only shorten", advice: "correct"},
	{name: "model of nobody", edits: []string{chatMetadata, `{weir.policy: {models: "gpt-9"}}`}, policy: held, rule: "override-value", on: `models: "gpt-9"`, message: "unknown model", advice: "correct"},
	{name: "profile of nobody", base: "edge", edits: []string{"value: edge", "value: edges"}, policy: []string{"from: authz", "from: extproc"}, rule: "override-value", on: "value: edges", message: "unknown profile", advice: "correct", also: []string{"pool-cluster", "keepalive"}},
	{name: "a client writes the value", base: "edge", edits: []string{"value: edge", `value: "%REQ(x-tier)%"`}, rule: "override-value", on: "%REQ(x-tier)%", message: "a client", advice: "value itself", also: []string{"keepalive"}},
	{name: "a key nobody asks for", edits: []string{"].class : ''", "].profile : ''", "].class)", "].profile)", chatMetadata, `{weir.policy: {class: "batch"}}`}, rule: "override-unread", on: `class: "batch"`, message: "class", advice: "request_attributes"},
	{name: "ext_authz not handed", edits: []string{"].class : ''", "].profile : ''", "].class)", "].profile)", chatMetadata, `{weir.policy: {class: "batch"}}`, "route_metadata_context_namespaces: [weir.policy]", "route_metadata_context_namespaces: [other]"}, rule: "override-unread", on: "route_metadata_context_namespaces", advice: "weir.policy"},
	{name: "on the virtual host", edits: []string{`domains: ["*"]`, `domains: ["*"]` + "\n              metadata: {filter_metadata: {weir.policy: {class: \"batch\"}}}"}, rule: "override-unread", on: `class: "batch"`, advice: "on the routes"},
	{name: "another namespace", edits: []string{chatMetadata, `{weir.policies: {function: "x"}}`, `'weir.policy' in`, `'weir.policy' in`}, rule: "override-unread", on: "weir.policies", advice: "did you mean weir.policy?", also: nil},
	{name: "CEL: an unknown root", edits: []string{"- xds.route_name", "- xdss.route_name"}, rule: "cel", on: "- xdss", message: "unknown root", advice: "xds"},
	{name: "CEL: an unknown attribute", edits: []string{"- xds.route_name", "- xds.no_such_field"}, rule: "cel", on: "no_such_field", advice: "route_name"},
	{name: "CEL: metadata without filter_metadata", edits: []string{"- xds.route_name", "- xds.route_metadata['weir.policy']['class']"}, rule: "cel", on: "- xds.route_metadata['weir", advice: "filter_metadata"},
	{name: "CEL: a function that is not there", edits: []string{"- xds.route_name", "- string(request.size)"}, rule: "cel", on: "string(request", message: `"string"`, advice: "it has size"},
	{name: "CEL: a comprehension", edits: []string{"- xds.route_name", "- request.headers.map(h, h)"}, rule: "cel", on: "headers.map", message: `"map"`, advice: "it has size", also: nil},
	{name: "CEL: an open bracket", edits: []string{"- xds.route_name", "- request.headers['x'"}, rule: "cel", on: "request.headers['x'", message: "unpaired", advice: "correct"},
	{name: "CEL: optional access", edits: []string{"- xds.route_name", "- request.?path"}, rule: "cel", on: "request.?path", message: ".?", advice: "correct"},
	{name: "CEL: an operator at the end", edits: []string{"- xds.route_name", "- request.path =="}, rule: "cel", on: "request.path ==", message: "ends with", advice: "correct"},
	{name: "CEL: a key that is no override", edits: []string{"- xds.route_name", "- xds.route_metadata.filter_metadata['weir.policy']['klass']"}, rule: "override-key", on: "klass", advice: "the keys are"},
	{name: "CEL in an access log filter", edits: []string{"response.code_details == 'request_payload_too_large'", "respons.code_details == 'request_payload_too_large'"}, rule: "cel", on: "respons.code", message: "unknown root", advice: "response"},
	{name: "local replies not told apart", edits: []string{"[response.code, response.code_details, response.flags]", "[response.code]"}, rule: "cel", warning: true, on: "response_attributes", advice: "code_details"},
}
