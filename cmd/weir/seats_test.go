package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/memstore"
)

// TestSeatLog: while requests wait though the engine says that it is idle, one
// line says so within a second of the alarm, and one when the raise is taken
// back, through a real desk.
func TestSeatLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policy.Default()
		p.Pools, p.Models[0].Pools = p.Pools[:1], p.Models[0].Pools[:1]
		p.Pools[0].Seats = policy.Seats{Requests: 4}
		for i := range p.Classes {
			p.Classes[i].MaxWait = time.Hour
		}
		p.Queue.Watchdog = policy.Watchdog{After: 10 * time.Second, Step: 0.25, Max: 0.25}
		p.Finish()
		gauge := gpu.NewGauge(p.Gauge, []gpu.SourceInfo{{Name: "engine", Engine: true, Every: time.Second}}, time.Now())
		store := memstore.New(memstore.Options{})
		d := admission.New(admission.Options{Policy: p, Store: store, Gauges: func(string) *gpu.Reading { return gauge.Reading() }})
		var out bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&seatLog{log: telemetry.NewLogger(&out, telemetry.Level("info"))}).follow(ctx, d.Snapshot)
		}()
		// lines lets time pass, with an idle engine, and gives what was logged.
		lines := func(d time.Duration) []string {
			out.Reset()
			for range d / time.Second {
				gauge.Observe(gpu.Sample{Source: "engine", At: time.Now(), Waiting: gpu.Some(0), Running: gpu.Some(1), KV: gpu.Some(0.1)})
				time.Sleep(time.Second)
				synctest.Wait()
			}
			return strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
		}
		want := func(got []string, level, msg string, raised any) {
			t.Helper()
			var line map[string]any
			if len(got) != 1 || json.Unmarshal([]byte(got[0]), &line) != nil {
				t.Fatalf("logged %q, want one line", got)
			}
			if line["level"] != level || line["msg"] != msg || line["pool"] != p.Pools[0].Name || line["seats"] != 4. || line["raised"] != raised {
				t.Errorf("logged %s", got[0])
			}
		}
		e, err := p.For(policy.Overrides{})
		if err != nil {
			t.Fatal(err)
		}
		var visits []*admission.Visit
		for i := range 6 {
			r := &admission.Request{
				ID: string(rune('a' + i)), Identity: &identity.Identity{Tenant: "acme"}, Policy: e,
				API: &p.APIs[0], Model: p.Models[0].Name, Prompt: 400, MaxOut: 100,
			}
			visits = append(visits, d.Submit(t.Context(), r))
		}
		if got := lines(9 * time.Second); len(got) != 0 {
			t.Errorf("before the alarm: %q", got)
		}
		want(lines(4*time.Second), "WARN", "requests wait though the engine is idle", 1.)
		if got := lines(time.Minute); len(got) != 0 {
			t.Errorf("while it lasts: %q", got)
		}
		for _, v := range visits[:2] {
			ticket, _ := v.Result()
			ticket.Done(admission.End{GRPC: -1})
		}
		want(lines(12*time.Second), "INFO", "requests no longer wait for an idle engine", nil)
		for _, v := range visits[2:] {
			ticket, _ := v.Result()
			ticket.Done(admission.End{GRPC: -1})
		}
		stop()
		<-done
		d.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A pool that leaves the policy and comes back under its name begins anew.
func TestSeatLogForgets(t *testing.T) {
	var out bytes.Buffer
	s := &seatLog{log: telemetry.NewLogger(&out, telemetry.Level("info"))}
	pool := admission.PoolStats{Name: "chat", Alarm: true, Alarms: 7, Raised: 1}
	for _, pools := range [][]admission.PoolStats{{pool}, nil, {{Name: "chat"}}, {{Name: "chat", Alarm: true, Alarms: 1}}} {
		s.look(pools)
	}
	if n := strings.Count(out.String(), "requests wait though"); n != 2 {
		t.Errorf("%d alarms in %q, want 2", n, out.String())
	}
	if strings.Contains(out.String(), "no longer") {
		t.Errorf("a pool that is gone has no end: %q", out.String())
	}
}
