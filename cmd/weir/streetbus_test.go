package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/breaker/membus"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// TestStreetLatency: over a real Redis and a real etcd, from the failure that
// opens a breaker to batch being shed at another replica (B3: 250 ms, p99).
func TestStreetLatency(t *testing.T) {
	for name, with := range map[string]func(t *testing.T, p *policy.Policy){
		"redis": func(t *testing.T, p *policy.Policy) {
			p.Store.Redis = &policy.Redis{Addresses: []string{envoytest.StartRedis(t).Addr}}
			p.Breaker.Cascade.Bus = policy.BusAuto
		},
		"etcd": func(t *testing.T, p *policy.Policy) {
			p.Breaker.Cascade.Bus = policy.BusEtcd
			p.Breaker.Cascade.Etcd = &policy.Etcd{Endpoints: []string{envoytest.StartEtcd(t).Addr}, Prefix: "/weir/"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := *readPolicy(t, streetPolicy)
			with(t, &p)
			var both []*replica
			for _, name := range []string{"a", "b"} {
				bus, err := openBus(&p)
				if err != nil || bus == nil {
					t.Fatalf("%v, %v", bus, err)
				}
				r := newReplicaOn(t, name, &p, bus)
				defer r.end()
				both = append(both, r)
			}
			a, b := both[0], both[1]
			envoytest.Eventually(t, 10*time.Second, "both have spoken", func() bool {
				_, _, x := a.speaker.state(time.Now())
				_, _, y := b.speaker.state(time.Now())
				return x.heard >= 6 && y.heard >= 6
			})
			var took []time.Duration
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for range 40 {
				begun := time.Now()
				a.ends("chat", 20, true)
				for !b.pool("chat").Sheds {
					if time.Since(begun) > 5*time.Second {
						t.Fatal("b never learns of it")
					}
					<-tick.C
				}
				took = append(took, time.Since(begun))
				a.desk.Breaker("chat").Reset(time.Now(), "test")
				envoytest.Eventually(t, 5*time.Second, "b learns that it is closed", func() bool { return !b.pool("chat").Sheds })
			}
			slices.Sort(took)
			t.Logf("half within %v, the slowest %v", took[len(took)/2], took[len(took)-1])
			if worst := took[len(took)-1]; worst > 250*time.Millisecond {
				t.Errorf("the slowest of %d took %v", len(took), worst)
			}
		})
	}
}

// TestOpenBus: which bus a policy means.
func TestOpenBus(t *testing.T) {
	redis := &policy.Redis{Addresses: []string{"127.0.0.1:1"}}
	etcd := &policy.Etcd{Endpoints: []string{"127.0.0.1:1"}}
	for _, c := range []struct {
		cascade policy.Cascade
		store   *policy.Redis
		some    bool
	}{
		{policy.Cascade{}, nil, false},
		{policy.Cascade{}, redis, true},
		{policy.Cascade{Bus: policy.BusOff}, redis, false},
		{policy.Cascade{Bus: policy.BusRedis}, redis, true},
		{policy.Cascade{Bus: policy.BusEtcd, Etcd: etcd}, redis, true},
		{policy.Cascade{Bus: policy.BusEtcd, Etcd: etcd}, nil, true},
	} {
		p := new(policy.Policy)
		p.Breaker.Cascade, p.Store.Redis = c.cascade, c.store
		bus, err := openBus(p)
		if err != nil || (bus != nil) != c.some {
			t.Errorf("%v, redis %v: %T, %v", c.cascade.Bus, c.store != nil, bus, err)
		}
		if bus != nil {
			_ = bus.Close()
		}
	}
	p := new(policy.Policy)
	p.Breaker.Cascade = policy.Cascade{Bus: policy.BusEtcd, Etcd: &policy.Etcd{Endpoints: []string{"127.0.0.1:1"}, TLS: true, CA: "none.pem"}}
	if bus, err := openBus(p); err == nil {
		t.Errorf("%T without its CA", bus)
	}
}

// TestStreetBusAwayAtTheStart: who starts without the bus takes over when it
// comes, if it knows nothing by then; and who only cannot hear speaks all the
// same after a while.
func TestStreetBusAwayAtTheStart(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		a := newReplica(t, "a", p, &board)
		defer a.end()
		bus := board.Join()
		bus.Cut()
		b := newReplicaOn(t, "b", p, bus)
		defer b.end()
		time.Sleep(20 * time.Second)
		a.ends("chat", 40, true)
		time.Sleep(time.Second)
		bus.Mend()
		time.Sleep(joinFor + 3*clockEvery)
		if s := b.pool("chat").View; s.State != breaker.Hard || s.Cause != breaker.ByRestore {
			t.Errorf("chat is %v by %v", s.State, s.Cause)
		}
	})
}

// stutter is a bus that loses what is published while it does, and says so.
type stutter struct {
	breaker.Bus
	on atomic.Bool
}

func (b *stutter) Publish(ctx context.Context, o breaker.Opinion) error {
	if b.on.Load() {
		return errors.New("lost")
	}
	return b.Bus.Publish(ctx, o)
}

