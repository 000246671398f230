package policy

import (
	"fmt"
	"strconv"
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
		key("contextLimit", func(m *Model) *int64 { return &m.ContextLimit }, whole[int64](1, 100_000_000)),
		key("outputLimit", func(m *Model) *int64 { return &m.OutputLimit }, whole[int64](1, 100_000_000)),
	)
}

func poolTable() codec[Pool] {
	cluster := object(
		key("cluster", func(p *Pool) *string { return &p.Cluster }, text(1, 256)),
		key("subset", func(p *Pool) *map[string]string { return &p.Subset }, labels()),
	)
	cost := object(
		key("base", func(c *Cost) *float64 { return &c.Base }, number(0.001, 1_000_000)),
		key("sla", func(c *Cost) *time.Duration { return &c.SLA }, duration(time.Millisecond, time.Hour, false)),
	)
	learnt := object(
		key("factor", func(l *LearntFirstByte) *float64 { return &l.Factor }, number(1.5, 1000)),
		key("min", func(l *LearntFirstByte) *time.Duration { return &l.Min }, duration(100*time.Millisecond, time.Hour, false)),
	)
	engine := object(
		key("priority", func(p *Pool) *EnginePriority { return &p.Priority },
			enum(choice[EnginePriority]{"none", NoPriority}, choice[EnginePriority]{"vllm", VLLMPriority})),
	)
	return object(
		key("name", func(p *Pool) *string { return &p.Name }, name()).need(),
		key("variant", func(p *Pool) *Variant { return &p.Variant }, variant()).need(),
		key("protocol", func(p *Pool) *Protocol { return &p.Protocol }, protocol()),
		group("envoy", cluster),
		group("seats", seatsTable()).need(),
		key("maxHold", func(p *Pool) *time.Duration { return &p.MaxHold }, duration(time.Second, 24*time.Hour, false)),
		key("firstByte", func(p *Pool) *time.Duration { return &p.FirstByte }, maybe(duration(100*time.Millisecond, time.Hour, false), noValue)),
		key("firstByteLearnt", func(p *Pool) **LearntFirstByte { return &p.Learnt }, pointer(learnt, defaultLearnt)),
		key("telemetry", func(p *Pool) *[]TelemetrySource { return &p.Telemetry }, maybe(list(sourceTable(), zero[TelemetrySource], 0, 100), emptyList)),
		key("cost", func(p *Pool) *Cost { return &p.Cost }, cost),
		key("rate", func(p *Pool) *Ratio { return &p.Rate }, ratio(true)),
		group("engine", engine),
		key("stage", func(p *Pool) *bool { return &p.Stage }, boolean()),
	)
}

func variant() codec[Variant] {
	return enum(choice[Variant]{"fp16", FP16}, choice[Variant]{"fp16-dyn", FP16Dyn}, choice[Variant]{"int8", INT8})
}

// maxSeats bounds the requests in flight at one pool.
const maxSeats int64 = 1_000_000

// seatsTable: a pool has a fixed number of seats, or one that follows its
// engine (Q9).
func seatsTable() codec[Pool] {
	requests := key("requests", func(p *Pool) *int64 { return &p.Seats.Requests }, maybe(whole(1, maxSeats), noValue))
	write := requests.write
	requests.write = func(e *encoder, p *Pool) *yaml.Node {
		if p.Adaptive != nil {
			return nil
		}
		return write(e, p)
	}
	c := objectThen(func(d *decoder, n *yaml.Node, at string, _ *Pool, has func(string) bool) {
		if has("requests") == has("adaptive") {
			d.report(n, at, "", "must have one of requests and adaptive: seats are fixed, or follow the engine")
		}
	},
		requests,
		key("adaptive", func(p *Pool) **Adaptive { return &p.Adaptive }, pointer(adaptiveTable(), zero[Adaptive])),
		key("tokens", func(p *Pool) *int64 { return &p.Seats.Tokens }, whole[int64](0, 1_000_000_000_000)),
	)
	c.shape.one = []string{"requests", "adaptive"}
	return c
}

func adaptiveTable() codec[Adaptive] {
	return objectThen(func(d *decoder, _ *yaml.Node, at string, a *Adaptive, _ func(string) bool) {
		if a.Max < a.Min {
			d.failAt(join(at, "max"), strconv.FormatInt(a.Max, 10), fmt.Sprintf("must not be below min, %d", a.Min))
		}
	},
		key("min", func(a *Adaptive) *int64 { return &a.Min }, whole(1, maxSeats)).need(),
		key("max", func(a *Adaptive) *int64 { return &a.Max }, whole(1, maxSeats)).need(),
		key("ttft", func(a *Adaptive) *time.Duration { return &a.TTFT }, duration(10*time.Millisecond, 10*time.Minute, false)),
	)
}
