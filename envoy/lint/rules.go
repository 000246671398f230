package lint

import "slices"

// Rule is one kind of finding.
type Rule struct {
	ID   string
	Text string // what it finds, for the manual
	// Needs a policy: skipped without one.
	Policy bool
	check  func(*linter) // nil where decoding or validation reports it
}

// Rules lists every rule in the order of the manual.
func Rules() []Rule { return slices.Clone(ruleTable) }

var ruleTable = []Rule{
	{ID: "yaml", Text: "no YAML, several documents, nested too deep"},
	{ID: "duplicate-key", Text: "a key twice in one mapping; Envoy takes one of them"},
	{ID: "scalar", Text: "a value that Envoy reads otherwise than it looks: yes, on, 010, 1.5 in metadata, \"false\""},
	{ID: "unknown-field", Text: "a field that the message does not have"},
	{ID: "unknown-type", Text: "a type URL that no supported release knows"},
	{ID: "bad-value", Text: "a value of the wrong kind: a duration of 500ms, an enum that is none"},
	{ID: "oneof", Text: "two fields that exclude each other"},
	{ID: "invalid", Text: "a value outside the bounds of its own proto, inside every Any too"},
	{ID: "release", Text: "a field or type that the release does not have yet"},

	{ID: "extension", Text: "an extension without its configuration, or of a type that does not belong there", check: checkExtensions},

	{ID: "cluster-missing", Text: "a cluster that is named anywhere and is not there", check: checkReferences},
	{ID: "cluster-twice", Text: "two clusters of one name", check: checkClusterNames},
	{ID: "cluster-name", Text: "load_assignment.cluster_name is not the cluster's; a dot in a name whose statistics carry tags", check: checkAssignments},
	{ID: "xds-cluster", Text: "an xDS source whose cluster is missing, not static or EDS itself", check: checkXDSClusters},
	{ID: "pool-cluster", Text: "a pool or protected cluster of the policy that is not in the file", Policy: true, check: checkPools},

	{ID: "pool-route", Text: "a pool without a route for its x-weir-pool, a route to another cluster than the pool's, or for no pool", Policy: true, check: checkPoolRoutes},
	{ID: "port", Text: "weir's cluster asks another address than server.grpc, or Envoy's admin address is weir's", Policy: true, check: checkPorts},

	{ID: "router", Text: "an HTTP chain whose last filter is not the router", check: checkRouter},
	{ID: "domain-twice", Text: "two virtual hosts of one domain", check: checkDomains},
	{ID: "route-name", Text: "two routes of one name; a route behind one that takes everything", check: checkRouteNames},
	{ID: "per-route", Text: "per-route configuration under a name that no filter of the chain has, or of another filter's type", check: checkPerRoute},
	{ID: "filter-twice", Text: "two filters of one name in one chain", check: checkFilterNames},
	{ID: "weir-absent", Text: "no chain asks weir", check: checkAbsent},
	{ID: "order", Text: "ext_proc before ext_authz", check: checkOrder},
	{ID: "forgery", Text: "x-weir- headers of clients are not stripped before routing", check: checkForgery},
	{ID: "header-name", Text: "a name that no header can have", check: checkHeaderNames},
	{ID: "log-format", Text: "an access log format with an unknown word or an unpaired %", check: checkLogFormats},
	{ID: "paths", Text: "paths are not normalised, so scopes can be fooled by spelling", check: checkPaths},

	{ID: "fail-open", Text: "a filter of weir's that lets calls through while weir is away, or is switched off on a route", check: checkFailOpen},
	{ID: "status-on-error", Text: "callers get 403 or 500 while weir is away", check: checkStatusOnError},
	{ID: "authz-settings", Text: "ext_authz joins headers, charges refusals to the model cluster, or reads bodies", check: checkAuthzSettings},
	{ID: "mode", Text: "processing modes in which weir sees no end, no body or too much", check: checkModes},
	{ID: "replies-ignored", Text: "settings of ext_proc that ignore what weir answers", check: checkReplies},
	{ID: "header-list", Text: "mutation_rules that drop headers of weir's", check: checkHeaderList},
	{ID: "namespaces", Text: "metadata that is not handed on: identity, weir.decision, envoy.lb", check: checkNamespaces},

	{ID: "override-key", Text: "a key of route overrides that weir does not know", check: checkOverrides},
	{ID: "override-value", Text: "an override that does not parse, is no quoted string, or lets a client write it"},
	{ID: "override-unread", Text: "an override that no filter reads"},
	{ID: "cel", Text: "request attributes with a syntax error, a function Envoy lacks, an unknown root or attribute", check: checkCEL},

	{ID: "retry-word", Text: "a word of retry_on that Envoy does not know", check: checkRetryWords},
	{ID: "retry-repeats", Text: "a word of retry_on that may run a model call twice"},
	{ID: "retry-unread", Text: "a retry policy inside envoy_grpc, where Envoy reads it for xDS streams alone", check: checkRetryPlaces},
	{ID: "retry-back-off", Text: "a stream to weir that reconnects after up to 30 s", check: checkBackOff},
	{ID: "regex", Text: "a regular expression that RE2 refuses, or larger than Envoy's limit", check: checkRegex},

	{ID: "message-timeout", Text: "message_timeout or max_message_timeout that contradict the policy or cut a hold", check: checkMessageTimeout},
	{ID: "request-timeout", Text: "request_timeout, in which a hold counts", check: checkManagerTimeouts},
	{ID: "idle-timeout", Text: "an idle timeout below the longest hold"},
	{ID: "route-timeout", Text: "a route timeout that cuts long answers", check: checkRouteTimeouts},
	{ID: "grpc-timeout", Text: "timeouts of the calls to weir that refuse everybody, or are without effect", check: checkGRPCTimeouts},
	{ID: "graceful-crash", Text: "graceful close of side streams without the long client cache: Envoy crashes", check: checkGraceful},
	{ID: "hot-restart", Text: "graceful close of side streams: at a hot restart the old Envoy crashes", check: checkHotRestart},

	{ID: "local-reply", Text: "Envoy 1.36 hides its own answers from weir", check: checkLocalReplies},

	{ID: "weir-http2", Text: "weir's cluster does not speak HTTP/2", check: checkWeirCluster},
	{ID: "max-requests", Text: "a circuit breaker below seats and queue of the policy", check: checkMaxRequests},
	{ID: "max-retries", Text: "too few retries on weir's cluster to bridge a restart", check: checkMaxRetries},
	{ID: "control-frames", Text: "too few control frames for held streams that end at once", check: checkControlFrames},
	{ID: "buffer", Text: "a buffer that answers 413 to normal prompts", check: checkBuffers},
	{ID: "keepalive", Text: "HTTP/2 pings more often than gRPC servers permit", check: checkKeepalive},

	{ID: "node", Text: "no node.id or node.cluster, by which weir knows an Envoy", check: checkNode},
	{ID: "rtds", Text: "no runtime layer of weir's although the policy serves one", Policy: true, check: checkRTDS},
	{ID: "eds", Text: "a cluster whose endpoints the policy serves and the file does not ask for", Policy: true, check: checkEDS},
	{ID: "fetch-timeout", Text: "initial_fetch_timeout 0 (never listens) or the 15 s default", check: checkFetchTimeout},
	{ID: "merge-window", Text: "endpoint updates held back a second before 1.40", check: checkMergeWindow},
	{ID: "stats", Text: "statistics that weir watches are dropped, late or counted as deltas", check: checkStats},
	{ID: "admin-paths", Text: "allow_paths without what weir polls", check: checkAdmin},
}
