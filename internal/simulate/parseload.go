package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/modelsim"
)

// engines reads a mapping from pool to engine.
func (r *reader) engines(n *yaml.Node, at string) map[string]Engine {
	engines := make(map[string]Engine)
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		r.report(n, at, n.Value, "must be a mapping from pools to engines, not empty")
		return engines
	}
	for i := 0; i < len(n.Content); i += 2 {
		k, path := n.Content[i], join(at, n.Content[i].Value)
		if _, twice := engines[k.Value]; twice {
			r.report(k, path, "", "is written twice")
		}
		engines[k.Value] = r.engine(n.Content[i+1], path)
	}
	return engines
}

func (r *reader) engine(n *yaml.Node, at string) (e Engine) {
	var service Service
	has := r.object(n, at, map[string]value{
		"batch": func(n *yaml.Node, at string) { e.Batch = r.batch(n, at) },
		"service": func(n *yaml.Node, at string) {
			r.object(n, at, map[string]value{
				"places": whole(r, &service.Places, 1, 1_000_000),
				"time":   r.duration(&service.Time, time.Microsecond, time.Hour),
				"spread": r.ratio(&service.Spread, 0),
				"beyond": oneOf(r, &service.Beyond, "queue", "fail"),
			}, "places", "time")
			e.Service = &service
		},
		"sensor": func(n *yaml.Node, at string) {
			r.object(n, at, map[string]value{
				"every": r.duration(&e.Sensor.Every, time.Millisecond, time.Hour),
				"delay": r.duration(&e.Sensor.Delay, 0, time.Hour),
			})
		},
		"failures": listOf(r, &e.Failures, 0, 1000, r.failure),
	})
	if (has["batch"] == nil) == (has["service"] == nil) {
		r.report(n, at, "", "must have one of batch and service")
	}
	slices.SortStableFunc(e.Failures, func(a, b Failure) int { return int(a.At - b.At) })
	return e
}

func (r *reader) batch(n *yaml.Node, at string) (c modelsim.EngineConfig) {
	r.object(n, at, map[string]value{
		"running":         whole(r, &c.Running, 1, 100_000),
		"kvTokens":        whole(r, &c.KVTokens, 1, 1_000_000_000),
		"stepBase":        r.duration(&c.StepBase, time.Microsecond, time.Minute),
		"stepPerSequence": r.duration(&c.StepPerSequence, time.Nanosecond, time.Minute),
		"prefillPerToken": r.duration(&c.PrefillPerToken, time.Nanosecond, time.Minute),
		"prefillChunk":    whole(r, &c.PrefillChunk, 1, 1_000_000),
		"jitter":          r.ratio(&c.Jitter, 0),
	})
	return c
}

func (r *reader) failure(n *yaml.Node, at string) (f Failure) {
	has := r.object(n, at, map[string]value{
		"at":    r.duration(&f.At, 0, longest),
		"for":   r.duration(&f.For, time.Millisecond, longest),
		"kind":  oneOf(r, &f.Kind, "down", "slow", "errors", "resize", "cold", "stale"),
		"value": r.times(&f.Value, 0, 1000),
	}, "at", "for", "kind")
	valued := f.Kind == Slow || f.Kind == Errors || f.Kind == Resize
	message := ""
	switch {
	case has["kind"] == nil:
	case valued && has["value"] == nil:
		message = "is missing"
	case !valued && has["value"] != nil:
		message = "is used by slow, errors and resize only"
	case f.Kind == Slow && f.Value < 1:
		message = "must be 1 or more: how many times as long everything takes"
	case f.Kind == Errors && f.Value > 1:
		message = "must lie between 0 and 1: the share of requests"
	case f.Kind == Resize && f.Value == 0:
		message = "must be above 0: how many times as large the engine is"
	}
	if message != "" {
		r.report(n, join(at, "value"), "", message)
	}
	return f
}

