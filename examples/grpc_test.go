package examples_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/modelsim"
)

// callCost is the stated cost of a gRPC call here.
const callCost = 500

var grpcPolicy = wideQuotas + fmt.Sprintf(`
  - {name: poor, match: {tenant: poor}, by: [tenant], limits: [{tokens: %d, per: 10s}]}
pools: [{name: infer, variant: fp16, seats: {requests: 1}}]
models: [{name: infer, pools: [infer]}]
classes: [{name: standard, maxWait: 25s, onExpiry: drop}]
breaker: {minRequests: 20, hard: 50%%, open: 1m}
apis: [{path: "/modelsim.v1.Inference/{method}", kind: grpc, function: infer, cost: %d}]
`, callCost*3/2, callCost)

// caller is a grpc-go client behind Envoy.
type caller struct {
	*world
	conn *grpc.ClientConn
}

func newCaller(w *world) *caller {
	w.t.Helper()
	conn, err := grpc.NewClient(w.envoy.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return &caller{w, conn}
}

// as is a context with a tenant's token and more metadata.
func (c *caller) as(tenant string, more ...string) context.Context {
	c.t.Helper()
	return metadata.AppendToOutgoingContext(c.t.Context(), append(more, "authorization", "Bearer "+c.token(claims{"tenant": tenant}))...)
}

// infer makes a unary call; said is what came in headers and trailers.
func (c *caller) infer(ctx context.Context) (said metadata.MD, err error) {
	var header, trailer metadata.MD
	err = c.conn.Invoke(ctx, modelsim.InferMethod, question(3), new(structpb.Struct), grpc.Header(&header), grpc.Trailer(&trailer))
	return metadata.Join(header, trailer), err
}

// stream begins a streamed call of n tokens and reads its first message.
func (c *caller) stream(ctx context.Context, n int) grpc.ClientStream {
	c.t.Helper()
	s, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, modelsim.InferStreamMethod)
	if err == nil {
		err = s.SendMsg(question(n))
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err == nil {
		err = s.RecvMsg(new(structpb.Struct))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func question(n int) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"prompt": structpb.NewStringValue(prompt), "max_tokens": structpb.NewNumberValue(float64(n)),
	}}
}

// firstOf is the first value of a key; "" when there is none.
func firstOf(md metadata.MD, key string) string {
	for _, v := range md.Get(key) {
		return v
	}
	return ""
}

// TestGRPCCall: a call is admitted at its headers, charged its stated cost,
// and gives its seat back at the trailers.
func TestGRPCCall(t *testing.T) {
	eachForm(t, setup{policy: grpcPolicy, sim: modelsim.Config{Speed: 10}, pools: []string{"infer"}}, func(t *testing.T, w *world) {
		c := newCaller(w)
		said, err := c.infer(c.as("unary"))
		if err != nil || firstOf(said, "x-weir-reason") != "admitted" || firstOf(said, "x-weir-variant") != "fp16" {
			t.Fatalf("Infer: %v %v", err, said)
		}
		w.settled("unary", charge{1, callCost, 0})

		s := c.stream(c.as("stream", "x-sim-fault", "slow=50ms"), 5)
		if q := w.queue(); q.Running != 1 {
			t.Errorf("%d run in the middle of a stream", q.Running)
		}
		for err = nil; err == nil; {
			err = s.RecvMsg(new(structpb.Struct))
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("InferStream ends with %v", err)
		}
		w.settled("stream", charge{1, callCost, 0})
		if n := w.metric("weir_requests_ended_total", `result="ok"`); n != 2 {
			t.Errorf("%v ended ok, want 2", n)
		}
		if n := w.metric("weir_usage_missing_total"); n != 0 {
			t.Errorf("weir_usage_missing_total is %v, the cost of these calls is stated", n)
		}
		grpcLeft(c)
		grpcHeld(c)
		grpcDeadline(c)
		grpcDenied(c)
		grpcBreaker(c)
	})
}

// grpcLeft leaves a stream in its middle.
func grpcLeft(c *caller) {
	c.t.Helper()
	ctx, leave := context.WithCancel(c.as("left", "x-sim-fault", "slow=50ms"))
	defer leave()
	c.stream(ctx, 200)
	start := time.Now()
	leave()
	c.idle(time.Second)
	c.t.Logf("a stream was left: free after %v", time.Since(start).Round(time.Millisecond))
	c.settled("left", charge{1, callCost, 0})
	envoytest.Eventually(c.t, 5*time.Second, "the call is cut off at the pool", func() bool { return c.made("left").Aborted == 1 })
	if n := c.metric("weir_requests_ended_total", `result="unknown"`); n != 1 {
		c.t.Errorf("%v ended as unknown, want 1", n)
	}
}

