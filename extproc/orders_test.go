package extproc

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/admission"
)

// move is one message of Envoy's and the kinds of the replies that answer it,
// separated by spaces; "" = none.
type move struct {
	message *extprocv3.ProcessingRequest
	replies string
}

// order is one side stream from its first message to its end.
type order struct {
	name    string
	modes   *extprocv3.ProtocolConfiguration // nil = BUFFERED, STREAMED
	desk    verdict
	moves   []move
	end     *admission.End // of the ticket; nil = there was none. Only Result, Failed, Status and GRPC are compared
	refused codes.Code     // of the stream after Envoy hung up; 0 = OK
	charge  func(u admission.Usage) error
}

const done = "data: [DONE]\n\n"

func ok(status int) *admission.End {
	return &admission.End{Result: admission.ResultOK, Status: status, GRPC: -1}
}

func ended(r admission.Result, status int) *admission.End {
	return &admission.End{Result: r, Status: status, GRPC: -1}
}

// chat is a chat call up to its admission.
func chat(rest ...move) []move {
	return append([]move{
		{chatHead(), "request_headers"},
		{reqBody(chatBody, true), "request_body"},
	}, rest...)
}

// rerank is a call of kind JSON and its answer.
func rerank(answer string) []move {
	return []move{
		{head(caller(), false, ":method", "POST", ":path", "/v1/rerank", "content-type", "application/json"), "request_headers"},
		{reqBody(`{"query":"x"}`, true), "request_body"},
		{answered("200", via, false, "content-type", "application/json"), "response_headers"},
		{chunk(answer, true), "response_body"},
	}
}

// unary is a gRPC call up to its admission.
func unary(rest ...move) []move {
	return append([]move{{grpcHead(), "request_headers"}}, rest...)
}

var (
	bodyNone  = bodies(filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_NONE)
	chatCheap = bodies(filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_NONE)
)

const via = viaUpstream