// TestStreetSaysAgain: a word that was not delivered is said again soon, not
// with the next renewal; the pauses grow and end.
func TestStreetSaysAgain(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		bus := &stutter{Bus: board.Join()}
		a, b := newReplicaOn(t, "a", p, bus), newReplica(t, "b", p, &board)
		defer a.end()
		defer b.end()
		time.Sleep(time.Second)
		bus.on.Store(true)
		a.ends("chat", 20, true)
		time.Sleep(250 * time.Millisecond)
		bus.on.Store(false)
		time.Sleep(500 * time.Millisecond)
		if !b.pool("chat").Sheds {
			t.Error("b does not know half a second after the bus carries words again")
		}
		up, _, stats := a.speaker.state(time.Now())
		if !up || stats.failed == 0 || stats.failed > 6 || stats.losses != 1 {
			t.Errorf("up %v, %+v", up, stats)
		}
	})
}

// slow is a bus that takes its time for each word.
type slow struct{ breaker.Bus }

func (b slow) Publish(ctx context.Context, o breaker.Opinion) error {
	time.Sleep(time.Millisecond)
	return b.Bus.Publish(ctx, o)
}

// TestStreetPoolsBeforeTenants: however many tenants there is something to say
// of, what a pool's breaker does is known in time (B3: 250 ms).
func TestStreetPoolsBeforeTenants(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		a, b := newReplicaOn(t, "a", p, slow{board.Join()}), newReplica(t, "b", p, &board)
		defer a.end()
		defer b.end()
		time.Sleep(time.Second)
		for n := range 3000 {
			a.desk.Tenants().Trip(time.Now(), fmt.Sprint("tenant-", n), breaker.Hard, time.Minute, "test")
		}
		time.Sleep(200 * time.Millisecond)
		a.ends("chat", 20, true)
		time.Sleep(250 * time.Millisecond)
		if !b.pool("chat").Sheds {
			_, _, stats := a.speaker.state(time.Now())
			t.Errorf("b does not know within 250 ms; a has said %d words", stats.said)
		}
		time.Sleep(4 * time.Second)
		if n := len(b.o.Council.Words(time.Now(), "tenant-2999", breaker.Tenant)); n != 1 {
			t.Errorf("%d words of the last tenant", n)
		}
	})
}

// TestStreetOneWordStopsNoOther: what cannot be said keeps nothing else from
// being said, and does not make the bus away.
func TestStreetOneWordStopsNoOther(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		a, b := newReplica(t, "a", p, &board), newReplica(t, "b", p, &board)
		defer a.end()
		defer b.end()
		time.Sleep(time.Second)
		a.desk.Tenants().Trip(time.Now(), strings.Repeat("x", breaker.MaxName+1), breaker.Hard, time.Minute, "test")
		time.Sleep(time.Second)
		a.ends("chat", 20, true)
		time.Sleep(250 * time.Millisecond)
		up, _, stats := a.speaker.state(time.Now())
		if !up || stats.losses > 0 || !b.pool("chat").Sheds {
			t.Errorf("up %v, %+v; b knows: %v", up, stats, b.pool("chat").Sheds)
		}
	})
}

// TestStreetSaysTheEndAgain: that a tenant's breaker is closed again is said
// when the bus is back, long before the old word is over, and then no more.
func TestStreetSaysTheEndAgain(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		bus := &stutter{Bus: board.Join()}
		a, b := newReplicaOn(t, "a", p, bus), newReplica(t, "b", p, &board)
		defer a.end()
		defer b.end()
		time.Sleep(time.Second)
		a.desk.Tenants().Trip(time.Now(), "acme", breaker.Hard, time.Minute, "test")
		time.Sleep(time.Second)
		if n := len(b.o.Council.Words(time.Now(), "acme", breaker.Tenant)); n != 1 {
			t.Fatalf("b has heard %d words", n)
		}
		bus.on.Store(true)
		a.desk.Tenants().Get("acme").Reset(time.Now(), "test")
		time.Sleep(time.Second)
		bus.on.Store(false)
		time.Sleep(2 * time.Second)
		words := b.o.Council.Words(time.Now(), "acme", breaker.Tenant)
		if len(words) != 1 || words[0].State != breaker.Closed {
			t.Errorf("two seconds later b has %+v", words)
		}
		time.Sleep(20 * time.Second)
		if words := b.o.Council.Words(time.Now(), "acme", breaker.Tenant); len(words) > 0 {
			t.Errorf("it is said again and again: %+v", words)
		}
	})
}

// TestStreetTakesOverTenants, and none whose name no tenant can have: it would
// stand in tables and logs.
func TestStreetTakesOverTenants(t *testing.T) {
	p := readPolicy(t, streetPolicy)
	synctest.Test(t, func(t *testing.T) {
		var board membus.Board
		other := board.Join()
		names := map[string]bool{"acme": true, "a\x1b[2J": false, "a\nb": false, "\xff": false}
		for name := range names {
			if err := other.Publish(t.Context(), breaker.Opinion{
				Replica: "x", Breaker: name, Kind: breaker.Tenant, State: breaker.Hard, Level: breaker.Hard,
				Requests: 100, Failures: 90, Left: time.Minute, Seq: 1, TTL: 15 * time.Second,
			}); err != nil {
				t.Fatal(err)
			}
		}
		a := newReplica(t, "a", p, &board)
		defer a.end()
		time.Sleep(time.Second)
		for name, is := range names {
			if b := a.desk.Tenants().Get(name); (b != nil) != is {
				t.Errorf("tenant %q has a breaker: %v, want %v", name, b != nil, is)
			}
		}
	})
}
