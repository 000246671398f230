package telemetry

import (
	"context"
	"strings"
	"testing"
	"time"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// A collector that answers nonsense costs spans and nothing else: requests do
// not wait for it, nothing panics, and what it says is bounded.
func TestCollectorThatAnswersNonsense(t *testing.T) {
	words, err := proto.Marshal(&coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{RejectedSpans: 1 << 62, ErrorMessage: strings.Repeat("x", 8<<20)}})
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{
		"8 MiB":       envoytest.StartOdd(t, func(string) []byte { return words }),
		"no message":  envoytest.StartOdd(t, func(string) []byte { return []byte{0xff, 0xff} }),
		"HTTP/1":      envoytest.StartParrot(t, []byte("HTTP/1.1 400 Bad Request\r\n\r\n")).Addr,
		"odd HTTP/2":  envoytest.StartTalker(t, []byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff}).Addr,
		"a lone goaw": envoytest.StartTalker(t, []byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11}).Addr,
	}
	for name, addr := range addresses {
		t.Run(name, func(t *testing.T) {
			before := envoytest.Allocated()
			export(t, addr, 2*time.Second)
			if got := int(envoytest.Allocated() - before); got > 64<<20 {
				t.Errorf("%d MiB allocated", got>>20)
			}
		})
	}
}

// export sends some spans to a collector.
func export(t testing.TB, addr string, within time.Duration) {
	t.Helper()
	tracer, err := NewTracer(context.Background(), &policy.OTLP{Endpoint: addr, Insecure: true, Sample: 1}, "test")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 100 {
		_, _, end := tracer.Start(context.Background(), "test", true, func(string) []string { return nil })
		end()
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("requests waited %v", took)
	}
	ctx, stop := context.WithTimeout(context.Background(), within)
	defer stop()
	_ = tracer.Close(ctx) // what the collector makes of them is its own affair
	if took := time.Since(began); took > within+time.Second {
		t.Errorf("the end took %v", took)
	}
}

// FuzzCollector: any bytes as an answer, or instead of HTTP/2.
func FuzzCollector(f *testing.F) {
	envoytest.FuzzAnswers(f, 2*time.Second, func(t *testing.T, addr string) {
		export(t, addr, 30*time.Millisecond)
	}, []byte{0x0a, 0x02, 0x08, 0x01})
}
