package modelsim

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// The gRPC inference service. Requests and answers are google.protobuf.Struct,
// so that no generated code is needed on either side:
//
//	Infer(Struct) Struct                unary
//	InferStream(Struct) stream Struct   a message for each step, then one with usage
//
// A request has model, prompt and max_tokens (all optional); an answer has
// model, text and finish_reason; the last message has usage. Faults come by
// the metadata key x-sim-fault or by a rule, tenants by x-weir-tenant.
const (
	ServiceName       = "modelsim.v1.Inference"
	InferMethod       = "/" + ServiceName + "/Infer"
	InferStreamMethod = "/" + ServiceName + "/InferStream"
)

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// inference is what grpc-go checks the implementation against.
type inference interface {
	infer(ctx context.Context, in *structpb.Struct) (*structpb.Struct, error)
	inferStream(in *structpb.Struct, stream grpc.ServerStream) error
}

// newGRPC makes the server that Handler hands gRPC requests to.
func (s *Sim) newGRPC() *grpc.Server {
	g := grpc.NewServer()
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*inference)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Infer", Handler: handleInfer}},
		Streams:     []grpc.StreamDesc{{StreamName: "InferStream", Handler: handleInferStream, ServerStreams: true}},
	}, s)
	h := health.NewServer()
	h.SetServingStatus(ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, h)
	return g
}

func handleInfer(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	in := new(structpb.Struct)
	if err := dec(in); err != nil {
		return nil, err
	}
	return srv.(inference).infer(ctx, in)
}

func handleInferStream(srv any, stream grpc.ServerStream) error {
	in := new(structpb.Struct)
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	return srv.(inference).inferStream(in, stream)
}

func (s *Sim) infer(ctx context.Context, in *structpb.Struct) (*structpb.Struct, error) {
	var out *structpb.Struct
	err := s.run(ctx, in, func(c *call, model string) error {
		for more := true; more; {
			var err error
			if more, err = c.step(); err != nil {
				return status.FromContextError(err).Err()
			}
		}
		out = inferAnswer(model, c.whole(), c.finish)
		c.addUsage(out)
		return c.end(Count{Finished: 1, Delivered: int64(c.seq.Output)}, func() error { return nil })
	})
	return out, err
}

func (s *Sim) inferStream(in *structpb.Struct, stream grpc.ServerStream) error {
	return s.run(stream.Context(), in, func(c *call, model string) error {
		for i := 0; ; i++ {
			more, err := c.step()
			if err != nil {
				return status.FromContextError(err).Err()
			}
			if !more {
				break
			}
			if i == c.half() && c.fault.midway() {
				return c.fail(codes.Unavailable)
			}
			if err := c.pause(c.fault.slow); err != nil {
				return status.FromContextError(err).Err()
			}
			chunk := inferAnswer(model, c.text(i), "")
			if err := c.deliver(1, func() error { return stream.SendMsg(chunk) }); err != nil {
				return err
			}
		}
		last := inferAnswer(model, "", c.finish)
		c.addUsage(last)
		return c.end(Count{Finished: 1}, func() error { return stream.SendMsg(last) })
	})
}

// run is the frame of a gRPC call: faults before the answer, and the books.
func (s *Sim) run(ctx context.Context, in *structpb.Struct, answer func(*call, string) error) error {
	md, _ := metadata.FromIncomingContext(ctx)
	f, _ := ctx.Value(faultKey{}).(fault)
	c := s.begin(ctx, strings.Join(md.Get(TenantHeader), ","), f)
	defer c.leave()
	if err := c.pause(f.late); err != nil {
		return status.FromContextError(err).Err()
	}
	switch {
	case f.hang:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	case f.status != 0:
		return c.fail(grpcCode(f.status))
	}
	fields := in.GetFields()
	model := fields["model"].GetStringValue()
	if model == "" {
		model = s.models()[0]
	}
	limit := fields["max_tokens"].GetNumberValue()
	if !(limit >= 0 && limit <= float64(s.cfg.Engine.KVTokens)) {
		c.ended = true
		c.book(Count{Failed: 1})
		return status.Errorf(codes.InvalidArgument, "max_tokens must be 0..%d, got %v", s.cfg.Engine.KVTokens, limit)
	}
	prompt := textTokens(fields["prompt"].GetStringValue())
	output := c.length(natural(md), int(limit))
	if err := c.submit(newSequence(prompt, output, 1)); err != nil {
		c.ended = true
		c.book(Count{Failed: 1})
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return answer(c, model)
}

// natural is OutputHeader of a gRPC call; what is no number is not set.
func natural(md metadata.MD) int {
	n, err := strconv.Atoi(strings.Join(md.Get(OutputHeader), ","))
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// faultKey carries the fault of a gRPC request from serveGRPC to run.
type faultKey struct{}

// serveGRPC hands a request to the gRPC server. What gRPC's own API cannot
// do, a reset and GOAWAY, is done here.
func (s *Sim) serveGRPC(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/"+ServiceName+"/") {
		s.grpc.ServeHTTP(w, r)
		return
	}
	f, err := s.faults.pick(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if f.reset {
		c := s.begin(r.Context(), r.Header.Get(TenantHeader), f)
		defer c.leave()
		newReply(w, f, s.cfg.Variant).reset()
	}
	if f.goAway {
		w.Header().Set("Connection", "close")
	}
	s.grpc.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), faultKey{}, f)))
}

// fail books a failure and makes its status.
func (c *call) fail(code codes.Code) error {
	c.ended = true
	c.book(Count{Failed: 1})
	return status.Error(code, "failed on command")
}

func (c *call) addUsage(out *structpb.Struct) {
	if c.fault.noUsage {
		return
	}
	out.Fields["usage"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		"prompt_tokens":     structpb.NewNumberValue(float64(c.seq.Prompt)),
		"completion_tokens": structpb.NewNumberValue(float64(c.seq.Output)),
	}})
}

func inferAnswer(model, text, finish string) *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{
		"model": structpb.NewStringValue(model),
		"text":  structpb.NewStringValue(text),
	}}
	if finish != "" {
		s.Fields["finish_reason"] = structpb.NewStringValue(finish)
	}
	return s
}

// grpcCode is the canonical code of a commanded HTTP status.
func grpcCode(httpStatus int) codes.Code {
	switch httpStatus {
	case http.StatusBadRequest:
		return codes.InvalidArgument
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusInternalServerError:
		return codes.Internal
	case http.StatusNotImplemented:
		return codes.Unimplemented
	case http.StatusServiceUnavailable:
		return codes.Unavailable
	case http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	}
	return codes.Unknown
}

// midway says whether a fault strikes a gRPC stream after half of it.
func (f fault) midway() bool { return f.inStream || f.cut || f.resetMid }
