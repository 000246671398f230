package redisclient_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/internal/envoytest"
	"github.com/weirproxy/weir/internal/redisclient"
	"github.com/weirproxy/weir/policy"
)

// What a real Redis answers passes: errors in the middle of a pipeline, scripts
// that it has forgotten, transactions, the widest and deepest replies there are,
// and channels beside them.
func TestRealRepliesPass(t *testing.T) {
	config, err := redisclient.Defaults(policy.Redis{Addresses: []string{envoytest.StartRedis(t).Addr}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c, err := redisclient.Dial(config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sub := c.Subscribe(ctx, "a", "b")
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	script := redis.NewScript("return {1, {2, {3, {4, redis.call('GET', KEYS[1])}}}}")
	for round := range 3 {
		if err := script.Run(ctx, c, []string{"k"}).Err(); err != nil {
			t.Fatal(err)
		}
		if err := c.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		var inside []*redis.Cmd
		_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "k", strings.Repeat("x", 70_000), 0)
			inside = append(inside, script.EvalSha(ctx, p, []string{"k"}), p.Do(ctx, "NOSUCH", "", "a"), p.Do(ctx, "HGET", "k", "f"), p.Do(ctx, "GET", "k"))
			return nil
		})
		for i, want := range []string{"NOSCRIPT", "ERR unknown command", "WRONGTYPE", ""} {
			if err := inside[i].Err(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("round %d: %d in the pipeline: %v, want %q", round, i, err, want)
			}
		}
		if _, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Incr(ctx, "n")
			p.PTTL(ctx, "n")
			return nil
		}); err != nil {
			t.Errorf("a transaction: %v", err)
		}
		for _, args := range [][]any{{"COMMAND"}, {"INFO", "everything"}, {"CONFIG", "GET", "*"}, {"PTTL", "none"}, {"CLIENT", "LIST"}, {"MEMORY", "STATS"}} {
			if err := c.Do(ctx, args...).Err(); err != nil {
				t.Errorf("%v: %.200v", args, err)
			}
		}
		if err := c.Publish(ctx, "b", "hello").Err(); err != nil {
			t.Fatal(err)
		}
		if m, err := sub.ReceiveMessage(ctx); err != nil || m.Payload != "hello" {
			t.Fatalf("%v, %v", m, err)
		}
		if err := sub.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		if err := sub.Unsubscribe(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if err := sub.Subscribe(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
}
