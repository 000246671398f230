package telemetry

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// TestCallersForceNoTraces: a sampled traceparent samples nothing where the
// caller is not trusted, whichever trace id it chooses; and what is sampled
// links to the caller's trace.
func TestCallersForceNoTraces(t *testing.T) {
	for _, tt := range []struct {
		name    string
		trusted bool
		sample  float64
		low     bool // a trace id that a share by trace id would always sample
		want    int
	}{
		{"not trusted", false, 0, false, 0},
		{"not trusted, a chosen id", false, 1e-9, true, 0},
		{"trusted", true, 0, false, 100},
		{"not trusted, all are sampled", false, 1, false, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			exporter := tracetest.NewInMemoryExporter()
			tr := newTracer(exporter, tt.sample, "test")
			ids := map[trace.TraceID]bool{}
			for i := range 100 {
				id := fmt.Sprintf("0af7651916cd43ddf448eb211c80%04x", i)
				if tt.low {
					id = fmt.Sprintf("%032x", i+1)
				}
				ctx, out, done := tr.Start(t.Context(), "test", tt.trusted, values(map[string]string{"traceparent": "00-" + id + "-b7ad6b7169203331-01"}))
				own := trace.SpanContextFromContext(ctx)
				if flag := out["traceparent"][53:]; (own.TraceID().String() == id) != tt.trusted || own.IsSampled() != (flag == "01") {
					t.Errorf("span of %s, hands on %s of %s", own.TraceID(), out["traceparent"], id)
				}
				done()
			}
			if err := tr.provider.ForceFlush(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans := exporter.GetSpans()
			if err := tr.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, s := range spans {
				ids[s.SpanContext.TraceID()] = true
				if !tt.trusted && (len(s.Links) != 1 || s.Parent.IsValid()) {
					t.Errorf("links %v, parent %v", s.Links, s.Parent)
				}
			}
			if len(spans) != tt.want || len(ids) != tt.want {
				t.Errorf("%d spans of %d traces, want %d", len(spans), len(ids), tt.want)
			}
		})
	}
}

// TestEnvoysTraceIsTheParent: what Envoy says with its call wins over what the
// caller says, trusted or not, and its flag is heeded.
func TestEnvoysTraceIsTheParent(t *testing.T) {
	const id, caller = "0af7651916cd43dd8448eb211c80319c", "11111111111111111111111111111111"
	for flag, want := range map[string]int{"01": 1, "00": 0} {
		for _, trusted := range []bool{false, true} {
			exporter := tracetest.NewInMemoryExporter()
			tr := newTracer(exporter, 1, "test")
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", "00-"+id+"-b7ad6b7169203331-"+flag, "tracestate", "a=b"))
			_, out, done := tr.Start(ctx, "test", trusted, values(map[string]string{"traceparent": "00-" + caller + "-b7ad6b7169203331-01"}))
			done()
			if err := tr.provider.ForceFlush(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans := exporter.GetSpans()
			if err := tr.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(spans) != want || out["traceparent"][3:35] != id || out["tracestate"] != "a=b" {
				t.Fatalf("flag %s, trusted %v: %d spans, hands on %v", flag, trusted, len(spans), out)
			}
			if want == 1 && (spans[0].Parent.SpanID().String() != "b7ad6b7169203331" || spans[0].SpanContext.TraceID().String() != id) {
				t.Errorf("parent %v of %v", spans[0].Parent, spans[0].SpanContext)
			}
		}
	}
}
