package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
)

// atOnce is a call of a tenant that may run so many at a time, also by user.
func atOnce(tenant string, most int64) []quota.Claim {
	limit := policy.Limit{Unit: policy.Concurrency, Max: most}
	return []quota.Claim{
		{Rule: "all", Tenant: quota.Shared, Key: "all", Limits: []policy.Limit{{Unit: policy.Concurrency, Max: 1000}}, Amount: quota.Amount{Requests: 1, Concurrency: 1}},
		{Rule: "rule", Tenant: tenant, Key: "rule", Limits: []policy.Limit{limit, tokens(1e6, time.Hour)}, Amount: quota.Amount{Requests: 1, Output: 10, Concurrency: 1}},
	}
}

// units is what Redis counts of a slot's concurrency.
func units(t testing.TB, s *redisstore.Store, tenant string) int64 {
	t.Helper()
	for _, c := range mustUsage(t, s, tenant) {
		if c.Limit.Unit == policy.Concurrency {
			return c.Used
		}
	}
	return 0
}

// fill takes so many units by one replica.
func fill(t testing.TB, s *redisstore.Store, tenant string, most int64, n int) {
	t.Helper()
	for i := range n {
		if v := reserve(t, s, fmt.Sprintf("%p %d", s, i), atOnce(tenant, most)); !v.Allowed {
			t.Fatalf("unit %d: %+v", i, v)
		}
	}
}

// freedWithin is the bound for a dead replica's units; the tests' tries and a
// busy machine come on top.
const freedWithin = 5 * time.Second

// A replica that dies leaves its units behind: they are free within 5 s, those
// of the others are not, and what the dead one was charged stays.
func TestUnitsOfADeadReplica(t *testing.T) {
	for name, addresses := range map[string]func(t *testing.T) []string{
		"single":  func(t *testing.T) []string { return []string{startRedis(t).addr} },
		"cluster": func(t *testing.T) []string { _, addrs := startCluster(t); return addrs },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := policy.Redis{Addresses: addresses(t)}
			dies, lives, next := patient(t, config), patient(t, config), patient(t, config)
			fill(t, dies, "acme", 20, 13)
			fill(t, lives, "acme", 20, 7)
			if v := reserve(t, next, "early", atOnce("acme", 20)); v.Allowed {
				t.Fatalf("%+v beside 20 that run, want it refused", v)
			}
			must(t, dies.Close()) // says nothing to Redis, as a killed one
			died, tries := time.Now(), 0
			eventually(t, "the dead replica's units are free", func() bool {
				tries++
				return reserve(t, next, fmt.Sprint("try", tries), atOnce("acme", 20)).Allowed
			})
			if took := time.Since(died); took > freedWithin {
				t.Errorf("free after %v, want %v", took, freedWithin)
			}
			held := time.Now() // a life of a unit later the others' still count
			eventually(t, "time passes", func() bool {
				if n := units(t, next, "acme"); n < 8 {
					t.Fatalf("%d units count, want the 7 of the replica that lives and the new one", n)
				}
				return time.Since(held) > redisstore.UnitLife+time.Second
			})
			if n, all := units(t, next, "acme"), units(t, next, quota.Shared); n != 8 || all != 8 {
				t.Errorf("%d and %d units count, want 8", n, all)
			}
			if n := used(t, next, "acme"); n != 10*(13+7+1) {
				t.Errorf("%d tokens are charged, want 210", n)
			}
		})
	}
}

// A replica that was paused for longer than its units live takes them up again
// when it goes on, but none that ended.
func TestPausedReplicaTakesItsUnitsUpAgain(t *testing.T) {
	r := startRedis(t)
	config := policy.Redis{Addresses: []string{r.addr}}
	paused, other := patient(t, config), patient(t, config)
	fill(t, paused, "acme", 20, 10)
	for i := range 4 {
		must(t, paused.Settle(ctx, time.Time{}, fmt.Sprintf("%p %d", paused, i), atOnce("acme", 20), quota.Amount{Requests: 1, Output: 3}))
	}
	admin := r.client(t)
	for _, key := range admin.Keys(ctx, "*:c:4:*").Val() { // they were over, and somebody swept them
		must(t, admin.Del(ctx, key).Err())
	}
	if n := units(t, other, "acme"); n != 0 {
		t.Fatalf("%d units count, want none", n)
	}
	eventually(t, "its units count again", func() bool { return units(t, other, "acme") == 6 && units(t, other, quota.Shared) == 6 })
	if n := used(t, other, "acme"); n != 4*3+6*10 {
		t.Errorf("%d tokens are charged, want 72", n)
	}
	checkLifetimes(t, admin)
}

