package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// check judges the policy as a whole: what names what, and which rules can
// never come to anything. A rule looks only at sections that could be read, so
// that one mistake is not reported as many. Profiles are judged as full
// policies, where the base passes.
func (d *decoder) check(p *Policy) {
	judge := func(p *Policy, prefix string, run func(*Policy, string), sections ...string) bool {
		if d.broken(sections) {
			return false
		}
		before := len(d.errs)
		run(p, prefix)
		return len(d.errs) == before
	}
	whole := func(run func(*Policy)) func(*Policy, string) { return func(p *Policy, _ string) { run(p) } }
	judge(p, "", whole(d.checkServer), "server", "queue")
	judge(p, "", whole(d.checkSeats), "server", "queue", "pools")
	judge(p, "", whole(d.checkIdentity), "identity")
	judge(p, "", whole(d.checkAPIs), "apis", "models")
	judge(p, "", whole(d.checkPools), "pools", "models")
	judge(p, "", whole(d.checkTelemetry), "pools", "engines")
	judge(p, "", whole(d.checkModels), "models", "pools")
	judge(p, "", whole(d.checkCascade), "breaker", "store")
	judge(p, "", whole(d.checkClusters), "envoy", "pools")
	judge(p, "", whole(d.checkSubsets), "envoy", "pools")
	judge(p, "", whole(d.checkWatch), "envoy")
	judge(p, "", whole(d.checkProtection), "envoy", "pools", "queue")
	judge(p, "", whole(d.checkXDS), "envoy", "pools", "queue", "server")
	judge(p, "", whole(d.checkTiers), "tiers")
	judge(p, "", whole(d.checkTenants), "tenants", "tiers", "models")
	for _, rule := range []struct {
		run   func(*Policy, string)
		reads []string
	}{
		{d.checkQuotas, []string{"quotas", "identity", "apis", "models", "tiers", "tenants"}},
		{d.checkHolds, []string{"envoy", "classes", "queue", "nonStreaming"}},
		{d.checkVariants, []string{"classes", "models", "pools", "variants"}},
	} {
		if !judge(p, "", rule.run, rule.reads...) {
			continue
		}
		for _, name := range p.ProfileNames() {
			judge(p.profiles[name], join("profiles", name)+".", rule.run, "profiles")
		}
	}
}

// broken reports whether some value of these sections could not be read.
func (d *decoder) broken(sections []string) bool {
	return slices.ContainsFunc(sections, func(s string) bool { return d.unread[s] })
}

// noteUnread remembers the sections with violations so far.
func (d *decoder) noteUnread() {
	d.unread = make(map[string]bool)
	for _, v := range d.errs {
		section := v.Field
		if i := strings.IndexAny(section, ".["); i >= 0 {
			section = section[:i]
		}
		d.unread[section] = true
	}
}

func (d *decoder) checkServer(p *Policy) {
	s := &p.Server
	if !isLoopback(s.Admin) && s.AdminToken.File == "" {
		d.failAt("server.admin", s.Admin, "is reachable from outside: use a loopback address or a socket, or set server.adminToken")
	}
	d.checkClients(s)
	if s.Admin == s.GRPC {
		d.failAt("server.admin", s.Admin, "must differ from server.grpc")
	}
	if p.Queue.MaxHeldBytes < s.MaxBody {
		d.failAt("queue.maxHeldBytes", formatBytes(p.Queue.MaxHeldBytes), "must hold one body at least: server.maxBody is "+formatBytes(s.MaxBody))
	}
}

func (d *decoder) checkIdentity(p *Policy) {
	i := &p.Identity
	if i.From == FromMetadata {
		if len(i.Issuers) > 0 {
			d.failAt("identity.issuers", "", "is not used with from: metadata, where another filter verifies")
		}
		return
	}
	if len(i.Issuers) == 0 {
		d.failAt("identity.issuers", "", "is missing: without an issuer no token is accepted (or say from: metadata)")
	}
	for n := range i.Issuers {
		for m := range n {
			a, b := &i.Issuers[m], &i.Issuers[n]
			if a.Issuer == b.Issuer {
				d.failAt(index2("identity.issuers", n, "issuer"), b.Issuer, fmt.Sprintf("is listed twice, first as identity.issuers[%d]", m))
			}
		}
	}
}

