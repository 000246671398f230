package telemetry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/identity"
	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/queue"
)

// TestSharesOfAPool: seats, whose they are, the hints given and what was learnt
// are read as they are (P4, P8, P9, Q5, Q9).
func TestSharesOfAPool(t *testing.T) {
	s := admission.PoolStats{
		Name: "chat", Wanted: 40, Least: 8, Most: 64, Raised: 4, Alarm: true, Alarms: 3, Lane: 1,
		Priority: queue.Part{Seats: policy.Seats{Requests: 4, Tokens: 500}, Used: policy.Seats{Requests: 2, Tokens: 90}, Waiting: 5},
		Tiers:    []admission.Tier{{Name: "gold", Part: queue.Part{Seats: policy.Seats{Requests: 8}, Used: policy.Seats{Requests: 11, Tokens: 70}, Streaming: 6, Waiting: 2}}, {Name: "silver"}},
		Latency:  250 * time.Millisecond,
		Speeds:   []admission.Speed{{Model: "m", FirstToken: 200 * time.Millisecond, PromptToken: time.Millisecond, OutputToken: 20 * time.Millisecond}},
	}
	s.Line.SeatsTotal = policy.Seats{Requests: 44}
	s.Line.Bookings[policy.Batch] = queue.Bookings{Outstanding: 7, Due: 2, Claimed: 9, Lapsed: 1}
	m := New(10, "test")
	m.Pools(func(now time.Time) admission.Snapshot {
		return admission.Snapshot{At: now, Pools: []admission.PoolStats{s, {Name: "fixed", Tiers: []admission.Tier{{}}}}}
	})
	got := scraped(t, m)
	for _, line := range []string{
		`weir_seats{currency="requests",pool="chat"} 44`,
		`weir_seats_wanted{pool="chat"} 40`, `weir_seats_least{pool="chat"} 8`, `weir_seats_most{pool="chat"} 64`,
		`weir_seats_raised{pool="chat"} 4`, `weir_seats_alarm{pool="chat"} 1`, `weir_seats_alarms_total{pool="chat"} 3`,
		`weir_seats_alarm{pool="fixed"} 0`,
		`weir_lane_depth{pool="chat"} 5`, `weir_lane_seats{currency="requests",pool="chat"} 4`, `weir_lane_seats{currency="tokens",pool="chat"} 500`,
		`weir_lane_seats_used{currency="requests",pool="chat"} 2`, `weir_lane_seats_used{currency="tokens",pool="chat"} 90`, `weir_lane_past_breaker{pool="chat"} 1`,
		`weir_tier_depth{pool="chat",tier="gold"} 2`, `weir_tier_seats{currency="requests",pool="chat",tier="gold"} 8`,
		`weir_tier_seats_used{currency="requests",pool="chat",tier="gold"} 11`, `weir_tier_seats_used{currency="tokens",pool="chat",tier="gold"} 70`,
		`weir_tier_streaming{pool="chat",tier="gold"} 6`, `weir_tier_seats{currency="requests",pool="chat",tier="silver"} 0`,
		`weir_tier_depth{pool="fixed",tier=""} 0`,
		`weir_bookings{class="batch",pool="chat",state="outstanding"} 7`, `weir_bookings{class="batch",pool="chat",state="due"} 2`,
		`weir_bookings_ended_total{class="batch",pool="chat",result="claimed"} 9`, `weir_bookings_ended_total{class="batch",pool="chat",result="lapsed"} 1`,
		`weir_bookings{class="critical",pool="chat",state="due"} 0`,
		`weir_pool_first_token_seconds{pool="chat"} 0.25`, `weir_learnt_first_token_seconds{model="m",pool="chat"} 0.2`,
		`weir_learnt_prompt_token_seconds{model="m",pool="chat"} 0.001`, `weir_learnt_output_token_seconds{model="m",pool="chat"} 0.02`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is not shown", line)
		}
	}
	for _, none := range []string{`weir_seats_least{pool="fixed"}`, `weir_seats_most{pool="fixed"}`, `weir_pool_first_token_seconds{pool="fixed"}`} {
		if strings.Contains(got, none) {
			t.Errorf("%s is shown, though there is none", none)
		}
	}
}

// Tokens are counted at the pool's rate and before it, by who used them and
// the variant that served (V2).
func TestTokensByVariant(t *testing.T) {
	m := New(10, "test")
	r := &admission.Request{Identity: &identity.Identity{Tenant: "acme"}}
	for range 2 {
		m.Ended(r, &admission.Decision{Variant: policy.INT8}, &admission.End{Usage: admission.Usage{Known: true}, Used: 121}, 61, time.Second, time.Now())
	}
	m.Ended(r, &admission.Decision{Variant: policy.FP16}, &admission.End{Used: 10}, 10, time.Second, time.Now())
	m.Ended(r, &admission.Decision{Variant: policy.FP16}, &admission.End{Used: 5}, 0, time.Second, time.Now()) // rate 0
	got := scraped(t, m)
	for _, line := range []string{
		`weir_tokens_charged_total{kind="metered",tenant="acme",variant="int8"} 122`, `weir_tokens_used_total{kind="metered",tenant="acme",variant="int8"} 242`,
		`weir_tokens_charged_total{kind="estimated",tenant="acme",variant="fp16"} 10`, `weir_tokens_used_total{kind="estimated",tenant="acme",variant="fp16"} 15`,
	} {
		if !strings.Contains(got, "\n"+line+"\n") {
			t.Errorf("%s is not shown", line)
		}
	}
}

// The pace of a stream is that of the tokens after its first; an answer that
// comes as a whole has none.
func TestPaceOfAStream(t *testing.T) {
	m := New(10, "test")
	for _, c := range []struct {
		stream bool
		first  time.Duration
		output int64
	}{{true, time.Second, 11}, {false, time.Second, 11}, {true, 0, 11}, {true, time.Second, 1}, {true, 4 * time.Second, 11}} {
		e := admission.End{FirstByte: c.first, Usage: admission.Usage{Known: true, Output: c.output}}
		m.Ended(&admission.Request{Stream: c.stream}, &admission.Decision{}, &e, 0, 3*time.Second, time.Now())
	}
	if got := scraped(t, m); !strings.Contains(got, "weir_output_token_seconds_sum{class=\"critical\"} 0.2\n") || !strings.Contains(got, "weir_output_token_seconds_count{class=\"critical\"} 1\n") {
		t.Error("want one stream with 2 s for 10 tokens")
	}
}

// scraped is the page that a scraper gets.
func scraped(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}
