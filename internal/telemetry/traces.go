package telemetry

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/nopanic"
	"github.com/weirproxy/weir/policy"
)

// Tracer makes one span per request out of the W3C context of the request and
// hands the context on (O3), and one for each transition of a breaker. A nil Tracer makes none. Spans go through a
// bounded queue: a collector that hangs costs spans, never latency.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	events   trace.Tracer // of what is rare: it samples everything
	w3c      propagation.TraceContext
}

// exportTimeout bounds one batch to the collector.
const exportTimeout = 3 * time.Second

// maxCollector bounds what a collector answers: its headers, and what it says
// of spans that it did not take. In bytes.
const maxCollector = 64 << 10

// careful is an exporter whose panic is an error: it runs in a goroutine of the
// SDK.
type careful struct{ sdktrace.SpanExporter }

// ExportSpans implements sdktrace.SpanExporter.
func (c careful) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) (err error) {
	defer nopanic.Catch(&err)
	return c.SpanExporter.ExportSpans(ctx, spans)
}

// NewTracer connects to a collector in the background; c nil gives nil.
func NewTracer(ctx context.Context, c *policy.OTLP, version string) (*Tracer, error) {
	if c == nil {
		return nil, nil
	}
	opts := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(c.Endpoint), otlptracegrpc.WithTimeout(exportTimeout),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false}), // a batch that fails is dropped
		otlptracegrpc.WithDialOption(grpc.WithMaxHeaderListSize(maxCollector), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxCollector)))}
	if c.Insecure {
		opts = append(opts, otlptracegrpc.WithInsecure())
	} else {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if c.CA != "" {
			pool, err := policy.ReadCAs(c.CA)
			if err != nil {
				return nil, fmt.Errorf("telemetry.otlp.ca: %w", err)
			}
			config.RootCAs = pool
		}
		opts = append(opts, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(config)))
	}
	exporter, err := otlptracegrpc.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp: %w", err)
	}
	return newTracer(careful{exporter}, float64(c.Sample), version), nil
}

func newTracer(exporter sdktrace.SpanExporter, sample float64, version string) *Tracer {
	queue := sdktrace.NewBatchSpanProcessor(exporter, sdktrace.WithMaxQueueSize(2048), sdktrace.WithExportTimeout(exportTimeout))
	about := sdktrace.WithResource(resource.NewSchemaless(
		attribute.String("service.name", "weir"), attribute.String("service.version", version)))
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(queue), about,
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(sample))))
	// It shares the queue, which the first one shuts down.
	all := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(queue), about, sdktrace.WithSampler(sdktrace.AlwaysSample()))
	const name = "github.com/weirproxy/weir"
	return &Tracer{provider: p, tracer: p.Tracer(name), events: all.Tracer(name)}
}

// Transition makes a span of a breaker's change of state, whatever share of
// the requests is traced: weir.breaker.transition, from the instant on which it
// happened. Safe on a nil Tracer.
func (t *Tracer) Transition(b *breaker.Transition) {
	if t == nil {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.String("weir.breaker", b.Breaker), attribute.String("weir.breaker.kind", b.Kind.String()),
		attribute.String("weir.breaker.from", b.From.String()), attribute.String("weir.breaker.to", b.To.String()),
		attribute.String("weir.breaker.cause", b.Cause.String()), attribute.String("weir.breaker.by", b.By),
		attribute.Int("weir.breaker.requests", b.Requests), attribute.Int("weir.breaker.failures", b.Failures),
		attribute.Float64("weir.breaker.limit", b.Limit), attribute.Int64("weir.breaker.open_ms", b.Open.Milliseconds()),
	}
	_, span := t.events.Start(context.Background(), "weir.breaker.transition", trace.WithTimestamp(b.At), trace.WithAttributes(attrs...))
	span.End(trace.WithTimestamp(b.At))
}

// carrier reads traceparent and tracestate of a request.
type carrier struct {
	values func(string) []string
	out    map[string]string
}

func (c carrier) Get(k string) string {
	if v := c.values(k); len(v) > 0 {
		return v[0]
	}
	return ""
}
func (c carrier) Set(k, v string) { c.out[k] = v }
func (c carrier) Keys() []string  { return []string{"traceparent", "tracestate"} }

// Start opens a span of a request whose headers are read by values. Where
// Envoy traces, it says so in the metadata of its call, and the span is of that
// trace and sampled as it says. Else, where the caller is trusted the span is of its trace and sampled as it says. Else
// it begins a trace of its own, sampled by share whatever the caller says (its
// trace id too would choose what is sampled), with a link to the caller's.
// headers are what goes to the upstream; empty when nothing changes. end closes
// the span with its attributes; it is safe on a nil Tracer.
func (t *Tracer) Start(ctx context.Context, name string, trusted bool, values func(string) []string) (_ context.Context, headers map[string]string, end func(...attribute.KeyValue)) {
	if t == nil {
		return ctx, nil, func(...attribute.KeyValue) {}
	}
	if said := metadata.ValueFromIncomingContext; len(said(ctx, "traceparent")) > 0 {
		of := ctx
		trusted, values = true, func(name string) []string { return said(of, name) }
	}
	in := carrier{values: values, out: map[string]string{}}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	callers := t.w3c.Extract(ctx, in)
	if trusted {
		ctx = callers
	} else if link := trace.LinkFromContext(callers); link.SpanContext.IsRemote() {
		options = append(options, trace.WithLinks(link))
	}
	ctx, span := t.tracer.Start(ctx, name, options...)
	t.w3c.Inject(ctx, in)
	return ctx, in.out, func(attrs ...attribute.KeyValue) {
		span.SetAttributes(attrs...)
		span.End()
	}
}

// Close flushes what is left, within ctx. Safe on a nil Tracer.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
