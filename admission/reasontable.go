package admission

import "time"

// fixedAdvice is the hint where nobody can compute one.
const fixedAdvice = time.Second

// OpenAI error types, as stock clients know them.
const (
	typeInvalid = "invalid_request_error"
	typeAuth    = "authentication_error"
	typeDenied  = "permission_error"
	typeTokens  = "tokens"
	typeReqs    = "requests"
	typeServer  = "server_error"
)

// gRPC status codes (google.rpc.Code).
const (
	grpcOK                = 0
	grpcCancelled         = 1
	grpcUnknown           = 2
	grpcInvalidArgument   = 3
	grpcNotFound          = 5
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnimplemented     = 12
	grpcInternal          = 13
	grpcUnavailable       = 14
	grpcDataLoss          = 15
	grpcUnauthenticated   = 16
)

// table is the only place that chooses a status. 429: capacity exists, you or
// your class have used your part, wait. 503: there is nothing to give now.
// Refusals of queue and quota are RESOURCE_EXHAUSTED, so that no mesh retries
// them as an outage.
var table = [numReasons]Row{
	Admitted:        admitted("admitted", Admit),
	AdmittedPass:    admitted("admitted_pass", Admit),
	AdmittedFree:    admitted("admitted_free", Admit),
	DegradedExpiry:  admitted("degraded_expiry", Degrade),
	DegradedBreaker: admitted("degraded_breaker", Degrade),
	DegradedVariant: admitted("degraded_variant", Degrade),
	DegradedCost:    admitted("degraded_cost", Degrade),
	DegradedSession: admitted("degraded_session", Degrade),
	AdmittedLane:    admitted("admitted_lane", Admit),
	Queued:          admitted("queued", Admit),

	QuotaRequests:    reject("quota_requests", AdviceQuota, typeReqs, "rate_limit_exceeded", "Request limit reached; retry after the time given."),
	QuotaTokens:      reject("quota_tokens", AdviceQuota, typeTokens, "rate_limit_exceeded", "Token limit reached; retry after the time given."),
	QuotaConcurrency: reject("quota_concurrency", AdviceFixed, typeReqs, "rate_limit_exceeded", "Too many requests of yours are waiting or running; retry when one has ended."),
	QuotaNever:       reject("quota_never", AdviceNone, typeTokens, "request_too_large", "This request alone is larger than the limit; waiting does not help, make it smaller."),
	AwaitedBytes:     reject("awaited_bytes", AdviceFixed, typeReqs, "rate_limit_exceeded", "Too many bytes of your request bodies are still to come; retry when some have been sent."),

	QueueSoft:        reject("queue_soft", AdviceQueue, typeReqs, "queue_busy", "The queue is nearly full; retry after the time given."),
	QueueFull:        shed("queue_full", AdviceQueue, grpcResourceExhausted, "queue_full", "The queue is full; retry after the time given."),
	ClassFull:        reject("class_full", AdviceQueue, typeReqs, "class_full", "Requests of your class fill their part of the queue; retry after the time given."),
	TenantQueueFull:  reject("tenant_queue_full", AdviceQueue, typeReqs, "tenant_queue_full", "Your own requests fill your part of the queue; retry after the time given."),
	HeldBytes:        shed("held_bytes", AdviceQueue, grpcResourceExhausted, "held_bytes", "Too many request bodies are waiting; retry after the time given."),
	ExpiredDrop:      shed("expired_drop", AdviceQueue, grpcResourceExhausted, "wait_expired", "No seat became free in time; retry after the time given."),
	ExpiredDegrade:   reject("expired_degrade", AdviceQueue, typeReqs, "wait_expired", "No seat became free in time, not even at a lower precision; retry after the time given."),
	ExpiredRetry:     reject("expired_retry", AdviceQueue, typeReqs, "wait_expired", "No spare seat became free in time; retry after the time given."),
	RetryFull:        reject("retry_full", AdviceQueue, typeReqs, "retry_queue_full", "No seat became free in time and the retry queue is full; retry after the time given."),
	NonStreamingFull: reject("non_streaming_full", AdviceQueue, typeReqs, "wait_expired", "No seat became free in time for a request that does not stream; retry after the time given, or stream."),
	Deadline:         reject("deadline", AdviceQueue, typeReqs, "deadline_too_short", "Your own deadline is shorter than the wait; retry after the time given or allow more time."),
	TooLarge:         deny("too_large", 413, grpcInvalidArgument, "request_too_large", "Prompt and expected output need more room than the model has."),

	BreakerOpen:   shed("breaker_open", AdviceBreaker, grpcUnavailable, "model_unavailable", "The model is failing and is given time to recover; retry after the time given."),
	BreakerShed:   shed("breaker_shed", AdviceBreaker, grpcUnavailable, "model_unavailable", "The model is partly failing and serves more important requests first; retry after the time given."),
	TenantBreaker: reject("tenant_breaker", AdviceTenant, typeReqs, "tenant_breaker", "Your own requests fail or ask for far more than your quota, so only those with priority are served; retry after the time given."),
	NoPool:        shed("no_pool", AdviceFixed, grpcUnavailable, "model_unavailable", "No endpoints serve this model now."),

	TokenMissing:    challenge("token_missing", "missing_token", "A bearer token is required."),
	TokenMalformed:  challenge("token_malformed", "invalid_token", "The bearer token cannot be read."),
	TokenInvalid:    challenge("token_invalid", "invalid_token", "The bearer token is not valid here."),
	TokenExpired:    challenge("token_expired", "token_expired", "The bearer token is outside its time of validity."),
	TokenRevoked:    challenge("token_revoked", "token_revoked", "The bearer token has been revoked."),
	KeysUnavailable: shed("keys_unavailable", AdviceFixed, grpcUnavailable, "keys_unavailable", "Tokens cannot be verified now; retry after the time given."),
	IdentityMissing: forbid("identity_missing", Deny, "identity_missing", "The request carries no verified identity."),
	TenantBlocked:   forbid("tenant_blocked", Deny, "tenant_blocked", "This tenant is blocked."),
	ScopeService:    forbid("scope_service", Challenge, "insufficient_scope", "The token does not cover this service."),
	ScopeFunction:   forbid("scope_function", Challenge, "insufficient_scope", "The token does not cover this function."),
	ParameterDenied: forbid("parameter_denied", Deny, "parameter_denied", "A parameter is outside what the token allows."),
	ModelDenied:     forbid("model_denied", Deny, "model_denied", "This model is not open to you on this route."),

	ModelUnknown:   deny("model_unknown", 404, grpcNotFound, "model_not_found", "The model does not exist."),
	PathUnknown:    deny("path_unknown", 404, grpcUnimplemented, "unknown_url", "Unknown method or path."),
	HeaderInvalid:  deny("header_invalid", 400, grpcInvalidArgument, "invalid_header", "A request header is not valid."),
	BodyMissing:    deny("body_missing", 400, grpcInvalidArgument, "missing_body", "A request body is required."),
	BodyInvalid:    deny("body_invalid", 400, grpcInvalidArgument, "invalid_json", "The request body is not valid JSON."),
	BodyDuplicate:  deny("body_duplicate_key", 400, grpcInvalidArgument, "duplicate_key", "A key appears twice in the request body."),
	BodyField:      deny("body_field", 400, grpcInvalidArgument, "invalid_value", "A field of the request body is not valid."),
	BodyTruncated:  deny("body_truncated", 400, grpcInvalidArgument, "truncated_body", "The request body ends too early."),
	BodyTooLarge:   deny("body_too_large", 413, grpcInvalidArgument, "body_too_large", "The request body is too large."),
	BodyType:       deny("body_type", 415, grpcInvalidArgument, "unsupported_media_type", "The content type is not supported."),
	BodyEncoding:   deny("body_encoding", 415, grpcInvalidArgument, "unsupported_encoding", "The content encoding is not supported."),
	UpgradeRefused: deny("upgrade_refused", 400, grpcInvalidArgument, "upgrade_refused", "Protocol upgrades are not served."),

	OverrideInvalid:  shed("override_invalid", AdviceNone, grpcUnavailable, "misconfigured_route", "This route is misconfigured; tell its operator."),
	StoreUnavailable: shed("store_unavailable", AdviceFixed, grpcUnavailable, "store_unavailable", "Limits cannot be checked now; retry after the time given."),
	Draining:         shed("draining", AdviceFixed, grpcUnavailable, "draining", "This proxy is shutting down; retry after the time given."),
	ClientGone:       {Name: "client_gone", Action: Deny, HTTP: 499, GRPC: grpcCancelled, Type: typeInvalid, Code: "client_gone", Message: "The caller left before the decision."},
	Internal:         {Name: "internal", Action: Shed, HTTP: 500, GRPC: grpcInternal, Type: typeServer, Code: "internal_error", Message: "The proxy failed; the request was not served."},
}

func admitted(name string, a Action) Row {
	return Row{Name: name, Action: a, HTTP: 200, GRPC: grpcOK}
}

func reject(name string, v Advice, typ, code, msg string) Row {
	return Row{Name: name, Action: Reject, HTTP: 429, GRPC: grpcResourceExhausted, Advice: v, Type: typ, Code: code, Message: msg}
}

func shed(name string, v Advice, grpc int, code, msg string) Row {
	return Row{Name: name, Action: Shed, HTTP: 503, GRPC: grpc, Advice: v, Type: typeServer, Code: code, Message: msg}
}

func deny(name string, http, grpc int, code, msg string) Row {
	return Row{Name: name, Action: Deny, HTTP: http, GRPC: grpc, Type: typeInvalid, Code: code, Message: msg}
}

func forbid(name string, a Action, code, msg string) Row {
	return Row{Name: name, Action: a, HTTP: 403, GRPC: grpcPermissionDenied, Type: typeDenied, Code: code, Message: msg}
}

func challenge(name, code, msg string) Row {
	return Row{Name: name, Action: Challenge, HTTP: 401, GRPC: grpcUnauthenticated, Type: typeAuth, Code: code, Message: msg}
}