// Redis loses everything and nobody is told: what runs is charged again, once.
func TestUnitsAfterALoss(t *testing.T) {
	r := startRedis(t)
	a, b := patient(t, policy.Redis{Addresses: []string{r.addr}}), patient(t, policy.Redis{Addresses: []string{r.addr}})
	fill(t, a, "acme", 300, 200)
	fill(t, b, "acme", 300, 10)
	admin := r.client(t)
	must(t, admin.FlushAll(ctx).Err())
	must(t, admin.ScriptFlush(ctx).Err())
	eventually(t, "all that runs counts again", func() bool { return units(t, b, "acme") == 210 && used(t, b, "acme") == 2100 })
	for i := range 200 {
		must(t, a.Settle(ctx, time.Time{}, fmt.Sprintf("%p %d", a, i), atOnce("acme", 300), quota.Amount{Requests: 1, Output: 3}))
	}
	if n, tokens := units(t, b, "acme"), used(t, b, "acme"); n != 10 || tokens != 200*3+100 {
		t.Errorf("%d units and %d tokens at the end, want 10 and 700", n, tokens)
	}
	if a.Held() != 0 || b.Held() != 20 {
		t.Errorf("%d and %d units are held, want 0 and 20", a.Held(), b.Held())
	}
	checkLifetimes(t, admin)
}

// A replica that reserves nothing any more, while Redis was away for longer
// than units live, still holds what it granted before and meanwhile.
func TestUnitsOverAnOutage(t *testing.T) {
	r := startRedis(t)
	p := startProxy(t, r.addr)
	s := open(t, policy.Redis{Addresses: []string{p.addr}, Timeout: 500 * time.Millisecond, RetryAfterOutage: 20 * time.Millisecond}, redisstore.Options{})
	other := patient(t, policy.Redis{Addresses: []string{r.addr}})
	fill(t, s, "acme", 20, 4)
	p.mode.Store(hang)
	awaitAway(t, s)
	for i := range 3 {
		reserve(t, s, fmt.Sprint("away", i), atOnce("acme", 20))
	}
	eventually(t, "the units are over", func() bool { return units(t, other, "acme") == 0 })
	p.mode.Store(pass)
	p.drop()
	awaitReturn(t, s)
	if n := units(t, other, "acme"); n != 7 {
		t.Errorf("%d units count when Redis decides again, want 7", n)
	}
}

// The last act of a replica: what it could not tell within a decision's time
// is told before it ends.
func TestFlush(t *testing.T) {
	r := startRedis(t)
	p := startProxy(t, r.addr)
	other := patient(t, policy.Redis{Addresses: []string{r.addr}})
	config := policy.Redis{Addresses: []string{p.addr}, Timeout: 200 * time.Millisecond, RetryAfterOutage: time.Minute}
	s := open(t, config, redisstore.Options{})
	const n = 300
	fill(t, s, "acme", n, n)
	p.mode.Store(hang)
	for i := range n {
		must(t, s.Settle(ctx, time.Time{}, fmt.Sprintf("%p %d", s, i), atOnce("acme", n), quota.Amount{Requests: 1, Output: 3}))
	}
	if st := s.Stats(); st.Pending != n {
		t.Fatalf("%+v, want %d pending", st, n)
	}
	p.mode.Store(pass)
	p.drop()
	if left := s.Flush(ctx); left != 0 {
		t.Errorf("%d requests are left", left)
	}
	must(t, s.Close())
	if u, tokens := units(t, other, "acme"), used(t, other, "acme"); u != 0 || tokens != 3*n {
		t.Errorf("%d units and %d tokens, want 0 and %d", u, tokens, 3*n)
	}
}

// With Redis away the last act is bounded.
func TestFlushIsBounded(t *testing.T) {
	s := open(t, policy.Redis{Addresses: []string{listenFull(t)}}, redisstore.Options{})
	for i := range 5 {
		reserve(t, s, fmt.Sprint(i), atOnce("acme", 20))
	}
	start := time.Now()
	if left := s.Flush(ctx); left != 5 {
		t.Errorf("%d requests are left, want 5", left)
	}
	if took := time.Since(start); took < 4*time.Second || took > 7*time.Second {
		t.Errorf("it took %v, want 5 s", took)
	}
}
