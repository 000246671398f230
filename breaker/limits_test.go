package breaker

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// TestLimits: what is shown is what decides: at twice the usual rate the
// thresholds are twice as high (B4).
func TestLimits(t *testing.T) {
	c := policy.Default().Breaker
	c.DynamicThreshold = true
	b := New("p", HTTP, c, nil, nil)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if soft, hard, least := b.Limits(now); soft != 0.3 || hard != 0.5 || least != 20 {
		t.Errorf("before any end: %v, %v, %d", soft, hard, least)
	}
	load := func(perSecond, seconds int) {
		for range seconds * perSecond {
			now = now.Add(time.Second / time.Duration(perSecond))
			b.Record(now, false, false)
		}
	}
	load(10, 60)
	if soft, _, _ := b.Limits(now); soft < 0.28 || soft > 0.34 {
		t.Errorf("at the usual rate: soft %v, want about 0.3", soft)
	}
	load(40, 12)
	soft, hard, _ := b.Limits(now)
	if soft < 0.59 || soft > 0.6 || hard < 0.98 || hard > 0.99 {
		t.Errorf("at four times the usual rate: %v, %v, want 0.6 and 0.99 (twice is the most)", soft, hard)
	}
	c.DynamicThreshold = false
	b.Configure(now, HTTP, c)
	if soft, hard, _ := b.Limits(now); soft != 0.3 || hard != 0.5 {
		t.Errorf("switched off: %v, %v", soft, hard)
	}
}
