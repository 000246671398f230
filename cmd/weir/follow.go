package main

import (
	"context"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/internal/reload"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// watch follows the policy file and the key files that the policy in force
// names, until ctx ends.
func (h *house) watch(ctx context.Context, config string) {
	applied := make(chan struct{}, 1)
	h.work.Go(func() {
		reload.Policy(ctx, reload.Options{Path: config, Holder: h.policy, Log: h.log, Load: loadPolicy, Apply: h.apply, Report: func(r reload.Report) {
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
	h.moveQuotas(r.Old, r.New)
	h.sayReload(h.desk.Swap(r.New))
	h.street.configure(r.New)
	h.explain.Configure(&r.New.Telemetry)
	h.level.Set(telemetry.Level(r.New.Telemetry.LogLevel))
	debug.FreeOSMemory() // of the policy before
}

// moveQuotas lets usage follow the rules of a new policy, and says where it
// does not.
func (h *house) moveQuotas(old, next *policy.Policy) {
	h.moves = h.moves.MovesOf(old, next)
	if m, ok := h.store.(quota.Mover); ok {
		m.Move(h.moves)
	}
	for i, c := range policy.QuotaChanges(old, next) {
		if i == mostChanges {
			h.log.Warn("more quotas changed; weir check --against OLD.yaml lists all")
			break
		}
		level := slog.LevelInfo
		if c.Anew {
			level = slog.LevelWarn
		}
		h.log.Log(context.Background(), level, "quota changed", "rule", c.Rule, "usage", c.Says)
	}
}

// mostChanges is how many changed quotas a reload logs.
const mostChanges = 20

// sayReload says what a new policy means for those who waited when it came.
func (h *house) sayReload(r admission.Reload) {
	for _, s := range r.Shrunk {
		h.log.Warn("a pool in which requests wait has fewer seats: their waits end by the new policy's maxWait and onExpiry",
			"pool", s.Pool, "seats", s.Seats, "before", s.Before, "running", s.Running, "waiting", s.Waiting)
	}
	if r.Waited > 0 {
		h.log.Info("who waits follows the new policy", "waiting", r.Waited, "moved", r.Moved, "admitted", r.Admitted, "refused", r.Refused)
	}
}

// closeTracer flushes a tracer's last spans, for a bounded time.
func (h *house) closeTracer(t *telemetry.Tracer) {
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	if err := t.Close(ctx); err != nil {
		h.log.Warn("last spans were not delivered", "error", err)
	}
}
