package quota_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// T7: match selects, by names the counter, every matching rule binds.
func TestClaims(t *testing.T) {
	batch := policy.Batch
	limits := []policy.Limit{{Unit: policy.Requests, Max: 10, Per: time.Minute}}
	rules := []policy.QuotaRule{
		{Name: "per-tenant", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"}, Limits: limits},
		{Name: "all", Limits: limits},
		{Name: "per-user", By: []string{"tenant", "user"}, Limits: limits},
		{Name: "model", Match: policy.Match{Model: "deepseek-*"}, By: []string{"model"}, Limits: limits},
		{Name: "batch", Match: policy.Match{Class: &batch}, By: []string{"class", "tenant"}, Limits: limits},
		{Name: "keys", Match: policy.Match{Key: "*"}, By: []string{"key"}, Limits: limits},
		{Name: "deep", By: []string{"function", "model", "class", "key", "user"}, Limits: limits},
	}
	s := policy.Subject{Tenant: "acme", User: "bob", Model: "deepseek-v4", Function: "chat", Class: policy.Standard}
	type where struct{ rule, slot, key string }
	var got []where
	for _, c := range quota.Claims(rules, s, quota.Amount{Requests: 3}) {
		if c.Amount.Requests != 3 || len(c.Limits) != 1 {
			t.Errorf("claim %+v", c)
		}
		got = append(got, where{c.Rule, c.Tenant, c.Key})
	}
	want := []where{
		{"per-tenant", "acme", "per-tenant"},
		{"all", quota.Shared, "all"},
		{"per-user", "acme", "per-user/bob"},
		{"model", quota.Shared, "model/deepseek-v4"},
		{"deep", quota.Shared, "deep/chat/deepseek-v4/standard//bob"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("claims\n got %v\nwant %v", got, want)
	}
	if c := quota.Claims(rules[:1], policy.Subject{}, quota.Amount{}); c != nil {
		t.Errorf("nothing matches: %v, want nil", c)
	}
}

// No value of one field can spell another counter's key.
func TestKeysAreInjective(t *testing.T) {
	rules := []policy.QuotaRule{{Name: "r", By: []string{"user", "key"}, Limits: []policy.Limit{{Max: 1}}}}
	seen := map[string]policy.Subject{}
	parts := []string{"", "a", "b", "/", "a/", "/a", "a/b", "~", "\n", "a\x00", strings.Repeat("a", 64), strings.Repeat("a", 65), "日"}
	for _, user := range parts {
		for _, key := range parts {
			s := policy.Subject{User: user, Key: key}
			k := quota.Claims(rules, s, quota.Amount{})[0].Key
			if other, ok := seen[k]; ok {
				t.Errorf("%+v and %+v share the key %q", s, other, k)
			}
			seen[k] = s
		}
	}
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "acme", "~x", "a b", "\xff", "!", "{a}", strings.Repeat("x", 65)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := quota.Encode(s)
		if strings.ContainsAny(e, "{}*?[]/:\n\r \x00!") || len(e) > 64 {
			t.Errorf("Encode(%q) = %q", s, e)
		}
		if e != s && !strings.HasPrefix(e, "~") || e == s && strings.HasPrefix(s, "~") {
			t.Errorf("Encode(%q) = %q may be another text's code", s, e)
		}
	})
}

func TestAmount(t *testing.T) {
	a := quota.Amount{Requests: 1, Input: 2, Output: 3, Concurrency: 7}
	big := quota.Amount{Input: 1 << 62, Output: 1 << 62, Requests: -1}
	for _, tt := range []struct {
		a    quota.Amount
		unit policy.Unit
		want int64
	}{
		{a, policy.Requests, 1}, {a, policy.Tokens, 5}, {a, policy.InputTokens, 2},
		{a, policy.OutputTokens, 3}, {a, policy.Concurrency, 1}, {a, 99, 0},
		{big, policy.Tokens, quota.MaxCount}, {big, policy.Requests, 0}, {quota.Amount{}, policy.Tokens, 0},
	} {
		if got := tt.a.Of(tt.unit); got != tt.want {
			t.Errorf("%+v.Of(%d) = %d, want %d", tt.a, tt.unit, got, tt.want)
		}
	}
}

// With several refusals the verdict names the one that no wait helps, else
// the longest wait, else concurrency.
func TestTally(t *testing.T) {
	limit := func(u policy.Unit, max int64) policy.Limit { return policy.Limit{Unit: u, Max: max, Per: time.Minute} }
	fits := func(t *quota.Tally) { t.Fit("fits", limit(policy.Tokens, 100), 10, 20) }
	short := func(t *quota.Tally) { t.Refuse("short", limit(policy.Tokens, 100), 10, 95, time.Second) }
	long := func(t *quota.Tally) { t.Refuse("long", limit(policy.Tokens, 100), 10, 95, time.Minute) }
	live := func(t *quota.Tally) { t.Refuse("live", limit(policy.Concurrency, 1), 1, 1, 0) }
	never := func(t *quota.Tally) { t.Refuse("never", limit(policy.Tokens, 5), 10, 0, time.Hour) }
	for _, tt := range []struct {
		notes []func(*quota.Tally)
		rule  string
		wait  time.Duration
	}{
		{nil, "", 0},
		{[]func(*quota.Tally){fits}, "fits", 0},
		{[]func(*quota.Tally){fits, live, fits}, "live", 0},
		{[]func(*quota.Tally){live, short}, "short", time.Second},
		{[]func(*quota.Tally){long, live, short}, "long", time.Minute},
		{[]func(*quota.Tally){long, never, short}, "never", 0},
		{[]func(*quota.Tally){never, long}, "never", 0},
	} {
		var tally quota.Tally
		for _, n := range tt.notes {
			n(&tally)
		}
		v := tally.Verdict()
		refused := tt.rule != "" && tt.rule != "fits"
		if v.Rule != tt.rule || v.RetryAfter != tt.wait || v.Allowed == refused || v.Never != (tt.rule == "never") {
			t.Errorf("%s: %+v", tt.rule, v)
		}
	}
}

func BenchmarkClaims(b *testing.B) {
	rules := []policy.QuotaRule{
		{Name: "per-tenant", Match: policy.Match{Tenant: "*"}, By: []string{"tenant"}},
		{Name: "per-user", By: []string{"tenant", "user"}},
	}
	s := policy.Subject{Tenant: "acme", User: "bob"}
	b.ReportAllocs()
	for b.Loop() {
		quota.Claims(rules, s, quota.Amount{Requests: 1})
	}
}
