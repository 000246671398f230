package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/memstore"
	"github.com/weirproxy/weir/quota/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) quota.Store {
		s := memstore.New(memstore.Options{})
		t.Cleanup(func() { s.Close() })
		return s
	})
}

var ctx = context.Background()

func claim(tenant, key string, limits ...policy.Limit) []quota.Claim {
	return []quota.Claim{{Rule: key, Tenant: tenant, Key: key, Limits: limits, Amount: quota.Amount{Requests: 1, Output: 100, Concurrency: 1}}}
}

func perMinute(n int64) policy.Limit {
	return policy.Limit{Unit: policy.Requests, Max: n, Per: time.Minute}
}

// When all slots are taken a newcomer is refused; nobody who counts anything
// is forgotten for it, and whoever is idle makes room.
func TestTenantsAreBounded(t *testing.T) {
	s := memstore.New(memstore.Options{MaxTenants: 100})
	t0 := time.Unix(1_700_000_000, 0)
	for i := range 300 {
		_, err := s.Reserve(ctx, t0, "a", claim(fmt.Sprint("t", i), "r", perMinute(1)))
		if full := i >= 100; full != errors.Is(err, quota.ErrFull) {
			t.Fatalf("tenant %d: %v, want ErrFull: %v", i, err, full)
		}
	}
	if v, err := s.Reserve(ctx, t0, "b", claim("t7", "r", perMinute(1))); err != nil || v.Allowed {
		t.Errorf("a tenant that is counted: %+v, %v; want it refused by its limit", v, err)
	}
	if _, err := s.Reserve(ctx, t0, "b", claim(quota.Shared, "r", perMinute(1))); err != nil {
		t.Errorf("the shared slot: %v", err)
	}
	for i := range 100 {
		must(t, s.Settle(ctx, t0, "a", claim(fmt.Sprint("t", i), "r", perMinute(1)), quota.Amount{Requests: 1}))
	}
	later := t0.Add(2 * time.Minute)
	for i := 300; i < 390; i++ {
		if _, err := s.Reserve(ctx, later, "a", claim(fmt.Sprint("t", i), "r", perMinute(1))); err != nil {
			t.Fatalf("tenant %d, all others idle: %v", i, err)
		}
	}
}

// A reservation that runs keeps its tenant, though its window is empty.
func TestRunningTenantIsKept(t *testing.T) {
	s := memstore.New(memstore.Options{MaxTenants: 1})
	t0 := time.Unix(1_700_000_000, 0)
	c := claim("acme", "r", policy.Limit{Unit: policy.Concurrency, Max: 1})
	mustReserve(t, s, t0, "a", c)
	if _, err := s.Reserve(ctx, t0.Add(10*time.Minute), "b", claim("globex", "r", perMinute(1))); !errors.Is(err, quota.ErrFull) {
		t.Errorf("%v, want ErrFull while acme's call runs", err)
	}
	mustReserve(t, s, t0.Add(quota.DefaultHold), "b", claim("globex", "r", perMinute(1)))
}

// One tenant with ever new users: idle counters make room, their number is
// bounded, and other tenants go on.
func TestCountersAreBounded(t *testing.T) {
	s := memstore.New(memstore.Options{MaxTenants: 10}) // 160 counters
	t0 := time.Unix(1_700_000_000, 0)
	full := 0
	for i := range 1000 {
		_, err := s.Reserve(ctx, t0, fmt.Sprint(i), claim("acme", fmt.Sprint("user", i), perMinute(1)))
		if errors.Is(err, quota.ErrFull) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if full != 1000-160 {
		t.Errorf("%d newcomers refused, want 840", full)
	}
	later := t0.Add(quota.DefaultHold + time.Minute)
	for i := range 1000 {
		at := later.Add(time.Duration(i) * 5 * time.Second)
		id := fmt.Sprint("later", i)
		mustReserve(t, s, at, id, claim("acme", fmt.Sprint("other", i), perMinute(1)))
		must(t, s.Settle(ctx, at, id, claim("acme", fmt.Sprint("other", i), perMinute(1)), quota.Amount{}))
	}
}

// Counters of one request are not dropped to make room for its own others.
func TestSweepKeepsTheRequest(t *testing.T) {
	s := memstore.New(memstore.Options{})
	t0 := time.Unix(1_700_000_000, 0)
	for round := range 200 {
		at := t0.Add(time.Duration(round) * time.Hour)
		var claims []quota.Claim
		for i := range 5 {
			claims = append(claims, claim("acme", fmt.Sprint(round, "-", i), perMinute(1))...)
		}
		mustReserve(t, s, at, fmt.Sprint(round), claims)
		counters, err := s.Usage(ctx, at, "acme")
		if err != nil || len(counters) != 5 {
			t.Fatalf("round %d: %d counters, %v; want 5", round, len(counters), err)
		}
	}
}

func TestRaise(t *testing.T) {
	s := memstore.New(memstore.Options{})
	t0 := time.Unix(1_700_000_000, 0)
	limits := []policy.Limit{{Unit: policy.Tokens, Max: 1000, Per: time.Minute}, {Unit: policy.Concurrency, Max: 5}, perMinute(10)}
	c := claim("acme", "r", limits...)
	mustReserve(t, s, t0, "a", c)
	s.Raise(t0, c[0], []int64{950, 4})
	if v, err := s.Reserve(ctx, t0, "b", c); err != nil || v.Allowed || v.Used != 950 {
		t.Errorf("raised to 950 of 1000: %+v, %v; want a call of 100 refused", v, err)
	}
	s.Raise(t0, c[0], []int64{300})
	counters, _ := s.Usage(ctx, t0, "acme")
	for i, want := range []int64{1, 950, 1} {
		if counters[i].Used != want {
			t.Errorf("counter %+v, want %d used", counters[i], want)
		}
	}
}

// The store's own clock is the process' monotonic one.
func TestOwnClockSlides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.Options{})
		c := claim("acme", "r", perMinute(1))
		mustReserve(t, s, time.Time{}, "a", c)
		v, err := s.Reserve(ctx, time.Time{}, "b", c)
		if err != nil || v.Allowed || v.RetryAfter < time.Minute || v.RetryAfter > 62*time.Second {
			t.Fatalf("%+v, %v; want a wait of 60 to 62 s", v, err)
		}
		time.Sleep(v.RetryAfter)
		mustReserve(t, s, time.Time{}, "b", c)
		mustReserve(t, s, time.Now().Add(2*time.Minute), "c", c)
	})
}

