package extproc

import (
	"context"
	"net"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// lightDesk admits everything and keeps nothing.
type lightDesk struct{}

func (lightDesk) Refused(*admission.Request, *admission.Decision) {}

func (lightDesk) Await(time.Time, *admission.Request, int64) (*admission.Awaited, admission.Decision, bool) {
	return nil, admission.Decision{}, false
}

func (lightDesk) Submit(_ context.Context, r *admission.Request) Visit {
	return &lightVisit{policy: r.Policy.ID()}
}

// echo is the no-op server: default grpc-go, replies of the right kind.
type echo struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (echo) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		in, err := s.Recv()
		if err != nil {
			return nil
		}
		m, _ := readByProtobuf(&extprocv3.ProcessingRequest{Request: in.GetRequest()})
		if err := s.Send(writtenByProtobuf(&reply{phase: m.phase})); err != nil {
			return nil
		}
	}
}

// shape is a side stream: messages, each answered before the next.
type shape []*extprocv3.ProcessingRequest

func shapes() map[string]shape {
	headers := []string{"user-agent", "openai-python", "accept", "application/json", "accept-encoding", "gzip, deflate",
		"x-request-id", "5f0c5c0e-7d0c-4a0e-9a51-000000000000", "x-forwarded-for", "10.0.0.1", "x-forwarded-proto", "https",
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "content-length", "69"}
	short := shape{attributes(chatHead(headers...),
		"xds.route_name", "chat", "source.address", "10.0.0.1:1234",
		cel("profile"), "", cel("function"), "chat_completion", cel("class"), "", cel("maxWait"), "", cel("models"), ""),
		reqBody(chatBody, true)}
	full := append(shape{}, short...)
	full = append(full, answered("200", via, false, "content-type", "text/event-stream", "server", "uvicorn"))
	event := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"deepseek-v4","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}` + "\n\n"
	for range 19 {
		full = append(full, chunk(event, false))
	}
	full = append(full, chunk(done, false), trailers())
	return map[string]shape{"headers_body": short, "full": full}
}

func BenchmarkStream(b *testing.B) {
	for name, s := range shapes() {
		for _, kind := range []string{"noop", "weir"} {
			b.Run(name+"/"+kind, func(b *testing.B) { benchmark(b, s, kind) })
		}
	}
}

func benchmark(b *testing.B, s shape, kind string) {
	lis := bufconn.Listen(1 << 20)
	p := rules()
	var g *grpc.Server
	var weir *Server
	if kind == "noop" {
		g = grpc.NewServer()
		extprocv3.RegisterExternalProcessorServer(g, echo{})
	} else {
		g = grpc.NewServer(ServerOptions(p)...)
		var err error
		if weir, err = NewServer(Options{Desk: lightDesk{}, Policy: policyOf(p)}); err != nil {
			b.Fatal(err)
		}
		weir.Register(g)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:bufconn",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		conn.Close()
		g.Stop()
		<-served
		if weir != nil {
			weir.Wait()
		}
	}()
	client := extprocv3.NewExternalProcessorClient(conn)
	s[0].ProtocolConfig = bodies(2, 1) // BUFFERED, STREAMED
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			stream, err := client.Process(context.Background())
			if err != nil {
				b.Error(err)
				return
			}
			for _, m := range s {
				if err := stream.Send(m); err != nil {
					b.Error(err)
					return
				}
				if _, err := stream.Recv(); err != nil {
					b.Error(err)
					return
				}
			}
			_ = stream.CloseSend()
			_, _ = stream.Recv()
		}
	})
}

// BenchmarkConversation is the state machine alone.
func BenchmarkConversation(b *testing.B) {
	p := policyOf(rules())
	for name, s := range shapes() {
		b.Run(name, func(b *testing.B) {
			o := &Options{Desk: lightDesk{}, Policy: p}
			wire := make([][]byte, len(s))
			for i := range s {
				wire[i] = marshal(b, s[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				c := conversation{o: o, ctx: context.Background()}
				for i := range wire {
					m, err := decode(wire[i])
					if err != nil {
						b.Fatal(err)
					}
					if err := c.receive(at, &m); err != nil {
						b.Fatal(err)
					}
					for j := range c.out {
						encode(&c.out[j])
					}
					c.out = c.out[:0]
				}
				if err := c.ended(false, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func policyOf(p *policy.Policy) func() *policy.Policy { return func() *policy.Policy { return p } }

func (lightDesk) Precheck(time.Time, *admission.Request) (admission.Decision, bool) {
	return admission.Decision{}, false
}

type lightVisit struct {
	policy string
}

func (v *lightVisit) Waiting() bool                                  { return false }
func (v *lightVisit) Longest() time.Duration                         { return 0 }
func (v *lightVisit) Notify(func())                                  {}
func (v *lightVisit) Leave()                                         {}
func (v *lightVisit) Done(admission.End) bool                        { return true }
func (v *lightVisit) Answering(time.Time)                            {}
func (v *lightVisit) Failing(time.Time, bool) (b admission.Pushback) { return b }
func (v *lightVisit) Estimate() (input, output int64)                { return 20, 512 }
func (v *lightVisit) Result() (Ticket, admission.Decision) {
	return v, admission.Decision{Pool: "chat-dyn", Variant: policy.FP16Dyn, Policy: v.policy}
}
