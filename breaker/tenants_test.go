package breaker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

func tenantPolicy(most int) policy.Breaker {
	c := defaults()
	c.Tenant = policy.TenantBreaker{
		On: true, Soft: 0.3, Hard: 0.5, MinRequests: 20, Max: most,
		CoolDown: policy.CoolDown{First: 5 * time.Minute, Factor: 1.5, Cap: 30 * time.Minute},
	}
	return c
}

func (t *Tenants) ends(now time.Time, name string, failed, good int, healthy bool) {
	for i := range failed + good {
		t.Record(now, name, i < failed, false, healthy)
	}
}

// B5: a tenant that fails is stopped by itself, for 5 min; its priority
// requests pass; others notice nothing.
func TestTenantOpens(t *testing.T) {
	j := &Journal{}
	ts := NewTenants(tenantPolicy(0), j, dice(1))
	ts.ends(at(0), "good", 0, 100, true)
	ts.ends(at(0), "bad", 20, 0, true)
	ts.ends(at(0), "so-so", 0, 14, true)
	ts.ends(at(0), "so-so", 6, 0, true)
	now := at(5*time.Minute - 1)
	for _, c := range []struct {
		name     string
		class    policy.Class
		priority bool
		want     Action
		state    State
	}{
		{"bad", policy.Critical, false, Shed, Hard},
		{"bad", policy.Batch, false, Shed, Hard},
		{"bad", policy.Critical, true, Admit, Hard},
		{"so-so", policy.Critical, false, Admit, Soft},
		{"so-so", policy.Standard, false, Degrade, Soft},
		{"so-so", policy.Batch, false, Shed, Soft},
		{"so-so", policy.Batch, true, Admit, Soft},
		{"good", policy.Batch, false, Admit, Closed},
		{"nobody", policy.Batch, false, Admit, Closed},
	} {
		for _, v := range []Verdict{ts.Allow(now, c.name, c.class, c.priority), ts.Peek(now, c.name, c.class, c.priority)} {
			if v.Action != c.want || v.State != c.state || v.Probe {
				t.Errorf("%+v: %+v", c, v)
			}
		}
	}
	got, _ := j.Since(0)
	if len(got) != 2 || got[0].Breaker != "bad" || got[0].Kind != Tenant || got[0].To != Hard || got[0].Open < 5*time.Minute || got[0].Open > 6*time.Minute {
		t.Errorf("%+v", got)
	}
	if v := ts.Troubled(now); len(v) != 2 || v[0].Name != "bad" || v[1].Name != "so-so" {
		t.Errorf("troubled: %+v", v)
	}
	for range 100 {
		if v := ts.Allow(at(6*time.Minute), "bad", policy.Critical, true); v.Probe || v.Action != Admit {
			t.Fatalf("priority while half-open: %+v", v)
		}
	}
}

// A pool's failure is not taken for the tenant's; a probe that such a pool
// ends is given back.
func TestOnlyHealthyPoolsJudge(t *testing.T) {
	ts := NewTenants(tenantPolicy(0), nil, dice(1))
	ts.ends(at(0), "a", 1000, 0, false)
	if v := ts.Allow(at(0), "a", policy.Batch, false); v != (Verdict{}) || ts.Known() != 0 {
		t.Fatalf("%+v, %d known", v, ts.Known())
	}
	ts.Overrun(at(0), "a", "60%")
	for range 20 {
		for !ts.Allow(at(6*time.Minute), "a", policy.Batch, false).Probe {
		}
		ts.Record(at(6*time.Minute), "a", true, true, false)
	}
	b := ts.Get("a")
	if v := b.View(at(6 * time.Minute)); v.State != HalfOpen || b.out != 0 {
		t.Fatalf("%+v, %d probes out", v, b.out)
	}
	for !ts.Allow(at(6*time.Minute), "a", policy.Batch, false).Probe {
	}
	ts.Record(at(6*time.Minute), "a", true, true, true)
	if v := b.View(at(6 * time.Minute)); v.State != Hard || v.Left < 450*sec || v.Left > 540*sec {
		t.Fatalf("%+v, want B5's second time, 7.5 min and a fifth", v)
	}
}

// T2: demand far above the quota opens at once; again and again does not
// prolong it; in recovery it opens again for half as long again.
func TestOverrun(t *testing.T) {
	j := &Journal{}
	ts := NewTenants(tenantPolicy(0), j, dice(1))
	if !ts.Overrun(at(0), "a", "+61%") {
		t.Fatal("not heard")
	}
	left := ts.Get("a").View(at(0)).Left
	for d := time.Duration(0); d < left; d += 10 * sec {
		ts.Overrun(at(d), "a", "+61%")
		if v := ts.Allow(at(d), "a", policy.Critical, false); v.Action != Shed || v.RetryAfter != left-d {
			t.Fatalf("at %v: %+v, want %v", d, v, left-d)
		}
	}
	ts.Advance(at(left))
	if v := ts.Get("a").View(at(left)); v.State != HalfOpen {
		t.Fatalf("%+v", v)
	}
	ts.Overrun(at(left), "a", "+80%")
	got, _ := j.Since(0)
	if len(got) != 3 || got[0].Cause != ByOverrun || got[0].By != "+61%" || got[2].Cause != ByOverrun || got[2].Open < 450*sec {
		t.Fatalf("%+v", got)
	}
	ts.Hold(at(left), "b", time.Time{}, "eve")
	if ts.Overrun(at(left), "b", "+61%") || !ts.Trip(at(left), "b", Hard, sec, "eve") || ts.Trip(at(left), "", Hard, sec, "eve") {
		t.Error("hand: hold, then trip")
	}
	off := tenantPolicy(0)
	off.Tenant.On = false
	ts.Configure(at(left), off)
	ts.ends(at(left), "c", 20, 0, true)
	if ts.Overrun(at(left), "a", "+61%") || ts.Known() != 0 || ts.Allow(at(left), "a", policy.Batch, false) != (Verdict{}) {
		t.Errorf("off: %d known", ts.Known())
	}
}

