package policy

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// row is one key of the file as the tables describe it.
type row struct {
	path     string // queue.length.max, pools[].seats.requests
	shape    shape
	required bool
}

// rows lists every key of the file, profiles once.
func rows() []row {
	var out []row
	var walk func(path string, s shape, required bool)
	walk = func(path string, s shape, required bool) {
		if path != "" {
			out = append(out, row{path, s, required})
		}
		switch s.kind {
		case "object":
			for _, f := range s.fields {
				walk(strings.TrimPrefix(path+"."+f.key, "."), f.shape, f.required)
			}
		case "list":
			if s.item.kind == "object" {
				for _, f := range s.item.fields {
					walk(path+"[]."+f.key, f.shape, f.required)
				}
			}
		}
	}
	walk("", sections().shape, false)
	return out
}

// unit is the type of a value in the words of the reference.
func (s shape) unit() string {
	switch s.kind {
	case "enum":
		return strings.Join(s.enum, ", ")
	case "list":
		if s.item.kind == "object" {
			return "list"
		}
		return "list of " + s.item.unit()
	case "map":
		if s.item.kind == "object" {
			return "map of sections"
		}
		return "map of strings"
	}
	return s.kind
}

// defaultsByPath are the defaults of everything that has one of its own: the
// base policy, and what a section or list item starts with.
func defaultsByPath(t *testing.T) map[string]string {
	t.Helper()
	p := base()
	p.Models, p.Pools = nil, nil
	redis := defaultRedis()
	p.Telemetry.OTLP = &OTLP{Sample: 0.01}
	e := &encoder{}
	out := make(map[string]string)
	collect := func(path string, n *yaml.Node) { flatten(t, out, path, n) }
	collect("", sections().write(e, p))
	collect("store.redis", redisTable().write(e, &redis))
	jwks := defaultJWKS()
	collect("identity.issuers[].jwks", jwksTable().write(e, &jwks))
	collect("tiers[]", tierTable().write(e, &Tier{Weight: 1}))
	delete(out, "tiers[].share") // by name
	pool := Pool{MaxHold: maxHold}
	pool.complete()
	collect("pools[]", poolTable().write(e, &pool))
	pool = Pool{Adaptive: &Adaptive{}}
	pool.complete()
	collect("pools[].seats.adaptive", adaptiveTable().write(e, pool.Adaptive))
	cluster, endpoints := defaultCluster(), defaultEndpoints()
	endpoints.Priorities = []EndpointSet{{DNS: "x:1"}}
	endpoints.complete()
	collect("envoy.clusters[]", clusterTable().write(e, &cluster))
	collect("envoy.clusters[].endpoints", endpointsTable().write(e, &endpoints))
	collect("envoy.clusters[].endpoints.priorities[]", endpointSetTable().write(e, &EndpointSet{Every: endpoints.Priorities[0].Every}))
	etcd, xds := defaultEtcd(), defaultXDS()
	collect("breaker.cascade.etcd", etcdTable().write(e, &etcd))
	collect("envoy.xds", xdsTable().write(e, &xds))
	nonStreaming := defaultNonStreaming()
	collect("nonStreaming", nonStreamingTable().write(e, &nonStreaming))
	return out
}

func flatten(t *testing.T, out map[string]string, path string, n *yaml.Node) {
	t.Helper()
	switch {
	case n.Kind == yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			flatten(t, out, strings.TrimPrefix(path+"."+n.Content[i].Value, "."), n.Content[i+1])
		}
	case n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.MappingNode:
		// lists of sections have no default that fits a cell
	case n.Kind == yaml.SequenceNode:
		var items []string
		for _, c := range n.Content {
			items = append(items, c.Value)
		}
		out[path] = "[" + strings.Join(items, ", ") + "]"
	default:
		out[path] = n.Value
	}
}

// documented is one row of the reference table in docs/policy.md.
type documented struct{ unit, bounds, defaults, id, applies, meaning string }

func readReference(t *testing.T) map[string]documented {
	t.Helper()
	data, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]documented)
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 8 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		key, ok := strings.CutPrefix(cells[1], "`")
		if !ok {
			continue
		}
		key = strings.TrimSuffix(key, "`")
		if _, twice := out[key]; twice {
			t.Errorf("%s is documented twice", key)
		}
		out[key] = documented{cells[2], cells[3], cells[4], cells[5], cells[6], cells[7]}
	}
	return out
}

// Every key of the file is in docs/policy.md with the unit, bounds and
// default that the reader enforces, and nothing else is.
func TestReference(t *testing.T) {
	docs := readReference(t)
	defaults := defaultsByPath(t)
	for _, r := range rows() {
		if r.shape.kind == "object" {
			continue // its keys are documented
		}
		d, ok := docs[r.path]
		if !ok {
			t.Errorf("%s (%s) is not documented", r.path, r.shape.unit())
			continue
		}
		delete(docs, r.path)
		if d.unit != r.shape.unit() || d.bounds != r.shape.bounds {
			t.Errorf("%s: documented as %s, %s; is %s, %s", r.path, d.unit, d.bounds, r.shape.unit(), r.shape.bounds)
		}
		if want, own := defaults[r.path]; (d.defaults == "required") != r.required || !r.required && own && want != "" && d.defaults != want {
			t.Errorf("%s: documented default %s, is %s (required: %v)", r.path, d.defaults, want, r.required)
		}
		applies := "hot"
		for _, part := range []string{"server.", "store.", "breaker.cascade.bus", "breaker.cascade.etcd.", "envoy.xds."} {
			if strings.HasPrefix(r.path, part) {
				applies = "restart"
			}
		}
		if d.applies != applies || d.meaning == "" || d.defaults == "" {
			t.Errorf("%s: applies %q (want %q), default %q, meaning %q", r.path, d.applies, applies, d.defaults, d.meaning)
		}
	}
	for key := range docs {
		t.Errorf("%s is documented, but is no key", key)
	}
}

// The override keys are documented, and no others.
func TestReferenceOverrides(t *testing.T) {
	data, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "## Route overrides")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, key := range OverrideKeys() {
		if !strings.Contains(section, "| `"+key+"` |") {
			t.Errorf("%s is not documented", key)
		}
	}
}
