package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ReportSample is what `weir check --request` prints: Explain's lines.
func ReportSample(p *Policy, s Sample) (string, error) {
	lines, err := Explain(p, s)
	if err != nil {
		return "", err
	}
	return strings.Join(lines, "\n") + "\n", nil
}

// Explain says how the policy judges a sample: which API, model, pools, class
// and waits, and which quota rules bind. A line that begins with "refused"
// ends it. Load is not looked at: seats, line and counters are those of an
// idle house. The error is Errors, for a class or overrides that no request
// can have.
func Explain(p *Policy, s Sample) ([]string, error) {
	x := explanation{base: p, sample: s}
	if err := x.prepare(); err != nil {
		return nil, err
	}
	if x.route() && x.tenant() && x.model() {
		x.waits()
		x.quotas()
	}
	return x.lines, nil
}

type explanation struct {
	base   *Policy
	e      *Effective
	sample Sample
	class  Class
	tier   string
	rule   *TenantRule
	api    *API
	use    *Model
	lines  []string
}

func (x *explanation) say(what, format string, args ...any) {
	x.lines = append(x.lines, fmt.Sprintf("%-9s ", what)+fmt.Sprintf(format, args...))
}

func (x *explanation) refuse(format string, args ...any) bool {
	x.say("refused", format, args...)
	return false
}

func (x *explanation) prepare() error {
	x.class, x.tier = Standard, x.sample.Tier
	if x.sample.Class != "" {
		c, ok := ParseClass(x.sample.Class)
		if !ok {
			return Errors{{Field: "class", Value: shown(x.sample.Class), Message: "must be critical, standard or batch"}}
		}
		x.class = c
	}
	o, err := OverridesFrom(x.sample.Overrides)
	if err != nil {
		return err
	}
	x.e, err = x.base.For(o)
	if err != nil {
		return err
	}
	profile := "no profile"
	if x.e.ProfileName != "" {
		profile = "profile " + x.e.ProfileName
	}
	x.say("policy", "%s, %s", x.base.Hash, profile)
	return nil
}

func (x *explanation) route() bool {
	method := x.sample.Method
	if method == "" {
		method = "POST"
	}
	path, ok := CleanPath(x.sample.Path)
	if !ok {
		return x.refuse("path %q can be spelt in more than one way", shown(x.sample.Path))
	}
	if x.api, ok = x.e.Route(method, path); !ok {
		return x.refuse("no API takes %s %s", method, path)
	}
	scopes := x.base.Identity.Service
	for _, f := range x.e.FunctionsOf(x.api) {
		if f != "" {
			scopes += " and " + f
		}
	}
	x.say("api", "%s %s, kind %s, needs scope %s", x.api.Method, x.api.Path, x.api.Kind, scopes)
	return true
}

func (x *explanation) tenant() bool {
	why := "from the token"
	x.rule = x.e.Tenant(x.sample.Tenant)
	if r := x.rule; r != nil {
		i := slices.IndexFunc(x.e.Tenants, func(t TenantRule) bool { return t.Match == r.Match })
		why = "tenants[" + strconv.Itoa(i) + "]"
		if r.Block {
			return x.refuse("tenant %s is blocked by %s", x.sample.Tenant, why)
		}
		if r.Tier != "" {
			x.tier = r.Tier
		}
	}
	if x.tier == "" {
		x.tier = DefaultTier
	}
	x.say("tenant", "%s, tier %s of weight %s (%s)", x.sample.Tenant, x.tier, plainNumber(x.e.TierWeight(x.tier)), why)
	token := x.class
	limit := ""
	if r := x.rule; r != nil && r.Class != nil && x.class.Lower(*r.Class) != x.class {
		x.class, limit = x.class.Lower(*r.Class), ", lowered from "+token.String()+" by "+why
	}
	if c := x.e.Cap(x.class); c != x.class {
		x.class, limit = c, ", lowered from "+token.String()+" by the route"
	}
	x.say("seats", "%s guaranteed to the tier", formatRatio(x.e.tierShare(x.tier)))
	x.say("class", "%s%s, mode %s", x.class, limit, x.e.ModeOf(x.class))
	return true
}

