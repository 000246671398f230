package policy

import (
	"fmt"
	"strings"
	"time"
)

// Report is what `weir check` prints: what the policy comes to, as comments,
// and then the policy with every value in force, as YAML. All of it loads
// again as the same policy.
func Report(p *Policy) string {
	r := &report{}
	r.line("policy %s, mode %s", p.Hash, p.Mode)
	r.apis(p)
	r.models(p)
	r.classes(p)
	r.tenants(p)
	r.seats(p)
	r.quotas(p)
	r.clusters(p)
	for _, name := range p.ProfileNames() {
		r.head("profile " + name + ": what differs")
		r.profile(p, p.profiles[name])
	}
	if notes := p.Notes(); len(notes) > 0 {
		r.head("notes")
		for _, n := range notes {
			r.line("  %s", n)
		}
	}
	return r.b.String() + "\n" + string(p.Dump())
}

// report writes comment lines.
type report struct{ b strings.Builder }

func (r *report) line(format string, args ...any) {
	text := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	fmt.Fprintf(&r.b, "# %s\n", strings.Map(noControl, text))
}

// noControl keeps a value from breaking out of its comment line.
func noControl(c rune) rune {
	if c < ' ' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 {
		return '?'
	}
	return c
}

func (r *report) head(title string) {
	r.b.WriteString("#\n")
	r.line("%s", title)
}

func (r *report) apis(p *Policy) {
	r.head("calls (any other is refused)")
	for i := range p.APIs {
		a := &p.APIs[i]
		scope := p.Identity.Service
		if a.Function != "" {
			scope += " and " + a.Function
		}
		cost := ""
		if a.Kind.fixedCost() {
			cost = fmt.Sprintf(", charged %d tokens", a.Cost)
		}
		r.line("  %-7s %-28s %-18s needs %s%s", a.Method, a.Path, a.Kind, scope, cost)
	}
}

func (r *report) models(p *Policy) {
	r.head("models: pools by class")
	for i := range p.Models {
		m := &p.Models[i]
		name := m.Name
		if len(m.Aliases) > 0 {
			name += " (" + strings.Join(m.Aliases, ", ") + ")"
		}
		r.line("  %s", name)
		for c := range p.Classes {
			pools := p.PoolsFor(m, p.Classes[c].Variant)
			r.line("    %-9s %s", Class(c), describePools(pools))
		}
		if p.Variants.ByCost && p.chooses(m) {
			r.line("    by cost: of the pools at or below these the cheapest")
		}
	}
}

func describePools(pools []*Pool) string {
	parts := make([]string, len(pools))
	for i, q := range pools {
		parts[i] = fmt.Sprintf("%s (%s, %s)", q.Name, q.Variant, describeSeats(q))
	}
	return strings.Join(parts, ", ")
}

func describeSeats(p *Pool) string {
	s := fmt.Sprintf("%d seats", p.Seats.Requests)
	if a := p.Adaptive; a != nil {
		s = fmt.Sprintf("%d to %d seats for a ttft of %s", a.Min, a.Max, formatDuration(a.TTFT))
	}
	if p.Seats.Tokens > 0 {
		s += fmt.Sprintf(", %d tokens", p.Seats.Tokens)
	}
	if p.Stage {
		s += ", another weir behind"
	}
	return s
}

func (r *report) classes(p *Policy) {
	r.head("classes")
	for i := range p.Classes {
		c := &p.Classes[i]
		r.line("  %-9s weight %d, %s%s", c.Class, c.Weight, describeWait(c.MaxWait, c, &p.Queue), describeMode(c.Mode))
	}
	if n := p.NonStreaming; n != nil {
		r.line("  without streaming, any class: %s", describeNonStreaming(n))
	}
}

func describeNonStreaming(n *NonStreaming) string {
	s := "a free seat of " + string(n.Variant)
	if n.MaxWait > 0 {
		s += ", else waits " + formatDuration(n.MaxWait)
	}
	return s + ", then 429"
}

func describeWait(wait time.Duration, c *ClassPolicy, q *Queue) string {
	if wait == 0 {
		return "does not wait"
	}
	then := map[Expiry]string{
		ExpireDrop:    "503",
		ExpireDegrade: "a free seat of the next pool down, else 429",
		ExpireRetry:   "the retry queue",
	}[c.OnExpiry]
	if c.OnExpiry == ExpireRetry {
		if q.RetryQueue.Length > 0 {
			then += " for " + formatDuration(q.RetryQueue.Limit)
		}
		then += ", then 429"
	}
	return fmt.Sprintf("waits %s, then %s", formatDuration(wait), then)
}

func describeMode(m Mode) string {
	if m == Enforce {
		return ""
	}
	return ", mode " + m.String()
}