func index2(list string, i int, key string) string {
	return list + "[" + strconv.Itoa(i) + "]." + key
}

func (d *decoder) checkAPIs(p *Policy) {
	templates := make([]template, len(p.APIs))
	for i := range p.APIs {
		a := &p.APIs[i]
		t, err := parseTemplate(a.Path)
		if err != nil {
			continue // reported
		}
		templates[i] = t
		for j := range i {
			if p.APIs[j].Method == a.Method && templates[j] != nil && templates[j].compare(t) == 0 {
				d.failAt(index2("apis", i, "path"), a.Path, fmt.Sprintf("can never be reached: apis[%d] has the same method and shape", j))
				break
			}
		}
		if a.Model != "" && !hasModel(p, a.Model) {
			d.failAt(index2("apis", i, "model"), a.Model, listOf("no such model; the models are", modelNames(p.Models), "there are no models"))
		}
	}
}

func hasModel(p *Policy, name string) bool {
	return slices.ContainsFunc(p.Models, func(m Model) bool { return m.Name == name })
}

func (d *decoder) checkPools(p *Policy) {
	used := make(map[string]bool)
	for _, m := range p.Models {
		for _, name := range m.Pools {
			used[name] = true
		}
	}
	seen := make(map[string]int)
	clusters := make(map[string]int)
	for i := range p.Pools {
		pool := &p.Pools[i]
		if j, twice := seen[pool.Name]; twice {
			d.failAt(index2("pools", i, "name"), pool.Name, fmt.Sprintf("is the name of pools[%d] too", j))
			continue
		}
		seen[pool.Name] = i
		if !used[pool.Name] {
			d.failAt(index2("pools", i, "name"), pool.Name, "no model uses this pool")
		}
		target := pool.Cluster + "\x00" + subsetKey(pool.Subset)
		if j, twice := clusters[target]; twice {
			d.failAt(index2("pools", i, "envoy"), pool.Cluster, fmt.Sprintf("is the same cluster and subset as pools[%d]: their seats would be given out twice", j))
		}
		clusters[target] = i
	}
}

func subsetKey(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%q=%q,", k, m[k])
	}
	return b.String()
}

func (d *decoder) checkModels(p *Policy) {
	owner := make(map[string]int) // of a name or alias
	for i := range p.Models {
		name := p.Models[i].Name
		if j, twice := owner[name]; twice {
			d.failAt(index2("models", i, "name"), name, fmt.Sprintf("is the name of models[%d] too", j))
			continue
		}
		owner[name] = i
	}
	for i := range p.Models {
		m := &p.Models[i]
		if m.OutputLimit > 0 && m.OutputLimit < m.MaxOutput {
			d.failAt(index2("models", i, "outputLimit"), strconv.FormatInt(m.OutputLimit, 10), fmt.Sprintf("must not be below maxOutput, %d: no answer of that length would be believed", m.MaxOutput))
		}
		for j, alias := range m.Aliases {
			if k, taken := owner[alias]; taken {
				d.failAt(fmt.Sprintf("models[%d].aliases[%d]", i, j), alias, fmt.Sprintf("can never match: models[%d] has this name or alias", k))
				continue
			}
			owner[alias] = i
		}
		for j, name := range m.Pools {
			if !slices.ContainsFunc(p.Pools, func(q Pool) bool { return q.Name == name }) {
				d.failAt(fmt.Sprintf("models[%d].pools[%d]", i, j), name, listOf("no such pool; the pools are", poolNames(p.Pools), "there are no pools"))
			}
		}
	}
}

func poolNames(pools []Pool) []string {
	names := make([]string, len(pools))
	for i := range pools {
		names[i] = pools[i].Name
	}
	return names
}

func (d *decoder) checkTiers(p *Policy) {
	before := len(d.errs)
	for i := range p.Tiers {
		for j := range i {
			if p.Tiers[i].Name == p.Tiers[j].Name {
				d.failAt(index2("tiers", i, "name"), p.Tiers[i].Name, fmt.Sprintf("is the name of tiers[%d] too", j))
				break
			}
		}
	}
	if len(d.errs) == before {
		d.checkTierShares(p)
	}
}

