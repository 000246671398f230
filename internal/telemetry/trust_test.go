package telemetry

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
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
				ctx, out, done := tr.Start(t.Context(), tt.trusted, values(map[string]string{"traceparent": "00-" + id + "-b7ad6b7169203331-01"}))
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