func (r *report) tenants(p *Policy) {
	r.head("tenants (others: as their tokens say)")
	for i := range p.Tenants {
		t := &p.Tenants[i]
		r.line("  %-20s %s", t.Match.Tenant, describeTenant(p, t))
	}
	for _, t := range p.Tiers {
		r.line("  tier %-15s weight %s", t.Name, plainNumber(t.Weight))
	}
}

// seats says who may hold the seats of a pool, in the order in which they are
// divided.
func (r *report) seats(p *Policy) {
	r.head("seats of a pool (idle shares are lent)")
	r.line("  %-20s %s", "headroom", formatRatio(p.Queue.Headroom))
	r.line("  %-20s %s of the rest", "priority lane", formatRatio(p.Shares.Priority))
	for _, t := range p.Tiers {
		r.line("  tier %-15s %s of what remains", t.Name, formatRatio(t.Share))
	}
	if p.Shares.Streaming < 1 {
		r.line("  %-20s %s of a tier's at most, while others of it wait", "streaming", formatRatio(p.Shares.Streaming))
	}
}

func describeTenant(p *Policy, t *TenantRule) string {
	if t.Block {
		return "every call is refused"
	}
	var parts []string
	if t.Tier != "" {
		parts = append(parts, fmt.Sprintf("tier %s (weight %s)", t.Tier, plainNumber(p.TierWeight(t.Tier))))
	}
	if t.Class != nil {
		parts = append(parts, "no class above "+t.Class.String())
	}
	if t.Models != nil {
		parts = append(parts, "models "+strings.Join(t.Models, ", "))
	}
	return strings.Join(parts, ", ")
}

func (r *report) quotas(p *Policy) {
	r.head("quotas (every matching rule binds)")
	if len(p.Quotas) == 0 {
		r.line("  none")
	}
	for i := range p.Quotas {
		q := &p.Quotas[i]
		as := ""
		if q.ID != "" && q.ID != q.Name {
			as = ", counted as " + q.ID
		}
		r.line("  %-20s for %s, %s: %s%s", q.Name, describeMatch(&q.Match), describeBy(q.By), describeLimits(q.Limits), as)
	}
}

// clusters says what protection starts from, where the file speaks of it.
func (r *report) clusters(p *Policy) {
	if p.Envoy.XDS == nil && len(p.Envoy.Clusters) == 0 {
		return
	}
	r.head("clusters of Envoy, with nothing wrong")
	for _, c := range p.protected() {
		r.line("  %-20s %s, %d connections, %d pending, %d requests, %s", c.Name, c.Protocol, c.MaxConnections, c.MaxPending, c.MaxRequests, describeRetries(&c))
	}
}

func describeRetries(c *Cluster) string {
	s := fmt.Sprintf("%d retries", c.MaxRetries)
	if c.Budget > 0 {
		s = fmt.Sprintf("retries of %s or %d", formatRatio(c.Budget), c.MinRetries)
	}
	if c.Endpoints != nil {
		s += fmt.Sprintf(", endpoints of %d priorities", len(c.Endpoints.Priorities))
	}
	return s
}

func describeMatch(m *Match) string {
	var parts []string
	for _, f := range []struct{ name, value string }{
		{"tenant", m.Tenant}, {"tier", m.Tier}, {"user", m.User}, {"key", m.Key}, {"model", m.Model}, {"function", m.Function},
	} {
		if f.value != "" {
			parts = append(parts, f.name+" "+f.value)
		}
	}
	if m.Class != nil {
		parts = append(parts, "class "+m.Class.String())
	}
	if parts == nil {
		return "all"
	}
	return strings.Join(parts, ", ")
}

func describeBy(by []string) string {
	if len(by) == 0 {
		return "one counter"
	}
	return "a counter for each " + strings.Join(by, " and ")
}

func describeLimits(limits []Limit) string {
	parts := make([]string, len(limits))
	for i, l := range limits {
		parts[i] = l.String()
	}
	return strings.Join(parts, ", ")
}

// String is the limit in words: "600 requests/1m", "20 concurrency".
func (l Limit) String() string {
	s := fmt.Sprintf("%d %s", l.Max, l.Unit)
	if l.Per > 0 {
		s += "/" + formatDuration(l.Per)
	}
	return s
}

// profile prints the values that differ from the base, by key.
func (r *report) profile(base, profile *Policy) {
	table := profileSections()
	e := &encoder{dir: base.dir}
	before, after := leaves(table.write(e, base)), leaves(table.write(e, profile))
	differs := false
	for _, l := range after.order {
		if before.value[l] != after.value[l] {
			r.line("  %s: %s", l, after.value[l])
			differs = true
		}
	}
	for _, l := range before.order {
		list, _, _ := strings.Cut(l, "[")
		if _, still := after.value[l]; !still && after.value[list] != "[]" {
			r.line("  %s: not set", l)
			differs = true
		}
	}
	if !differs {
		r.line("  nothing")
	}
}
