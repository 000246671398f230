package redisstore_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/redisstore"
)

// step is one script run; it may be cut.
type step func(s *redisstore.Store) error

func cutClaim(n int64) []quota.Claim {
	c := claim("acme", n, tokens(1000, time.Minute), policy.Limit{Unit: policy.Requests, Max: 100, Per: time.Hour},
		policy.Limit{Unit: policy.Concurrency, Max: 10})
	other := c[0]
	other.Rule, other.Key, other.Limits = "other", "other", c[0].Limits[:1]
	return append(c, other)
}

func takes(mode string, at time.Duration, id string, n int64) step {
	return func(s *redisstore.Store) error { return s.ReserveOnly(ctx, mode, cutStart.Add(at), id, cutClaim(n)) }
}

func ends(mode string, at time.Duration, id string, n int64) step {
	return func(s *redisstore.Store) error {
		return s.SettleOnly(ctx, mode, cutStart.Add(at), id, cutClaim(100), quota.Amount{Requests: 1, Output: n})
	}
}

// moved is what the limits of cutClaim were counted over before.
func moved(at time.Duration) step {
	return func(s *redisstore.Store) error {
		return s.CarryOnly(ctx, cutStart.Add(at), cutClaim(1)[:1], []int64{30_000, 600_000})
	}
}

// takesOver counts by a period of old.
func takesOver(per, at time.Duration, id string, n int64) step {
	return func(s *redisstore.Store) error {
		c := cutClaim(n)[:1]
		c[0].Limits = []policy.Limit{tokens(1000, per), {Unit: policy.Requests, Max: 100, Per: per}}
		return s.ReserveOnly(ctx, redisstore.Take, cutStart.Add(at), id, c)
	}
}

// heirClaim is the first of cutClaim's by a policy of another period.
func heirClaim() []quota.Claim {
	c := cutClaim(1)[:1]
	c[0].Limits = []policy.Limit{tokens(1000, 10*time.Minute)}
	return c
}

func inherited(at time.Duration) step {
	return func(s *redisstore.Store) error {
		return s.CarryOnly(ctx, cutStart.Add(at), heirClaim(), []int64{60_000})
	}
}

// endsInherited ends a request whose usage has gone to heirClaim.
func endsInherited(at time.Duration, id string, n int64) step {
	return func(s *redisstore.Store) error {
		rule := func(per time.Duration) *policy.Policy {
			p := policy.Default()
			p.Quotas = []policy.QuotaRule{{Name: "rule", By: []string{"tenant"}, Limits: []policy.Limit{tokens(1000, per)}}}
			return p.Finish()
		}
		s.Move(quota.Moves{}.MovesOf(rule(time.Minute), rule(10*time.Minute)))
		defer s.Move(quota.Moves{})
		return ends(redisstore.End, at, id, n)(s)
	}
}

var cutStart = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

// cutCases are the scripts in every state of their keys that makes them write
// otherwise: before are run whole, cut is cut after each of its commands,
// between are run by others before cut is run again.
var cutCases = []struct {
	name    string
	before  []step
	cut     step
	between []step
}{
	{name: "first of its tenant", cut: takes(redisstore.Take, 0, "a", 100)},
	{name: "beside another", before: []step{takes(redisstore.Take, 0, "b", 50)}, cut: takes(redisstore.Take, time.Second, "a", 100)},
	{
		name:   "cells that left",
		before: []step{takes(redisstore.Take, 0, "b", 50), ends(redisstore.End, 0, "b", 50)},
		cut:    takes(redisstore.Take, 3*time.Minute, "a", 100),
	},
	{
		name:   "a clock that was ahead",
		before: []step{takes(redisstore.Take, 24*time.Hour, "b", 50)},
		cut:    takes(redisstore.Take, 0, "a", 100),
	},
	{name: "without asking", before: []step{takes(redisstore.Take, 0, "b", 50)}, cut: takes(redisstore.Force, time.Second, "a", 100)},
	{name: "known already", before: []step{takes(redisstore.Take, 0, "a", 100)}, cut: takes(redisstore.Force, time.Second, "a", 100)},
	{
		name: "others go on meanwhile", cut: takes(redisstore.Take, 0, "a", 100),
		between: []step{takes(redisstore.Take, 0, "b", 50), ends(redisstore.End, 0, "b", 20), takes(redisstore.Take, 0, "c", 70)},
	},
	{name: "refund", before: []step{takes(redisstore.Take, 0, "a", 100)}, cut: ends(redisstore.End, time.Second, "a", 30)},
	{name: "all back", before: []step{takes(redisstore.Take, 0, "a", 100)}, cut: ends(redisstore.End, time.Second, "a", 0)},
	{name: "debt", before: []step{takes(redisstore.Take, 0, "a", 100)}, cut: ends(redisstore.End, 20*time.Second, "a", 700)},
	{name: "debt after the window", before: []step{takes(redisstore.Take, 0, "a", 100)}, cut: ends(redisstore.End, 5*time.Minute, "a", 700)},
	{
		name: "refund while others go on", before: []step{takes(redisstore.Take, 0, "a", 100)}, cut: ends(redisstore.End, time.Second, "a", 30),
		between: []step{takes(redisstore.Take, time.Second, "b", 50), ends(redisstore.End, 2*time.Second, "b", 200), takes(redisstore.Check, 3*time.Second, "c", 70)},
	},
	{name: "undone", before: []step{takes(redisstore.Take, 0, "b", 50), takes(redisstore.Take, 0, "a", 100)}, cut: ends(redisstore.Undo, 0, "a", 0)},
	{name: "nothing to take over", cut: moved(0)},
	{
		name:   "taken over from a longer period",
		before: []step{takesOver(10*time.Minute, 0, "b", 50), takesOver(10*time.Minute, 40*time.Second, "c", 70)},
		cut:    moved(time.Minute),
	},
	{
		name:   "taken over, and others go on",
		before: []step{takesOver(30*time.Second, 0, "b", 50), takesOver(30*time.Second, 10*time.Second, "c", 70)},
		cut:    moved(20 * time.Second),
		between: []step{
			moved(20 * time.Second), // another replica asks for it too
			takes(redisstore.Take, 20*time.Second, "d", 50), ends(redisstore.End, 21*time.Second, "d", 20),
			takesOver(30*time.Second, 21*time.Second, "e", 10),
		},
	},
	{
		name:   "debt of what was taken over",
		before: []step{takes(redisstore.Take, 0, "a", 100), inherited(time.Second)},
		cut:    endsInherited(2*time.Second, "a", 700),
	},
	{
		name: "debt of what is yet to be taken over", before: []step{takes(redisstore.Take, 0, "a", 100)},
		cut: endsInherited(2*time.Second, "a", 700), between: []step{inherited(3 * time.Second)},
	},
	{
		name: "undone, beside others", before: []step{takes(redisstore.Take, 0, "a", 100)}, cut: ends(redisstore.Undo, 0, "a", 0),
		between: []step{takes(redisstore.Take, 0, "b", 50)},
	},
}

