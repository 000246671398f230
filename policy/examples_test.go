package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func example(t *testing.T, name string) *Policy {
	t.Helper()
	p, err := Load("/etc/weir/"+name, examples(t)[name])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// check is one number of the mechanisms.
type check struct {
	id        string
	got, want any
}

func verify(t *testing.T, checks []check) {
	t.Helper()
	for _, c := range checks {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.id, c.got, c.want)
		}
	}
}

// common are the numbers that the source and the best reading share.
func common(p *Policy) []check {
	class := func(c Class) ClassPolicy {
		k := p.Classes[c]
		k.modeSet, k.degradeSet = false, false
		return k
	}
	return []check{
		{"Q1", p.Queue.Length, Length{Intercept: 1000, Slope: 10, Min: 50, Max: 200}},
		{"Q2", p.Gauge.Smoothing, [3]float64{0.7, 0.2, 0.1}},
		{"Q2 start", p.Gauge.Neutral, Ratio(0.5)},
		{"Q3", p.Gauge.StalePeriods, 3},
		{"Q4", p.Queue.ColdStart, []int{50, 75, 100}},
		{"Q4", p.Queue.ColdStartFor, 30 * time.Second},
		{"Q5", p.Queue.SoftLimit, Ratio(0.8)},
		{"Q5 class 0 uses the rest", p.Queue.SoftExempt, []Class{Critical}},
		{"P2 half a class cap", p.Queue.PerTenant, Ratio(0.5)},
		{"Q8 waiting", p.Gauge.WaitingTarget, 5.0},
		{"Q8 KV", p.Gauge.KVTarget, Ratio(0.8)},
		{"P1 P3 V1 critical", class(Critical), ClassPolicy{Critical, 3, 200 * time.Millisecond, ExpireDrop, FP16, Enforce, false, false}},
		{"P1 P3 V1 standard", class(Standard), ClassPolicy{Standard, 2, 500 * time.Millisecond, ExpireDegrade, FP16Dyn, Enforce, false, false}},
		{"P1 P3 V1 batch", class(Batch), ClassPolicy{Batch, 1, time.Second, ExpireRetry, INT8, Enforce, false, false}},
		{"P3 retry queue", p.Queue.RetryQueue, RetryQueue{Limit: 5 * time.Second, Length: 200}},
		{"P4 quick by tokens", p.Queue.Order.CheapTokens, int64(50)},
		{"P4 quick by time", p.Queue.Order.CheapTime, 100 * time.Millisecond},
		{"P4 ageing", p.Queue.Order.Ageing, 100 * time.Millisecond},
		{"P6 streaming first", p.Queue.Order.Streaming, true},
		{"P8 lane", p.Shares.Priority, Ratio(0.1)},
		{"P9 gold, silver, bronze", tierSharesOf(p), []Ratio{0.2, 0.6, 0.2}},
		{"T13 headroom", p.Queue.Headroom, Ratio(0)},
		{"Q5 share of those who come back", p.RetryAfter.Share, Ratio(0.7)},
		{"Q5 grace", p.RetryAfter.Grace, 5 * time.Second},
		{"Q5 jitter", p.RetryAfter.Jitter, Ratio(0.2)},
		{"Q7 longest hint", p.RetryAfter.Max, time.Minute},
		{"Q9 watchdog", p.Queue.Watchdog, Watchdog{After: 10 * time.Second, Step: 0.1, Max: 0.5}},
		{"V2 notice", p.Variants.Notice, "served at lower precision: accuracy within 0.3 %, coherence 5-8 % lower"},
		{"V3 flip", p.Variants.Flip, 5 * time.Second},
		{"V3 sessions", p.Variants.SessionFor, 10 * time.Minute},
		{"V3 latency", p.Pools[0].Cost, Cost{Base: 1, SLA: 500 * time.Millisecond}},
		{"P1 headers", p.PriorityHeaders, []string{"X-DeepSeek-Priority", "X-Traffic-Color"}},
		{"B1 window", p.Breaker.Window, 10 * time.Second},
		{"B1 soft", p.Breaker.Soft, Ratio(0.3)},
		{"B1 hard", p.Breaker.Hard, Ratio(0.5)},
		{"B1 minimum", p.Breaker.MinRequests, 20},
		{"B2 open", p.Breaker.Open, 5 * time.Second},
		{"B2 probes", p.Breaker.Probes, Ratio(0.1)},
		{"B2 release", p.Breaker.Release, []Ratio{0.1, 0.25, 0.5, 1}},
		{"K1", p.Identity.Service, "llm_service"},
		{"K2", p.Identity.Algorithms, []string{"EdDSA", "ES256", "RS256"}},
		{"K3", p.Identity.MaxLifetime, 24 * time.Hour},
		{"K4", p.Identity.CacheFor, 10 * time.Second},
	}
}

