package redisbus_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/policy"
)

// Redis dies and comes back empty: Publish fails at once meanwhile, listeners
// are told once, renewals bring back what stands, and who joins hears it.
func TestRedisKilledAndBack(t *testing.T) {
	t.Parallel()
	server := envoytest.StartRedis(t)
	config := policy.Redis{Addresses: []string{server.Addr}}
	a, b := open(t, config), open(t, config)
	ears := []*envoytest.Ear{envoytest.Listen(t, a, nil), envoytest.Listen(t, b, nil)}
	words := []breaker.Opinion{envoytest.Word("a", "p", 1), envoytest.Word("a", "q", 1), envoytest.Word("b", "p", 1)}
	for _, o := range words {
		must(t, a.Publish(ctx, o))
	}
	for _, e := range ears {
		e.Hears(t, words...)
	}
	server.Kill()
	for _, e := range ears {
		envoytest.Eventually(t, 5*time.Second, "it is told of the loss", func() bool { return e.WasDown(false) })
	}
	asked := time.Now()
	if err := a.Publish(ctx, envoytest.Word("a", "p", 2)); err == nil || time.Since(asked) > time.Second {
		t.Errorf("%v after %v, want an error at once", err, time.Since(asked))
	}
	if st := a.Stats(); !st.Away || st.Losses != 1 || st.Failed != 1 {
		t.Errorf("%+v, want it away, once, and one word undelivered", st)
	}
	server.Restart(t)
	for _, e := range ears {
		envoytest.Eventually(t, 5*time.Second, "it is told of the return", func() bool { return e.WasDown(true) })
	}
	for i := range words { // the survivors renew
		words[i].Seq = 3
		must(t, a.Publish(ctx, words[i]))
	}
	late := open(t, config)
	for _, e := range append(ears, envoytest.Listen(t, late, nil)) {
		e.Hears(t, words...)
	}
	if a.Stats().Away {
		t.Error("still away")
	}
}

// A wire that is a black hole: Publish ends with its context, or after two
// seconds; the listener is told, and all heals.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	server := envoytest.StartRedis(t)
	wire := envoytest.StartWire(t, server.Addr)
	a, b := open(t, policy.Redis{Addresses: []string{server.Addr}}), open(t, policy.Redis{Addresses: []string{wire.Addr}})
	e := envoytest.Listen(t, b, nil)
	must(t, b.Publish(ctx, envoytest.Word("b", "p", 1)))
	e.Hears(t, envoytest.Word("b", "p", 1))
	wire.Hang()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	for what, c := range map[string]context.Context{"100ms": short, "2s": ctx} {
		asked := time.Now()
		if err := b.Publish(c, envoytest.Word("b", "p", 2)); err == nil || time.Since(asked) > 3*time.Second {
			t.Errorf("%v after %v, want an error after %s", err, time.Since(asked), what)
		}
	}
	envoytest.Eventually(t, 5*time.Second, "it is told", func() bool { return e.WasDown(false) })
	must(t, a.Publish(ctx, envoytest.Word("a", "p", 1)))
	wire.Mend()
	e.Hears(t, envoytest.Word("a", "p", 1))
	envoytest.Eventually(t, 5*time.Second, "it is back", func() bool { return e.WasDown(true) })
}

// A user who may not use channels, as Redis 7 makes them: the bus looks each
// 100 ms, and words still arrive in less than 250 ms.
func TestUserWithoutChannels(t *testing.T) {
	server := envoytest.StartRedis(t, "--user", "weir", "on", ">s3cret", "~weir:*", "resetchannels", "+@all")
	config := policy.Redis{Addresses: []string{server.Addr}, Username: "weir", Password: policy.NewSecret("", "s3cret")}
	a, b := open(t, config), open(t, config)
	e := envoytest.Listen(t, b, nil)
	must(t, a.Publish(ctx, envoytest.Word("a", "p", 1)))
	e.Hears(t, envoytest.Word("a", "p", 1))
	if !b.Stats().Deaf {
		t.Errorf("%+v, want it deaf", b.Stats())
	}
	took := make([]time.Duration, 12)
	for i := range took {
		o := envoytest.Word("a", "p", uint64(i+2))
		start := time.Now()
		must(t, a.Publish(ctx, o))
		e.Hears(t, o)
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	t.Logf("median %v, longest %v", took[len(took)/2], took[len(took)-1])
	if worst := took[len(took)-1]; worst > 250*time.Millisecond {
		t.Errorf("%v, want up to 250ms", worst)
	}
	config.Password = policy.NewSecret("", "guess")
	wrong := open(t, config)
	if err := wrong.Publish(ctx, envoytest.Word("a", "p", 99)); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("wrong password: %v", err)
	}
}

