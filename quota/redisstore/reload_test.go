package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
)

// ruledBy is a policy of one rule with these limits.
func ruledBy(limits ...policy.Limit) *policy.Policy {
	p := policy.Default()
	p.Quotas = []policy.QuotaRule{{Name: "r", By: []string{"tenant"}, Limits: limits}}
	return p.Finish()
}

func requestsIn(n int64, per time.Duration) policy.Limit {
	return policy.Limit{Unit: policy.Requests, Max: n, Per: per}
}

// one asks for one request of n tokens.
func one(t *testing.T, s *redisstore.Store, p *policy.Policy, id string, n int64) quota.Verdict {
	t.Helper()
	return reserve(t, s, id, quota.Claims(p.Quotas, policy.Subject{Tenant: "acme"}, quota.Amount{Requests: 1, Output: n}))
}

// A period that changes while Redis is away: what is told on its return comes
// on top of what the old period counts.
func TestPeriodChangesWhileRedisIsAway(t *testing.T) {
	r := startRedis(t)
	p := startProxy(t, r.addr)
	s := open(t, policy.Redis{Addresses: []string{p.addr}, Timeout: 200 * time.Millisecond}, redisstore.Options{})
	before, after := ruledBy(requestsIn(100, time.Minute)), ruledBy(requestsIn(100, 10*time.Minute))
	for i := range 90 {
		one(t, s, before, fmt.Sprint("a", i), 1)
	}
	p.mode.Store(cut)
	p.drop()
	awaitAway(t, s)
	s.Move(quota.Moves{}.MovesOf(before, after))
	for i := range 3 {
		if v := one(t, s, after, fmt.Sprint("b", i), 1); !v.Allowed || !v.Local {
			t.Fatalf("%+v", v)
		}
	}
	p.mode.Store(pass)
	p.drop()
	awaitReturn(t, s)
	if v := one(t, s, after, "c", 1); v.Used != 93 {
		t.Errorf("%d are used, want 93", v.Used)
	}
}

// A request that runs through a reload and takes more than it reserved is
// charged where its counter's usage has gone, once.
func TestDebtFollowsWhatTookOver(t *testing.T) {
	t.Run("single", func(t *testing.T) { debtFollows(t, []string{startRedis(t).addr}) })
	t.Run("cluster", func(t *testing.T) {
		_, addrs := startCluster(t)
		debtFollows(t, addrs)
	})
}

func debtFollows(t *testing.T, addrs []string) {
	s := patient(t, policy.Redis{Addresses: addrs})
	before, after := ruledBy(tokens(1000, time.Minute)), ruledBy(tokens(1000, 10*time.Minute))
	claims := quota.Claims(before.Quotas, policy.Subject{Tenant: "acme"}, quota.Amount{Requests: 1, Output: 100})
	for _, id := range []string{"more", "less", "early", "late"} {
		reserve(t, s, id, claims)
	}
	s.Move(quota.Moves{}.MovesOf(before, after))
	finish(t, s, "early", claims, 200) // before anything is taken over
	if v := one(t, s, after, "b", 1); v.Used != 500 {
		t.Errorf("%d are used, want 500", v.Used)
	}
	finish(t, s, "more", claims, 450)
	finish(t, s, "more", claims, 450)
	finish(t, s, "less", claims, 0) // stays
	if v := one(t, s, after, "c", 1); v.Used != 851 {
		t.Errorf("%d are used, want 851", v.Used)
	}
	finish(t, s, "late", claims, 1000)
	if v := one(t, s, after, "d", 1); v.Allowed {
		t.Errorf("allowed after 1752 of 1000: %+v", v)
	}
}

// Limits that change while Redis is away: each goes on with what was known of
// it, and with nothing of another.
func TestLimitsChangeWhileRedisIsAway(t *testing.T) {
	r := startRedis(t)
	p := startProxy(t, r.addr)
	s := open(t, policy.Redis{Addresses: []string{p.addr}, Timeout: 200 * time.Millisecond}, redisstore.Options{})
	before := ruledBy(tokens(1000, time.Hour))
	after := ruledBy(requestsIn(20, time.Minute), tokens(1000, time.Hour))
	one(t, s, before, "a", 900)
	p.mode.Store(cut)
	p.drop()
	awaitAway(t, s)
	s.Move(quota.Moves{}.MovesOf(before, after))
	if v := one(t, s, after, "b", 10); !v.Allowed || !v.Local {
		t.Errorf("10 tokens where 100 are left: %+v", v)
	}
	if v := one(t, s, after, "c", 200); v.Allowed || v.Limit.Unit != policy.Tokens || v.Used != 910 {
		t.Errorf("200 tokens where 90 are left: %+v", v)
	}
}

// A limit that is full is known to be full until the least of requests fits,
// however large the one was that found it full.
func TestKnownWaitIsOfTheLeastRequest(t *testing.T) {
	s := patient(t, policy.Redis{Addresses: []string{startRedis(t).addr}})
	start := time.Now()
	c := func(n int64) []quota.Claim { return claim("acme", n, tokens(1000, 5*time.Minute)) }
	for i := range 10 {
		v, err := s.Reserve(t.Context(), start.Add(time.Duration(i)*20*time.Second), fmt.Sprint(i), c(100))
		if err != nil || !v.Allowed {
			t.Fatalf("%+v %v", v, err)
		}
	}
	at := start.Add(200 * time.Second)
	large, _ := s.Reserve(t.Context(), at, "large", c(900))
	small, _ := s.Reserve(t.Context(), at, "small", c(1))
	_, _ = s.Reserve(t.Context(), at, "large", c(900))
	got, refused := s.Known(at, c(1))
	if !refused || got.RetryAfter != small.RetryAfter || large.RetryAfter <= small.RetryAfter {
		t.Errorf("known: %v, wait %v; Redis says %v, and %v for a large one", refused, got.RetryAfter, small.RetryAfter, large.RetryAfter)
	}
}