// J: a script that is cut after any of its commands, and run again, leaves
// what it leaves when it is not cut; also where the second run is cut as well,
// and where others come in between.
func TestScriptsCutAnywhere(t *testing.T) {
	r := startRedis(t)
	admin := r.client(t)
	config := policy.Redis{Addresses: []string{r.addr}, Timeout: 30 * time.Second}
	whole := open(t, config, redisstore.Options{})
	stores := map[int]*redisstore.Store{} // by the command after which they are cut
	cutAt := func(t *testing.T, after int, s step) (done bool) {
		if stores[after] == nil {
			store, err := redisstore.NewCut(config, after)
			must(t, err)
			stores[after] = store
		}
		err := s(stores[after])
		if err != nil && !strings.Contains(err.Error(), "cut") {
			t.Fatal(err)
		}
		return err == nil
	}
	defer func() {
		for _, s := range stores {
			s.Close()
		}
	}()
	for _, c := range cutCases {
		t.Run(c.name, func(t *testing.T) {
			must(t, admin.FlushAll(ctx).Err())
			run(t, whole, c.before...)
			must(t, c.cut(whole))
			run(t, whole, c.between...)
			want := picture(t, admin)
			for first := 0; ; first++ {
				again := 0
				for done := false; !done; again++ {
					must(t, admin.FlushAll(ctx).Err())
					run(t, whole, c.before...)
					if cutAt(t, first, c.cut) {
						if again == 0 {
							t.Logf("%d commands", first)
						}
						return
					}
					done = cutAt(t, again, c.cut)
					run(t, whole, c.between...)
					must(t, c.cut(whole))
					if got := picture(t, admin); got != want {
						t.Fatalf("cut after %d commands, then after %d:\n%s\nwant\n%s", first, again, got, want)
					}
				}
				if again < 2 {
					t.Fatal("the second run was not cut at all")
				}
			}
		})
	}
}

func run(t *testing.T, s *redisstore.Store, steps ...step) {
	t.Helper()
	for _, do := range steps {
		must(t, do(s))
	}
}

// picture is all that is stored, but probes. Every key has a lifetime.
func picture(t *testing.T, c *redis.Client) string {
	t.Helper()
	checkLifetimes(t, c)
	var out strings.Builder
	keys := c.Keys(ctx, "*").Val()
	for _, k := range sorted(keys) {
		if strings.HasSuffix(k, ":p:") {
			continue
		}
		var v any
		switch kind := c.Type(ctx, k).Val(); kind {
		case "hash":
			v = c.HGetAll(ctx, k).Val()
		case "zset":
			v = c.ZRangeWithScores(ctx, k, 0, -1).Val()
		default: // a record; what was answered depends on who came first
			var record []string
			must(t, json.Unmarshal([]byte(c.Get(ctx, k).Val()), &record))
			v = slices.Delete(record, 2, 3)
		}
		fmt.Fprintln(&out, k, v)
	}
	return out.String()
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
