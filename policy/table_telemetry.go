package policy

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// sourceKind is a kind of telemetry source: which keys it needs and which it
// takes besides kind, every, timeout and those needed.
type sourceKind struct {
	name  string
	needs []string
	takes []string
	slow  bool // read every 5 s by default (Q3, T4), else every second
	grpc  bool // url is host:port or unix:/path
}

// The keys that only some kinds take.
const (
	keyURL, keyFile, keyMatch, keyTLS, keyToken     = "url", "file", "match", "tls", "token"
	keyEndpoint, keyEndpointLabel, keyEndpointsFile = "endpoint", "endpointLabel", "endpointsFile"
	keyAgent                                        = "agent"
)

// sourceKeys are the keys that only some kinds take, in the file's order.
func sourceKeys() []string {
	return []string{keyURL, keyFile, keyMatch, keyTLS, keyToken, keyEndpoint, keyEndpointLabel, keyEndpointsFile, keyAgent}
}

// textKind reads Prometheus text.
func textKind(name string, more ...string) sourceKind {
	return sourceKind{name: name, needs: []string{keyURL}, takes: append([]string{keyMatch, keyTLS, keyToken}, more...)}
}

func sourceKinds() []sourceKind {
	slow := func(k sourceKind) sourceKind {
		k.slow = true
		return k
	}
	places := []string{keyEndpoint, keyEndpointLabel, keyEndpointsFile}
	return []sourceKind{
		slow(textKind(KindDCGMExporter, places...)),
		textKind(KindVLLM),
		textKind(KindSGLang),
		textKind(KindTGI),
		textKind(KindTriton, places...),
		textKind(KindTritonLLM, places...),
		textKind(KindTRTLLM),
		{name: KindORCA},
		{name: KindORCAGRPC, grpc: true, needs: []string{keyURL}, takes: []string{keyTLS, keyToken}},
		{name: KindAgent, grpc: true, slow: true, needs: []string{keyURL}, takes: []string{keyMatch, keyTLS, keyToken, keyEndpoint, keyEndpointsFile}},
		{name: KindDCGM, slow: true, takes: []string{keyMatch, keyEndpoint, keyEndpointsFile, keyAgent}},
		slow(textKind(KindNodeExporter)),
		slow(textKind(KindCAdvisor)),
		{name: KindCgroup},
		{name: KindScript, needs: []string{keyFile}},
	}
}

// builtInKind finds a kind that needs no entry in engines.
func builtInKind(name string) (sourceKind, bool) {
	kinds := sourceKinds()
	i := slices.IndexFunc(kinds, func(k sourceKind) bool { return k.name == name })
	if i < 0 {
		return sourceKind{}, false
	}
	return kinds[i], true
}

func kindNamesOf(kinds []sourceKind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return strings.Join(names, ", ")
}

func sourceTable() codec[TelemetrySource] {
	kind := name()
	kind.shape.bounds = kindNamesOf(sourceKinds()) + ", or the name of one of engines"
	place := checked(text(1, 2048), "an http or https URL; of agent and orca-grpc host:port or unix:/path", func(s string) string {
		if strings.Contains(s, "://") {
			_, message := parseWeb(s)
			return message
		}
		return dialRule(s)
	})
	return object(
		key("kind", func(t *TelemetrySource) *string { return &t.Kind }, kind).need(),
		key(keyURL, func(t *TelemetrySource) *string { return &t.URL }, maybe(place, noValue)),
		key(keyFile, func(t *TelemetrySource) *string { return &t.File }, fileName()),
		key("every", func(t *TelemetrySource) *time.Duration { return &t.Every }, duration(100*time.Millisecond, 10*time.Minute, false)),
		key("timeout", func(t *TelemetrySource) *time.Duration { return &t.Timeout }, duration(10*time.Millisecond, time.Minute, false)),
		key(keyMatch, func(t *TelemetrySource) *map[string]string { return &t.Match }, labels()),
		key(keyTLS, func(t *TelemetrySource) **ClientTLS { return &t.TLS }, pointer(clientTLSTable(), zero[ClientTLS])),
		key(keyToken, func(t *TelemetrySource) *Secret { return &t.Token }, secret()),
		key(keyEndpoint, func(t *TelemetrySource) *string { return &t.Endpoint }, maybe(text(1, 256), noValue)),
		key(keyEndpointLabel, func(t *TelemetrySource) *string { return &t.EndpointLabel }, maybe(labelName(), noValue)),
		key(keyEndpointsFile, func(t *TelemetrySource) *string { return &t.EndpointsFile }, fileName()),
		key(keyAgent, func(t *TelemetrySource) *string { return &t.Agent }, fileName()),
	)
}

func clientTLSTable() codec[ClientTLS] {
	return objectThen(checkClientTLS,
		key("ca", func(t *ClientTLS) *string { return &t.CA }, fileName()),
		key("cert", func(t *ClientTLS) *string { return &t.Cert }, fileName()),
		key("key", func(t *ClientTLS) *string { return &t.Key }, fileName()),
		key("serverName", func(t *ClientTLS) *string { return &t.ServerName }, maybe(text(1, 256), noValue)),
	)
}

var metricLabel = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func labelName() codec[string] {
	return matching(checked(text(1, 256), "the name of a label", func(s string) string {
		if !metricLabel.MatchString(s) {
			return "must be the name of a label"
		}
		return ""
	}), metricLabel.String())
}

// metricSelector is name or name{label="value",...} as Prometheus writes it.
var metricSelector = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\["\\n])*"(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\["\\n])*")*)?\})?$`)

func engineTable() codec[EngineMetrics] {
	metric := matching(checked(text(1, 512), `a metric's name, or name{label="value"}`, func(s string) string {
		if !metricSelector.MatchString(s) {
			return `must be a metric's name, or name{label="value"}`
		}
		return ""
	}), metricSelector.String())
	metrics := func() codec[[]string] { return maybe(unique(list(metric, zero[string], 1, 16)), emptyList) }
	return objectThen(checkEngine,
		key("name", func(e *EngineMetrics) *string { return &e.Name }, name()).need(),
		key("waiting", func(e *EngineMetrics) *[]string { return &e.Waiting }, metrics()),
		key("running", func(e *EngineMetrics) *[]string { return &e.Running }, metrics()),
		key("kv", func(e *EngineMetrics) *[]string { return &e.KV }, metrics()),
	)
}
