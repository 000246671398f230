package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
)

func BenchmarkReserveSettle(b *testing.B) {
	limits := []policy.Limit{
		{Unit: policy.Requests, Max: 1 << 50, Per: time.Minute},
		tokens(1<<50, 5*time.Minute),
		{Unit: policy.Concurrency, Max: 1 << 50},
	}
	c := claim("acme", 100, limits...)
	final := quota.Amount{Requests: 1, Output: 50}
	run := func(b *testing.B, addr string) {
		s, err := redisstore.New(policy.Redis{Addresses: []string{addr}, Timeout: time.Second, RetryAfterOutage: time.Hour}, redisstore.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			n++
			id := fmt.Sprintf("%032x", n)
			if _, err := s.Reserve(ctx, time.Time{}, id, c); err != nil {
				b.Fatal(err)
			}
			if err := s.Settle(ctx, time.Time{}, id, c, final); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("redis", func(b *testing.B) { run(b, startRedis(b).addr) })
	b.Run("away", func(b *testing.B) { run(b, freePort(b)) })
}
