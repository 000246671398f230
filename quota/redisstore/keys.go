package redisstore

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// sharedTag is the hash tag of quota.Shared; no encoded tenant is "!".
const sharedTag = "!"

// group is what one script call is about: the claims in one slot.
type group struct {
	tag      string
	limits   []limit
	counters []counter
}

// limit is one limit of one claim and the counter that it bounds.
type limit struct {
	claim   *quota.Claim
	limit   policy.Limit
	counter int // index into group.counters
}

// counter is one key.
type counter struct {
	key    string
	member string // in the slot's index: what Usage has to know
	period int64  // ms; 0 = concurrency
	max    int64  // the least of the limits on it
	amount int64
	unit   policy.Unit
}

// groups sorts claims by slot: quota.Shared first, which has the empty name.
func (s *Store) groups(claims []quota.Claim) []group {
	var out []group
	for i := range claims {
		c := &claims[i]
		if len(c.Limits) == 0 {
			continue
		}
		tag := tagOf(c.Tenant)
		at := slices.IndexFunc(out, func(g group) bool { return g.tag == tag })
		if at < 0 {
			at = len(out)
			out = append(out, group{tag: tag})
		}
		s.add(&out[at], c)
	}
	slices.SortFunc(out, func(a, b group) int {
		return cmp.Or(-cmp.Compare(b2i(a.tag == sharedTag), b2i(b.tag == sharedTag)), cmp.Compare(a.tag, b.tag))
	})
	return out
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// add notes a claim's limits; two limits on one counter charge it once.
func (s *Store) add(g *group, c *quota.Claim) {
	for _, l := range c.Limits {
		n := counter{max: quota.Count(l.Max), amount: c.Amount.Of(l.Unit), unit: l.Unit}
		if l.Unit != policy.Concurrency {
			n.period = quota.Period(l.Per)
		}
		n.key = s.counterKey(g.tag, l.Unit, n.period, c.Key)
		at := slices.IndexFunc(g.counters, func(o counter) bool { return o.key == n.key })
		if at < 0 {
			at = len(g.counters)
			n.member = member(c, l)
			g.counters = append(g.counters, n)
		}
		g.counters[at].max = min(g.counters[at].max, n.max)
		g.limits = append(g.limits, limit{c, l, at})
	}
}

func claimsOf(groups []group) (out []quota.Claim) {
	for _, g := range groups {
		for _, l := range g.limits {
			if !slices.ContainsFunc(out, func(c quota.Claim) bool { return c.Tenant == l.claim.Tenant && c.Key == l.claim.Key }) {
				out = append(out, *l.claim)
			}
		}
	}
	return out
}

func tagOf(tenant string) string {
	if tenant == quota.Shared {
		return sharedTag
	}
	return quota.Encode(tenant)
}

func (s *Store) key(tag, kind, rest string) string {
	return s.prefix + ":{" + tag + "}:" + kind + ":" + rest
}

func (s *Store) recordKey(tag, id string) string { return s.key(tag, "r", id) }
func (s *Store) indexKey(tag string) string      { return s.key(tag, "i", "") }
func (s *Store) logKey(tag string) string        { return s.key(tag, "l", "") }

func (s *Store) counterKey(tag string, u policy.Unit, period int64, key string) string {
	return s.key(tag, "c", strconv.Itoa(int(u))+":"+strconv.FormatInt(period, 10)+":"+key)
}

// member describes a counter in its slot's index:
// unit:per:max:length of rule:rule key.
func member(c *quota.Claim, l policy.Limit) string {
	return strconv.Itoa(int(l.Unit)) + ":" + strconv.FormatInt(int64(l.Per), 10) + ":" +
		strconv.FormatInt(l.Max, 10) + ":" + strconv.Itoa(len(c.Rule)) + ":" + c.Rule + c.Key
}

// parseMember reads what member wrote.
func parseMember(text string) (c quota.Counter, ok bool) {
	part := strings.SplitN(text, ":", 5)
	if len(part) != 5 {
		return c, false
	}
	var n [4]int64
	for i := range n {
		v, err := strconv.ParseInt(part[i], 10, 64)
		if err != nil {
			return c, false
		}
		n[i] = v
	}
	rest := part[4]
	if n[0] < 0 || n[0] > int64(policy.Concurrency) || n[3] < 0 || n[3] > int64(len(rest)) {
		return c, false
	}
	c.Limit = policy.Limit{Unit: policy.Unit(n[0]), Per: durationOf(n[1]), Max: n[2]}
	c.Rule, c.Key = rest[:n[3]], rest[n[3]:]
	return c, true
}