// orders are those that Envoy 1.36 to 1.40 were seen to send.
func orders() []order {
	sse := []string{":x", "", "content-type", "text/event-stream"}[2:]
	return []order{
		// The good case in every mode.
		{name: "content-length", moves: chat(
			move{answered("200", via, false, "content-type", "application/json"), "response_headers"},
			move{chunk(`{"choices":[]}`, true), "response_body"}), end: ok(200)},
		{name: "chunked with an extra empty last message", moves: chat(
			move{answered("200", via, false, sse...), "response_headers"},
			move{chunk("data: {}\n\n", false), "response_body"},
			move{chunk(done, false), "response_body"},
			move{chunk("", true), "response_body"}), end: ok(200)},
		{name: "trailers in place of a last body message", moves: chat(
			move{answered("200", via, false, sse...), "response_headers"},
			move{chunk("data: {}\n\n", false), "response_body"},
			move{chunk(done, false), "response_body"},
			move{trailers("x-t", "1"), "response_trailers"}), end: ok(200)},
		{name: "empty answer", moves: chat(
			move{answered("200", via, true), "response_headers"}), end: ok(200)},
		{name: "chunked answer of no bytes", moves: chat( // envoy#44201
			move{answered("200", via, false), "response_headers"},
			move{chunk("", true), "response_body"}), end: ok(200)},
		{name: "chunked body of the request", moves: []move{
			{chatHead("transfer-encoding", "chunked"), "request_headers"},
			{reqBody(chatBody, true), "request_body"},
			{answered("200", via, true), "response_headers"}}, end: ok(200)},
		{name: "request with trailers: BUFFERED body without end_of_stream", moves: []move{
			{chatHead(), "request_headers"},
			{reqBody(chatBody, false), "request_body"},
			{reqTrailers(), "request_trailers"},
			{answered("200", via, true), "response_headers"}}, end: ok(200)},
		{name: "no attributes", moves: chat(
			move{answered("503", "", true), "response_headers"}), end: ended(admission.ResultFailed, 503)},
		{name: "response bodies NONE, no trailers", modes: chatCheap, moves: chat(
			move{answered("200", via, false, sse...), "response_headers"}), end: ok(200)},
		{name: "response bodies NONE, upstream 500", modes: chatCheap, moves: chat(
			move{answered("500", via, false), "response_headers"}), end: ended(admission.ResultFailed, 500)},
		{name: "response bodies NONE, trailers", modes: chatCheap, moves: chat(
			move{answered("200", via, false), "response_headers"},
			move{trailers(), "response_trailers"}), end: ok(200)},

		// B6: what counts.
		{name: "upstream 429", moves: chat(move{answered("429", via, true), "response_headers"}), end: ended(admission.ResultFailed, 429)},
		{name: "upstream 500", moves: chat(move{answered("500", via, true), "response_headers"}), end: ended(admission.ResultFailed, 500)},
		{name: "upstream 404", moves: chat(move{answered("404", via, true), "response_headers"}), end: ended(admission.ResultCaller, 404)},

		{name: "error inside a 200 stream", moves: chat(
			move{answered("200", via, false, sse...), "response_headers"},
			move{chunk(`data: {"error":{"message":"engine died","type":"server_error","code":500}}`+"\n\n", true), "response_body"}),
			end: ended(admission.ResultFailed, 200)},
		{name: "stream that ends without its last event", moves: chat(
			move{answered("200", via, false, sse...), "response_headers"},
			move{chunk(`data: {"choices":[{"index":0,"delta":{"content":"one two"}}]}`+"\n\n", true), "response_body"}),
			end: ended(admission.ResultUnknown, 200)},
		{name: "upstream 400 with a body", moves: chat(
			move{answered("400", via, false, "content-type", "application/json"), "response_headers"},
			move{chunk(`{"error":{"message":"no"}}`, true), "response_body"}), end: ended(admission.ResultCaller, 400),
			charge: func(u admission.Usage) error {
				if !u.Refund {
					return errors.New("an error with nothing delivered is given back")
				}
				return nil
			}},
		{name: "answer's headers not sent (SKIP)", moves: chat(
			move{chunk(`{"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`, true), "response_body"}), end: ok(0),
			charge: func(u admission.Usage) error {
				if u.Input != 3 || u.Output != 2 {
					return errors.New("want 3 in, 2 out")
				}
				return nil
			}},
		{name: "answer sent again behind its end", moves: chat(
			move{answered("200", via, true), "response_headers"},
			move{chunk("x", false), "response_body"}, move{trailers(), "response_trailers"}), end: ok(200)},

		// gRPC.
		{name: "gRPC unary", modes: bodyNone, moves: unary(
			move{answered("200", via, false), "response_headers"},
			move{trailers("grpc-status", "0"), "response_trailers"}),
			end: &admission.End{Result: admission.ResultOK, Status: 200, GRPC: 0}},
		{name: "gRPC UNAVAILABLE in trailers", modes: bodyNone, moves: unary(
			move{answered("200", via, false), "response_headers"},
			move{trailers("grpc-status", "14"), "response_trailers"}),
			end: &admission.End{Result: admission.ResultFailed, Status: 200, GRPC: 14}},
		{name: "gRPC RESOURCE_EXHAUSTED, trailers-only", modes: bodyNone, moves: unary(
			move{answered("200", via, true, "grpc-status", "8"), "response_headers"}),
			end: &admission.End{Result: admission.ResultFailed, Status: 200, GRPC: 8}},
		{name: "gRPC INTERNAL, trailers-only", modes: bodyNone, moves: unary(
			move{answered("200", via, true, "grpc-status", "13"), "response_headers"}),
			end: &admission.End{Result: admission.ResultFailed, Status: 200, GRPC: 13}},
		{name: "gRPC NOT_FOUND is the caller's", modes: bodyNone, moves: unary(
			move{answered("200", via, true, "grpc-status", "5"), "response_headers"}),
			end: &admission.End{Result: admission.ResultCaller, Status: 200, GRPC: 5}},
		{name: "gRPC UNKNOWN says nothing", modes: bodyNone, moves: unary(
			move{answered("200", via, true, "grpc-status", "2"), "response_headers"}),
			end: &admission.End{Result: admission.ResultUnknown, Status: 200, GRPC: 2}},
		{name: "caller's mistake inside a 200 stream", moves: chat(
			move{answered("200", via, false, sse...), "response_headers"},
			move{chunk(`data: {"error":{"message":"too long","type":"invalid_request_error","code":400}}`+"\n\n", true), "response_body"}),
			end: ended(admission.ResultCaller, 200)},
		{name: "gRPC streamed request bodies", modes: bodies(filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_NONE), moves: unary(
			move{reqBody("\x00\x00\x00\x00\x01a", false), "request_body"},
			move{reqBody("", true), "request_body"},
			move{answered("200", via, false), "response_headers"},
			move{trailers("grpc-status", "0"), "response_trailers"}),
			end: &admission.End{Result: admission.ResultOK, Status: 200, GRPC: 0}},
		{name: "gRPC cut before its trailers", modes: bodyNone, moves: unary(
			move{answered("200", via, false), "response_headers"}), end: ended(admission.ResultUnknown, 200)},

		// JSON that is not known: the stated cost, but for a usage that is told.
		{name: "JSON of a stated cost", moves: rerank(`{"results":[{"text":"a long text that is no reason to charge more"}]}`), end: ok(200),
			charge: func(u admission.Usage) error {
				if u != (admission.Usage{}) {
					return fmt.Errorf("want nothing beside the stated cost, got %+v", u)
				}
				return nil
			}},
		{name: "JSON that tells its usage is charged its stated cost", moves: rerank(`{"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`), end: ok(200),
			charge: func(u admission.Usage) error {
				if u != (admission.Usage{}) {
					return fmt.Errorf("want the reserved cost, got %+v", u)
				}
				return nil
			}},

		// Uploads and upgrades: decided at headers, later bodies pass.
		{name: "upload", moves: []move{
			{head(caller(), false, ":method", "POST", ":path", "/v1/audio/transcriptions", "content-type", "multipart/form-data"), "request_headers"},
			{reqBody("...", true), "request_body"},
			{answered("200", via, true), "response_headers"}}, end: ok(200)},
		{name: "upgrade is refused", moves: []move{ // envoy#47081
			{head(caller(), false, ":method", "GET", ":path", "/socket", "connection", "Upgrade", "upgrade", "websocket"), "immediate"},
			{reqBody("frame", false), ""}}},

		// Local replies of Envoy.
		{name: "starts with a denial of ext_authz", moves: []move{
			{answered("403", "ext_authz_denied", false), "response_headers"},
			{chunk("no", true), "response_body"}}},
		{name: "starts with a codec error", moves: []move{{answered("400", "missing_host_header", true), "response_headers"}}},
		{name: "413 while the body is awaited", moves: []move{
			{chatHead(), "request_headers"},
			{answered("413", "request_payload_too_large", false), "response_headers"},
			{chunk("Payload Too Large", true), "response_body"}}},
		{name: "no healthy upstream", moves: chat(
			move{answered("503", "no_healthy_upstream", false), "response_headers"},
			move{chunk("no healthy upstream", true), "response_body"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 503, GRPC: -1}},
		{name: "connection refused", moves: chat(
			move{answered("503", "upstream_reset_before_response_started{remote_connection_failure}", true), "response_headers"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 503, GRPC: -1}},
		{name: "route timeout", moves: chat(
			move{answered("504", "upstream_response_timeout", false), "response_headers"},
			move{chunk("upstream request timeout", true), "response_body"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 504, GRPC: -1}},
		{name: "overflow of Envoy's own breaker", moves: chat(
			move{answered("503", "upstream_reset_before_response_started{overflow}", true), "response_headers"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Status: 503, GRPC: -1}},
		{name: "idle while the model is silent", moves: chat(
			move{answered("504", "stream_idle_timeout", true), "response_headers"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 504, GRPC: -1}},
		{name: "idle while the caller uploads", moves: chat(
			move{answered("408", "stream_idle_timeout", true), "response_headers"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Status: 408, GRPC: -1}},
		{name: "no upstream for gRPC", modes: bodyNone, moves: unary(
			move{answered("200", "no_healthy_upstream", true, "grpc-status", "14"), "response_headers"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 200, GRPC: -1}},

		// Bodies that are not there.
		{name: "POST with end_of_stream", moves: []move{ // emissary#1140
			{head(caller(), true, ":method", "POST", ":path", "/v1/chat/completions"), "immediate"}}},
		{name: "chunked body of no bytes", moves: []move{
			{chatHead(), "request_headers"}, {reqBody("", true), "immediate"}}},
		{name: "headers, then trailers", moves: []move{
			{chatHead(), "request_headers"}, {reqTrailers(), "immediate"}}},
		{name: "headers, trailers unseen, and the upstream answers", moves: []move{
			{chatHead(), "request_headers"}, {answered("400", via, false), "immediate"}, {chunk("x", true), ""}}},

		// A refusal is the last word, whatever still comes. envoy#38553
		{name: "refused at the body", desk: verdict{reason: admission.QueueFull}, moves: []move{
			{chatHead(), "request_headers"}, {reqBody(chatBody, true), "immediate"},
			{reqTrailers(), ""}, {answered("503", "weir_queue_full", true), ""}}},
		{name: "refused at headers", modes: bodyNone, desk: verdict{reason: admission.QuotaRequests}, moves: []move{
			{grpcHead(), "immediate"}, {reqBody("x", false), ""}}},

		// The side stream just ends: 1.36's local replies, aborts, a dead Envoy.
		{name: "cut before anything", refused: codes.Canceled},
		{name: "cut after headers", moves: []move{{chatHead(), "request_headers"}}, refused: codes.Canceled},
		{name: "cut before the answer", moves: chat(), end: ended(admission.ResultUnknown, 0),
			charge: func(u admission.Usage) error {
				if !u.Known || u.InputKnown || u.Output != 0 || u.Refund {
					return errors.New("nothing was delivered: the prompt is charged and no output")
				}
				return nil
			}},
		{name: "cut after the answer's headers", moves: chat(
			move{answered("200", via, false, sse...), "response_headers"}), end: ended(admission.ResultUnknown, 200)},
		{name: "cut in mid answer", moves: chat( // envoy#47458
			move{answered("200", via, false, sse...), "response_headers"},
			move{chunk("data: {\"choices\":[{\"delta\":{\"content\":\"one two three\"}}]}\n\n", false), "response_body"},
			move{chunk("data: {\"choices\":[{\"delta\":{\"content\":\"four five six\"}}]}\n\n", false), "response_body"}),
			end: ended(admission.ResultUnknown, 200), charge: func(u admission.Usage) error {
				if u.Known || u.Output <= 0 {
					return errors.New("what was delivered is charged by estimate")
				}
				return nil
			}},
		{name: "caller leaves after [DONE]", moves: chat( // openai-python 3
			move{answered("200", via, false, sse...), "response_headers"},
			move{chunk("data: {}\n\n", false), "response_body"},
			move{chunk(done, false), "response_body"}), end: ok(200)},

		// Passing without a seat.
		{name: "free", moves: []move{
			{head(caller(), true, ":method", "GET", ":path", "/health"), "request_headers"},
			{answered("200", via, false), "response_headers"}, {chunk("ok", true), "response_body"}}},
		{name: "free with a body", moves: []move{
			{head(caller(), false, ":method", "POST", ":path", "/health"), "request_headers"},
			{reqBody("x", true), "request_body"},
			{answered("200", via, true), "response_headers"}}},

		// What no Envoy sends.
		{name: "request_headers twice", moves: []move{{chatHead(), "request_headers"}, {chatHead(), "end"}}, refused: codes.InvalidArgument},
		{name: "request_body twice", moves: chat(move{reqBody(chatBody, true), "end"}),
			end: ended(admission.ResultUnknown, 0), refused: codes.InvalidArgument},
		{name: "body first", moves: []move{{reqBody(chatBody, true), "end"}}, refused: codes.InvalidArgument},
		{name: "answer's body first", moves: []move{{chunk("x", true), "response_body"}}},
		{name: "answer's trailers first", moves: []move{{trailers("x", "1"), "response_trailers"}}},
		{name: "trailers first", moves: []move{{reqTrailers(), "request_trailers"}}},
		{name: "answer behind trailers that came first", moves: []move{{reqTrailers(), "request_trailers"},
			{answered("200", via, false), "response_headers"}, {chunk("x", true), "response_body"}}},
		{name: "body behind trailers that came first", moves: []move{{reqTrailers(), "request_trailers"}, {reqBody(chatBody, true), "end"}}, refused: codes.InvalidArgument},
		{name: "headers behind an answer's body that came first", moves: []move{{chunk("x", true), "response_body"}, {chatHead(), "end"}}, refused: codes.InvalidArgument},
		{name: "answer's body before the judgement", moves: []move{{chatHead(), "request_headers"}, {chunk("x", true), "end"}}, refused: codes.InvalidArgument},
		{name: "body after Envoy's own answer", moves: []move{
			{chatHead(), "request_headers"}, {answered("413", "request_payload_too_large", true), "response_headers"},
			{reqBody(chatBody, true), "end"}}, refused: codes.InvalidArgument},
		{name: "answer's headers twice", moves: chat(
			move{answered("200", via, false, sse...), "response_headers"},
			move{answered("504", "stream_idle_timeout", false), "response_headers"},
			move{chunk("x", true), "response_body"}),
			end: &admission.End{Result: admission.ResultNoAnswer, Failed: true, Status: 504, GRPC: -1}},
		{name: "a message without a kind", moves: []move{{&extprocv3.ProcessingRequest{}, "end"}}, refused: codes.InvalidArgument},
		{name: "observability mode", moves: []move{
			{&extprocv3.ProcessingRequest{ObservabilityMode: true, Request: chatHead().Request}, "end"}}, refused: codes.InvalidArgument},
	}
}

// TestOrders drives every order of messages, each ended gracefully and by a
// reset: kinds match, nothing is sent unasked, the ticket ends exactly once.
func TestOrders(t *testing.T) {
	for _, graceful := range []bool{true, false} {
		for _, o := range orders() {
			name := o.name + "/reset"
			if graceful {
				name = o.name + "/graceful"
			}
			t.Run(name, func(t *testing.T) { o.run(t, graceful) })
		}
	}
}

func (o *order) run(t *testing.T, graceful bool) {
	d := newTestDesk(o.desk)
	h := open(t, d)
	e := h.call()
	if o.modes != nil {
		e.modes = o.modes
	}
	over := false
	for i, m := range o.moves {
		e.send(m.message)
		for _, want := range strings.Fields(m.replies) {
			if got := kindOf(e.next()); got != want {
				t.Fatalf("reply to message %d: %s, want %s", i, got, want)
			}
			over = over || want == "end"
		}
	}
	err := e.hangUp(graceful || over)
	if graceful || over {
		if got := status.Code(err); got != o.refused {
			t.Errorf("the stream ended with %v, want %v", got, o.refused)
		}
	}
	h.ended()
	o.check(t, d.even(t))
}

func (o *order) check(t *testing.T, ends []admission.End) {
	t.Helper()
	if o.end == nil {
		if len(ends) != 0 {
			t.Errorf("ended %+v without a ticket", ends)
		}
		return
	}
	if len(ends) != 1 {
		t.Fatalf("ended %d times, want once", len(ends))
	}
	got := ends[0]
	if got.Result != o.end.Result || got.Failed != o.end.Failed || got.Status != o.end.Status || got.GRPC != o.end.GRPC {
		t.Errorf("end %+v, want %+v", got, *o.end)
	}
	if o.charge != nil {
		if err := o.charge(got.Usage); err != nil {
			t.Errorf("usage %+v: %v", got.Usage, err)
		}
	}
}
