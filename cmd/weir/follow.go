package main

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/reload"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
)

// watch follows the policy file and the key files that the policy in force
// names, until ctx ends.
func (h *house) watch(ctx context.Context, config string) {
	applied := make(chan struct{}, 1)
	h.work.Go(func() {
		reload.Policy(ctx, reload.Options{Path: config, Holder: h.policy, Log: h.log, Apply: h.apply, Report: func(r reload.Report) {
			h.reloaded(r)
			select {
			case applied <- struct{}{}:
			default:
			}
		}})
	})
	h.work.Go(func() { h.watchKeys(ctx, applied) })
}

// watchKeys reads key files again when they change. The set of files follows
// the policy.
func (h *house) watchKeys(ctx context.Context, applied <-chan struct{}) {
	for ctx.Err() == nil {
		files := h.verifier.Files()
		inner, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			reload.Files(inner, files, func() {
				if err := h.verifier.Reload(); err != nil {
					h.log.Error("key file refused, the old keys stay", "error", err)
				}
			})
		}()
		for slices.Equal(files, h.verifier.Files()) && ctx.Err() == nil {
			select {
			case <-applied:
			case <-ctx.Done():
			}
		}
		stop()
		<-done
	}
}

// apply makes everything follow that can refuse a policy, just before it is in
// force; what cannot be met leaves all as it was.
func (h *house) apply(next *policy.Policy) error {
	now := h.policy.Current()
	tracer := h.tracer.Load()
	if !reflect.DeepEqual(next.Telemetry.OTLP, now.Telemetry.OTLP) {
		var err error
		if tracer, err = telemetry.NewTracer(context.Background(), next.Telemetry.OTLP, version); err != nil {
			return err
		}
	}
	err := h.verifier.Update(&next.Identity)
	if err == nil {
		if err = h.gauges.swap(next); err != nil {
			if back := h.verifier.Update(&now.Identity); back != nil {
				h.log.Error("the identity rules in force could not be restored", "error", back)
			}
		}
	}
	if old := h.tracer.Load(); old != tracer {
		if err != nil {
			h.closeTracer(tracer)
			return err
		}
		h.tracer.Store(tracer)
		h.work.Go(func() { h.closeTracer(old) })
	}
	return err
}

// reloaded puts a new policy in force in the desk and in telemetry, and says
// so.
func (h *house) reloaded(r reload.Report) {
	h.metrics.Reloaded(r.New, r.Err == nil)
	if r.Err != nil || !r.Changed() {
		return
	}
	h.desk.Swap(r.New)
	h.street.configure(r.New)
	h.explain.Configure(&r.New.Telemetry)
	h.level.Set(telemetry.Level(r.New.Telemetry.LogLevel))
}

// closeTracer flushes a tracer's last spans, for a bounded time.
func (h *house) closeTracer(t *telemetry.Tracer) {
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	if err := t.Close(ctx); err != nil {
		h.log.Warn("last spans were not delivered", "error", err)
	}
}