// H: the charge of many parallel calls is exact, whatever their order.
func TestParallelCallsAreCharged(t *testing.T) {
	s := memstore.New(memstore.Options{})
	limits := []policy.Limit{{Unit: policy.Tokens, Max: 1e12, Per: time.Hour}, {Unit: policy.Concurrency, Max: 1e6}}
	now := time.Unix(1_700_000_000, 0)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 200 {
				id := fmt.Sprint(w, "-", i)
				c := claim(fmt.Sprint("t", i%3), "own", limits...)
				c = append(c, claim(quota.Shared, "all", limits...)...)
				mustReserve(t, s, now, id, c)
				must(t, s.Settle(ctx, now, id, c, quota.Amount{Output: int64(i)}))
			}
		})
	}
	wg.Wait()
	counters, err := s.Usage(ctx, now, quota.Shared)
	if err != nil || len(counters) != 1 || counters[0].Used != 16*199*200/2 {
		t.Errorf("%+v, %v; want 318400 tokens and nothing running", counters, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func mustReserve(t testing.TB, s *memstore.Store, at time.Time, id string, c []quota.Claim) {
	t.Helper()
	if v, err := s.Reserve(ctx, at, id, c); err != nil || !v.Allowed {
		t.Errorf("Reserve(%s): %+v, %v; want it allowed", id, v, err)
	}
}

func BenchmarkReserveSettle(b *testing.B) {
	limits := []policy.Limit{
		{Unit: policy.Requests, Max: 1 << 50, Per: time.Minute},
		{Unit: policy.Tokens, Max: 1 << 50, Per: 5 * time.Minute},
		{Unit: policy.Concurrency, Max: 1 << 50},
	}
	ids := make([]string, 4096)
	for i := range ids {
		ids[i] = fmt.Sprintf("%032x", i)
	}
	run := func(b *testing.B, tenants int) {
		s := memstore.New(memstore.Options{})
		claims := make([][]quota.Claim, tenants)
		for i := range claims {
			claims[i] = claim(fmt.Sprint("tenant", i), "per-tenant", limits...)
		}
		final := quota.Amount{Requests: 1, Output: 50}
		var n atomic.Int64
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			base := int(n.Add(1)) * 1024
			for i := base; pb.Next(); i++ {
				c, id := claims[i%tenants], ids[i%len(ids)]
				s.Reserve(ctx, time.Time{}, id, c)
				s.Settle(ctx, time.Time{}, id, c, final)
			}
		})
	}
	b.Run("one tenant", func(b *testing.B) { run(b, 1) })
	b.Run("1000 tenants", func(b *testing.B) { run(b, 1000) })
}

// What was reserved before a limit's period changed is settled wherever its
// usage has gone.
func TestSettleAfterAMove(t *testing.T) {
	rule := func(per ...time.Duration) *policy.Policy {
		p := policy.Default()
		q := policy.QuotaRule{Name: "r", By: []string{"tenant"}}
		for _, d := range per {
			q.Limits = append(q.Limits, policy.Limit{Unit: policy.Tokens, Max: 1000, Per: d})
		}
		p.Quotas = []policy.QuotaRule{q}
		return p.Finish()
	}
	s, at := memstore.New(memstore.Options{}), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	claim := func(p *policy.Policy, n int64) []quota.Claim {
		return quota.Claims(p.Quotas, policy.Subject{Tenant: "acme"}, quota.Amount{Input: n})
	}
	one, two := rule(time.Minute), rule(2*time.Minute, time.Hour)
	before := claim(one, 600)
	if v, err := s.Reserve(t.Context(), at, "a", before); err != nil || !v.Allowed {
		t.Fatal(v, err)
	}
	s.Move(quota.Moves{}.MovesOf(one, two))
	if v, _ := s.Reserve(t.Context(), at, "b", claim(two, 500)); v.Allowed || v.Used != 600 {
		t.Errorf("%+v, want 600 used", v)
	}
	_ = s.Settle(t.Context(), at.Add(time.Second), "a", before, quota.Amount{Input: 100})
	counters, err := s.Usage(t.Context(), at.Add(time.Second), "acme")
	if err != nil || len(counters) != 2 {
		t.Fatalf("%+v, %v", counters, err)
	}
	for _, c := range counters {
		if c.Used != 100 {
			t.Errorf("%v: %d are used, want 100", c.Limit.Per, c.Used)
		}
	}
}
