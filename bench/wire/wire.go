// Package wire builds the messages that an Envoy with the configurations of
// examples/envoy puts on the wire for one chat completion: what it sends to
// ext_authz and, in their order, to ext_proc.
package wire

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Sizes of the measured call.
const (
	BodyBytes = 2048
	Chunks    = 20
)

const (
	path      = "/v1/chat/completions"
	requestID = "6e5b1d0e-2f0a-4d50-9d0b-1f7f1c7f9a11"

	extProc  = "envoy.filters.http.ext_proc"
	extAuthz = "envoy.filters.http.ext_authz"
)

type pair struct{ name, value string }

// headers of a chat completion; token "" leaves authorization out, as Envoy
// does for ext_proc where ext_authz has read it.
func headers(token string) []pair {
	h := []pair{
		{":authority", "llm.example.internal"}, {":path", path}, {":method", "POST"}, {":scheme", "https"},
		{"content-type", "application/json"}, {"accept", "text/event-stream"}, {"user-agent", "openai-python/1.61.0"},
		{"x-stainless-lang", "python"}, {"x-request-id", requestID}, {"x-forwarded-for", "10.1.2.3"},
		{"x-forwarded-proto", "https"}, {"x-envoy-internal", "true"},
		{"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		{"content-length", fmt.Sprint(BodyBytes)},
	}
	if token != "" {
		h = append(h, pair{"authorization", "Bearer " + token})
	}
	return h
}

func headerMap(list []pair) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for _, h := range list {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: h.name, RawValue: []byte(h.value)})
	}
	return m
}

// Check is the ext_authz request, with encode_raw_headers.
func Check(token string) *authv3.CheckRequest {
	peer := func(address string, port uint32) *authv3.AttributeContext_Peer {
		return &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}}}}
	}
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Source: peer("10.1.2.3", 43210), Destination: peer("10.9.8.7", 8443),
		Request: &authv3.AttributeContext_Request{
			Time: timestamppb.New(time.Unix(1760000000, 123456789)),
			Http: &authv3.AttributeContext_HttpRequest{
				Id: "13519049518330544501", Method: "POST", HeaderMap: headerMap(headers(token)),
				Path: path, Host: "llm.example.internal", Scheme: "https", Protocol: "HTTP/1.1", Size: BodyBytes,
			}},
		MetadataContext:      &corev3.Metadata{},
		RouteMetadataContext: policyMetadata(),
	}}
}

func policyMetadata() *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"weir.policy": texts("function", "chat_completion")}}
}

func texts(pairs ...string) *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := 0; i < len(pairs); i += 2 {
		s.Fields[pairs[i]] = structpb.NewStringValue(pairs[i+1])
	}
	return s
}

// Caller says how ext_proc learns who asks: from what ext_authz stored, or
// from the token itself.
type Caller struct {
	Identity *structpb.Struct // dynamic metadata of ext_authz; nil = none
	Token    string           // "" = taken off by ext_authz
}

// metadata is what Envoy repeats with every message of a stream.
func (c Caller) metadata() *corev3.Metadata {
	m := &corev3.Metadata{}
	if c.Identity != nil {
		m.FilterMetadata = map[string]*structpb.Struct{extAuthz: c.Identity}
	}
	return m
}

// HeadersAndBody is a side stream up to the admission.
func HeadersAndBody(c Caller) []*extprocv3.ProcessingRequest {
	head := &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(headers(c.Token))}},
		MetadataContext: c.metadata(),
		Attributes: map[string]*structpb.Struct{extProc: texts("xds.route_name", "chat", "source.address", "10.1.2.3:43210",
			leaf("profile"), "", leaf("function"), "chat_completion", leaf("class"), "", leaf("maxWait"), "", leaf("models"), "")},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode: filterv3.ProcessingMode_BUFFERED, ResponseBodyMode: filterv3.ProcessingMode_STREAMED},
	}
	body := &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: chatBody(), EndOfStream: true}},
		MetadataContext: c.metadata(),
	}
	return []*extprocv3.ProcessingRequest{head, body}
}

// leaf is the attribute of one value of the route's weir.policy, as the
// examples ask for it.
func leaf(key string) string {
	f := "xds.route_metadata.filter_metadata"
	return fmt.Sprintf("'weir.policy' in %s && has(%s['weir.policy'].%s) ? %s['weir.policy'].%s : ''", f, f, key, f, key)
}

// FullStream is a side stream to the end of a streamed answer: headers, body,
// response headers, Chunks events, trailers.
func FullStream(c Caller) []*extprocv3.ProcessingRequest {
	out := append(HeadersAndBody(c), &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap([]pair{
			{":status", "200"}, {"content-type", "text/event-stream; charset=utf-8"}, {"server", "uvicorn"},
			{"date", "Tue, 30 Nov 2027 02:04:00 GMT"}, {"x-request-id", requestID}, {"x-envoy-upstream-service-time", "41"}})}},
		MetadataContext: c.metadata(),
		Attributes: map[string]*structpb.Struct{extProc: {Fields: map[string]*structpb.Value{
			"response.code":         structpb.NewNumberValue(200),
			"response.code_details": structpb.NewStringValue("via_upstream"),
			"response.flags":        structpb.NewNumberValue(0)}}},
	})
	for i := range Chunks {
		out = append(out, &extprocv3.ProcessingRequest{
			Request:         &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: chunk(i)}},
			MetadataContext: c.metadata(),
		})
	}
	return append(out, &extprocv3.ProcessingRequest{
		Request:         &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{Trailers: &corev3.HeaderMap{}}},
		MetadataContext: c.metadata(),
	})
}

// chatBody is a chat completion of BodyBytes that asks for a stream.
func chatBody() []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"deepseek-v4","stream":true,"stream_options":{"include_usage":true},"max_tokens":512,"temperature":0.7,` +
		`"messages":[{"role":"system","content":"You are a careful analyst."},{"role":"user","content":"`)
	const end = `"}],"user":"alice"}`
	line := `Summarise the report and list the three largest changes, with numbers. \u4e2d\u6587 \"text\" \n`
	for b.Len()+len(line)+len(end) <= BodyBytes {
		b.WriteString(line)
	}
	b.WriteString(strings.Repeat(".", BodyBytes-b.Len()-len(end)))
	b.WriteString(end)
	return b.Bytes()
}

// chunk is one event of the answer; the last one carries the usage.
func chunk(i int) []byte {
	const head = `data: {"id":"chatcmpl-8f3b2c1d","object":"chat.completion.chunk","created":1760000000,"model":"deepseek-v4",`
	if i == Chunks-1 {
		return []byte(head + `"choices":[],"usage":{"prompt_tokens":412,"completion_tokens":458,"total_tokens":870,` +
			`"prompt_tokens_details":{"cached_tokens":128}}}` + "\n\ndata: [DONE]\n\n")
	}
	reason := "null"
	if i == Chunks-2 {
		reason = `"stop"`
	}
	return fmt.Appendf(nil, `%s"choices":[{"index":0,"delta":{"content":" token%d"},"logprobs":null,"finish_reason":%s}],"usage":null}`+"\n\n", head, i, reason)
}
