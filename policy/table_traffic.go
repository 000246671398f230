package policy

import (
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// kindNames are the kinds of API by their names in the file.
func kindNames() []choice[Kind] {
	return []choice[Kind]{
		{"openai.chat", OpenAIChat},
		{"openai.completions", OpenAICompletions},
		{"openai.embeddings", OpenAIEmbeddings},
		{"openai.models", ModelList},
		{"json", JSON},
		{"grpc", GRPC},
		{"opaque", Opaque},
		{"free", Free},
	}
}

// String is the kind's name in the file.
func (k Kind) String() string {
	for _, c := range kindNames() {
		if c.value == k {
			return c.name
		}
	}
	return "unknown"
}

func apiTable() codec[API] {
	method := matching(checked(text(1, 32), `an HTTP method in capitals, or "*"`, func(s string) string {
		if s != "*" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			return `must be an HTTP method in capitals, or "*"`
		}
		return ""
	}), `^(\*|[A-Z]+)$`)
	path := checked(text(1, 1024), "/literal/{name}/{rest...}", func(s string) string {
		if _, err := parseTemplate(s); err != nil {
			return err.Error()
		}
		return ""
	})
	return objectThen(checkAPI,
		key("method", func(a *API) *string { return &a.Method }, method),
		key("path", func(a *API) *string { return &a.Path }, path).need(),
		key("kind", func(a *API) *Kind { return &a.Kind }, enum(kindNames()...)).need(),
		key("function", func(a *API) *string { return &a.Function }, maybe(name(), noValue)),
		key("model", func(a *API) *string { return &a.Model }, maybe(text(1, 256), noValue)),
		key("cost", func(a *API) *int64 { return &a.Cost }, maybe(whole[int64](1, 100_000_000), noValue)),
	)
}

func checkAPI(d *decoder, _ *yaml.Node, at string, a *API, has func(string) bool) {
	if a.Kind.fixedCost() {
		return
	}
	for _, k := range []string{"model", "cost"} {
		if has(k) {
			d.failAt(join(at, k), "", "is used by the kinds json, grpc and opaque only, this one is "+a.Kind.String())
		}
	}
}

func modelTable() codec[Model] {
	alias := matching(checked(text(1, 256), "exact, or with * at the end", func(s string) string {
		if s == "*" {
			return "would make every unknown model this one: put some prefix before the *"
		}
		return globRule(s)
	}), `^[^*]+\*?$`)
	modelName := matching(checked(text(1, 256), "1 to 256 bytes, no * or comma", func(s string) string {
		if strings.ContainsAny(s, "*,") || strings.TrimSpace(s) != s {
			return "must not have * or commas, or spaces at its ends"
		}
		return ""
	}), `^[^*,]+$`)
	return object(
		key("name", func(m *Model) *string { return &m.Name }, modelName).need(),
		key("aliases", func(m *Model) *[]string { return &m.Aliases }, maybe(list(alias, zero[string], 0, 1000), emptyList)),
		key("pools", func(m *Model) *[]string { return &m.Pools }, unique(list(text(1, 64), zero[string], 1, 100))).need(),
		key("maxOutput", func(m *Model) *int64 { return &m.MaxOutput }, whole[int64](1, 10_000_000)),
	)
}

func poolTable() codec[Pool] {
	variant := enum(choice[Variant]{"fp16", FP16}, choice[Variant]{"fp16-dyn", FP16Dyn}, choice[Variant]{"int8", INT8})
	cluster := object(
		key("cluster", func(p *Pool) *string { return &p.Cluster }, text(1, 256)),
		key("subset", func(p *Pool) *map[string]string { return &p.Subset }, labels()),
	)
	seats := object(
		key("requests", func(s *Seats) *int64 { return &s.Requests }, whole[int64](1, 1_000_000)).need(),
		key("tokens", func(s *Seats) *int64 { return &s.Tokens }, whole[int64](0, 1_000_000_000_000)),
	)
	return object(
		key("name", func(p *Pool) *string { return &p.Name }, name()).need(),
		key("variant", func(p *Pool) *Variant { return &p.Variant }, variant).need(),
		group("envoy", cluster),
		key("seats", func(p *Pool) *Seats { return &p.Seats }, seats).need(),
		key("maxHold", func(p *Pool) *time.Duration { return &p.MaxHold }, duration(time.Second, 24*time.Hour, false)),
		key("telemetry", func(p *Pool) *[]TelemetrySource { return &p.Telemetry }, maybe(list(sourceTable(), zero[TelemetrySource], 0, 100), emptyList)),
	)
}

func sourceTable() codec[TelemetrySource] {
	return objectThen(checkSource,
		key("kind", func(t *TelemetrySource) *string { return &t.Kind }, words(KindDCGMExporter, KindVLLM, KindScript)).need(),
		key("url", func(t *TelemetrySource) *string { return &t.URL }, maybe(webAddress(nil), noValue)),
		key("file", func(t *TelemetrySource) *string { return &t.File }, fileName()),
		key("every", func(t *TelemetrySource) *time.Duration { return &t.Every }, duration(100*time.Millisecond, 10*time.Minute, false)),
		key("timeout", func(t *TelemetrySource) *time.Duration { return &t.Timeout }, duration(10*time.Millisecond, time.Minute, false)),
		key("match", func(t *TelemetrySource) *map[string]string { return &t.Match }, labels()),
	)
}

func checkSource(d *decoder, n *yaml.Node, at string, t *TelemetrySource, has func(string) bool) {
	want, other := "url", "file"
	if t.Kind == KindScript {
		want, other = other, want
	}
	if !has(want) {
		d.report(n, join(at, want), "", "is missing: kind "+t.Kind+" needs it")
	}
	if has(other) {
		d.failAt(join(at, other), "", "is not used by kind "+t.Kind)
	}
	if has("every") && has("timeout") && t.Timeout > t.Every {
		d.failAt(join(at, "timeout"), formatDuration(t.Timeout), "must not exceed every, "+formatDuration(t.Every))
	}
}
