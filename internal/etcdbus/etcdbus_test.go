package etcdbus_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/breaker/bustest"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/etcdbus"
	"github.com/weirproxy/weir/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// seed gives each bus its own jitter.
var seed atomic.Uint64

func open(t testing.TB, c policy.Etcd) *etcdbus.Bus {
	t.Helper()
	b, err := etcdbus.New(c, etcdbus.Options{Seed: seed.Add(1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func at(addr string) policy.Etcd { return policy.Etcd{Endpoints: []string{addr}, Prefix: "/weir/"} }

// client is for looking at the server from outside the bus.
func client(t testing.TB, addr string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func publish(t testing.TB, b breaker.Bus, words ...breaker.Opinion) {
	t.Helper()
	for _, o := range words {
		if err := b.Publish(ctx, o); err != nil {
			t.Fatalf("publish word %d of %s: %v", o.Seq, o.Breaker, err)
		}
	}
}

// B3: the bus over a real etcd is a bus like any other; each test with keys of
// its own, each replica on a wire of its own.
func TestBus(t *testing.T) {
	server := envoytest.StartEtcd(t)
	look := client(t, server.Addr)
	n := 0
	bustest.Run(t, func(t *testing.T) bustest.Fixture {
		n++
		prefix := fmt.Sprint("/t", n)
		wires := map[breaker.Bus]*envoytest.Wire{}
		return bustest.Fixture{
			Open: func() breaker.Bus {
				w := envoytest.StartWire(t, server.Addr)
				b := open(t, policy.Etcd{Endpoints: []string{w.Addr}, Prefix: prefix})
				wires[b] = w
				return b
			},
			Cut: func(b breaker.Bus) func() { wires[b].Cut(); return wires[b].Mend },
			Garbage: func() {
				on := must[*clientv3.LeaseGrantResponse](t)(look.Grant(ctx, 60)).ID
				for i, text := range garbage {
					must[*clientv3.PutResponse](t)(look.Put(ctx, fmt.Sprint(prefix, "/breakers/x/p/", i), text, clientv3.WithLease(on)))
				}
				// A word for ever, and one under another's name.
				must[*clientv3.PutResponse](t)(look.Put(ctx, prefix+"/breakers/x/p/p", aWord))
				must[*clientv3.PutResponse](t)(look.Put(ctx, prefix+"/breakers/y/p/p", aWord, clientv3.WithLease(on)))
			},
			Grain: 2500 * time.Millisecond, // whole seconds, half a second of etcd's own, and a busy machine
		}
	})
}

const aWord = `{"v":1,"replica":"x","breaker":"p","kind":"http","state":"hard","level":"hard","requests":4,"failures":2,"left":0,"seq":7,"ttl":15000000000}`

var garbage = []string{"", "x", "{}", aWord + " ", `{"v":2}`, "\xff\x00", strings.Repeat("x", 1<<20)}

// What is no word is counted, that of another release apart, and gives way to
// a word.
func TestGarbageIsCounted(t *testing.T) {
	server := envoytest.StartEtcd(t)
	look := client(t, server.Addr)
	b := open(t, at(server.Addr))
	e := envoytest.Listen(t, b, nil)
	publish(t, b, envoytest.Word("a", "q", 1))
	e.Hears(t, envoytest.Word("a", "q", 1))
	must[*clientv3.PutResponse](t)(look.Put(ctx, "/weir/breakers/a/p/p", aWord))
	must[*clientv3.PutResponse](t)(look.Put(ctx, "/weir/breakers/a/p/q", `{"v":2}`))
	envoytest.Eventually(t, 5*time.Second, "both are counted", func() bool {
		return b.Stats().Garbage == 1 && b.Stats().Versions == 1
	})
	publish(t, b, envoytest.Word("a", "p", 1), envoytest.Word("a", "q", 2))
	e.Hears(t, envoytest.Word("a", "p", 1), envoytest.Word("a", "q", 2))
}

// Who joins late hears of a word no more than its lease has left, to the next
// second; so a replica that died is not heard of for two lives.
func TestLeftOfALease(t *testing.T) {
	server := envoytest.StartEtcd(t)
	b := open(t, at(server.Addr))
	dead := envoytest.Word("a", "p", 1)
	dead.TTL = 2 * time.Second           // on a lease of three seconds
	stays := envoytest.Word("b", "p", 1) // is read after it
	publish(t, b, dead, stays)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		e := envoytest.Listen(t, b, nil)
		e.Hears(t, stays)
		o, stands := e.Last(dead.Key())
		switch {
		case !stands:
			t.Fatal("it was never heard with one second left")
		case o.TTL > dead.TTL:
			t.Fatalf("%v left of %v", o.TTL, dead.TTL)
		case o.TTL == time.Second:
			return
		}
		<-tick.C
	}
}

// Bad settings are named.
func TestBadSettings(t *testing.T) {
	for want, c := range map[string]policy.Etcd{
		"endpoints": {},
		"ca":        {Endpoints: []string{"127.0.0.1:1"}, TLS: true, CA: "missing.pem"},
		"cert":      {Endpoints: []string{"127.0.0.1:1"}, TLS: true, Cert: "missing.pem", Key: "missing.pem"},
	} {
		if _, err := etcdbus.New(c, etcdbus.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that names %s", err, want)
		}
	}
}
