package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/admission/observertest"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// series counts the lines of a metric family.
func series(t *testing.T, m *Metrics, name string) int {
	t.Helper()
	n, err := testutil.GatherAndCount(m.Registry, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func end(m *Metrics, tenant string, tokens int64) {
	r := &admission.Request{Identity: &identity.Identity{Tenant: tenant}, Class: policy.Standard}
	m.Ended(r, &admission.Decision{}, &admission.End{Usage: admission.Usage{Known: true}}, tokens, time.Second, time.Now())
}

func TestTenantsAreBoundedAndTotalsRight(t *testing.T) {
	m := New(50, "test")
	p := policy.Default()
	p.Tenants = []policy.TenantRule{{Match: policy.Match{Tenant: "important"}}, {Match: policy.Match{Tenant: "bulk-*"}}}
	const tenants = 50_000
	for i := range tenants {
		end(m, fmt.Sprintf("t%d", i), 2)
	}
	end(m, "important", 5) // before the policy names it
	m.Policy(p)
	end(m, "important", 7)
	if got := testutil.ToFloat64(m.tenants.charged.WithLabelValues("important", "metered", "")); got != 7 {
		t.Errorf("the important tenant shows %v tokens since it was named, want 7", got)
	}
	if n := series(t, m, "weir_tokens_charged_total"); n != 52 {
		t.Errorf("%d series, want 50 + other + important", n)
	}
	other := testutil.ToFloat64(m.tenants.charged.WithLabelValues("other", "metered", ""))
	if want := float64((tenants-50)*2 + 5); other != want {
		t.Errorf("other holds %v tokens, want %v", other, want)
	}
}

// Every result of the desk is counted, for the variant that served (V1).
func TestEndsOfEveryResult(t *testing.T) {
	m := New(10, "test")
	last := admission.ResultStage
	for r := range last + 1 {
		for _, v := range variants() {
			m.Ended(&admission.Request{Class: policy.Batch}, &admission.Decision{Variant: v}, &admission.End{Result: r}, 0, time.Second, time.Now())
			if got := testutil.ToFloat64(m.ends[policy.Batch][v.Rank()][r]); got != 1 {
				t.Errorf("%s on %q: counted %v times", r, v, got)
			}
		}
	}
	if next := (last + 1).String(); next != "unknown" {
		t.Errorf("there is a result after the last one: %s", next)
	}
}

// TestUsageMissing: a stated cost or a refund is no estimate.
func TestUsageMissing(t *testing.T) {
	m := New(10, "test")
	for i, c := range []struct {
		fixed int64
		usage admission.Usage
		want  float64
	}{
		{0, admission.Usage{Known: true}, 0},
		{0, admission.Usage{Output: 7}, 1},
		{0, admission.Usage{Refund: true}, 1},
		{500, admission.Usage{}, 1},
	} {
		m.Ended(&admission.Request{Fixed: c.fixed}, &admission.Decision{}, &admission.End{Usage: c.usage}, 1, time.Second, time.Now())
		if got := testutil.ToFloat64(m.unmetered); got != c.want {
			t.Errorf("%v after end %d, want %v", got, i, c.want)
		}
	}
	for _, u := range []admission.Usage{{Known: true, Capped: true}, {Implausible: true, Output: 3}, {Unreadable: true, Output: 9}} {
		m.Ended(&admission.Request{}, &admission.Decision{}, &admission.End{Usage: u}, 1, time.Second, time.Now())
	}
	if got := testutil.ToFloat64(m.capped); got != 2 {
		t.Errorf("%v implausible counts, want 2", got)
	}
	if got := testutil.ToFloat64(m.unreadable); got != 1 {
		t.Errorf("%v unreadable answers, want 1", got)
	}
}

func TestDecisionsCountByReasonAndClass(t *testing.T) {
	m := New(10, "test")
	r := &admission.Request{Class: policy.Batch}
	d := &admission.Decision{Action: admission.Reject, Reason: admission.QuotaTokens, Variant: policy.INT8}
	for range 3 {
		m.Decided(r, d, time.Now())
	}
	m.Decided(r, &admission.Decision{Action: admission.Admit, Reason: admission.Admitted, Shadow: true, Intended: admission.QueueFull}, time.Now())
	if got := testutil.ToFloat64(m.decisionsV[policy.INT8.Rank()].WithLabelValues("quota_tokens", "batch")); got != 3 {
		t.Errorf("quota_tokens/batch/int8 = %v, want 3", got)
	}
	if got := testutil.ToFloat64(m.shadowedV.WithLabelValues("queue_full", "batch")); got != 1 {
		t.Errorf("shadowed queue_full/batch = %v, want 1", got)
	}
}

func TestDecidedDoesNotAllocate(t *testing.T) {
	m := New(10, "test")
	r := &admission.Request{Class: policy.Standard}
	d := &admission.Decision{Action: admission.Admit, Reason: admission.Admitted}
	now := time.Now()
	m.Decided(r, d, now)
	if n := testing.AllocsPerRun(100, func() { m.Decided(r, d, now) }); n > 0 {
		t.Errorf("%v allocations a decision, want 0", n)
	}
}

// values reads headers from a map.
func values(h map[string]string) func(string) []string {
	return func(k string) []string {
		if v, ok := h[k]; ok {
			return []string{v}
		}
		return nil
	}
}

func TestTracerTakesTheCallersContextAndHandsItOn(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tr := newTracer(exporter, 0, "test") // only sampled parents
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	ctx, out, done := tr.Start(t.Context(), "test", true, values(map[string]string{"traceparent": "00-" + id + "-" + parent + "-01", "tracestate": "a=b"}))
	done(attribute.String("tenant", "acme"))
	if err := tr.provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := exporter.GetSpans()
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(spans) != 1 || spans[0].SpanContext.TraceID().String() != id || spans[0].Parent.SpanID().String() != parent {
		t.Fatalf("spans %v: want one of trace %s under %s", spans, id, parent)
	}
	own := trace.SpanContextFromContext(ctx).SpanID().String()
	if want := "00-" + id + "-" + own + "-01"; out["traceparent"] != want {
		t.Errorf("hands on %q, want %q", out["traceparent"], want)
	}
	if out["tracestate"] != "a=b" {
		t.Errorf("tracestate %q was lost", out["tracestate"])
	}
}

func TestNilTracerIsSilent(t *testing.T) {
	var tr *Tracer
	_, out, done := tr.Start(t.Context(), "test", true, values(nil))
	done()
	if len(out) != 0 || tr.Close(t.Context()) != nil {
		t.Error("a nil tracer did something")
	}
}

// TestCollectorThatHangs: a collector that accepts and never answers costs
// spans, never latency.
func TestCollectorThatHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	}()
	tr, err := NewTracer(t.Context(), &policy.OTLP{Endpoint: l.Addr().String(), Insecure: true, Sample: 1}, "test")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 20_000 {
		_, _, done := tr.Start(t.Context(), "test", true, values(nil))
		done()
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("20,000 spans took %v with a collector that hangs", took)
	}
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	_ = tr.Close(ctx) // gives up with ctx: the collector never answers
	l.Close()
	<-accepted
	for _, c := range conns {
		c.Close()
	}
}

func TestLogsCarryTheTraceID(t *testing.T) {
	var b bytes.Buffer
	log := NewLogger(&b, Level("warn"))
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	ctx := trace.ContextWithSpanContext(t.Context(), sc)
	log.InfoContext(ctx, "below the level")
	log.With(slog.String("tenant", "acme")).WarnContext(ctx, "refused")
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	var rec map[string]any
	if len(lines) != 1 || json.Unmarshal([]byte(lines[0]), &rec) != nil {
		t.Fatalf("log is %q, want one JSON line", b.String())
	}
	if rec["trace_id"] != sc.TraceID().String() || rec["tenant"] != "acme" || rec["msg"] != "refused" {
		t.Errorf("record %v misses trace_id, tenant or message", rec)
	}
}

func TestMetricsConform(t *testing.T) {
	observertest.Run(t, func(*testing.T) admission.Observer { return New(10, "test") })
}
