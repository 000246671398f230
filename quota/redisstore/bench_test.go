package redisstore_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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
	// server is the processor time of Redis so far, in seconds.
	run := func(b *testing.B, addr string, server func() float64) {
		s, err := redisstore.New(policy.Redis{Addresses: []string{addr}, Timeout: time.Second, RetryAfterOutage: time.Hour}, redisstore.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		b.ReportAllocs()
		n, busy := 0, server()
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
		b.ReportMetric((server()-busy)*1e6/float64(n), "redis-µs/op")
	}
	b.Run("redis", func(b *testing.B) {
		r := startRedis(b)
		look := r.client(b)
		run(b, r.addr, func() float64 { return cpuOf(b, look) })
	})
	b.Run("away", func(b *testing.B) { run(b, freePort(b), func() float64 { return 0 }) })
}

// cpuOf is the processor time that a server used, in seconds.
func cpuOf(b *testing.B, c *redis.Client) (sum float64) {
	b.Helper()
	for _, m := range regexp.MustCompile(`used_cpu_(?:user|sys):([0-9.]+)`).FindAllStringSubmatch(c.Info(ctx, "cpu").Val(), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return sum
}
