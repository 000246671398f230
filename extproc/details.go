package extproc

import "strings"

// The attributes of an answer that tell Envoy's local replies from the
// model's answers.
const (
	attrDetails = "response.code_details"
	viaUpstream = "via_upstream"
)

// poolFaults are the response code details of local replies for which the
// pool is to blame: no upstream, reset, timeout (B6). All others (the
// caller's fault, Envoy's own limits, filters) say nothing of the pool. The
// names are those of Envoy's response_code_details.
var poolFaults = [...]string{
	"no_healthy_upstream",
	"upstream_reset_before_response_started",
	"upstream_reset_after_response_started",
	"upstream_response_timeout",
	"response_timeout",
	"upstream_per_try_timeout",
	"upstream_per_try_idle_timeout",
	"upstream_max_stream_duration_reached",
}

// poolFault reports whether a local reply counts as a failure of the pool.
// Envoy appends the cause in braces; an overflow of Envoy's own circuit
// breaker is a limit of Envoy's, not a failure of the pool.
func poolFault(details string) bool {
	name, cause, _ := strings.Cut(details, "{")
	if strings.HasPrefix(cause, "overflow") {
		return false
	}
	for _, f := range poolFaults {
		if name == f {
			return true
		}
	}
	return false
}
