package policy

import (
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

func classTable() codec[ClassPolicy] {
	fields := []field[ClassPolicy]{
		key("name", func(c *ClassPolicy) *Class { return &c.Class }, class()).need(),
		key("weight", func(c *ClassPolicy) *int { return &c.Weight }, whole[int](1, 1000)),
	}
	return object(append(fields, classFields()...)...)
}

// profileClassTable has no weight: weights divide the line that all profiles
// share.
func profileClassTable() codec[ClassPolicy] {
	fields := []field[ClassPolicy]{key("name", func(c *ClassPolicy) *Class { return &c.Class }, class()).need()}
	return object(append(fields, classFields()...)...)
}

func classFields() []field[ClassPolicy] {
	expiry := enum(choice[Expiry]{"drop", ExpireDrop}, choice[Expiry]{"degrade", ExpireDegrade}, choice[Expiry]{"retryQueue", ExpireRetry})
	return []field[ClassPolicy]{
		key("maxWait", func(c *ClassPolicy) *time.Duration { return &c.MaxWait }, duration(0, 10*time.Minute, true)),
		group("onExpiry", classExpiry(expiry)),
		key("variant", func(c *ClassPolicy) *Variant { return &c.Variant }, variant()),
		group("mode", classMode()),
	}
}

// classExpiry keeps apart a class that says to degrade from one that does so by
// default: only the first must have pools to degrade to.
func classExpiry(c codec[Expiry]) codec[ClassPolicy] {
	return codec[ClassPolicy]{
		shape: c.shape,
		read: func(d *decoder, n *yaml.Node, at string, p *ClassPolicy) {
			c.read(d, n, at, &p.OnExpiry)
			p.degradeSet = p.OnExpiry == ExpireDegrade
		},
		write: func(e *encoder, p *ClassPolicy) *yaml.Node {
			if p.OnExpiry == ExpireDegrade && !p.degradeSet {
				return nil
			}
			return c.write(e, &p.OnExpiry)
		},
	}
}

// classMode keeps apart a class that has a mode of its own.
func classMode() codec[ClassPolicy] {
	m := mode()
	return codec[ClassPolicy]{
		shape: m.shape,
		read: func(d *decoder, n *yaml.Node, at string, c *ClassPolicy) {
			m.read(d, n, at, &c.Mode)
			c.modeSet = true
		},
		write: func(e *encoder, c *ClassPolicy) *yaml.Node {
			if !c.modeSet {
				return nil
			}
			return m.write(e, &c.Mode)
		},
	}
}

// classList lays the classes it names over those that are there.
func classList(one codec[ClassPolicy]) codec[[NumClasses]ClassPolicy] {
	className := class()
	return codec[[NumClasses]ClassPolicy]{
		shape: shape{kind: "list", item: &one.shape, maxItems: NumClasses, bounds: "each class at most once"},
		read: func(d *decoder, n *yaml.Node, at string, v *[NumClasses]ClassPolicy) {
			items, ok := d.sequence(n, at, 0, NumClasses)
			if !ok {
				return
			}
			seen := make(map[Class]bool)
			for i, node := range items {
				path := at + "[" + strconv.Itoa(i) + "]"
				d.place(path, node)
				slot := new(ClassPolicy) // for what is wrong without a name
				if c, ok := classOf(className, node); ok {
					if seen[c] {
						d.report(node, path, c.String(), "class is listed twice")
					}
					seen[c] = true
					slot = &v[c]
					d.named[at+"."+c.String()] = path
				}
				one.read(d, node, path, slot)
			}
		},
		write: func(e *encoder, v *[NumClasses]ClassPolicy) *yaml.Node {
			s := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			for i := range v {
				s.Content = append(s.Content, one.write(e, &v[i]))
			}
			return s
		},
	}
}

// classOf looks ahead for a valid name; what is wrong is found by the table.
func classOf(className codec[Class], n *yaml.Node) (c Class, ok bool) {
	m := follow(n)
	if m.Kind != yaml.MappingNode {
		return 0, false
	}
	for i := 0; i < len(m.Content); i += 2 {
		if m.Content[i].Value == "name" {
			quiet := newDecoder("", "", false)
			className.read(quiet, m.Content[i+1], "", &c)
			return c, len(quiet.errs) == 0
		}
	}
	return 0, false
}

func tierTable() codec[Tier] {
	return objectThen(func(_ *decoder, _ *yaml.Node, _ string, t *Tier, has func(string) bool) {
		if !has("share") {
			t.Share = tierShares()[t.Name]
		}
	},
		key("name", func(t *Tier) *string { return &t.Name }, name()).need(),
		key("weight", func(t *Tier) *float64 { return &t.Weight }, number(0.001, 1000)),
		key("share", func(t *Tier) *Ratio { return &t.Share }, ratio(false)),
	)
}

func sharesTable() codec[Shares] {
	return object(
		key("priority", func(s *Shares) *Ratio { return &s.Priority }, ratioTo(maxPart, false)),
		key("streaming", func(s *Shares) *Ratio { return &s.Streaming }, ratio(true)),
	)
}

func tenantTable() codec[TenantRule] {
	match := object(
		key("tenant", func(m *Match) *string { return &m.Tenant }, tenantPattern()).need(),
	)
	return object(
		key("match", func(t *TenantRule) *Match { return &t.Match }, match).need(),
		key("tier", func(t *TenantRule) *string { return &t.Tier }, maybe(name(), noValue)),
		key("class", func(t *TenantRule) **Class { return &t.Class }, pointer(class(), zero[Class])),
		key("models", func(t *TenantRule) *[]string { return &t.Models }, maybe(unique(list(text(1, 256), zero[string], 1, 1000)), emptyList)),
		key("block", func(t *TenantRule) *bool { return &t.Block }, boolean()),
	)
}

func quotaList() codec[[]QuotaRule] { return list(quotaTable(), zero[QuotaRule], 0, 1000) }

func quotaTable() codec[QuotaRule] {
	match := object(
		key("tenant", func(m *Match) *string { return &m.Tenant }, tenantPattern()),
		key("tier", func(m *Match) *string { return &m.Tier }, pattern()),
		key("user", func(m *Match) *string { return &m.User }, pattern()),
		key("key", func(m *Match) *string { return &m.Key }, pattern()),
		key("model", func(m *Match) *string { return &m.Model }, pattern()),
		key("function", func(m *Match) *string { return &m.Function }, pattern()),
		key("class", func(m *Match) **Class { return &m.Class }, pointer(class(), zero[Class])),
	)
	by := unique(list(words("tenant", "key", "user", "model", "function", "class"), zero[string], 0, 6))
	return object(
		key("name", func(q *QuotaRule) *string { return &q.Name }, name()).need(),
		key("id", func(q *QuotaRule) *string { return &q.ID }, maybe(name(), noValue)),
		key("match", func(q *QuotaRule) *Match { return &q.Match }, match),
		key("by", func(q *QuotaRule) *[]string { return &q.By }, maybe(by, emptyList)),
		key("limits", func(q *QuotaRule) *[]Limit { return &q.Limits }, list(limit(), zero[Limit], 1, 32)).need(),
	)
}

// The bounds of a limit.
const (
	maxLimit = int64(1_000_000_000_000_000)
	maxPer   = 31 * 24 * time.Hour
)

// limitDraft is a limit as it is written: the unit is the key.
type limitDraft struct {
	max map[Unit]int64
	per time.Duration
}

// unitNames are the units by their keys in the file.
func unitNames() []choice[Unit] {
	return []choice[Unit]{
		{"requests", Requests},
		{"tokens", Tokens},
		{"inputTokens", InputTokens},
		{"outputTokens", OutputTokens},
		{"concurrency", Concurrency},
	}
}

// String is the unit's name in the file.
func (u Unit) String() string {
	for _, c := range unitNames() {
		if c.value == u {
			return c.name
		}
	}
	return "unknown"
}

func limit() codec[Limit] {
	var fields []field[limitDraft]
	for _, unit := range unitNames() {
		fields = append(fields, limitField(unit))
	}
	fields = append(fields, key("per", func(l *limitDraft) *time.Duration { return &l.per }, maybe(duration(time.Second, maxPer, false), noValue)))
	draft := objectThen(checkLimit, fields...)
	for _, unit := range unitNames() {
		draft.shape.one = append(draft.shape.one, unit.name)
	}
	return codec[Limit]{
		shape: draft.shape,
		read: func(d *decoder, n *yaml.Node, at string, v *Limit) {
			l := limitDraft{max: make(map[Unit]int64)}
			draft.read(d, n, at, &l)
			for unit, most := range l.max {
				*v = Limit{Unit: unit, Max: most, Per: l.per}
			}
		},
		write: func(e *encoder, v *Limit) *yaml.Node {
			return draft.write(e, &limitDraft{max: map[Unit]int64{v.Unit: v.Max}, per: v.Per})
		},
	}
}

func limitField(unit choice[Unit]) field[limitDraft] {
	c := whole[int64](1, maxLimit)
	return field[limitDraft]{
		key:   unit.name,
		shape: c.shape,
		read: func(d *decoder, n *yaml.Node, at string, l *limitDraft) {
			var most int64
			if c.read(d, n, at, &most); most != 0 {
				l.max[unit.value] = most
			}
		},
		write: func(e *encoder, l *limitDraft) *yaml.Node {
			most, ok := l.max[unit.value]
			if !ok {
				return nil
			}
			return c.write(e, &most)
		},
	}
}

func checkLimit(d *decoder, n *yaml.Node, at string, l *limitDraft, has func(string) bool) {
	_, concurrent := l.max[Concurrency]
	switch {
	case len(l.max) != 1:
		d.report(n, at, "", "must have exactly one of requests, tokens, inputTokens, outputTokens, concurrency")
	case concurrent && has("per"):
		d.failAt(join(at, "per"), "", "is not used by concurrency, which counts what waits and runs now")
	case !concurrent && !has("per"):
		d.report(n, join(at, "per"), "", "is missing: say over which time, such as per: 1m")
	}
}