// The set is bounded: who was used longest ago goes, open ones and held ones
// never; where all are needed newcomers are admitted and not watched.
func TestTenantsBounded(t *testing.T) {
	const most = 40
	ts := NewTenants(tenantPolicy(most), nil, dice(1))
	for i := range 10 {
		ts.Overrun(at(0), fmt.Sprint("open", i), "x")
		ts.Hold(at(0), fmt.Sprint("held", i), time.Time{}, "eve")
	}
	for i := range 2000 {
		now := at(time.Duration(i) * 100 * ms)
		ts.Record(now, fmt.Sprint("t", i), true, false, true)
		if n := ts.Known(); n > most {
			t.Fatalf("%d known", n)
		}
	}
	now := at(200 * sec)
	for i := range 10 {
		if v := ts.Peek(now, fmt.Sprint("open", i), policy.Critical, false); v.State != Hard {
			t.Errorf("open%d was dropped", i)
		}
		if b := ts.Get(fmt.Sprint("held", i)); b == nil || !b.View(now).Held {
			t.Errorf("held%d was dropped", i)
		}
	}
	opened := 0
	for i := range 200 {
		if ts.Overrun(now, fmt.Sprint("flood", i), "x") {
			opened++
		}
	}
	if opened != most-20 || ts.Known() != most {
		t.Fatalf("%d opened, %d known, want the %d places that were to spare", opened, ts.Known(), most-20)
	}
	if v := ts.Allow(now, "late", policy.Batch, false); v != (Verdict{}) {
		t.Fatalf("a tenant without a place: %+v", v)
	}
	// Tenants that never come back give their places up, in time.
	gone := now.Add(time.Hour)
	ts.Advance(now.Add(10 * time.Minute))
	for i := range most {
		ts.Record(gone, fmt.Sprint("new", i), false, false, true)
	}
	kept := 0
	for i := range most {
		if ts.Get(fmt.Sprint("new", i)) != nil {
			kept++
		}
	}
	if kept != most-10 { // all but the held
		t.Fatalf("%d newcomers have a place, want %d", kept, most-10)
	}
	small := tenantPolicy(15)
	ts.Configure(gone, small)
	if n := ts.Known(); n != 15 {
		t.Fatalf("%d known after Max shrank to 15", n)
	}
}

// The one used longest ago goes first.
func TestLeastRecentlyUsedGoes(t *testing.T) {
	ts := NewTenants(tenantPolicy(5), nil, dice(1))
	for i := range 5 {
		ts.Record(at(time.Duration(i)*sec), fmt.Sprint("n", i), false, false, true)
	}
	ts.Record(at(10*sec), "n0", false, false, true)
	ts.Record(at(11*sec), "n5", false, false, true)
	for name, kept := range map[string]bool{"n0": true, "n1": false, "n2": true, "n5": true} {
		if (ts.Get(name) != nil) != kept {
			t.Errorf("%s is kept: %v, want %v", name, !kept, kept)
		}
	}
}

// Many at once: every open tenant stays open, the bound holds, no probe leaks.
func TestTenantsConcurrently(t *testing.T) {
	c := tenantPolicy(64)
	ts := NewTenants(c, &Journal{}, dice(1))
	for i := range 8 {
		ts.Overrun(at(0), fmt.Sprint("open", i), "x")
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 2000 {
				now, name := at(time.Duration(i)*ms), fmt.Sprint("t", r.IntN(200))
				if v := ts.Allow(now, name, policy.Standard, r.IntN(10) == 0); v.Action != Shed {
					ts.Record(now, name, r.IntN(2) == 0, v.Probe, r.IntN(4) > 0)
				}
				if v := ts.Allow(now, fmt.Sprint("open", i%8), policy.Critical, false); v.State != Hard {
					t.Errorf("an open tenant is %v", v.State)
				}
				switch i % 500 {
				case 100:
					ts.Overrun(now, name, "x")
				case 200:
					ts.Configure(now, c)
				case 300:
					ts.Advance(now)
				case 400:
					ts.Troubled(now)
				}
			}
		})
	}
	wg.Wait()
	if n := ts.Known(); n > 64 {
		t.Errorf("%d known", n)
	}
	n := 0
	for i := range ts.shards {
		n += len(*ts.shards[i].m.Load())
	}
	if n != ts.Known() {
		t.Errorf("%d in the shards, %d counted", n, ts.Known())
	}
}

// What a request of a known tenant costs.
func BenchmarkTenants(b *testing.B) {
	ts := NewTenants(tenantPolicy(0), nil, dice(1))
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprintf("tenant-%06d", i)
		ts.Record(at(0), names[i], false, false, true)
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		now := epoch
		for i := 0; pb.Next(); i++ {
			now = now.Add(10 * time.Microsecond)
			name := names[i*7919%len(names)]
			ts.Allow(now, name, policy.Standard, false)
			ts.Record(now, name, false, false, true)
		}
	})
}
