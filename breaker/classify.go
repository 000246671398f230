package breaker

import "strings"

// Outcome is what an end says about the upstream.
type Outcome uint8

// The outcomes. Ignored ends are not recorded; a probe that ends so is
// forgotten.
const (
	Ignored Outcome = iota // says nothing: the caller's doing, ours, or unknown
	Success
	Failure
)

// Evidence is what was seen of one admitted request. The zero value is
// nothing seen.
type Evidence struct {
	Ours    bool   // refused or ended by weir, here or at a lower stage
	Details string // Envoy's response.code_details; "" = unknown, "via_upstream" = the upstream answered

	Status     int  // HTTP status; 0 = none
	GRPC       bool // a gRPC status was seen, in headers or trailers
	GRPCStatus int

	Uploading bool // the request had not been received to its end

	Error        bool // an error inside an answer of status 200
	CallersFault bool // and its code or type blames the caller

	Cancelled bool // the client left
	Cut       bool // ended before its end, without a word
}

// Classify judges an end by B6. Failures are: 429 and 5xx of the upstream;
// resets, timeouts and the lack of an upstream that Envoy reports; gRPC
// UNAVAILABLE, RESOURCE_EXHAUSTED and INTERNAL; errors inside a good answer,
// judged by the code inside. The caller's 4xx, its cancels, refusals of weir
// and of Envoy, and answers cut without a word say nothing. Slowness is no
// failure. What the upstream said counts even if the client left later.
func Classify(e Evidence) Outcome {
	switch {
	case e.Ours:
		return Ignored
	case e.Details != "" && e.Details != "via_upstream":
		return localReply(e.Details, e.Uploading)
	case e.Status == 429 || e.Status >= 500 && e.Status <= 599:
		return Failure
	case e.Status >= 400:
		return Ignored
	case e.Error && e.CallersFault:
		return Ignored
	case e.Error:
		return Failure
	case e.GRPC && e.GRPCStatus != grpcOK:
		return grpcStatus(e.GRPCStatus)
	case e.Cancelled || e.Cut:
		return Ignored
	case e.GRPC, e.Status >= 200:
		return Success
	}
	return Ignored
}

// gRPC status codes (google.rpc.Code) that count.
const (
	grpcOK                = 0
	grpcResourceExhausted = 8
	grpcInternal          = 13
	grpcUnavailable       = 14
)

func grpcStatus(code int) Outcome {
	switch code {
	case grpcResourceExhausted, grpcInternal, grpcUnavailable:
		return Failure
	}
	return Ignored
}

// localReply judges an answer that Envoy made itself, by its details
// (response_code_details in Envoy's documentation). A reset carries its reason
// in braces. Silence counts against the upstream only once it has the whole
// request: a caller that stalls its upload opens no breaker.
func localReply(details string, uploading bool) Outcome {
	name, reason, _ := strings.Cut(details, "{")
	switch name {
	case "no_healthy_upstream", "cluster_not_found",
		"upstream_response_timeout", "response_timeout",
		"upstream_per_try_timeout", "upstream_per_try_idle_timeout",
		"upstream_max_stream_duration_reached":
		return Failure
	case "stream_idle_timeout":
		if !uploading {
			return Failure
		}
	case "upstream_reset_before_response_started", "upstream_reset_after_response_started":
		return reset(reason)
	}
	return Ignored
}

// reset judges the reason of an upstream reset. Envoy's own limits and its own
// resets are not the upstream's failures.
func reset(reason string) Outcome {
	for _, own := range []string{"overflow", "local_reset", "local_refused_stream_reset"} {
		if strings.HasPrefix(reason, own) {
			return Ignored
		}
	}
	return Failure
}