// 100,000 words stand and more, for which there is no room: one of a new key is
// refused, those that stand are renewed, and a late joiner hears them all.
func TestFull(t *testing.T) {
	t.Parallel()
	server := envoytest.StartRedis(t)
	look := client(t, server.Addr)
	b := open(t, policy.Redis{Addresses: []string{server.Addr}})
	must(t, b.Publish(ctx, envoytest.Word("a", "p", 1)))
	for i := 0; i < 99_999; i += 1111 {
		fields := make([]any, 0, 2222)
		for j := range 1111 {
			fields = append(fields, fmt.Sprint("x", i+j), "x")
		}
		must(t, look.HSet(ctx, "weir:{breakers}:words", fields...).Err())
	}
	if err := b.Publish(ctx, envoytest.Word("a", "new", 1)); err == nil || !strings.Contains(err.Error(), "too many words") {
		t.Errorf("one word too many: %v", err)
	}
	must(t, b.Publish(ctx, envoytest.Word("a", "p", 2)))
	envoytest.Listen(t, b, nil).Hears(t, envoytest.Word("a", "p", 2))
	envoytest.Eventually(t, 5*time.Second, "the rest is counted", func() bool { return b.Stats().Garbage >= 99_990 })
}

// On a cluster of three masters all keys are in one slot; when their master
// dies the bus is away and says so.
func TestOnCluster(t *testing.T) {
	t.Parallel()
	var servers []*envoytest.Redis
	var addrs []string
	var ports []string
	for range 3 {
		ports = append(ports, strconv.Itoa(envoytest.FreePort(t)))
		r := envoytest.StartRedis(t, "--cluster-enabled", "yes", "--cluster-port", ports[len(ports)-1], "--cluster-node-timeout", "2000")
		servers, addrs = append(servers, r), append(addrs, r.Addr)
	}
	for i, r := range servers {
		c := client(t, r.Addr)
		must(t, c.ClusterAddSlotsRange(ctx, i*16384/3, (i+1)*16384/3-1).Err())
		_, port, _ := net.SplitHostPort(servers[0].Addr)
		must(t, c.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", port, ports[0]).Err())
	}
	envoytest.Eventually(t, 15*time.Second, "the cluster is whole", func() bool {
		return !slices.ContainsFunc(servers, func(r *envoytest.Redis) bool {
			info := client(t, r.Addr).ClusterInfo(ctx).Val()
			return !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3")
		})
	})
	a, b := open(t, policy.Redis{Addresses: addrs}), open(t, policy.Redis{Addresses: addrs})
	e := envoytest.Listen(t, b, nil)
	for n := uint64(1); n <= 20; n++ {
		must(t, a.Publish(ctx, envoytest.Word("a", "p", n)))
		e.Hears(t, envoytest.Word("a", "p", n))
	}
	home := slices.IndexFunc(servers, func(r *envoytest.Redis) bool {
		return len(client(t, r.Addr).Keys(ctx, "*").Val()) == 3
	})
	if home < 0 {
		t.Fatal("the three keys are not in one place")
	}
	servers[home].Kill()
	envoytest.Eventually(t, 10*time.Second, "it is told", func() bool { return e.WasDown(false) })
}

// A sentinel promotes a replica: the bus follows by itself, and renewals bring
// back what the old master had not handed on.
func TestOnSentinel(t *testing.T) {
	t.Parallel()
	master := envoytest.StartRedis(t)
	_, port, _ := net.SplitHostPort(master.Addr)
	replica := envoytest.StartRedis(t, "--replicaof", "127.0.0.1", port)
	envoytest.Eventually(t, 10*time.Second, "the replica follows", func() bool {
		return strings.Contains(client(t, replica.Addr).Info(ctx, "replication").Val(), "master_link_status:up")
	})
	sentinel := startSentinel(t, port)
	envoytest.Eventually(t, 10*time.Second, "the sentinel knows the replica", func() bool {
		return strings.Contains(client(t, sentinel).Info(ctx, "sentinel").Val(), "slaves=1")
	})
	config := policy.Redis{Addresses: []string{sentinel}, Master: "weirs"}
	a, b := open(t, config), open(t, config)
	e := envoytest.Listen(t, b, nil)
	must(t, a.Publish(ctx, envoytest.Word("a", "p", 1)))
	e.Hears(t, envoytest.Word("a", "p", 1))
	master.Kill()
	envoytest.Eventually(t, 5*time.Second, "it is told", func() bool { return e.WasDown(false) })
	seq := uint64(1)
	envoytest.Eventually(t, 15*time.Second, "words go to the new master", func() bool {
		seq++
		return a.Publish(ctx, envoytest.Word("a", "p", seq)) == nil
	})
	e.Hears(t, envoytest.Word("a", "p", seq))
}

// startSentinel runs a sentinel that watches a master; it returns its address.
func startSentinel(t *testing.T, master string) string {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "sentinel.conf")
	must(t, os.WriteFile(conf, []byte("sentinel monitor weirs 127.0.0.1 "+master+" 1\n"+
		"sentinel down-after-milliseconds weirs 500\nsentinel failover-timeout weirs 2000\n"), 0o600))
	path := os.Getenv("REDIS_SERVER")
	if path == "" {
		path = "redis-server"
	}
	port := strconv.Itoa(envoytest.FreePort(t))
	cmd := exec.Command(path, conf, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--sentinel")
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	addr := "127.0.0.1:" + port
	envoytest.Eventually(t, 10*time.Second, "the sentinel answers", func() bool { return client(t, addr).Ping(ctx).Err() == nil })
	return addr
}

// Closing in the middle of things ends everything; nothing is told.
func TestCloseWhileAway(t *testing.T) {
	b := open(t, policy.Redis{Addresses: []string{"127.0.0.1:1"}})
	e := envoytest.Listen(t, b, nil)
	envoytest.Eventually(t, 5*time.Second, "it is told", func() bool { return e.WasDown(false) })
	must(t, b.Close())
	if err := b.Publish(ctx, envoytest.Word("a", "p", 1)); !errors.Is(err, breaker.ErrClosed) {
		t.Errorf("%v, want %v", err, breaker.ErrClosed)
	}
	envoytest.Eventually(t, 5*time.Second, "the listener has left", func() bool { return !b.Stats().Away })
	if e.WasDown(true) {
		t.Error("told of a return")
	}
}

// What the user may not do is named before a word is to be said, and the bus
// goes on once it is granted.
func TestMissingRights(t *testing.T) {
	server := envoytest.StartRedis(t)
	admin := client(t, server.Addr)
	must(t, admin.Do(ctx, "ACL", "SETUSER", "weir", "on", ">s3cret", "~weir:*", "&*", "+@all", "-xadd", "-zrem").Err())
	b := open(t, policy.Redis{Addresses: []string{server.Addr}, Username: "weir", Password: policy.NewSecret("", "s3cret")})
	e := envoytest.Listen(t, b, nil)
	envoytest.Eventually(t, 5*time.Second, "the rights are named", func() bool {
		return slices.ContainsFunc(e.Downs(), func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "+zrem +xadd")
		})
	})
	must(t, admin.Do(ctx, "ACL", "SETUSER", "weir", "+@all").Err())
	envoytest.Eventually(t, 10*time.Second, "the bus is back", func() bool { return e.WasDown(true) })
	must(t, b.Publish(ctx, envoytest.Word("a", "p", 1)))
	e.Hears(t, envoytest.Word("a", "p", 1))
}