// model also ends the story of calls that go through no desk.
func (x *explanation) model() bool {
	switch x.api.Kind {
	case Free, ModelList:
		x.say("desk", "none: kind %s passes with identity alone", x.api.Kind)
		return false
	}
	asked := x.sample.Model
	if x.api.Kind.fixedCost() && (asked == "" || x.api.Model != "") {
		asked = x.api.Model
		if asked == "" {
			asked = x.e.Policy.Models[0].Name
		}
	}
	m, ok := x.e.FindModel(asked)
	switch {
	case asked == "":
		return x.refuse("the sample names no model")
	case !ok:
		return x.refuse("no model %q; %s", shown(asked), listOf("the models are", modelNames(x.e.Policy.Models), ""))
	case !x.e.Allows(m.Name):
		return x.refuse("the route does not allow model %s", m.Name)
	case x.rule != nil && x.rule.Models != nil && !slices.Contains(x.rule.Models, m.Name):
		return x.refuse("the tenant is not allowed model %s", m.Name)
	}
	x.use = m
	x.say("model", "%s", m.Name)
	want := x.e.Classes[x.class].Variant
	pools := x.e.PoolsFor(m, want)
	instead := ""
	if len(pools) > 0 && pools[0].Variant != want {
		instead = ", in place of " + string(want)
	}
	x.say("pools", "%s%s", describePools(pools), instead)
	if n := x.e.NonStreaming; n != nil {
		x.say("", "without streaming: %s", describePools(x.e.PoolsFor(m, n.Variant)))
	}
	if x.e.Variants.ByCost && x.e.chooses(m) {
		x.say("", "by cost: of the pools at or below the cheapest")
	}
	return true
}

func (x *explanation) waits() {
	c := &x.e.Classes[x.class]
	if x.e.Queue.Length.Max == 0 {
		x.say("waits", "not at all: queue.length.max is 0")
		return
	}
	x.say("waits", "%s", strings.TrimPrefix(describeWait(x.e.MaxWait[x.class], c, &x.e.Queue), "waits "))
	if n := x.e.NonStreaming; n != nil {
		x.say("", "without streaming: %s", describeNonStreaming(n))
	}
	if hold := x.e.Longest(x.class); hold > 0 {
		x.say("held", "%s at most; Envoy must wait %s", formatDuration(hold), formatDuration(hold+HoldMargin))
	}
}

func (x *explanation) quotas() {
	function := x.e.FunctionOf(x.api)
	s := Subject{
		Tenant: x.sample.Tenant, Tier: x.tier, User: x.sample.User, Key: x.sample.Key,
		Model: x.use.Name, Function: function, Class: x.class,
	}
	none := true
	for i := range x.e.Quotas {
		q := &x.e.Quotas[i]
		if q.Match.Matches(&s) {
			x.say("quota", "%s, counter %s: %s", q.Name, counterName(q.By, &s), describeLimits(q.Limits))
			none = false
		}
	}
	if none {
		x.say("quota", "no rule binds")
	}
}

func counterName(by []string, s *Subject) string {
	if len(by) == 0 {
		return "of all"
	}
	values := map[string]string{
		"tenant": s.Tenant, "key": s.Key, "user": s.User, "model": s.Model, "function": s.Function, "class": s.Class.String(),
	}
	parts := make([]string, len(by))
	for i, k := range by {
		parts[i] = k + "=" + values[k]
	}
	return strings.Join(parts, ",")
}

// leafList is the scalars of a tree by their dotted paths.
type leafList struct {
	order []string
	value map[string]string
}

func leaves(n *yaml.Node) leafList {
	l := leafList{value: make(map[string]string)}
	l.add("", n)
	return l
}

func (l *leafList) add(at string, n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			l.add(join(at, n.Content[i].Value), n.Content[i+1])
		}
	case yaml.SequenceNode:
		if len(n.Content) == 0 {
			l.put(at, "[]")
		}
		for i, item := range n.Content {
			l.add(at+"["+strconv.Itoa(i)+"]", item)
		}
	default:
		l.put(at, n.Value)
	}
}

func (l *leafList) put(at, value string) {
	l.order = append(l.order, at)
	l.value[at] = value
}
