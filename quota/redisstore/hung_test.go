package redisstore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

// J: every node of a cluster hangs, as in a black hole: 100 decisions at once
// stay in their time, none waits on another, and all heals by itself.
func TestClusterHangs(t *testing.T) {
	servers, addrs := startCluster(t)
	s := open(t, policy.Redis{Addresses: addrs, Timeout: 500 * time.Millisecond}, redisstore.Options{})
	eventually(t, "every master decides", func() bool {
		for i := range 12 {
			reserve(t, s, fmt.Sprint("warm", i), claim(fmt.Sprint("t", i), 1, tokens(1e9, time.Hour)))
		}
		st := s.Stats()
		return !st.Away && st.Remote >= 12
	})
	before := s.Stats().Outages
	for _, r := range servers {
		must(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	}
	for _, took := range decideAtOnce(t, s, 100) {
		// Half a second by the settings; wide, for a busy machine. A client
		// left to itself looks for other nodes for many seconds.
		if took > 3*time.Second {
			t.Errorf("a decision took %v, want 500 ms", took)
		}
	}
	for i := range 100 {
		start := time.Now()
		if v := reserve(t, s, fmt.Sprint("later", i), claim(fmt.Sprint("t", i), 1, tokens(1e9, time.Hour))); !v.Local {
			t.Fatalf("%+v, want a local decision", v)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("a decision during the outage took %v", took)
		}
	}
	if st := s.Stats(); !st.Away || st.Outages != before+1 {
		t.Errorf("%+v, want one outage more than %d", st, before)
	}
	for _, r := range servers {
		must(t, r.cmd.Process.Signal(syscall.SIGCONT))
	}
	awaitReturn(t, s)
}

// decideAtOnce makes n decisions at the same moment, of as many tenants.
func decideAtOnce(t *testing.T, s *redisstore.Store, n int) []time.Duration {
	took := make([]time.Duration, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			start := time.Now()
			v, err := s.Reserve(ctx, time.Time{}, fmt.Sprint("at once", i), claim(fmt.Sprint("t", i), 1, tokens(1e9, time.Hour)))
			took[i] = time.Since(start)
			if err != nil || !v.Allowed || !v.Local {
				t.Errorf("%+v, %v; want it allowed locally", v, err)
			}
		})
	}
	wg.Wait()
	return took
}

// J: Redis hangs under 2,000 whole calls a second: goroutines and memory stay
// bounded, and nothing is charged twice when it goes on.
func TestHungRedisIsBounded(t *testing.T) {
	r := startRedis(t)
	const journal = 500
	s := open(t, policy.Redis{Addresses: []string{r.addr}, Timeout: 500 * time.Millisecond}, redisstore.Options{Journal: journal})
	c := claim("acme", 10, tokens(1e12, time.Hour))
	reserve(t, s, "first", c)
	must(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	awaitAway(t, s)
	calls := func(from, n int) {
		for i := range n {
			id := fmt.Sprint("call", from+i)
			reserve(t, s, id, c)
			finish(t, s, id, c, 10)
		}
	}
	calls(0, 2000) // whatever is allocated once
	start, heap := runtime.NumGoroutine(), heapNow()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range 200 {
		<-tick.C
		calls(2000+20*i, 20)
	}
	if n := runtime.NumGoroutine(); n > start+50 {
		t.Errorf("%d goroutines, %d at the beginning", n, start)
	}
	if grown := heapNow() - heap; grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes in 4,000 calls", grown)
	}
	if st := s.Stats(); st.Pending > journal || st.Dropped == 0 {
		t.Errorf("%+v, want at most %d pending and the rest dropped", st, journal)
	}
	must(t, r.cmd.Process.Signal(syscall.SIGCONT))
	awaitReturn(t, s)
	if got, most := used(t, s, "acme"), int64(10+10*(6000+journal)); got > most {
		t.Errorf("Redis counts %d, at most %d were given", got, most)
	}
}

func heapNow() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// J: the default pool carries 3,000 decisions a second without anybody
// waiting for a connection until the time is over.
func TestDefaultPoolSuffices(t *testing.T) {
	r := startRedis(t)
	s := patient(t, policy.Redis{Addresses: []string{r.addr}})
	const callers, each = 300, 30
	var wg sync.WaitGroup
	for w := range callers {
		wg.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for i := range each {
				reserve(t, s, fmt.Sprint(w, "-", i), claim(fmt.Sprint("t", w%50), 1, tokens(1e9, time.Hour)))
				<-tick.C
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.Outages != 0 || st.Remote != callers*each {
		t.Errorf("%+v, want %d decisions by Redis and no outage", st, callers*each)
	}
	clients := strings.Count(r.client(t).ClientList(ctx).Val(), "id=")
	if clients > 32+2 {
		t.Errorf("%d connections, want at most the pool of 32 and ours", clients)
	}
}

// J: a full server that evicts keys with a lifetime: nothing crashes, and
// counters that vanished show in the metric.
func TestEvictedCountersShow(t *testing.T) {
	r := startRedis(t, "--maxmemory-policy", "volatile-ttl")
	s := patient(t, policy.Redis{Addresses: []string{r.addr}})
	c, admin := claim("acme", 10, tokens(1000, time.Hour), policy.Limit{Unit: policy.Concurrency, Max: 10}), r.client(t)
	reserve(t, s, "runs", c)
	for _, key := range admin.Keys(ctx, "*:c:*").Val() { // as an eviction does
		must(t, admin.Del(ctx, key).Err())
	}
	finish(t, s, "runs", c, 7)
	if st := s.Stats(); st.Lost == 0 {
		t.Errorf("%+v, want the lost counters counted", st)
	}
	must(t, admin.ConfigSet(ctx, "maxmemory", "1").Err())
	for i := range 20 {
		id := fmt.Sprint("full", i)
		v, err := s.Reserve(ctx, time.Time{}, id, c)
		if err != nil {
			t.Fatalf("%+v, %v", v, err)
		}
		finish(t, s, id, c, 1)
	}
	must(t, admin.ConfigSet(ctx, "maxmemory", "0").Err())
	awaitReturn(t, s)
	checkLifetimes(t, admin)
}

// E3: one line when Redis goes away, one when it is back, whatever the
// traffic; without the password.
func TestOutageIsLoggedOnce(t *testing.T) {
	const password = "s3cret-of-redis"
	r := startRedis(t, "--requirepass", password)
	var log bytes.Buffer // written under the handler's lock; read after Close
	s := open(t, policy.Redis{Addresses: []string{r.addr}, Password: policy.NewSecret("", password), Timeout: 500 * time.Millisecond, RetryAfterOutage: 20 * time.Millisecond},
		redisstore.Options{Log: slog.New(slog.NewJSONHandler(&log, nil))})
	c := claim("acme", 10, tokens(1e9, time.Hour))
	reserve(t, s, "before", c)
	r.kill()
	awaitAway(t, s)
	for i := range 200 {
		reserve(t, s, fmt.Sprint("away", i), c)
	}
	r.args = []string{"--requirepass", "another"}
	r.start(t)
	for i := range 200 {
		reserve(t, s, fmt.Sprint("refused", i), c)
	}
	r.kill()
	r.args = []string{"--requirepass", password}
	r.start(t)
	awaitReturn(t, s)
	must(t, s.Close())
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "redis is away") || !strings.Contains(lines[1], "redis is back") {
		t.Errorf("the log holds %d lines, want one for away and one for back:\n%s", len(lines), log.String())
	}
	if strings.Contains(log.String(), "s3cret") {
		t.Error("the password is in the log")
	}
}
