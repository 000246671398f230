package admission_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/admission/observertest"
	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
)

func TestExplainConforms(t *testing.T) {
	observertest.Run(t, func(*testing.T) admission.Observer { return admission.NewExplain(100) })
	observertest.Run(t, func(*testing.T) admission.Observer { return admission.NewExplain(0) })
}

func TestExplain(t *testing.T) {
	x := admission.NewExplain(100)
	r := &admission.Request{ID: "abc", Identity: &identity.Identity{Tenant: "acme"}, Class: policy.Batch, Model: "deepseek-v4", Stream: true, Priority: true, Attempt: 2}
	d := admission.Decide(admission.QuotaTokens, "per-tenant: tokens, used 900 of 1000 per 1m0s")
	d.RetryAfter = 1500 * time.Millisecond
	quota := admission.QuotaView{Rule: "per-tenant", Remaining: 100}
	d.Quota = &quota
	d.Trail.Steps[0] = admission.Step{Room: admission.RoomQuota, What: "per-tenant", Observed: 900, Limit: 1000}
	d.Trail.N = 1
	x.Decided(r, &d, time.Unix(1_900_000_000, 0))
	quota.Remaining = 7 // what was kept is a copy
	rec, ok := x.Find("abc")
	if !ok || rec.Tenant != "acme" || rec.Decision.Reason != admission.QuotaTokens || rec.Decision.Quota.Remaining != 100 {
		t.Fatalf("found %v: %+v", ok, rec)
	}
	var text strings.Builder
	if err := rec.Render(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"abc"`, `"acme"`, "batch", "reject: quota_tokens (HTTP 429, gRPC 8)", "used 900 of 1000", "1.5s", "quota    per-tenant", "attempt  2", "has priority", "900 of 1000"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, text.String())
		}
	}
	raw, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Reason string
		HTTP   int
		Retry  float64 `json:"retry_after_ms"`
		Trail  []struct {
			Room string
			OK   bool
		}
		End              *struct{}
		Stream, Priority bool
		Attempt          int
	}
	if err := json.Unmarshal(raw, &back); err != nil || back.Reason != "quota_tokens" || back.HTTP != 429 || back.Retry != 1500 || len(back.Trail) != 1 || back.Trail[0].Room != "quota" || back.End != nil || !back.Stream || !back.Priority || back.Attempt != 2 {
		t.Errorf("%v: %s", err, raw)
	}
}

// TestExplainShowsPressure: what the pool's telemetry said when the decision
// was made, in parts (Q8), however it changes later.
func TestExplainShowsPressure(t *testing.T) {
	start := time.Unix(1_900_000_000, 0)
	config := policy.Default().Gauge
	config.Smoothing = [3]float64{0.5, 0.25, 0.25} // exact in binary
	g := gpu.NewGauge(config, []gpu.SourceInfo{{Name: "engine", Engine: true, Every: time.Second}, {Name: "cards", Every: time.Second}}, start)
	g.Observe(gpu.Sample{Source: "engine", At: start, Waiting: gpu.Some(5)})
	g.Observe(gpu.Sample{Source: "cards", At: start, Util: gpu.Some(1), Active: gpu.Some(0)})
	x := admission.NewExplain(100)
	x.Reading = func(pool string) *gpu.Reading {
		if pool != "chat" {
			return nil
		}
		return g.Reading()
	}
	d := admission.Decide(admission.QueueFull, "")
	for id, pool := range map[string]string{"a": "chat", "b": "bare", "c": ""} {
		d.Pool = pool
		x.Decided(&admission.Request{ID: id}, &d, start.Add(500*time.Millisecond))
	}
	g.Observe(gpu.Sample{Source: "engine", At: start.Add(time.Second), Waiting: gpu.Some(0)})
	rec, _ := x.Find("a")
	raw, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ Gauge json.RawMessage }
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	// 5 of 5 is full, and half of the history of one half.
	const want = `{"pressure":0.75,"parts":[{"source":"engine","signal":"waiting","raw":5,"value":0.75,"age_ms":500,"used":true},` +
		`{"source":"cards","signal":"util","raw":1,"value":0.75,"age_ms":500,"suspect":true,"used":false}]}`
	if string(back.Gauge) != want {
		t.Errorf("%s, want %s", back.Gauge, want)
	}
	var text strings.Builder
	if err := rec.Render(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"pressure 75 %\n", "5 is  75 %, 500ms old, used\n", "1 is  75 %, 500ms old, not believed\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, text.String())
		}
	}
	for _, id := range []string{"b", "c"} {
		if rec, _ := x.Find(id); rec.Gauged || rec.Parts != nil {
			t.Errorf("a decision about no pool with telemetry shows pressure: %+v", rec)
		}
	}
}

// TestExplainPartsAge: a part that was stale is shown decayed.
func TestExplainPartsAge(t *testing.T) {
	start := time.Unix(1_900_000_000, 0)
	g := gpu.NewGauge(policy.Default().Gauge, []gpu.SourceInfo{{Name: "engine", Engine: true, Every: time.Second}}, start)
	g.Observe(gpu.Sample{Source: "engine", At: start, Waiting: gpu.Some(5)})
	x := admission.NewExplain(10)
	x.Reading = func(string) *gpu.Reading { return g.Reading() }
	d := admission.Decide(admission.QueueFull, "")
	d.Pool = "chat"
	for id, age := range map[string]time.Duration{"fresh": time.Second, "stale": time.Hour} {
		x.Decided(&admission.Request{ID: id}, &d, start.Add(age))
	}
	fresh, _ := x.Find("fresh")
	stale, _ := x.Find("stale")
	if f := fresh.Parts[0].Value; f != g.Reading().Parts[0].Smoothed {
		t.Errorf("a fresh part is %v, want it as it was smoothed", f)
	}
	if s := stale.Parts[0].Value; s != 0.5 || stale.Pressure != 0.5 {
		t.Errorf("a part of an hour ago is %v and makes %v, want the neutral half", s, stale.Pressure)
	}
	if n := testing.AllocsPerRun(100, func() {
		x.Decided(&admission.Request{ID: "fresh"}, &d, start.Add(time.Second))
	}); n > 1 { // the request
		t.Errorf("%v allocations a decision while telemetry is fresh, want none beside the request", n)
	}
}

// The ring keeps the newest; an end is added to its decision while it is kept.
func TestExplainForgets(t *testing.T) {
	x := admission.NewExplain(32)
	d := admission.Decide(admission.Admitted, "")
	for i := range 1000 {
		r := &admission.Request{ID: string(rune('a'+i%26)) + time.Duration(i).String()}
		x.Decided(r, &d, time.Unix(int64(i), 0))
		x.Ended(r, &d, &admission.End{Result: admission.ResultCaller}, 9, time.Second, time.Unix(int64(i), 0))
		rec, ok := x.Find(r.ID)
		if !ok || !rec.Ended || rec.Charged != 9 || rec.Result != admission.ResultCaller {
			t.Fatalf("%d: found %v: %+v", i, ok, rec)
		}
	}
	if _, ok := x.Find("a0s"); ok {
		t.Error("the oldest of 1000 is still among 32")
	}
}
