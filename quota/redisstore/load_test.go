package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
)

// load makes about 2,000 calls a second on a few workers until it is stopped,
// and ends each with its final amount.
type load struct {
	charged atomic.Int64 // sum of final amounts of all calls that were let in
	calls   atomic.Int64
	local   atomic.Int64
	wg      sync.WaitGroup
	stop    chan struct{}
}

func startLoad(t *testing.T, s *redisstore.Store, tenant string, limits ...policy.Limit) *load {
	t.Helper()
	l := &load{stop: make(chan struct{})}
	for w := range 4 {
		l.wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
				l.one(t, s, fmt.Sprint(w, "-", i), claim(tenant, 10, limits...), rng.Int64N(20))
			}
		})
	}
	return l
}

func (l *load) one(t *testing.T, s *redisstore.Store, id string, c []quota.Claim, final int64) {
	v, err := s.Reserve(ctx, time.Time{}, id, c)
	if err != nil {
		t.Errorf("Reserve: %v", err)
		return
	}
	if v.Local {
		l.local.Add(1)
	}
	if v.Allowed {
		l.charged.Add(final)
	}
	if err := s.Settle(ctx, time.Time{}, id, c, quota.Amount{Requests: 1, Output: final}); err != nil {
		t.Errorf("Settle: %v", err)
	}
	l.calls.Add(1)
}

// after waits until so many more calls were made.
func (l *load) after(t *testing.T, calls int64) {
	t.Helper()
	until := l.calls.Load() + calls
	eventually(t, "calls go on", func() bool { return l.calls.Load() >= until })
}

func (l *load) end() { close(l.stop); l.wg.Wait() }

// J: the script cache is emptied under load; no decision fails for it.
func TestScriptFlush(t *testing.T) {
	r := startRedis(t)
	s := patient(t, policy.Redis{Addresses: []string{r.addr}})
	admin := r.client(t)
	l := startLoad(t, s, "acme", tokens(1e9, time.Hour))
	for range 20 {
		l.after(t, 20)
		must(t, admin.ScriptFlush(ctx).Err())
	}
	l.end()
	if l.local.Load() != 0 || s.Stats().Outages != 0 {
		t.Errorf("%d local decisions, %+v; want none", l.local.Load(), s.Stats())
	}
	if got := used(t, s, "acme"); got != l.charged.Load() {
		t.Errorf("Redis counts %d, want %d", got, l.charged.Load())
	}
}

// J: connections end at any moment; no key is left without a lifetime, and
// every call is charged once.
func TestConnectionsKilled(t *testing.T) {
	r := startRedis(t)
	p := startProxy(t, r.addr)
	s := open(t, policy.Redis{Addresses: []string{p.addr}, Timeout: 500 * time.Millisecond, RetryAfterOutage: 2 * time.Millisecond}, redisstore.Options{})
	admin := r.client(t)
	rng := rand.New(rand.NewPCG(8, 9))
	l := startLoad(t, s, "acme", tokens(1e9, time.Hour), policy.Limit{Unit: policy.Concurrency, Max: 1000})
	for i := range 90 {
		l.after(t, 1+rng.Int64N(8))
		p.mode.Store([]int32{pass, cut, cutReply}[i%3])
		p.drop()
		if i%10 == 0 {
			p.mode.Store(pass)
			checkLifetimes(t, admin)
		}
	}
	p.mode.Store(pass)
	l.after(t, 20)
	l.end()
	awaitReturn(t, s)
	if keys := checkLifetimes(t, admin); keys == 0 {
		t.Error("no key at all")
	}
	if got := used(t, s, "acme"); got != l.charged.Load() {
		t.Errorf("Redis counts %d, want %d, over %d outages", got, l.charged.Load(), s.Stats().Outages)
	}
}

