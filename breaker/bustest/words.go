package bustest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// A word arrives with all its fields, at another replica and at home.
func arrivesAsItWasSaid(t *testing.T, f *Fixture) {
	a, b := f.join(t), f.join(t)
	home, away := listen(t, a, nil), listen(t, b, nil)
	for i, o := range []breaker.Opinion{
		word("a", "chat", 1),
		{Replica: "a", Breaker: "chat", Requests: 40, Failures: 2, Seq: first + 2, TTL: longTTL}, // closed from the start
		{Replica: "a", Breaker: "söme/pool:with |odd| *names* {x}\n\"'", Kind: breaker.GRPC, State: breaker.HalfOpen, Level: breaker.Soft, Seq: first + 3, TTL: longTTL},
		{Replica: "a", Breaker: "acme", Kind: breaker.Tenant, State: breaker.Soft, Level: breaker.Soft, Requests: 1 << 30, Failures: 1 << 29, Left: 90*time.Minute + 1, Seq: breaker.MaxSeq, TTL: longTTL},
	} {
		publish(t, a, o)
		for _, e := range []*ear{away, home} {
			e.hears(t, o)
			e.mu.Lock()
			same(t, e.last[o.Key()], o)
			e.mu.Unlock()
		}
		if t.Failed() {
			t.Fatalf("word %d", i)
		}
	}
}

// 200 words of each of three breakers: heard in order, and the last of each.
func orderOfEachKey(t *testing.T, f *Fixture) {
	a, b := f.join(t), f.join(t)
	e := listen(t, b, nil)
	pools := []string{"p0", "p1", "p2"}
	for n := 1; n <= 200; n++ {
		for _, p := range pools {
			publish(t, a, word("a", p, n))
		}
	}
	for _, p := range pools {
		e.hears(t, word("a", p, 200)) // the ear refuses what is out of order
	}
}

// B3: an older word changes nothing, for those who listen and those who come.
func olderNeverWins(t *testing.T, f *Fixture) {
	a, b := f.join(t), f.join(t)
	e := listen(t, b, nil)
	older, newer := word("a", "p", 3), word("a", "p", 5)
	older.State, older.Level = breaker.Closed, 0
	publish(t, a, newer)
	e.hears(t, newer)
	other := newer
	other.State = breaker.HalfOpen // the same seq says nothing new
	publish(t, a, older, other)
	publish(t, b, older) // and not by another way
	if got := f.standing(t, 1)[newer.Key()]; got.Seq != newer.Seq || got.State != breaker.Hard {
		t.Errorf("stands: %+v, want seq %d, hard", got, newer.Seq)
	}
	publish(t, a, word("a", "p", 6))
	e.hears(t, word("a", "p", 6))
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range e.log {
		if o.Key() == newer.Key() && (o.Seq == older.Seq || o.State != breaker.Hard) {
			t.Errorf("heard %+v", o)
		}
	}
}

// A pool and a tenant of one name, and two replicas' words of one pool, stand
// side by side.
func keysAreApart(t *testing.T, f *Fixture) {
	a := f.join(t)
	pool, tenant, other := word("a", "acme", 1), word("a", "acme", 2), word("b", "acme", 1)
	tenant.Kind = breaker.Tenant
	publish(t, a, pool, tenant, other)
	stands := f.standing(t, 1)
	for _, o := range []breaker.Opinion{pool, tenant, other} {
		same(t, stands[o.Key()], o)
	}
	if len(stands) != 3 {
		t.Errorf("%d words stand, want 3", len(stands))
	}
	pool = word("a", "acme", 3)
	pool.Kind = breaker.GRPC // the policy made it one
	publish(t, a, pool)
	if stands := f.standing(t, 2); len(stands) != 3 || stands[pool.Key()].Kind != breaker.GRPC {
		t.Errorf("a pool whose kind changed: %+v", stands)
	}
}

// Who joins hears the latest word of each key, once it was said.
func lateJoiner(t *testing.T, f *Fixture) {
	a := f.join(t)
	for n := 1; n <= 3; n++ {
		for p := range 50 {
			publish(t, a, word("a", fmt.Sprint("p", p), n))
		}
	}
	shut(t, a) // its words stay
	e := listen(t, f.join(t), nil)
	e.until(t, "what stands", func() bool { return len(e.last) == 50 })
	e.mu.Lock()
	defer e.mu.Unlock()
	for p := range 50 {
		o := word("a", fmt.Sprint("p", p), 3)
		same(t, e.last[o.Key()], o)
	}
}

// A word that nobody renews goes with its TTL; one that is renewed stays.
func ttl(t *testing.T, f *Fixture) {
	const life = time.Second
	a := f.join(t)
	dead, lives := word("dead", "p", 1), word("lives", "p", 1)
	dead.TTL, lives.TTL = life, life
	start := time.Now()
	publish(t, a, dead, lives)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 2; ; n++ {
		lives.Seq++
		publish(t, a, lives)
		asked := time.Now()
		stands := f.standing(t, n)
		if got, ok := stands[lives.Key()]; !ok {
			t.Fatalf("after %v: a word renewed %v ago is gone", time.Since(start), time.Since(asked))
		} else if got.TTL > life {
			t.Fatalf("ttl %v, want up to %v", got.TTL, life)
		}
		_, ok := stands[dead.Key()]
		if !ok && time.Since(start) < life {
			t.Fatalf("gone after %v, want %v", time.Since(start), life)
		}
		if !ok {
			break
		}
		if at := asked.Sub(start); at > life+f.Grain {
			t.Fatalf("stands after %v, want %v and %v of grain at most", at, life, f.Grain)
		}
		<-tick.C
	}
	for n := 10_000; time.Since(start) < 2*life; n++ { // the renewed one outlives its first life
		lives.Seq++
		publish(t, a, lives)
		if _, ok := f.standing(t, n)[lives.Key()]; !ok {
			t.Fatal("a renewed word is gone")
		}
		<-tick.C
	}
}

// Two replicas that say different things of the same breakers at once: both
// words stand, the latest of each.
func twoReplicasAtOnce(t *testing.T, f *Fixture) {
	buses := map[string]breaker.Bus{"a": f.join(t), "b": f.join(t)}
	ears := []*ear{listen(t, f.join(t), nil), listen(t, buses["a"], nil)}
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for replica, bus := range buses {
		wg.Go(func() {
			for n := 1; n <= 20; n++ {
				for p := range 5 {
					if err := bus.Publish(ctx, word(replica, fmt.Sprint("p", p), n)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	for _, e := range ears {
		for replica := range buses {
			for p := range 5 {
				e.hears(t, word(replica, fmt.Sprint("p", p), 20))
			}
		}
	}
}

// Of 200 transitions, 198 are heard elsewhere in less than 250 ms.
func latency(t *testing.T, f *Fixture) {
	a, b := f.join(t), f.join(t)
	e := listen(t, b, nil)
	publish(t, a, word("a", "warm", 1))
	e.hears(t, word("a", "warm", 1))
	took := make([]time.Duration, 200)
	for i := range took {
		o := word("a", fmt.Sprint("p", i%20), i+1)
		start := time.Now()
		publish(t, a, o)
		e.hears(t, o)
		took[i] = time.Since(start)
	}
	worst := p99(took)
	t.Logf("from Publish to heard: median %v, p99 %v, longest %v", took[len(took)/2], worst, took[len(took)-1])
	if worst >= 250*time.Millisecond {
		t.Errorf("p99 %v, want < 250ms", worst)
	}
}
