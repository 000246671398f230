package extproc

import (
	"context"
	"io"
	"net"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

// house is a server under test with a client in Envoy's place.
type house struct {
	listener *bufconn.Listener
	t        testing.TB
	server   *Server
	grpc     *grpc.Server
	client   extprocv3.ExternalProcessorClient
	conn     *grpc.ClientConn
	desk     *testDesk
	faults   chan Fault
	misled   chan *policy.OverrideError
	ends     chan Summary
}

// caller is the identity that the tests' metadata carries.
func caller() *identity.Identity {
	return &identity.Identity{
		Tenant: "acme", Class: policy.Standard, Tier: "gold", User: "u1",
		Scopes: []string{"chat_completion", "completion", "embedding", "llm_service"},
	}
}

// rules is the default policy with APIs of every kind.
func rules(edit ...func(*policy.Policy)) *policy.Policy {
	p := policy.Default()
	p.Hash = "0123456789ab"
	p.APIs = append(p.APIs,
		policy.API{Method: "POST", Path: "/inference.Service/Generate", Kind: policy.GRPC, Cost: 700},
		policy.API{Method: "POST", Path: "/v1/audio/transcriptions", Kind: policy.Opaque, Cost: 900},
		policy.API{Method: "POST", Path: "/v1/rerank", Kind: policy.JSON, Cost: 300},
		policy.API{Method: "*", Path: "/health", Kind: policy.Free},
		policy.API{Method: "GET", Path: "/socket", Kind: policy.Opaque, Cost: 50},
	)
	for _, e := range edit {
		e(p)
	}
	return p.Finish()
}

func open(t testing.TB, d *testDesk, edit ...func(*Options)) *house {
	return openWith(t, d, rules(), edit...)
}

func openWith(t testing.TB, d *testDesk, p *policy.Policy, edit ...func(*Options)) *house {
	h := &house{t: t, desk: d, faults: make(chan Fault, 64), misled: make(chan *policy.OverrideError, 64), ends: make(chan Summary, 64)}
	o := Options{Desk: d, Policy: func() *policy.Policy { return p }}
	o.Hooks.Fault = func(_ context.Context, f Fault, detail string) {
		select {
		case h.faults <- f:
		default:
		}
	}
	o.Hooks.OverrideRejected = func(_ context.Context, err *policy.OverrideError) { h.misled <- err }
	o.Hooks.Finished = func(_ context.Context, s Summary) { h.ends <- s }
	for _, e := range edit {
		e(&o)
	}
	var err error
	if h.server, err = NewServer(o); err != nil {
		t.Fatal(err)
	}
	lis := bufconn.Listen(1 << 20)
	h.listener = lis
	h.grpc = grpc.NewServer(ServerOptions(p)...)
	h.server.Register(h.grpc)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = h.grpc.Serve(lis)
	}()
	h.conn, err = grpc.NewClient("passthrough:bufconn",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(128<<20), grpc.MaxCallRecvMsgSize(128<<20)))
	if err != nil {
		t.Fatal(err)
	}
	h.client = extprocv3.NewExternalProcessorClient(h.conn)
	t.Cleanup(func() {
		h.conn.Close()
		h.grpc.Stop()
		h.server.Wait()
		<-served
	})
	return h
}

// envoy is one side stream as Envoy drives it.
type envoy struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	in     chan *extprocv3.ProcessingResponse
	err    error // after in is closed; io.EOF = the server returned nil
	modes  *extprocv3.ProtocolConfiguration
	sent   int
}

// call opens a side stream; md are pairs of grpc_initial_metadata.
func (h *house) call(md ...string) *envoy {
	h.t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), md...))
	s, err := h.client.Process(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	e := &envoy{t: h.t, stream: s, cancel: cancel, in: make(chan *extprocv3.ProcessingResponse, 8192),
		modes: bodies(filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_STREAMED)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(e.in)
		for {
			r, err := s.Recv()
			if err != nil {
				e.err = err
				return
			}
			e.in <- r
		}
	}()
	h.t.Cleanup(func() { cancel(); <-done })
	return e
}

func bodies(request, response filterv3.ProcessingMode_BodySendMode) *extprocv3.ProtocolConfiguration {
	return &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
}

