package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota/redisstore"
)

// J: a tenant's slot moves from one node of a cluster to another under load,
// key by key, back and forth: calls go on, and every one is charged once.
func TestSlotMovesUnderLoad(t *testing.T) {
	servers, addrs := startCluster(t)
	s := open(t, policy.Redis{Addresses: addrs, Timeout: 500 * time.Millisecond, RetryAfterOutage: 20 * time.Millisecond}, redisstore.Options{})
	l := startLoad(t, s, "acme", tokens(1e9, time.Hour), policy.Limit{Unit: policy.Concurrency, Max: 1000})
	l.after(t, 50)
	var ids [3]string
	var nodes [3]*redis.Client
	for i, r := range servers {
		nodes[i] = r.client(t)
		ids[i] = nodes[i].Do(ctx, "CLUSTER", "MYID").Val().(string)
	}
	slot := int(nodes[0].ClusterKeySlot(ctx, "weir:{acme}:i:").Val())
	from := slot * 3 / 16384
	for range 3 {
		to := (from + 1) % 3
		moveSlot(t, l, slot, nodes, ids, from, to, port(addrs[to]))
		l.after(t, 50)
		from = to
	}
	l.end()
	awaitReturn(t, s)
	if got := used(t, s, "acme"); got != l.charged.Load() {
		t.Errorf("Redis counts %d, want %d, over %d outages", got, l.charged.Load(), s.Stats().Outages)
	}
	if n := units(t, s, "acme"); n != 0 {
		t.Errorf("%d units count, want none", n)
	}
	if st := s.Stats(); st.Dropped != 0 || st.Lost != 0 {
		t.Errorf("%+v, want nothing dropped and nothing lost", st)
	}
	checkLifetimes(t, nodes[from])
}

// moveSlot moves a slot's keys one by one, with calls in between.
func moveSlot(t *testing.T, l *load, slot int, nodes [3]*redis.Client, ids [3]string, from, to int, toPort string) {
	t.Helper()
	must(t, nodes[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]).Err())
	must(t, nodes[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]).Err())
	l.after(t, 30)
	for moved := 0; ; moved++ {
		keys := nodes[from].ClusterGetKeysInSlot(ctx, slot, 8).Val()
		if len(keys) == 0 {
			break
		}
		for _, key := range keys {
			must(t, nodes[from].Do(ctx, "MIGRATE", "127.0.0.1", toPort, key, 0, 5000).Err())
		}
		if moved < 3 {
			l.after(t, 10)
		}
	}
	for _, n := range []int{to, from, 3 - to - from} {
		must(t, nodes[n].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err())
	}
}
