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

	Error     bool   // an error inside an answer of status 200
	ErrorCode int    // its code as an HTTP status; 0 = none
	ErrorType string // its type or code word: "invalid_request_error"

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
	case e.Error:
		return errorInside(e.ErrorCode, e.ErrorType)
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

// errorInside judges an error object or event in an answer of status 200.
// Without a code its type decides; what is not known as the caller's is the
// model's.
func errorInside(code int, kind string) Outcome {
	if code >= 100 && code <= 599 {
		if code == 429 || code >= 500 {
			return Failure
		}
		return Ignored
	}
	if callersErrors[strings.ToLower(kind)] {
		return Ignored
	}
	return Failure
}

// callersErrors are the error types and codes by which OpenAI, Anthropic,
// vLLM and TGI blame the caller, in lower case.
var callersErrors = map[string]bool{
	"invalid_request_error":    true,
	"invalid_request":          true,
	"badrequesterror":          true,
	"bad_request":              true,
	"validation":               true,
	"validation_error":         true,
	"authentication_error":     true,
	"permission_error":         true,
	"permission_denied":        true,
	"notfounderror":            true,
	"not_found_error":          true,
	"model_not_found":          true,
	"request_too_large":        true,
	"context_length_exceeded":  true,
	"string_above_max_length":  true,
	"invalid_prompt":           true,
	"content_filter":           true,
	"content_policy_violation": true,
	"unprocessableentityerror": true,
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