// Redis dies and comes back empty, under load: every call gets an answer, and
// what was acknowledged within the last minute is charged anew.
func TestServerKilledUnderLoad(t *testing.T) {
	r := startRedis(t)
	s := open(t, policy.Redis{Addresses: []string{r.addr}, Timeout: 500 * time.Millisecond, RetryAfterOutage: 20 * time.Millisecond}, redisstore.Options{})
	l := startLoad(t, s, "acme", tokens(1e9, time.Hour))
	for range 2 {
		l.after(t, 200)
		r.kill()
		l.after(t, 200)
		r.start(t)
		eventually(t, "Redis decides again", func() bool { return !s.Stats().Away })
	}
	l.after(t, 50)
	l.end()
	eventually(t, "all is told", func() bool { return s.Stats().Pending == 0 })
	eventually(t, "all is charged anew", func() bool {
		return used(t, s, "acme") == l.charged.Load()
	})
	checkLifetimes(t, r.client(t))
}

// An acknowledged reservation that a fail-over lost can still be settled.
func TestLostReservation(t *testing.T) {
	r := startRedis(t)
	s := open(t, policy.Redis{Addresses: []string{r.addr}, Timeout: 500 * time.Millisecond, RetryAfterOutage: 20 * time.Millisecond}, redisstore.Options{})
	c := claim("acme", 100, tokens(1000, time.Hour), policy.Limit{Unit: policy.Concurrency, Max: 5})
	reserve(t, s, "runs", c)
	reserve(t, s, "ended", c)
	finish(t, s, "ended", c, 30)
	r.kill()
	awaitAway(t, s)
	r.start(t)
	eventually(t, "both are charged anew", func() bool { return !s.Stats().Away && used(t, s, "acme") == 130 })
	finish(t, s, "runs", c, 60)
	if got := used(t, s, "acme"); got != 90 {
		t.Errorf("Redis counts %d, want 90", got)
	}
}

// J: replicas 5 s apart admit together what one would: the server's clock
// decides, and their hints agree.
func TestReplicasShareOneClock(t *testing.T) {
	r := startRedis(t)
	a, b := patient(t, policy.Redis{Addresses: []string{r.addr}}), patient(t, policy.Redis{Addresses: []string{r.addr}})
	admitted := 0
	for i := range 20 {
		for _, s := range []*redisstore.Store{a, b} {
			if reserve(t, s, fmt.Sprintf("%p-%d", s, i), claim("acme", 10, tokens(100, time.Hour))).Allowed {
				admitted++
			}
		}
	}
	if admitted != 10 {
		t.Errorf("%d calls of 10 admitted of a limit of 100", admitted)
	}
	va := reserve(t, a, "x", claim("acme", 10, tokens(100, time.Hour)))
	vb := reserve(t, b, "y", claim("acme", 10, tokens(100, time.Hour)))
	if d := (va.RetryAfter - vb.RetryAfter).Abs(); d > time.Second {
		t.Errorf("hints %v and %v differ by %v", va.RetryAfter, vb.RetryAfter, d)
	}
}

// I: 3 replicas and 100 parallel calls of 100 on one budget of 1,000.
func TestReplicasShareOneBudget(t *testing.T) {
	r := startRedis(t)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for replica := range 3 {
		s := patient(t, policy.Redis{Addresses: []string{r.addr}})
		for i := range 100 {
			wg.Go(func() {
				if reserve(t, s, fmt.Sprint(replica, "-", i), claim("acme", 100, tokens(1000, time.Hour))).Allowed {
					admitted.Add(1)
				}
			})
		}
	}
	wg.Wait()
	if n := admitted.Load(); n != 10 {
		t.Errorf("%d calls admitted over 3 replicas, want 10", n)
	}
}

// A reservation that a caller left behind while it was asked is still decided
// and can be settled: no outage, nothing stuck.
func TestCancelledCaller(t *testing.T) {
	r := startRedis(t)
	s := patient(t, policy.Redis{Addresses: []string{r.addr}})
	gone, cancel := context.WithCancel(ctx)
	cancel()
	c := claim("acme", 10, tokens(100, time.Hour))
	v, err := s.Reserve(gone, time.Time{}, "a", c)
	if err != nil || !v.Allowed || v.Local {
		t.Fatalf("Reserve: %+v, %v", v, err)
	}
	if err := s.Settle(gone, time.Time{}, "a", c, quota.Amount{}); err != nil {
		t.Fatal(err)
	}
	if got := used(t, s, "acme"); got != 0 {
		t.Errorf("Redis counts %d, want 0", got)
	}
}
