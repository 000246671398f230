package admission_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/admission/observertest"
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