func (d *decoder) checkTenants(p *Policy) {
	var seen patterns
	for i := range p.Tenants {
		t := &p.Tenants[i]
		at := "tenants[" + strconv.Itoa(i) + "]"
		if j := seen.cover(t.Match.Tenant); j >= 0 {
			d.failAt(at+".match.tenant", t.Match.Tenant, fmt.Sprintf("can never match: tenants[%d] matches all of it first", j))
		}
		seen.add(t.Match.Tenant, i)
		if t.Tier != "" && !hasTier(p, t.Tier) {
			d.failAt(at+".tier", t.Tier, listOf("no such tier; the tiers are", tierNames(p.Tiers), ""))
		}
		for j, m := range t.Models {
			if !hasModel(p, m) {
				d.failAt(fmt.Sprintf("%s.models[%d]", at, j), m, listOf("no such model; the models are", modelNames(p.Models), "there are no models"))
			}
		}
		switch says := t.Tier != "" || t.Class != nil || t.Models != nil; {
		case t.Block && says:
			d.failAt(at+".block", "true", "refuses every call: tier, class and models beside it come to nothing")
		case !t.Block && !says:
			d.failAt(at, "", "changes nothing: give it a tier, class, models or block: true")
		}
	}
}

func hasTier(p *Policy, name string) bool {
	return slices.ContainsFunc(p.Tiers, func(t Tier) bool { return t.Name == name })
}

func tierNames(tiers []Tier) []string {
	names := make([]string, len(tiers))
	for i := range tiers {
		names[i] = tiers[i].Name
	}
	return names
}

// checkHolds: Envoy must wait at least as long as a request may be held.
func (d *decoder) checkHolds(p *Policy, prefix string) {
	e := &p.Envoy
	if e.MaxMessageTimeout > 0 && e.MaxMessageTimeout < e.MessageTimeout {
		d.failAt("envoy.maxMessageTimeout", formatDuration(e.MaxMessageTimeout), "must not be below messageTimeout, "+formatDuration(e.MessageTimeout))
		return
	}
	var hold time.Duration
	var who string
	var causes []wait
	for i := range p.Classes {
		c := &p.Classes[i]
		if h := longest(c.MaxWait, c, &p.Queue); h > hold {
			hold, who = h, "class "+c.Class.String()
			causes = []wait{{d.classAt(prefix, c.Class, "maxWait"), c.MaxWait}}
			if h > c.MaxWait {
				causes = append(causes, wait{prefix + "queue.retryQueue.limit", p.Queue.RetryQueue.Limit})
			}
		}
	}
	if n := p.NonStreaming; n != nil && n.MaxWait > hold {
		hold, who = n.MaxWait, "a call that does not stream"
		causes = []wait{{prefix + "nonStreaming.maxWait", n.MaxWait}}
	}
	if hold == 0 || hold+HoldMargin <= e.holdRoom() {
		return
	}
	key, why := "envoy.maxMessageTimeout", ""
	if e.MaxMessageTimeout == 0 {
		key, why = "envoy.messageTimeout", " (there are no overrides: maxMessageTimeout is 0)"
	}
	at := wait{key, e.holdRoom()}
	if prefix != "" {
		at = causes[0]
	}
	if i := slices.IndexFunc(causes, func(c wait) bool { return d.places[c.at] != nil }); i >= 0 {
		at = causes[i]
	}
	d.failAt(at.at, formatDuration(at.time), fmt.Sprintf("%s must be at least %s: %s may be held for %s, and %s to answer%s",
		key, formatDuration(hold+HoldMargin), who, formatDuration(hold), formatDuration(HoldMargin), why))
}

// wait is a key that makes a request wait, and for how long.
type wait struct {
	at   string
	time time.Duration
}

// classAt is the path of a key of a class: of its item in the list where it
// has one.
func (d *decoder) classAt(prefix string, c Class, key string) string {
	if at, ok := d.named[prefix+"classes."+c.String()]; ok {
		return at + "." + key
	}
	return prefix + "classes." + c.String() + "." + key
}
