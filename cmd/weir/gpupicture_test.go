package main

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/internal/telemetry"
	"github.com/weirproxy/weir/policy"
)

// TestGPUPicture: /debug/gpu shows each part of the pressure raw, smoothed,
// aged and whether it counts, the sources with what they missed, the GPUs with
// their health, the endpoints and the capacity; what is not known is null.
func TestGPUPicture(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	p := policy.Default().Gauge
	p.Smoothing = [3]float64{0.5, 0.25, 0.25} // exact in binary
	g := gpu.NewGauge(p, []gpu.SourceInfo{{Name: "cards", Every: time.Second}, {Name: "engine", Engine: true, Every: time.Second}, {Name: "silent", Every: 5 * time.Second}}, start)
	card := gpu.Card{ID: "GPU-1", Host: "node-a", Index: "0", Endpoints: gpu.EndpointsOf("chat-0"), Util: gpu.Some(0.75), Power: gpu.Some(400), XID: gpu.Some(0), Clocks: gpu.Some(0x44)}
	look := func(s int, cards ...gpu.Card) {
		g.Observe(gpu.Sample{Source: "cards", At: at(s), Util: gpu.Some(0.75), GPUs: len(cards), Cards: cards, Dropped: 1, Faults: gpu.Faults{gpu.FaultBlank: 1}})
	}
	look(0, card)
	card.XID = gpu.Some(79)
	look(1, card)
	g.Observe(gpu.Sample{Source: "engine", At: at(2), KV: gpu.Some(0.4), Running: gpu.Some(7)})
	g.Miss("silent", at(2), gpu.Missed(gpu.FaultConnect, errors.New("refused")))
	readings := []telemetry.PoolGauge{{Pool: "chat", Reading: g.Reading()}, {Pool: "bare", Reading: gpu.NewGauge(policy.Default().Gauge, nil, start).Reading()}}

	raw, err := json.Marshal(gpuPicture(readings, "", at(3)))
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Pools []map[string]json.RawMessage }
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		// KV 0.4 is half of its target 0.8, as is the history: 0.5.
		"pressure": `0.5`, "age_seconds": `1`, "stale": `false`, "capacity": `0`, "node_load": `null`,
		"parts": `[{"source":"cards","signal":"util","engine":false,"suspect":false,"raw":0.75,"smoothed":0.65625,"value":0.65625,"age_seconds":2,"used":false},` +
			`{"source":"engine","signal":"kv","engine":true,"suspect":false,"raw":0.4,"smoothed":0.5,"value":0.5,"age_seconds":1,"used":true}]`,
		"sources": `[{"name":"cards","engine":false,"every_seconds":1,"age_seconds":2,"samples":2,"repeated":0,"missed":0,"missed_in_a_row":0,"dropped":2,"faults":{"blank":2},"blank":false,"gpus":1,"most_gpus":1,"running":null,"load":null},` +
			`{"name":"engine","engine":true,"every_seconds":1,"age_seconds":1,"samples":1,"repeated":0,"missed":0,"missed_in_a_row":0,"dropped":0,"faults":{},"blank":false,"gpus":0,"most_gpus":0,"running":7,"load":null},` +
			`{"name":"silent","engine":false,"every_seconds":5,"age_seconds":null,"samples":0,"repeated":0,"missed":1,"missed_in_a_row":1,"error":"refused","dropped":0,"faults":{"connect":1},"blank":false,"gpus":0,"most_gpus":0,"running":null,"load":null}]`,
		"endpoints": `[{"name":"chat-0","healthy":false,"reason":"GPU GPU-1: XID 79: GPU has fallen off the bus"}]`,
		"cards": `[{"id":"GPU-1","host":"node-a","index":"0","endpoints":["chat-0"],"source":"cards","age_seconds":2,"health":"faulty","since":"2026-01-02T03:04:06Z","reason":"XID 79: GPU has fallen off the bus",` +
			`"util":0.75,"active":null,"sm_active":null,"sm_occupancy":null,"tensor_active":null,"dram_active":null,"memory_used_bytes":null,"memory_total_bytes":null,"pcie_received_bytes_per_second":null,"pcie_sent_bytes_per_second":null,"power_watts":400,"temperature_celsius":null,"xid":79,"clock_reasons":68,"clock_reason_names":["hw_thermal","sw_power_cap"]}]`,
	} {
		if have := string(got.Pools[0][key]); have != want {
			t.Errorf("%s is %s, want %s", key, have, want)
		}
	}
	for _, key := range []string{"parts", "sources", "endpoints", "cards"} {
		if have := string(got.Pools[1][key]); have != "[]" {
			t.Errorf("of a pool without any, %s is %s, want []", key, have)
		}
	}
	if v := gpuPicture(readings, "bare", at(3)); len(v.Pools) != 1 || v.Pools[0].Name != "bare" {
		t.Errorf("one pool was asked for: %+v", v)
	}
	if v := gpuPicture(readings, "none", at(3)); len(v.Pools) != 0 {
		t.Errorf("a pool that is not there: %+v", v)
	}
}