func tierSharesOf(p *Policy) []Ratio {
	shares := make(map[string]Ratio)
	for _, t := range p.Tiers {
		shares[t.Name] = t.Share
	}
	return []Ratio{shares["gold"], shares["silver"], shares["bronze"]}
}

func TestDefaultPolicyNumbers(t *testing.T) {
	p := example(t, "default.yaml")
	verify(t, append(common(p), []check{
		{"Q4 cold pools", p.Gauge.LiteralCold, false},
		{"Q7 whole seconds", p.RetryAfter.Fractional, false},
		{"Q8 engine first", p.Gauge.Literal, false},
		{"P2 by tokens", p.Queue.Price, ByTokens},
		{"P6 no bound", p.Shares.Streaming, Ratio(1)},
		{"P7 off", p.NonStreaming, (*NonStreaming)(nil)},
		{"V2 rate", p.Pools[2].Rate, Ratio(1)},
		{"V3 by class", p.Variants.ByCost, false},
		{"Q9 fixed", p.Pools[0].Adaptive, (*Adaptive)(nil)},
		{"B4 off", p.Breaker.DynamicThreshold, false},
		{"B5 fixed", p.Breaker.Progressive, false},
		{"T7 units", limitsOf(p), []Limit{{Requests, 600, time.Minute}, {Tokens, 200_000, 5 * time.Minute}, {Concurrency, 20, 0}}},
		{"Q3 dcgm-exporter", p.Pools[0].Telemetry[1].Every, 5 * time.Second},
	}...))
	if n := p.Notes(); len(n) != 0 {
		t.Errorf("notes: %v", n)
	}
}

func limitsOf(p *Policy) (out []Limit) {
	for _, q := range p.Quotas {
		out = append(out, q.Limits...)
	}
	return out
}

func TestSourcePolicyNumbers(t *testing.T) {
	p := example(t, "source.yaml")
	verify(t, append(common(p), []check{
		{"Q3 every 5 s", p.Pools[0].Telemetry[0].Every, 5 * time.Second},
		{"Q4 literal", p.Gauge.LiteralCold, true},
		{"Q7 literal", p.RetryAfter.Fractional, true},
		{"Q8 literal", p.Gauge.Literal, true},
		{"P2 literal", p.Queue.Price, ByRequests},
		{"P6 share", p.Shares.Streaming, Ratio(0.7)},
		{"P7 on", p.NonStreaming, &NonStreaming{Variant: FP16, MaxWait: 200 * time.Millisecond}},
		{"V2 compensation", p.Pools[2].Rate, Ratio(0.8)},
		{"V3 by cost", p.Variants.ByCost, true},
		{"B4 on", p.Breaker.DynamicThreshold, true},
		{"B5 progressive", p.Breaker.Progressive, true},
	}...))
	if slices.ContainsFunc(p.Pools, func(q Pool) bool { return q.Telemetry[0].Kind != KindDCGMExporter }) {
		t.Error("the source reads GPUs alone")
	}
}

// The stages of a chain (E4) are profiles: limits, then the queue, then
// back-pressure.
func TestStages(t *testing.T) {
	p := example(t, "default.yaml")
	for _, stage := range []struct {
		name   string
		places int
		quotas int
	}{{"edge", 0, 1}, {"region", 200, 0}, {"cluster", 0, 0}} {
		e, err := p.For(Overrides{Profile: stage.name})
		if err != nil {
			t.Fatal(err)
		}
		if e.Queue.Length.Max != stage.places || len(e.Quotas) != stage.quotas {
			t.Errorf("%s: %d places, %d quotas; want %d, %d", stage.name, e.Queue.Length.Max, len(e.Quotas), stage.places, stage.quotas)
		}
	}
	q := load(t, "w.yaml", strings.Replace(minimal, "seats: {requests: 4}", "seats: {requests: 4}, stage: true", 1))
	if !q.Pools[0].Stage || p.Pools[0].Stage {
		t.Error("a pool is a stage where the file says so, and only there")
	}
}

// What the code defaults to is what the default policy comes to.
func TestDefaultIsTheDefaultPolicy(t *testing.T) {
	verify(t, common(Default()))
	p := load(t, "w.yaml", minimal)
	q := Default()
	for _, c := range []check{
		{"queue", p.Queue, q.Queue}, {"gauge", p.Gauge, q.Gauge}, {"breaker", p.Breaker, q.Breaker},
		{"estimate", p.Estimate, q.Estimate}, {"retryAfter", p.RetryAfter, q.RetryAfter},
		{"apis", p.APIs, q.APIs}, {"tiers", p.Tiers, q.Tiers}, {"classes", p.Classes, q.Classes},
		{"shares", p.Shares, q.Shares}, {"variants", p.Variants, q.Variants}, {"nonStreaming", p.NonStreaming, q.NonStreaming},
		{"envoy", p.Envoy, q.Envoy}, {"metering", p.Metering, q.Metering}, {"server", p.Server, q.Server},
	} {
		verify(t, []check{c})
	}
}
