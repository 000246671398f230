package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/authz"
	"github.com/weirproxy/weir/extproc"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

// endSpan is the context key of a request's open span.
type endSpan struct{}

// hooks tell metrics, traces and logs what the hallway does.
func (h *house) hooks() extproc.Hooks {
	return extproc.Hooks{
		Begin:    h.begin,
		Finished: h.finished,
		Fault:    h.fault,
		Load:     h.gauges.hear,
		OverrideRejected: func(ctx context.Context, err *policy.OverrideError) {
			h.metrics.OverrideRejected(string(err.Channel))
			if newSecond(&h.misled) {
				h.log.LogAttrs(ctx, slog.LevelError, "route override rejected", slog.String("error", err.Error()))
			}
		},
		Observed: func(phase string, took time.Duration) { h.metrics.Message(phase, took) },
	}
}

// begin opens the request's span and hands its context on (O3).
func (h *house) begin(ctx context.Context, traceparent, tracestate string) (context.Context, string, string) {
	ctx, out, end := h.span(ctx, "weir.request", func(name string) []string {
		switch {
		case name == "traceparent" && traceparent != "":
			return []string{traceparent}
		case name == "tracestate" && tracestate != "":
			return []string{tracestate}
		}
		return nil
	})
	if end == nil {
		return ctx, "", ""
	}
	return context.WithValue(ctx, endSpan{}, end), out["traceparent"], out["tracestate"]
}

// checking opens the span of an ext_authz call.
func (h *house) checking(ctx context.Context, headers func(string) []string) (context.Context, func(code string)) {
	ctx, _, end := h.span(ctx, "weir.check", headers)
	if end == nil {
		return ctx, func(string) {}
	}
	return ctx, func(code string) { end(attribute.String("weir.check", code)) }
}

// span opens a span; end is nil where nothing is traced.
func (h *house) span(ctx context.Context, name string, headers func(string) []string) (_ context.Context, out map[string]string, end func(...attribute.KeyValue)) {
	tracer := h.tracer.Load()
	if tracer == nil {
		return ctx, nil, nil
	}
	return tracer.Start(ctx, name, h.policy.Current().Envoy.TrustCallers, headers)
}

// finished closes the span and writes one line at debug, and at info for a
// refusal.
func (h *house) finished(ctx context.Context, s extproc.Summary) {
	if end, ok := ctx.Value(endSpan{}).(func(...attribute.KeyValue)); ok {
		end(spanAttributes(&s)...)
	}
	if s.Request == nil {
		return
	}
	level := slog.LevelDebug
	if !s.Decision.Reason.Admits() {
		level = slog.LevelInfo
	}
	if !h.log.Enabled(ctx, level) || level == slog.LevelInfo && !h.recorded(s.Request, s.Decision.Reason) {
		return
	}
	attrs := []slog.Attr{
		slog.String("reason", s.Decision.Reason.String()),
		slog.Bool("admitted", s.Admitted),
		slog.Float64("waited_ms", milliseconds(s.Decision.Waited)),
		slog.Float64("took_ms", milliseconds(s.Took)),
	}
	attrs = append(attrs, slog.String("request", s.Request.ID), slog.String("class", s.Request.Class.String()), slog.String("model", s.Request.Model))
	if id := s.Request.Identity; id != nil {
		attrs = append(attrs, slog.String("tenant", id.Tenant))
	}
	if s.Admitted {
		attrs = append(attrs, slog.String("pool", s.Decision.Pool), slog.String("quant_type", string(s.Decision.Variant)),
			slog.Int64("cost_token", s.End.Usage.Input+s.End.Usage.Output))
	}
	if s.Err != nil {
		attrs = append(attrs, slog.String("error", s.Err.Error()))
	}
	h.log.LogAttrs(ctx, level, "request", attrs...)
}

// milliseconds is for logs: slog writes a Duration as nanoseconds without a unit.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func spanAttributes(s *extproc.Summary) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		attribute.String("weir.reason", s.Decision.Reason.String()),
		attribute.Int64("weir.waited_ms", s.Decision.Waited.Milliseconds()),
		attribute.String("weir.pool", s.Decision.Pool),
	}
	if r := s.Request; r != nil {
		attrs = append(attrs, attribute.String("weir.request_id", r.ID), attribute.String("weir.class", r.Class.String()),
			attribute.String("gen_ai.request.model", r.Model))
		if r.Identity != nil {
			attrs = append(attrs, attribute.String("tenant", r.Identity.Tenant))
		}
	}
	if q := s.Decision.Quota; q != nil && q.Limit.Max > 0 {
		attrs = append(attrs, attribute.Float64("tenant_quota_usage", float64(q.Limit.Max-q.Remaining)/float64(q.Limit.Max)))
	}
	if s.Admitted {
		attrs = append(attrs, attribute.Int64("gen_ai.usage.input_tokens", s.End.Usage.Input),
			attribute.Int64("gen_ai.usage.output_tokens", s.End.Usage.Output))
	}
	return attrs
}

// newSecond reports whether this second has had no line yet: what a
// misconfigured Envoy brings about with each call is told once a second, and
// counted each time.
func newSecond(last *atomic.Int64) bool {
	now := time.Now().Unix()
	return last.Swap(now) != now
}

// fault is what an operator should know.
func (h *house) fault(ctx context.Context, kind extproc.Fault, detail string) {
	if kind == extproc.FaultPanic {
		h.metrics.Panic("extproc")
	} else {
		h.metrics.Fault(kind.String())
	}
	if !newSecond(&h.faulted[kind]) {
		return
	}
	h.log.LogAttrs(ctx, slog.LevelError, "fault", slog.String("kind", kind.String()), slog.String("detail", detail))
}

// refusedAtTheDoor is a refusal of ext_authz. It is recorded as ext_proc records
// its own, so that both forms count alike and explain finds it by its id.
func (h *house) refusedAtTheDoor(r authz.Refusal) {
	reason, known := admission.ParseReason(r.Reason)
	e, err := h.policy.Current().For(policy.Overrides{})
	if !known || err != nil { // a reason of the table, and no overrides
		return
	}
	id := r.Identity
	if id == nil {
		id = &identity.Identity{Class: policy.Standard}
	}
	d := admission.Decide(reason, r.Detail)
	d.Policy = e.ID()
	request := &admission.Request{ID: r.ID, Received: time.Now(), Identity: id, Policy: e, API: &policy.API{}, Class: id.Class}
	h.desk.Refused(request, &d)
	if h.log.Enabled(context.Background(), slog.LevelInfo) && h.recorded(request, reason) {
		h.log.Info("request", "reason", reason.String(), "admitted", false, "request", r.ID, "class", id.Class.String(), "tenant", id.Tenant, "by", "ext_authz")
	}
}

// houseStats are the counters of the rooms that keep their own.
func (h *house) houseStats() telemetry.HouseStats {
	s := telemetry.HouseStats{Tokens: h.verifier.Stats(), Streams: h.extproc.Streams()}
	if h.sink != nil {
		s.LogDropped = h.sink.Dropped()
	}
	s.Unlogged, s.Unexplained = h.refusals.Total(), h.explain.Unrecorded()
	if r, ok := h.store.(*redisstore.Store); ok {
		stats := r.Stats()
		s.Store = &stats
	}
	return s
}
