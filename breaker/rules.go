package breaker

import (
	"slices"
	"strings"
)

// Rule is a row of the table of what counts (B6).
type Rule struct {
	Who      string // answered: weir, Envoy, upstream, nobody
	Protocol string // any, HTTP, gRPC
	What     string // status, details or code, as the documentation has it
	Counts   Outcome
	Why      string

	fits func(Evidence) bool
}

// Rules is the table, in its order: the first row that fits decides.
// docs/reasons.md shows it.
func Rules() []Rule { return slices.Clone(rules[:]) }

// rules is the only place that says what counts. Envoy's words are its
// response code details (Envoy documentation, "Response code details"), as
// seen from 1.36 to 1.40: a reset carries its reason in braces, in newer
// releases with more behind a bar.
var rules = [...]Rule{
	{"weir", "any", "a refusal or an end of weir's, here or at a lower stage", Ignored,
		"our own doing", func(e Evidence) bool { return e.Ours }},

	{"Envoy", "any", "`drop_overload`, `maintenance_mode`", Ignored,
		"shedding that weir pushed", details("drop_overload", "maintenance_mode")},
	{"Envoy", "any", "`no_healthy_upstream`, `cluster_not_found`", Failure,
		"there is nobody to serve", details("no_healthy_upstream", "cluster_not_found")},
	{"Envoy", "any", "`response_timeout`, `upstream_response_timeout`, `upstream_per_try_timeout`, `upstream_per_try_idle_timeout`, `upstream_max_stream_duration_reached`", Failure,
		"the upstream took longer than it may", details("response_timeout", "upstream_response_timeout",
			"upstream_per_try_timeout", "upstream_per_try_idle_timeout", "upstream_max_stream_duration_reached")},
	{"Envoy", "any", "`stream_idle_timeout` before the request was received to its end", Ignored,
		"a caller that stalls its upload opens no breaker", func(e Evidence) bool { return e.Uploading && e.Details == "stream_idle_timeout" }},
	{"Envoy", "any", "`stream_idle_timeout` after it", Failure,
		"the upstream is silent", details("stream_idle_timeout")},
	{"Envoy", "any", "`upstream_reset_*{overflow}`, `{local_*reset}`, `{overload_manager*}`", Ignored,
		"Envoy's own limits and its own resets", resetBy("overflow", "local_reset", "local_refused_stream_reset", "overload_manager")},
	{"Envoy", "any", "`upstream_reset_before_response_started{*}`, `upstream_reset_after_response_started{*}`, any other reason", Failure,
		"refused, reset, broken off", resetBy("")},
	{"Envoy", "any", "any other details than `via_upstream`", Ignored,
		"the upstream was not asked, or the caller's doing", func(e Evidence) bool { return e.Details != "" && e.Details != viaUpstream }},

	{"upstream", "any", "status 429, 500 to 599, also if the client left later", Failure,
		"it says so", func(e Evidence) bool { return e.Status == 429 || e.Status >= 500 && e.Status <= 599 }},
	{"upstream", "any", "any other status from 400 on", Ignored,
		"the caller's fault", func(e Evidence) bool { return e.Status >= 400 }},
	{"upstream", "any", "an error inside an answer of status 200 whose code or type blames the caller", Ignored,
		"the caller's fault", func(e Evidence) bool { return e.Error && e.CallersFault }},
	{"upstream", "any", "any other error inside an answer of status 200", Failure,
		"it says so", func(e Evidence) bool { return e.Error }},
	{"upstream", "gRPC", "RESOURCE_EXHAUSTED (8), INTERNAL (13), UNAVAILABLE (14), in headers or trailers", Failure,
		"it says so", func(e Evidence) bool {
			return e.GRPC && (e.GRPCStatus == grpcResourceExhausted || e.GRPCStatus == grpcInternal || e.GRPCStatus == grpcUnavailable)
		}},
	{"upstream", "gRPC", "any other status but OK", Ignored,
		"the caller's fault, or nobody knows whose", func(e Evidence) bool { return e.GRPC && e.GRPCStatus != grpcOK }},

	{"nobody", "any", "the client left", Ignored,
		"says nothing", func(e Evidence) bool { return e.Cancelled }},
	{"nobody", "any", "cut before its end without a word", Ignored,
		"nobody knows whose doing", func(e Evidence) bool { return e.Cut }},

	{"upstream", "gRPC", "OK (0)", Success,
		"however slow", func(e Evidence) bool { return e.GRPC }},
	{"upstream", "HTTP", "status 200 to 399", Success,
		"however slow", func(e Evidence) bool { return e.Status >= 200 }},
	{"nobody", "any", "nothing was seen", Ignored,
		"says nothing", func(Evidence) bool { return true }},
}

const viaUpstream = "via_upstream"

// gRPC status codes (google.rpc.Code) that count.
const (
	grpcOK                = 0
	grpcResourceExhausted = 8
	grpcInternal          = 13
	grpcUnavailable       = 14
)

// details fits local replies of one of these names.
func details(names ...string) func(Evidence) bool {
	return func(e Evidence) bool {
		name, _, _ := strings.Cut(e.Details, "{")
		return slices.Contains(names, name)
	}
}

// resetBy fits resets whose reason begins with one of these words.
func resetBy(reasons ...string) func(Evidence) bool {
	return func(e Evidence) bool {
		rest, ok := strings.CutPrefix(e.Details, "upstream_reset_")
		name, reason, _ := strings.Cut(rest, "{")
		return ok && (name == "before_response_started" || name == "after_response_started") &&
			slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(reason, r) })
	}
}
