package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
)

// TestGaugeLog: a fatal XID and a source that contradicts itself make one line
// each within a second, and one when it is over, however long it lasts.
func TestGaugeLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := policy.Default().Gauge
		g := gpu.NewGauge(config, []gpu.SourceInfo{{Name: "cards", Every: time.Second}}, time.Now())
		var out bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l := &gaugeLog{log: telemetry.NewLogger(&out, telemetry.Level("info"))}
			l.follow(ctx, func() []telemetry.PoolGauge { return []telemetry.PoolGauge{{Pool: "chat", Reading: g.Reading()}} })
		}()
		card := gpu.Card{ID: "GPU-1", Host: "node-a", Index: "3", Instance: "7", Util: gpu.Some(0.5), XID: gpu.Some(0)}
		other := gpu.Card{ID: "GPU-2", Util: gpu.Some(0.5), Active: gpu.Some(0.5)}
		// pass lets time pass and gives what was logged.
		pass := func(d time.Duration) []map[string]any {
			out.Reset()
			for range d / time.Second {
				g.Observe(gpu.Sample{Source: "cards", At: time.Now(), Util: other.Util, Active: other.Active, GPUs: 2, Cards: []gpu.Card{card, other}})
				time.Sleep(time.Second)
				synctest.Wait()
			}
			var lines []map[string]any
			for text := range strings.Lines(out.String()) {
				line := map[string]any{}
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatal(err)
				}
				delete(line, "time")
				lines = append(lines, line)
			}
			return lines
		}
		want := func(got []map[string]any, want ...map[string]any) {
			t.Helper()
			if len(got) != len(want) {
				t.Fatalf("logged %v, want %v", got, want)
			}
			for i := range want {
				if !maps.Equal(got[i], want[i]) {
					t.Errorf("logged %v, want %v", got[i], want[i])
				}
			}
		}
		want(pass(5 * time.Second))
		card.XID = gpu.Some(79)
		want(pass(time.Second), map[string]any{"level": "WARN", "msg": "GPU is not well", "pool": "chat", "gpu": "GPU-1", "host": "node-a", "index": "3", "mig": "7", "health": "faulty", "reason": "XID 79: GPU has fallen off the bus"})
		want(pass(time.Minute))
		want(pass(config.FaultFor), map[string]any{"level": "INFO", "msg": "GPU is well again", "pool": "chat", "gpu": "GPU-1", "host": "node-a", "index": "3", "mig": "7"})
		other.Util, other.Active = gpu.Some(0.99), gpu.Some(0)
		want(pass(time.Second), map[string]any{"level": "WARN", "msg": "telemetry source is doubted", "pool": "chat", "source": "cards", "why": "utilisation says busy, profiling says idle"})
		want(pass(5 * time.Second))
		other.Active = gpu.Some(0.9)
		want(pass(time.Second), map[string]any{"level": "INFO", "msg": "telemetry source is believed again", "pool": "chat", "source": "cards"})
		stop()
		<-done
	})
}

// TestGaugeLogIsBounded: a rack that goes at once does not flood the log.
func TestGaugeLogIsBounded(t *testing.T) {
	now := time.Now()
	g := gpu.NewGauge(policy.Default().Gauge, []gpu.SourceInfo{{Name: "cards", Every: time.Second}}, now)
	var cards []gpu.Card
	for i := range 100 {
		cards = append(cards, gpu.Card{ID: fmt.Sprint("GPU-", i), Util: gpu.Some(0.5)})
	}
	g.Observe(gpu.Sample{Source: "cards", At: now, Cards: cards})
	var out bytes.Buffer
	l := &gaugeLog{log: telemetry.NewLogger(&out, telemetry.Level("info"))}
	look := func() string {
		out.Reset()
		l.look([]telemetry.PoolGauge{{Pool: "chat", Reading: g.Reading()}})
		return out.String()
	}
	if got := look(); got != "" {
		t.Errorf("logged %s, want nothing of GPUs that are well", got)
	}
	g.Observe(gpu.Sample{Source: "cards", At: now.Add(time.Second), Cards: cards[:1]})
	got := look()
	if n := strings.Count(got, `"GPU is not well"`); n != maxCardLines || !strings.Contains(got, fmt.Sprintf(`"more":%d`, 99-maxCardLines)) {
		t.Errorf("logged %d lines of 99 lost GPUs, want %d and how many more:\n%s", n, maxCardLines, got)
	}
	if got := look(); got != "" {
		t.Errorf("logged again: %s", got)
	}
	l.look(nil) // the pool is gone
	if len(l.pools) != 0 {
		t.Errorf("%d pools are remembered", len(l.pools))
	}
}
