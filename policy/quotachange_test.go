package policy

import (
	"fmt"
	"strings"
	"testing"
)

// Every change of a rule says what becomes of its usage; what changes nothing
// says nothing.
func TestQuotaChanges(t *testing.T) {
	const was = "{name: r, match: {tenant: acme*}, by: [tenant], limits: [{tokens: 100, per: 5m}, {requests: 10, per: 1m}, {concurrency: 3}]}"
	edit := func(from, to string) string {
		if !strings.Contains(was, from) {
			t.Fatalf("%s is not in the rule", from)
		}
		return strings.Replace(was, from, to, 1)
	}
	for _, tt := range []struct {
		next string
		anew bool
		says string // "" = nothing
	}{
		{was, false, ""},
		{edit("tokens: 100", "tokens: 200"), false, ""},
		{edit("{concurrency: 3}", "{concurrency: 30}"), false, ""},
		{edit("name: r", "name: other, id: r"), false, ""},
		{edit("name: r", "name: r, id: r"), false, ""},
		{edit(", {concurrency: 3}", ""), false, ""},
		{edit("per: 5m", "per: 1h"), false, "100 tokens/1h takes over the usage of the last 5m, which is all that was counted"},
		{edit("per: 5m", "per: 2m"), false, "100 tokens/2m takes over the usage of the last 2m"},
		{edit("{tokens: 100, per: 5m}", "{tokens: 100, per: 5m}, {tokens: 20, per: 1m}"), false, "20 tokens/1m takes over"},
		{edit("tokens: 100", "inputTokens: 100"), true, "did not count inputTokens: 100 inputTokens/5m starts from nothing"},
		{edit("by: [tenant]", "by: [tenant, user]"), true, "its counters start from nothing"},
		{edit("by: [tenant]", "by: []"), true, "its counters start from nothing"},
		{edit("acme*", "a*"), true, "who it did not bind before starts from nothing"},
		{edit("name: r", "name: other"), true, "if it is r by another name, id: r keeps its usage"},
		{edit("name: r, match: {tenant: acme*}", "name: other, match: {tenant: b}"), true, "is new and starts from nothing"},
	} {
		text := func(rule string) string {
			return fmt.Sprintf("version: 1\nidentity: {from: metadata}\nmodels: [{name: m, pools: [p]}]\npools: [{name: p, variant: fp16, seats: {requests: 9}}]\n"+
				"quotas: [%s]\nprofiles: {edge: {quotas: [%s]}}\n", rule, rule)
		}
		changes := QuotaChanges(load(t, "w.yaml", text(was)), load(t, "w.yaml", text(tt.next)))
		if tt.says == "" {
			if len(changes) > 0 {
				t.Errorf("%s: %+v, want nothing", tt.next, changes)
			}
			continue
		}
		if len(changes) != 2 || !strings.Contains(changes[0].Says, tt.says) || changes[0].Anew != tt.anew {
			t.Errorf("%s: %+v, want %q for the base and the profile", tt.next, changes, tt.says)
		} else if changes[1].Says != changes[0].Says || !strings.HasPrefix(changes[1].Rule, "profile edge: ") {
			t.Errorf("%s: the profile says %+v", tt.next, changes[1])
		}
	}
}
