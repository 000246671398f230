package modelsim_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/internal/modelsim"
)

func (r *rig) dial() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(r.url, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func prompt(t *testing.T, tokens float64) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"prompt": "hello there", "max_tokens": tokens})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGRPCUnary(t *testing.T) {
	r := start(t, modelsim.Config{})
	out := new(structpb.Struct)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-weir-tenant", "acme")
	if err := r.dial().Invoke(ctx, modelsim.InferMethod, prompt(t, 4), out); err != nil {
		t.Fatal(err)
	}
	u := out.Fields["usage"].GetStructValue().GetFields()
	if u["prompt_tokens"].GetNumberValue() != 3 || u["completion_tokens"].GetNumberValue() != 4 {
		t.Errorf("answer = %v", out)
	}
	want := modelsim.Count{Started: 1, Finished: 1, Prompt: 3, Output: 4, Delivered: 4}
	if got := r.Totals(); got.Count != want || got.Tenants["acme"] != want {
		t.Errorf("totals = %+v, want %+v", got, want)
	}
}

func TestGRPCStream(t *testing.T) {
	r := start(t, modelsim.Config{})
	got, err := r.inferStream(prompt(t, 4))
	if err != nil || len(got) != 5 {
		t.Fatalf("%d messages, %v; want 4 steps and the usage", len(got), err)
	}
	if u := got[4].Fields["usage"].GetStructValue(); u.GetFields()["completion_tokens"].GetNumberValue() != 4 {
		t.Errorf("last message = %v", got[4])
	}
	want := modelsim.Count{Started: 1, Finished: 1, Prompt: 3, Output: 4, Delivered: 4}
	if got := r.Totals(); got.Count != want {
		t.Errorf("totals = %+v, want %+v", got.Count, want)
	}
}

func (r *rig) inferStream(in *structpb.Struct, md ...string) (got []*structpb.Struct, err error) {
	ctx := metadata.AppendToOutgoingContext(r.t.Context(), md...)
	s, err := r.dial().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, modelsim.InferStreamMethod)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.SendMsg(in), s.CloseSend()); err != nil {
		return nil, err
	}
	for {
		m := new(structpb.Struct)
		switch err := s.RecvMsg(m); {
		case errors.Is(err, io.EOF):
			return got, nil
		case err != nil:
			return got, err
		}
		got = append(got, m)
	}
}

func TestGRPCFaults(t *testing.T) {
	tests := []struct {
		fault    string
		code     codes.Code
		messages int
		want     modelsim.Count
	}{
		{"status=503", codes.Unavailable, 0, modelsim.Count{Started: 1, Failed: 1}},
		{"status=429", codes.ResourceExhausted, 0, modelsim.Count{Started: 1, Failed: 1}},
		{"reset", codes.Internal, 0, modelsim.Count{Started: 1, Aborted: 1}},
		{"goaway", codes.OK, 5, modelsim.Count{Started: 1, Finished: 1, Prompt: 3, Output: 4, Delivered: 4}},
		{"no-usage", codes.OK, 5, modelsim.Count{Started: 1, Finished: 1, Prompt: 3, Output: 4, Delivered: 4}},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			r := start(t, modelsim.Config{})
			got, err := r.inferStream(prompt(t, 4), "x-sim-fault", tt.fault)
			if status.Code(err) != tt.code || len(got) != tt.messages {
				t.Errorf("%d messages, %v; want %d, %v", len(got), err, tt.messages, tt.code)
			}
			if got := r.idle(); got.Count != tt.want {
				t.Errorf("totals = %+v, want %+v", got.Count, tt.want)
			}
		})
	}
}

func TestGRPCStreamFailsMidway(t *testing.T) {
	r := start(t, modelsim.Config{})
	got, err := r.inferStream(prompt(t, 4), "x-sim-fault", "error-in-stream")
	if status.Code(err) != codes.Unavailable || len(got) != 2 {
		t.Errorf("%d messages, %v; want 2, UNAVAILABLE", len(got), err)
	}
	if c := r.idle(); c.Failed != 1 || c.Delivered != 2 {
		t.Errorf("totals = %+v", c.Count)
	}
}

func TestGRPCHealth(t *testing.T) {
	r := start(t, modelsim.Config{})
	got, err := healthpb.NewHealthClient(r.dial()).Check(t.Context(), &healthpb.HealthCheckRequest{Service: modelsim.ServiceName})
	if err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health = %v, %v", got, err)
	}
}

func TestGRPCBadInput(t *testing.T) {
	r := start(t, modelsim.Config{})
	for _, tokens := range []float64{-1, 1e12} {
		err := r.dial().Invoke(t.Context(), modelsim.InferMethod, prompt(t, tokens), new(structpb.Struct))
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("max_tokens %v: %v, want INVALID_ARGUMENT", tokens, err)
		}
	}
	if c := r.idle(); c.Failed != 2 {
		t.Errorf("totals = %+v", c.Count)
	}
}