func (e *envoy) send(m *extprocv3.ProcessingRequest) {
	e.t.Helper()
	if e.sent == 0 {
		m.ProtocolConfig = e.modes
	}
	e.sent++
	if err := e.stream.Send(m); err != nil && err != io.EOF {
		e.t.Fatal(err)
	}
}

// next is the next reply; nil when the server ended the stream.
func (e *envoy) next() *extprocv3.ProcessingResponse {
	e.t.Helper()
	return <-e.in
}

// hangUp ends the side stream as Envoy does: gracefully (half-close) or by a
// reset; it returns how the server ended it (nil = OK).
func (e *envoy) hangUp(graceful bool) error {
	e.t.Helper()
	if graceful {
		_ = e.stream.CloseSend()
	} else {
		e.cancel()
	}
	for range e.in {
		e.t.Error("a reply nobody asked for")
	}
	if e.err == io.EOF {
		return nil
	}
	return e.err
}

// ended waits for the end of one side stream.
func (h *house) ended() Summary {
	h.t.Helper()
	return <-h.ends
}

// Messages.

func pairs(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

// head is request_headers with the metadata of our ext_authz.
func head(id *identity.Identity, eos bool, kv ...string) *extprocv3.ProcessingRequest {
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: pairs(kv...), EndOfStream: eos}}}
	if id != nil {
		m.MetadataContext = claims(id.Fields())
	}
	return m
}

func claims(f map[string]any) *corev3.Metadata {
	s, err := structpb.NewStruct(f)
	if err != nil {
		panic(err) // a test's own mistake
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.filters.http.ext_authz": s}}
}

func chatHead(extra ...string) *extprocv3.ProcessingRequest {
	return head(caller(), false, append([]string{":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json"}, extra...)...)
}

func grpcHead(extra ...string) *extprocv3.ProcessingRequest {
	return head(caller(), false, append([]string{":method", "POST", ":path", "/inference.Service/Generate", "content-type", "application/grpc"}, extra...)...)
}

const chatBody = `{"model":"deepseek-v4","messages":[{"role":"user","content":"hello"}]}`

func reqBody(b string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: eos}}}
}

func reqTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
}

// answered is response_headers; details "" leaves the attributes out.
func answered(status, details string, eos bool, kv ...string) *extprocv3.ProcessingRequest {
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: pairs(append([]string{":status", status}, kv...)...), EndOfStream: eos}}}
	if details != "" {
		m.Attributes = map[string]*structpb.Struct{attributesOf: {Fields: map[string]*structpb.Value{
			attrDetails: structpb.NewStringValue(details), "response.code": structpb.NewNumberValue(200)}}}
	}
	return m
}

func chunk(b string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: eos}}}
}

func trailers(kv ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{Trailers: pairs(kv...)}}}
}

// Replies.

// kindOf is the phase of a reply; "immediate" and "override" by these names.
func kindOf(r *extprocv3.ProcessingResponse) string {
	if r == nil {
		return "end"
	}
	if r.GetOverrideMessageTimeout() != nil {
		return "override"
	}
	switch r.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return requestHeaders.String()
	case *extprocv3.ProcessingResponse_RequestBody:
		return requestBody.String()
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return requestTrailers.String()
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return responseHeaders.String()
	case *extprocv3.ProcessingResponse_ResponseBody:
		return responseBody.String()
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return responseTrailers.String()
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		return "immediate"
	}
	return "empty"
}

// mutations are the headers a reply sets and removes, by name.
func mutations(r *extprocv3.ProcessingResponse) (set map[string]string, removed map[string]bool) {
	var m *extprocv3.HeaderMutation
	switch x := r.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		m = x.RequestHeaders.GetResponse().GetHeaderMutation()
	case *extprocv3.ProcessingResponse_RequestBody:
		m = x.RequestBody.GetResponse().GetHeaderMutation()
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		m = x.ResponseHeaders.GetResponse().GetHeaderMutation()
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		m = x.ResponseTrailers.GetHeaderMutation()
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		m = x.ImmediateResponse.GetHeaders()
	}
	set, removed = map[string]string{}, map[string]bool{}
	for _, h := range m.GetSetHeaders() {
		if h.GetHeader().GetValue() != "" || h.GetAppend() != nil || h.GetAppendAction() != 0 {
			panic("a header is not raw_value with append unset: " + h.GetHeader().GetKey())
		}
		set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	for _, n := range m.GetRemoveHeaders() {
		removed[n] = true
	}
	return set, removed
}
