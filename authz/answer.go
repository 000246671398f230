package authz

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/identity"
)

// answer is a refusal in the words of the two shapes that callers know:
// OpenAI's JSON and gRPC's status. Reason, type and code are those that the
// same refusal has further inside, so a caller cannot tell which filter spoke.
type answer struct {
	status    int
	grpc      codes.Code
	reason    string // x-weir-reason
	kind      string // error.type
	code      string // error.code
	message   string
	challenge string
	retry     bool   // the same call may succeed soon
	id        string // x-weir-request-id; "" = none
	operator  string // for operators, in place of message
	observed  string
}

var (
	pathInvalid = answer{
		status: http.StatusBadRequest, grpc: codes.InvalidArgument, reason: "header_invalid", kind: typeInvalid,
		code: "invalid_header", message: "The path can be read in more than one way.", observed: "path_invalid",
	}
	pathUnknown = answer{
		status: http.StatusNotFound, grpc: codes.Unimplemented, reason: "path_unknown", kind: typeInvalid,
		code: "unknown_url", message: "Unknown method or path.", observed: "path_unknown",
	}
	overrideInvalid = answer{
		status: http.StatusServiceUnavailable, grpc: codes.Unavailable, reason: "override_invalid", kind: typeServer,
		code: "misconfigured_route", message: "This route is misconfigured; tell its operator.", observed: "override_invalid",
	}
)

// OpenAI error types.
const (
	typeInvalid = "invalid_request_error"
	typeAuth    = "authentication_error"
	typeDenied  = "permission_error"
	typeServer  = "server_error"
)

// answerOf puts a denial into words.
func answerOf(d *identity.Denial) answer {
	a := answer{status: d.Status, message: d.Message, challenge: d.Challenge}
	switch d.Status {
	case http.StatusForbidden:
		a.grpc, a.kind, a.reason, a.code = codes.PermissionDenied, typeDenied, "scope_service", "insufficient_scope"
	case http.StatusServiceUnavailable:
		a.grpc, a.kind, a.reason, a.code = codes.Unavailable, typeServer, d.Code, d.Code
		a.retry = true
	default:
		a.grpc, a.kind = codes.Unauthenticated, typeAuth
		a.reason, a.code = reasonOf(d.Code)
	}
	return a
}

// answerOfFunction is answerOf where the function's scope is missing.
func answerOfFunction(d *identity.Denial) answer {
	a := answerOf(d)
	a.reason = "scope_function"
	return a
}

// reasonOf folds the codes of 401 into the reasons and codes that callers see.
func reasonOf(code string) (reason, shown string) {
	switch code {
	case identity.CodeTokenMissing:
		return "token_missing", "missing_token"
	case identity.CodeTokenExpired, identity.CodeTokenNotYet, identity.CodeTokenLifetime:
		return "token_expired", "token_expired"
	case identity.CodeTokenDuplicate, identity.CodeTokenTooLarge, identity.CodeTokenMalformed:
		return "token_malformed", "invalid_token"
	}
	return "token_invalid", "invalid_token"
}

// refuse makes the denied response in the caller's shape. The status is
// always set, because Envoy would send 403 or, in old releases, 0 without it.
func refuse(c call, a answer) *authv3.CheckResponse {
	denied := &authv3.DeniedHttpResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode(a.status)},
		Headers: []*corev3.HeaderValueOption{
			header("x-weir-reason", a.reason),
			header("x-envoy-ratelimited", "true"), // no Envoy above tries again
		},
	}
	put := func(key, value string) { denied.Headers = append(denied.Headers, header(key, value)) }
	if a.id != "" {
		put("x-weir-request-id", a.id)
	}
	if a.challenge != "" {
		put("www-authenticate", a.challenge)
	}
	grpc := c.isGRPC()
	switch {
	case a.retry:
		put("retry-after", "1")
		put("retry-after-ms", "1000")
	case grpc:
		put("grpc-retry-pushback-ms", "-1")
	default:
		put("x-should-retry", "false")
	}
	if grpc {
		// Envoy makes trailers of this: the status, and the body as message.
		put("grpc-status", strconv.Itoa(int(a.grpc)))
		denied.Body = a.message
	} else {
		put("content-type", "application/json")
		denied.Body = errorBody(a)
	}
	return &authv3.CheckResponse{
		Status:          &rpcstatus.Status{Code: int32(a.grpc), Message: a.reason},
		HttpResponse:    &authv3.CheckResponse_DeniedResponse{DeniedResponse: denied},
		DynamicMetadata: metadata(identity.DeniedFields(a.reason)),
	}
}

// errorBody is OpenAI's shape of an error.
func errorBody(a answer) string {
	var body struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    string  `json:"code"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type, body.Error.Code = a.message, a.kind, a.code
	data, err := json.Marshal(body)
	if err != nil {
		return `{"error":{"message":"refused","type":"` + a.kind + `","param":null,"code":null}}`
	}
	return string(data)
}

// okResponse lets the call go on. Status OK and an HTTP part are both set:
// some releases take a response without one for empty.
func okResponse(fields *structpb.Struct, remove []string) *authv3.CheckResponse {
	return &authv3.CheckResponse{
		Status:          &rpcstatus.Status{Code: int32(codes.OK)},
		HttpResponse:    &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{HeadersToRemove: remove}},
		DynamicMetadata: fields,
	}
}

// newID is 128 random bits in hexadecimal.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// metadata turns our own fields into a Struct; they are of kinds that it
// takes.
func metadata(fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		return &structpb.Struct{}
	}
	return s
}
