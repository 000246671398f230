package policy

import (
	"reflect"
	"slices"
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

func TestDefaultPolicyNumbers(t *testing.T) {
	p := example(t, "default.yaml")
	verify(t, append(common(p), []check{
		{"Q4 cold pools", p.Gauge.LiteralCold, false},
		{"Q7 whole seconds", p.RetryAfter.Fractional, false},
		{"Q8 engine first", p.Gauge.Literal, false},
		{"P2 by tokens", p.Queue.Price, ByTokens},
		{"B4 off", p.Breaker.DynamicThreshold, false},
		{"B5 fixed", p.Breaker.Progressive, false},
		{"T7 units", limitsOf(p), []Limit{{Requests, 600, time.Minute}, {Tokens, 200_000, 5 * time.Minute}, {Concurrency, 20, 0}}},
		{"Q3 dcgm-exporter", p.Pools[0].Telemetry[1].Every, 5 * time.Second},
	}...))
	if _, err := p.For(Overrides{Profile: "edge"}); err != nil {
		t.Error(err)
	}
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
		{"B4 on", p.Breaker.DynamicThreshold, true},
		{"B5 progressive", p.Breaker.Progressive, true},
	}...))
	if slices.ContainsFunc(p.Pools, func(q Pool) bool { return q.Telemetry[0].Kind != KindDCGMExporter }) {
		t.Error("the source reads GPUs alone")
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
		{"envoy", p.Envoy, q.Envoy}, {"metering", p.Metering, q.Metering}, {"server", p.Server, q.Server},
	} {
		verify(t, []check{c})
	}
}
