package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// TestQueuePicture: /debug/queue shows whose seats are whose, how many there
// should be, the hints given and what was learnt, in the names operators know.
func TestQueuePicture(t *testing.T) {
	p := admission.PoolStats{
		Name: "chat", Variant: policy.INT8, Lane: 1,
		Wanted: 40, Least: 8, Most: 64, Late: true, Raised: 4, Alarm: true, Alarms: 3,
		Priority: queue.Part{Seats: policy.Seats{Requests: 4}, Used: policy.Seats{Requests: 2, Tokens: 90}, Waiting: 5},
		Tiers:    []admission.Tier{{Name: "gold", Part: queue.Part{Seats: policy.Seats{Requests: 8}, Used: policy.Seats{Requests: 11}, Streaming: 6, Waiting: 2}}},
		Latency:  250 * time.Millisecond,
		Speeds:   []admission.Speed{{Model: "m", FirstToken: 200 * time.Millisecond, PromptToken: time.Millisecond, OutputToken: 20 * time.Millisecond}},
	}
	p.Line.Bookings[policy.Batch] = queue.Bookings{Outstanding: 7, Due: 2, Claimed: 9, Lapsed: 1}
	raw, err := json.Marshal(queuePicture(admission.Snapshot{Pools: []admission.PoolStats{p, {Name: "fixed"}}}))
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Pools []map[string]json.RawMessage }
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"tuner":               `{"wanted":40,"least":8,"most":64,"first_tokens_late":true,"raised":4,"alarm":true,"alarms":3}`,
		"lane":                `{"guaranteed":{"requests":4,"tokens":0},"used":{"requests":2,"tokens":90},"waiting":5,"past_breaker":1}`,
		"tiers":               `[{"name":"gold","guaranteed":{"requests":8,"tokens":0},"used":{"requests":11,"tokens":0},"streaming":6,"waiting":2}]`,
		"bookings":            `{"batch":{"outstanding":7,"due":2,"claimed":9,"lapsed":1},"critical":{"outstanding":0,"due":0,"claimed":0,"lapsed":0},"standard":{"outstanding":0,"due":0,"claimed":0,"lapsed":0}}`,
		"first_token_seconds": `0.25`,
		"speeds":              `[{"model":"m","first_token_seconds":0.2,"prompt_token_seconds":0.001,"output_token_seconds":0.02}]`,
	} {
		if have := string(got.Pools[0][key]); have != want {
			t.Errorf("%s is %s, want %s", key, have, want)
		}
	}
	for key, want := range map[string]string{"tiers": `[]`, "speeds": `[]`, "tuner": `{"wanted":0,"first_tokens_late":false,"raised":0,"alarm":false,"alarms":0}`} {
		if have := string(got.Pools[1][key]); have != want {
			t.Errorf("of a pool without any, %s is %s, want %s", key, have, want)
		}
	}
}
