package quota

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/weirproxy/weir/policy"
)

// Shared is the slot of counters that do not belong to one tenant: rules
// whose "by" does not name the tenant. No tenant has this name.
const Shared = ""

// plainMax is the longest value that Encode leaves as it is.
const plainMax = 64

// Claims says what a request asks of every rule that matches it (T7), in the
// rules' order; nil when no rule does. The claims share the rules' limits,
// which must not change while the claims live.
//
// A rule counted by tenant lives in that tenant's slot, any other in the slot
// Shared. The key inside the slot is the rule's id and the values of its
// other "by" fields, each encoded, so that no text a caller chooses can name
// another counter. A field the subject lacks counts as the value "".
func Claims(rules []policy.QuotaRule, s policy.Subject, a Amount) []Claim {
	n := 0
	for i := range rules {
		if rules[i].Match.Matches(&s) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	claims := make([]Claim, 0, n)
	for i := range rules {
		r := &rules[i]
		if !r.Match.Matches(&s) {
			continue
		}
		slot, key := counter(r, &s)
		claims = append(claims, Claim{Rule: r.Name, Tenant: slot, Key: key, Limits: r.Limits, Amount: a})
	}
	return claims
}

// Early gives the claims of those rules that can be told before the model is
// known: all of them where the subject names one.
func Early(rules []policy.QuotaRule, s policy.Subject, a Amount) []Claim {
	if s.Model != "" || !slices.ContainsFunc(rules, byModel) {
		return Claims(rules, s, a)
	}
	early := make([]policy.QuotaRule, 0, len(rules))
	for i := range rules {
		if !byModel(rules[i]) {
			early = append(early, rules[i])
		}
	}
	return Claims(early, s, a)
}

func byModel(r policy.QuotaRule) bool {
	return r.Match.Model != "" || slices.Contains(r.By, "model")
}

// counter names a rule's counter for a subject.
func counter(r *policy.QuotaRule, s *policy.Subject) (slot, key string) {
	slot, key = Shared, Encode(r.CountedAs())
	for _, by := range r.By {
		value := ""
		switch by {
		case "tenant":
			slot = s.Tenant
			continue
		case "key":
			value = s.Key
		case "user":
			value = s.User
		case "model":
			value = s.Model
		case "function":
			value = s.Function
		case "class":
			value = s.Class.String()
		}
		key += "/" + Encode(value)
	}
	return slot, key
}

// Encode makes any text harmless as a part of a key. Up to 64 letters,
// digits, '.', '_' and '-' stay as they are; everything else becomes '~' and
// 160 bits of its SHA-256. Different texts have different codes. The text ""
// is "", which no other text becomes.
func Encode(text string) string {
	if plain(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "~" + base64.RawURLEncoding.EncodeToString(sum[:20])
}

func plain(text string) bool {
	if len(text) > plainMax {
		return false
	}
	return strings.IndexFunc(text, func(r rune) bool {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return false
		}
		return r != '.' && r != '_' && r != '-'
	}) < 0
}
