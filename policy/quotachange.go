package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// QuotaChange is what a new policy means for usage that was counted before.
type QuotaChange struct {
	Rule string // of the new policy, with its profile
	Says string
	Anew bool // some counter starts from nothing
}

// QuotaRuleSets are the rules of the base, under "", and of each profile.
func (p *Policy) QuotaRuleSets() map[string][]QuotaRule {
	sets := map[string][]QuotaRule{"": p.Quotas}
	for name, profile := range p.profiles {
		sets[name] = profile.Quotas
	}
	return sets
}

// QuotaChanges says for each rule that is not as it was what becomes of its
// usage: nobody gets a fresh budget without a word. Usage stays with a rule's
// id and with what names its counters; that of a limit whose per changed moves.
func QuotaChanges(old, next *Policy) []QuotaChange {
	var out []QuotaChange
	was := old.QuotaRuleSets()
	for _, profile := range append([]string{""}, next.ProfileNames()...) {
		before, known := was[profile]
		if !known {
			before = old.Quotas // what its routes were counted by, if any
		}
		rules := next.QuotaRuleSets()[profile]
		for i := range rules {
			c := quotaChange(before, rules, &rules[i])
			if c.Says == "" {
				continue
			}
			if c.Rule = rules[i].Name; profile != "" {
				c.Rule = "profile " + profile + ": " + c.Rule
			}
			out = append(out, c)
		}
	}
	return out
}

func findRule(rules []QuotaRule, id string) *QuotaRule {
	i := slices.IndexFunc(rules, func(q QuotaRule) bool { return q.CountedAs() == id })
	if i < 0 {
		return nil
	}
	return &rules[i]
}

func quotaChange(before, rules []QuotaRule, q *QuotaRule) QuotaChange {
	old := findRule(before, q.CountedAs())
	if old == nil {
		return newRule(before, rules, q)
	}
	if a, b := counterNames(old.By), counterNames(q.By); a != b {
		return QuotaChange{Says: fmt.Sprintf("is counted %s, before %s: its counters start from nothing", describeBy(q.By), describeBy(old.By)), Anew: true}
	}
	var c QuotaChange
	var says []string
	if a, b := describeMatch(&old.Match), describeMatch(&q.Match); a != b {
		says = append(says, fmt.Sprintf("is for %s, before for %s: who it did not bind before starts from nothing", b, a))
		c.Anew = true
	}
	for _, l := range q.Limits {
		if slices.ContainsFunc(old.Limits, func(o Limit) bool { return o.Unit == l.Unit && o.Per == l.Per }) {
			continue
		}
		if longest := longestPer(old.Limits, l.Unit); l.Unit == Concurrency || longest == 0 {
			says = append(says, fmt.Sprintf("did not count %s: %s starts from nothing", l.Unit, l))
			c.Anew = true
		} else if longest < l.Per {
			says = append(says, fmt.Sprintf("%s takes over the usage of the last %s, which is all that was counted", l, formatDuration(longest)))
		} else {
			says = append(says, fmt.Sprintf("%s takes over the usage of the last %s", l, formatDuration(l.Per)))
		}
	}
	c.Says = strings.Join(says, "; ")
	return c
}

// newRule is for a rule that was not counted before; one that looks like a rule
// that is gone has probably been renamed.
func newRule(before, rules []QuotaRule, q *QuotaRule) QuotaChange {
	for i := range before {
		o := &before[i]
		if findRule(rules, o.CountedAs()) == nil && describeMatch(&o.Match) == describeMatch(&q.Match) && counterNames(o.By) == counterNames(q.By) {
			return QuotaChange{Says: fmt.Sprintf("is new and starts from nothing; if it is %s by another name, id: %s keeps its usage", o.Name, o.CountedAs()), Anew: true}
		}
	}
	return QuotaChange{Says: "is new and starts from nothing", Anew: true}
}

// counterNames is what by comes to: the tenant says where a counter lies, the
// others name it in their order.
func counterNames(by []string) string {
	tenant, rest := "", ""
	for _, b := range by {
		if b == "tenant" {
			tenant = "tenant/"
		} else {
			rest += "/" + b
		}
	}
	return tenant + rest
}

func longestPer(limits []Limit, u Unit) (longest time.Duration) {
	for _, l := range limits {
		if l.Unit == u {
			longest = max(longest, l.Per)
		}
	}
	return longest
}