// grpcHeld holds a call at its headers until the seat is free; another one is
// left while it waits.
func grpcHeld(c *caller) {
	c.t.Helper()
	seat, free := context.WithCancel(c.as("seat", "x-sim-fault", "slow=50ms"))
	defer free()
	c.stream(seat, 400)
	ctx, leave := context.WithCancel(c.as("leaver"))
	defer leave()
	results := make(chan error, 2)
	go func() { _, err := c.infer(ctx); results <- err }()
	envoytest.Eventually(c.t, 5*time.Second, "the first call waits", func() bool { return c.queue().Waiting == 1 })
	leave()
	if err := <-results; status.Code(err) != codes.Canceled {
		c.t.Errorf("who left got %v", err)
	}
	envoytest.Eventually(c.t, time.Second, "its place is free", func() bool { return c.queue().Waiting == 0 })
	waiter := c.as("waiter")
	go func() { _, err := c.infer(waiter); results <- err }()
	envoytest.Eventually(c.t, 5*time.Second, "the second call waits", func() bool { return c.queue().Waiting == 1 })
	free()
	if err := <-results; err != nil {
		c.t.Errorf("who waited got %v", err)
	}
	c.settled("leaver", charge{requests: 1})
	c.settled("waiter", charge{1, callCost, 0})
}

// grpcDeadline: the caller's own deadline bounds the wait, and the answer to
// it is weir's.
func grpcDeadline(c *caller) {
	c.t.Helper()
	seat, free := context.WithCancel(c.as("seat", "x-sim-fault", "slow=50ms"))
	defer free()
	c.stream(seat, 400)
	late := c.metric("weir_decisions_total", `reason="deadline"`)
	// By hand: grpc-go's own timer would be as fast as weir's answer.
	req := c.request(c.t.Context(), http.MethodPost, modelsim.InferMethod, "\x00\x00\x00\x00\x00",
		"Authorization", "Bearer "+c.token(claims{"tenant": "hasty"}), "Grpc-Timeout", "400m", "TE", "trailers")
	req.Header.Set("Content-Type", "application/grpc")
	start := time.Now()
	res, err := clients(c.t)["http2"].Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	took := time.Since(start)
	if res.StatusCode != http.StatusOK || res.Header.Get("grpc-status") != "8" || res.Header.Get("x-weir-reason") != "deadline" {
		c.t.Errorf("past its deadline: %d %v", res.StatusCode, res.Header)
	}
	if took < 300*time.Millisecond || took > 5*time.Second { // wide: 400 ms are meant
		c.t.Errorf("a deadline of 400 ms was answered after %v", took)
	}
	if n := c.metric("weir_decisions_total", `reason="deadline"`) - late; n != 1 {
		c.t.Errorf("%v decisions deadline, want 1", n)
	}
	c.returned("hasty")
	free()
	c.idle(5 * time.Second)
}

// returned waits until a tenant has been given all back while others run.
func (c *caller) returned(tenant string) {
	c.t.Helper()
	envoytest.Eventually(c.t, 5*time.Second, tenant+" is given all back", func() bool { return c.charged(tenant) == charge{} })
}

// grpcDenied: refusals reach grpc-go as the codes that it knows.
func grpcDenied(c *caller) {
	c.t.Helper()
	_, err := c.infer(c.t.Context())
	c.refusedAs("without a token", err, codes.Unauthenticated)
	noScope := metadata.AppendToOutgoingContext(c.t.Context(), "authorization", "Bearer "+c.token(claims{"scope": "llm_service chat_completion"}))
	_, err = c.infer(noScope)
	c.refusedAs("without the scope", err, codes.PermissionDenied)
	if _, err = c.infer(c.as("poor")); err != nil {
		c.t.Errorf("within the limit: %v", err)
	}
	c.idle(5 * time.Second)
	said, err := c.infer(c.as("poor"))
	c.refusedAs("over the limit", err, codes.ResourceExhausted)
	if ms, err := strconv.Atoi(firstOf(said, "grpc-retry-pushback-ms")); err != nil || ms < 1 || ms > 13_000 { // 10 s and jitter
		c.t.Errorf("over the limit: %v, want a push-back of at most the window", said)
	}
	if firstOf(said, "x-weir-reason") != "quota_tokens" {
		c.t.Errorf("over the limit: %v", said)
	}
}

func (c *caller) refusedAs(what string, err error, want codes.Code) {
	c.t.Helper()
	if s := status.Convert(err); s.Code() != want || s.Message() == "" {
		c.t.Errorf("%s: %v %q, want %v and a message", what, s.Code(), s.Message(), want)
	}
}

// grpcBreaker: UNAVAILABLE of the model counts (B6); then weir itself says so.
func grpcBreaker(c *caller) {
	c.t.Helper()
	var reason string
	for i := range 60 {
		tenant := fmt.Sprintf("unlucky-%d", i)
		said, err := c.infer(c.as(tenant, "x-sim-fault", "status=503"))
		c.refusedAs(tenant, err, codes.Unavailable)
		c.idle(5 * time.Second)
		if reason = firstOf(said, "x-weir-reason"); reason != "admitted" {
			break
		}
		c.settled(tenant, charge{requests: 1}) // its answer had begun: the tokens go back, the request unit does not
	}
	if reason != "breaker_open" {
		c.t.Errorf("the breaker does not open: %q", reason)
	}
	if _, err := c.infer(c.as("next")); status.Code(err) != codes.Unavailable {
		c.t.Errorf("the breaker is open and a call gets %v", err)
	}
}
