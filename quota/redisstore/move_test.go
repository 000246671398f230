package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
)

// Three replicas that reload one after the other: whoever is first takes the
// usage along, the others find it there, and nobody has a fresh budget. A
// fourth, that starts after it all, shares the new counter.
func TestReplicasMoveOneAfterTheOther(t *testing.T) {
	addr := startRedis(t).addr
	rule := func(per time.Duration) *policy.Policy {
		p := policy.Default()
		p.Quotas = []policy.QuotaRule{{Name: "r", By: []string{"tenant"}, Limits: []policy.Limit{{Unit: policy.Requests, Max: 100, Per: per}}}}
		return p.Finish()
	}
	before, after := rule(time.Minute), rule(10*time.Minute)
	ask := func(s *redisstore.Store, p *policy.Policy, id string) quota.Verdict {
		t.Helper()
		v, err := s.Reserve(t.Context(), time.Time{}, id, quota.Claims(p.Quotas, policy.Subject{Tenant: "acme"}, quota.Amount{Requests: 1}))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	var replicas []*redisstore.Store
	for range 3 {
		replicas = append(replicas, patient(t, policy.Redis{Addresses: []string{addr}, Prefix: "moves"}))
	}
	n := 0
	for i := range 90 {
		if v := ask(replicas[i%3], before, fmt.Sprint("a", i)); !v.Allowed {
			t.Fatalf("%+v", v)
		}
		n++
	}
	for i, s := range replicas {
		s.Move(quota.Moves{}.MovesOf(before, after))
		if v := ask(s, after, fmt.Sprint("b", i)); !v.Allowed || v.Used != int64(n) {
			t.Errorf("replica %d: %+v, want %d used", i, v, n)
		}
		n++
	}
	late := patient(t, policy.Redis{Addresses: []string{addr}, Prefix: "moves"})
	for i := range 20 {
		if ask(late, after, fmt.Sprint("c", i)).Allowed {
			n++
		}
	}
	if n != 100 {
		t.Errorf("%d were admitted, want 100", n)
	}
}