// arrivalKeys are the keys that each shape has beyond those of all.
func arrivalKeys(k ArrivalKind) []string {
	switch k {
	case Pulse:
		return []string{"rate", "every", "length"}
	case Mixed:
		return []string{"rate", "most", "every"}
	case Diurnal:
		return []string{"rate", "swing", "every"}
	case Trace:
		return []string{"file", "format", "speed", "fields"}
	}
	return []string{"rate"}
}

func (r *reader) arrival(n *yaml.Node, at string) (a Arrival) {
	trace := TraceFile{Speed: 1}
	spacing := uint8(0)
	has := r.object(n, at, map[string]value{
		"kind":     oneOf(r, &a.Kind, "steady", "pulse", "mixed", "diurnal", "trace"),
		"spacing":  oneOf(r, &spacing, "poisson", "even"),
		"rate":     r.number(&a.Rate, 0, mostRate),
		"most":     r.number(&a.Most, 0, mostRate),
		"every":    r.duration(&a.Every, 100*time.Millisecond, longest),
		"length":   r.duration(&a.Length, time.Millisecond, longest),
		"swing":    r.ratio(&a.Swing, 0),
		"file":     r.text(&trace.Name),
		"format":   oneOf(r, &trace.Format, "csv", "envoy"),
		"speed":    r.number(&trace.Speed, 0.001, 1000),
		"fields":   func(n *yaml.Node, at string) { trace.Fields = r.traceFields(n, at) },
		"from":     r.duration(&a.From, 0, longest),
		"to":       r.duration(&a.To, 0, longest),
		"burst":    r.truth(&a.Burst),
		"requests": listOf(r, &a.Requests, 1, 100, r.mix),
		"tenants": func(n *yaml.Node, at string) {
			t := r.tenants(n, at)
			a.Tenants = &t
		},
		"clients": listOf(r, &a.Clients, 1, 100, r.client),
	}, "kind")
	a.Even = spacing == 1
	if a.Requests != nil {
		sumsToOne(r, has["requests"], join(at, "requests"), a.Requests, shareOfMix)
	}
	if a.Clients != nil {
		sumsToOne(r, has["clients"], join(at, "clients"), a.Clients, shareOfClient)
	}
	if has["kind"] == nil {
		return a
	}
	if a.Kind == Trace {
		if has["format"] == nil {
			trace.Format = formatOf(trace.Name)
		}
		a.Trace = &trace
	}
	r.shape(n, at, &a, has)
	return a
}

// shape holds the keys of an arrival against its kind.
func (r *reader) shape(n *yaml.Node, at string, a *Arrival, has map[string]*yaml.Node) {
	keys := arrivalKeys(a.Kind)
	for _, key := range []string{"rate", "most", "every", "length", "swing", "file", "format", "speed", "fields"} {
		if v := has[key]; v != nil && !slices.Contains(keys, key) {
			r.report(v, join(at, key), "", "is not used by this kind; it has "+strings.Join(keys, ", "))
		}
	}
	need := map[ArrivalKind][]string{Steady: {"rate"}, Pulse: {"rate", "length"}, Mixed: {"rate", "most", "every"}, Diurnal: {"rate", "swing", "every"}, Trace: {"file"}}
	missing := false
	for _, key := range need[a.Kind] {
		if has[key] == nil {
			r.report(n, join(at, key), "", "is missing")
			missing = true
		}
	}
	switch {
	case missing:
	case a.Kind == Pulse && a.Every > 0 && a.Length > a.Every:
		r.report(has["length"], join(at, "length"), has["length"].Value, fmt.Sprintf("must not exceed every, %v", a.Every))
	case a.Kind == Mixed && a.Most < a.Rate:
		r.report(has["most"], join(at, "most"), has["most"].Value, fmt.Sprintf("must not be below rate, %v", a.Rate))
	}
}

func (r *reader) traceFields(n *yaml.Node, at string) map[string]string {
	fields := make(map[string]string)
	known := make(map[string]value)
	for _, name := range columns() {
		known[name] = func(n *yaml.Node, at string) {
			var where string
			r.text(&where)(n, at)
			fields[name] = where
		}
	}
	r.object(n, at, known)
	return fields
}
