package extproc

import (
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// This file is the model that the hand-written codec is held against: the same
// two directions by protobuf's generated code.

// readByProtobuf is decode.
func readByProtobuf(in *extprocv3.ProcessingRequest) (message, error) {
	m := message{observe: in.GetObservabilityMode()}
	switch r := in.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		m.phase = requestHeaders
		m.header = decodeHeader(r.RequestHeaders.GetHeaders())
		m.endOfStream = r.RequestHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		m.phase = responseHeaders
		m.header = decodeHeader(r.ResponseHeaders.GetHeaders())
		m.endOfStream = r.ResponseHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestBody:
		m.phase = requestBody
		m.body = r.RequestBody.GetBody()
		m.endOfStream = r.RequestBody.GetEndOfStream()
		return m, nil
	case *extprocv3.ProcessingRequest_ResponseBody:
		m.phase = responseBody
		m.body = r.ResponseBody.GetBody()
		m.endOfStream = r.ResponseBody.GetEndOfStream()
		return m, nil
	case *extprocv3.ProcessingRequest_RequestTrailers:
		m.phase = requestTrailers
		m.header = decodeHeader(r.RequestTrailers.GetTrailers())
		return m, nil
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		m.phase = responseTrailers
		m.header = decodeHeader(r.ResponseTrailers.GetTrailers())
		return m, nil
	default:
		return m, fmt.Errorf("%w: %T", errNoPhase, in.GetRequest())
	}
	decodeContext(in, &m)
	return m, nil
}

// decodeContext reads what only header messages carry.
func decodeContext(in *extprocv3.ProcessingRequest, m *message) {
	if c := in.GetProtocolConfig(); c != nil {
		m.modes = &modes{request: decodeMode(c.GetRequestBodyMode()), response: decodeMode(c.GetResponseBodyMode())}
	}
	if s := in.GetAttributes()[attributesOf]; len(s.GetFields()) > 0 {
		m.attribute = func(yield func(name, value string) bool) {
			for name, v := range s.GetFields() {
				if !yield(name, scalar(v)) {
					return
				}
			}
		}
	}
	if md := in.GetMetadataContext().GetFilterMetadata(); len(md) > 0 {
		m.filterData = func(ns string) (map[string]any, bool) {
			s, ok := md[ns]
			if !ok || s == nil {
				return nil, false
			}
			return s.AsMap(), true
		}
	}
}

func scalar(v *structpb.Value) string {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return k.StringValue
	case *structpb.Value_NumberValue:
		return formatNumber(k.NumberValue)
	case *structpb.Value_BoolValue:
		if k.BoolValue {
			return "true"
		}
		return "false"
	case *structpb.Value_ListValue, *structpb.Value_StructValue:
		return structure
	}
	return ""
}

func decodeMode(m filterv3.ProcessingMode_BodySendMode) bodyMode {
	switch m {
	case filterv3.ProcessingMode_NONE:
		return modeNone
	case filterv3.ProcessingMode_STREAMED:
		return modeStreamed
	case filterv3.ProcessingMode_BUFFERED:
		return modeBuffered
	case filterv3.ProcessingMode_BUFFERED_PARTIAL:
		return modePartial
	case filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		return modeDuplex
	}
	return modeUnknown
}

// decodeHeader reads raw_value, and value where an older sender used that.
// The values share one string, so that a block costs two allocations.
func decodeHeader(in *corev3.HeaderMap) header {
	list := in.GetHeaders()
	if len(list) == 0 {
		return nil
	}
	size := 0
	for _, h := range list {
		size += len(h.GetRawValue())
	}
	var b strings.Builder
	b.Grow(size)
	for _, h := range list {
		b.Write(h.GetRawValue())
	}
	all := b.String()
	out := make(header, len(list))
	for i, h := range list {
		value := h.GetValue()
		if n := len(h.GetRawValue()); n > 0 {
			value, all = all[:n], all[n:]
		}
		out[i] = field{name: strings.ToLower(h.GetKey()), value: value}
	}
	return out
}

// encode turns a reply into Envoy's message: raw_value only, append unset
// (which is overwrite in every release), one oneof case always set.

// writtenByProtobuf is encode.
func writtenByProtobuf(r *reply) *extprocv3.ProcessingResponse {
	if r.timeout > 0 {
		return encodeOverride(r.timeout)
	}
	out := &extprocv3.ProcessingResponse{DynamicMetadata: encodeMetadata(r.metadata)}
	if r.immediate != nil {
		out.Response = &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: encodeImmediate(r.immediate)}
		return out
	}
	mutation := encodeMutation(r.set, r.remove)
	switch r.phase {
	case requestTrailers:
		out.Response = &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{HeaderMutation: mutation}}
		return out
	case responseTrailers:
		out.Response = &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{HeaderMutation: mutation}}
		return out
	}
	common := &extprocv3.CommonResponse{HeaderMutation: mutation, ClearRouteCache: r.clearRoute, BodyMutation: encodeBody(r)}
	switch r.phase {
	case requestHeaders:
		out.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}
	case responseHeaders:
		out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: common}}
	case requestBody:
		out.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}
	case responseBody:
		out.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: common}}
	}
	return out
}

// encodeOverride is a message of its own: Envoy ignores every other field
// beside an override.
func encodeOverride(d time.Duration) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(d)}
}

func encodeBody(r *reply) *extprocv3.BodyMutation {
	switch {
	case !r.replace:
		return nil
	case len(r.body) == 0:
		return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_ClearBody{ClearBody: true}}
	}
	return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: r.body}}
}

func encodeImmediate(im *immediate) *extprocv3.ImmediateResponse {
	out := &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(im.status)},
		Headers: encodeMutation(im.header, nil),
		Body:    im.body,
		Details: im.details,
	}
	if im.grpc >= 0 {
		out.GrpcStatus = &extprocv3.GrpcStatus{Status: uint32(im.grpc)}
	}
	return out
}

func encodeMutation(set []field, remove []string) *extprocv3.HeaderMutation {
	if len(set) == 0 && len(remove) == 0 {
		return nil
	}
	options := make([]corev3.HeaderValueOption, len(set))
	values := make([]corev3.HeaderValue, len(set))
	out := &extprocv3.HeaderMutation{RemoveHeaders: remove}
	if len(set) > 0 {
		out.SetHeaders = make([]*corev3.HeaderValueOption, len(set))
	}
	for i, f := range set {
		values[i].Key, values[i].RawValue = f.name, []byte(printable(f.value))
		options[i].Header = &values[i]
		out.SetHeaders[i] = &options[i]
	}
	return out
}

// encodeMetadata builds the Struct by hand, its values side by side: one by
// one they would be most of what a decision allocates.
func encodeMetadata(list []namespace) *structpb.Struct {
	if len(list) == 0 {
		return nil
	}
	out := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(list))}
	for _, ns := range list {
		s := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(ns.fields))}
		values := make([]structpb.Value, len(ns.fields))
		texts := make([]structpb.Value_StringValue, len(ns.fields))
		for i, f := range ns.fields {
			switch f.kind {
			case datumNumber:
				values[i].Kind = &structpb.Value_NumberValue{NumberValue: f.number}
			case datumTruth:
				values[i].Kind = &structpb.Value_BoolValue{BoolValue: f.truth}
			default:
				texts[i].StringValue = strings.ToValidUTF8(f.text, "?")
				values[i].Kind = &texts[i]
			}
			s.Fields[f.name] = &values[i]
		}
		out.Fields[ns.name] = structpb.NewStructValue(s)
	}
	return out
}
