package redisbus_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/breaker/bustest"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/redisbus"
	"github.com/weirproxy/weir/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// seed gives each bus its own jitter.
var seed atomic.Uint64

func open(t testing.TB, c policy.Redis) *redisbus.Bus { return openWith(t, c, redisbus.Options{}) }

func openWith(t testing.TB, c policy.Redis, o redisbus.Options) *redisbus.Bus {
	t.Helper()
	o.Seed = seed.Add(1)
	b, err := redisbus.New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func client(t testing.TB, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// B3: the bus over a real redis-server is a bus like any other; each test with
// keys of its own, each replica on a wire of its own, all as the documented
// user, who is denied nothing.
func TestBus(t *testing.T) {
	const password = "s3cret"
	server := envoytest.StartRedis(t, append([]string{"--user"}, documentedUser(t, password, "t*")...)...)
	look := client(t, server.Addr)
	n := 0
	bustest.Run(t, func(t *testing.T) bustest.Fixture {
		n++
		prefix := fmt.Sprint("t", n)
		key := func(name string) string { return prefix + ":{breakers}:" + name }
		wires := map[breaker.Bus]*envoytest.Wire{}
		return bustest.Fixture{
			Open: func() breaker.Bus {
				w := envoytest.StartWire(t, server.Addr)
				b := open(t, policy.Redis{Addresses: []string{w.Addr}, Prefix: prefix, Username: "weir", Password: policy.NewSecret("", password)})
				wires[b] = w
				return b
			},
			Cut: func(b breaker.Bus) func() { wires[b].Cut(); return wires[b].Mend },
			Garbage: func() {
				for _, text := range garbage() {
					must(t, look.HSet(ctx, key("words"), fmt.Sprintf("x%q", text), text).Err())
					must(t, look.XAdd(ctx, &redis.XAddArgs{Stream: key("stream"), Values: []string{"w", text}}).Err())
				}
				must(t, look.XAdd(ctx, &redis.XAddArgs{Stream: key("stream"), Values: []string{"a", "1", "b", "2"}}).Err())
				must(t, look.Publish(ctx, key("bell"), strings.Repeat("noise", 1000)).Err())
			},
		}
	})
	keys, err := look.Keys(ctx, "*").Result()
	must(t, err)
	for _, k := range keys {
		if ttl := look.PTTL(ctx, k).Val(); ttl <= 0 || ttl > breaker.MaxTTL+time.Minute {
			t.Errorf("key %q lives for %v, want up to an hour and a minute", k, ttl)
		}
	}
	if len(keys) == 0 {
		t.Error("no keys: nothing was looked at")
	}
	refused, err := look.Do(ctx, "ACL", "LOG").Slice()
	must(t, err)
	for _, entry := range refused {
		t.Errorf("denied: %v", entry)
	}
}

// documentedUser is the user of docs/policy.md, for another prefix.
func documentedUser(t *testing.T, password, prefix string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/policy.md")
	must(t, err)
	line := regexp.MustCompile(`(?m)^    user (weir on .*\+evalsha.*)$`).FindSubmatch(text)
	if line == nil {
		t.Fatal("docs/policy.md has no such line")
	}
	return strings.Fields(strings.NewReplacer("SECRET", password, "weir:*", prefix+":*").Replace(string(line[1])))
}

// garbage are records that are no words, or are not what their place says.
func garbage() []string {
	const text = `{"v":1,"replica":"x","breaker":"p","kind":"http","state":"hard","level":"hard","requests":4,"failures":2,"left":0,"seq":7,"ttl":15000000000}`
	ends := fmt.Sprint(time.Now().Add(10 * time.Second).UnixMilli())
	return []string{
		"", "x", "1 2 3", text, ends + " 7 {}", ends + " 8 " + text, "x 7 " + text, "-1 7 " + text, "99999999999999999999 7 " + text,
		fmt.Sprint(time.Now().Add(100*time.Hour).UnixMilli()) + " 7 " + text, // stands for ever
		ends + ` 7 {"v":2}`, strings.Repeat("x", 1<<20),
	}
}

// A record that is a word but lies under another's name is nobody's.
func TestMisplacedWord(t *testing.T) {
	server := envoytest.StartRedis(t)
	look := client(t, server.Addr)
	b := open(t, policy.Redis{Addresses: []string{server.Addr}})
	must(t, b.Publish(ctx, envoytest.Word("a", "p", 1)))
	record := look.HGet(ctx, "weir:{breakers}:words", "p:1:a:p").Val()
	must(t, look.HSet(ctx, "weir:{breakers}:words", "p:1:b:p", record).Err())
	e := envoytest.Listen(t, b, nil)
	e.Hears(t, envoytest.Word("a", "p", 1))
	envoytest.Eventually(t, 5*time.Second, "it is counted", func() bool { return b.Stats().Garbage == 1 })
	must(t, b.Publish(ctx, envoytest.Word("b", "p", 2))) // it gives way to a newer word
	e.Hears(t, envoytest.Word("b", "p", 2))
}

// A record that would stand for longer than any word may is nobody's, and does
// not keep a word from being said.
func TestWordForEver(t *testing.T) {
	server := envoytest.StartRedis(t)
	look := client(t, server.Addr)
	b := open(t, policy.Redis{Addresses: []string{server.Addr}})
	e := envoytest.Listen(t, b, nil)
	must(t, b.Publish(ctx, envoytest.Word("a", "p", 1)))
	e.Hears(t, envoytest.Word("a", "p", 1))
	_, said, _ := strings.Cut(look.HGet(ctx, "weir:{breakers}:words", "p:1:a:p").Val(), " ")
	said = strings.ReplaceAll(strings.Replace(said, "1 ", "9 ", 1), `"seq":1`, `"seq":9`)
	record := fmt.Sprint(time.Now().Add(2*time.Hour).UnixMilli(), " ", said)
	must(t, look.HSet(ctx, "weir:{breakers}:words", "p:1:a:p", record).Err())
	must(t, look.XAdd(ctx, &redis.XAddArgs{Stream: "weir:{breakers}:stream", Values: []string{"w", record}}).Err())
	late := envoytest.Listen(t, b, nil)
	envoytest.Eventually(t, 5*time.Second, "both places are counted", func() bool { return b.Stats().Garbage >= 2 })
	must(t, b.Publish(ctx, envoytest.Word("a", "p", 2)))
	for _, e := range []*envoytest.Ear{e, late} {
		envoytest.Eventually(t, 5*time.Second, "the next word is heard", func() bool {
			last, _ := e.Last(envoytest.Word("a", "p", 0).Key())
			return last.Seq == 2
		})
	}
}

// Keys of another type, used-up ids and flushed keys: the next word puts all
// right, whoever listens.
func TestSpoiltKeys(t *testing.T) {
	server := envoytest.StartRedis(t)
	look := client(t, server.Addr)
	a, b := open(t, policy.Redis{Addresses: []string{server.Addr}}), open(t, policy.Redis{Addresses: []string{server.Addr}})
	e := envoytest.Listen(t, b, nil)
	const at = "weir:{breakers}:"
	seq := uint64(0)
	for name, spoil := range map[string]func() error{
		"words of another type":  func() error { return look.Set(ctx, at+"words", "x", 0).Err() },
		"ends of another type":   func() error { return look.Set(ctx, at+"ends", "x", 0).Err() },
		"stream of another type": func() error { return look.Set(ctx, at+"stream", "x", 0).Err() },
		"flushed":                func() error { return look.FlushAll(ctx).Err() },
		"trimmed":                func() error { return look.XTrimMaxLen(ctx, at+"stream", 0).Err() },
		"ids used up": func() error {
			return look.XAdd(ctx, &redis.XAddArgs{Stream: at + "stream", ID: "18446744073709551615-18446744073709551615", Values: []string{"w", "x"}}).Err()
		},
	} {
		seq++
		must(t, a.Publish(ctx, envoytest.Word("a", "p", seq)))
		e.Hears(t, envoytest.Word("a", "p", seq))
		must(t, spoil())
		seq++
		if err := a.Publish(ctx, envoytest.Word("a", "p", seq)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		e.Hears(t, envoytest.Word("a", "p", seq))
		late := envoytest.Listen(t, a, nil)
		late.Hears(t, envoytest.Word("a", "p", seq))
	}
	if e.WasDown(false) {
		t.Errorf("told of a loss: %v", e.Downs())
	}
}

// A stream that is trimmed past a slow listener's cursor: it reads anew what
// stands, and hears the last word of each.
func TestTrimmedPastTheCursor(t *testing.T) {
	server := envoytest.StartRedis(t)
	config := policy.Redis{Addresses: []string{server.Addr}}
	a := openWith(t, config, redisbus.Options{MaxLen: 1})
	b := open(t, config)
	gate := make(chan struct{})
	e := envoytest.Listen(t, b, gate)
	must(t, a.Publish(ctx, envoytest.Word("a", "first", 1)))
	envoytest.Eventually(t, 5*time.Second, "the listener is at its first word", func() bool { return b.Stats().Heard == 1 })
	for n := uint64(1); n <= 600; n++ {
		must(t, a.Publish(ctx, envoytest.Word("a", fmt.Sprint("p", n%7), n)))
	}
	if n := client(t, server.Addr).XLen(ctx, "weir:{breakers}:stream").Val(); n > 300 {
		t.Fatalf("the stream holds %d entries, want it trimmed", n)
	}
	close(gate)
	for n := uint64(594); n <= 600; n++ {
		e.Hears(t, envoytest.Word("a", fmt.Sprint("p", n%7), n))
	}
	if st := b.Stats(); st.Rereads == 0 || st.Losses != 0 {
		t.Errorf("%+v, want a re-read and no loss", st)
	}
}

// What is over leaves the server too: the hash is swept by what is published.
func TestSwept(t *testing.T) {
	server := envoytest.StartRedis(t)
	b := open(t, policy.Redis{Addresses: []string{server.Addr}})
	for n := range 100 {
		o := envoytest.Word("a", fmt.Sprint("p", n), 1)
		o.TTL = time.Millisecond
		must(t, b.Publish(ctx, o))
	}
	look := client(t, server.Addr)
	envoytest.Eventually(t, 5*time.Second, "one word is left", func() bool {
		must(t, b.Publish(ctx, envoytest.Word("a", "stays", b.Stats().Published+1)))
		return look.HLen(ctx, "weir:{breakers}:words").Val() == 1 && look.ZCard(ctx, "weir:{breakers}:ends").Val() == 1
	})
}

// Who joins hears nothing that is over, though it still lies there, and of the
// rest what is left of it.
func TestOverIsNotHeard(t *testing.T) {
	server := envoytest.StartRedis(t)
	b := open(t, policy.Redis{Addresses: []string{server.Addr}})
	short, stays := envoytest.Word("a", "short", 1), envoytest.Word("a", "stays", 1)
	short.TTL = 200 * time.Millisecond
	must(t, b.Publish(ctx, stays))
	must(t, b.Publish(ctx, short))
	start := time.Now()
	envoytest.Eventually(t, 5*time.Second, "it is over", func() bool { return time.Since(start) > short.TTL })
	e := envoytest.Listen(t, b, nil)
	e.Hears(t, stays)
	last, _ := e.Last(stays.Key())
	if left := last.TTL; left > stays.TTL-short.TTL {
		t.Errorf("%v left of %v, which was said %v ago at least", left, stays.TTL, short.TTL)
	}
	must(t, b.Publish(ctx, envoytest.Word("a", "stays", 2)))
	e.Hears(t, envoytest.Word("a", "stays", 2))
	if e.Has(short) {
		t.Error("heard a word that is over")
	}
	if n := b.Stats().Rereads; n != 0 {
		t.Errorf("all was read anew %d times, without need", n)
	}
}

// Bad settings are named.
func TestBadSettings(t *testing.T) {
	for want, c := range map[string]policy.Redis{
		"addresses": {},
		"prefix":    {Addresses: []string{"127.0.0.1:1"}, Prefix: "{x}"},
		"ca":        {Addresses: []string{"127.0.0.1:1"}, TLS: true, CA: "missing.pem"},
	} {
		if _, err := redisbus.New(c, redisbus.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that names %s", err, want)
		}
	}
}
