package lint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// sound is what holds of every report.
func sound(t *testing.T, data []byte, r *Report) {
	t.Helper()
	lines := 1
	for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // what YAML ends a line with
		lines += strings.Count(string(data), end)
	}
	known := map[string]bool{}
	for _, rule := range Rules() {
		known[rule.ID] = true
	}
	for _, f := range r.Findings {
		if f.Line < 1 || f.Line > lines || f.Column < 1 || f.Path == "" || f.Message == "" || f.Advice == "" || !known[f.Rule] {
			t.Fatalf("an unsound finding: %+v", f)
		}
	}
}

// FuzzCheck: no bootstrap makes it panic, and equal input gives equal output.
func FuzzCheck(f *testing.F) {
	for _, name := range []string{"two-filters", "one-filter", "edge", "region"} {
		f.Add([]byte(read(f, "envoy", name+".yaml")))
	}
	for _, s := range []string{
		"", "a: &a [*a]", "a: &a {b: *a}\nstatic_resources: *a", "static_resources: {clusters: [{name: &n x}, {name: *n}]}", "- 1", "null", "? {a: b}\n: c",
		"static_resources: {listeners: [{filter_chains: [{filters: [{typed_config: {\"@type\": x}}]}]}]}", "node: {metadata: {a: [1, {b: 010}]}}", "static_resources: &s {clusters: *s}",
		"layered_runtime: {layers: [{name: a, static_layer: {a: {b: {c: on}}}}]}", "{\"node\": {\"id\": 1.5}}", "---\n---\n", "\xff", "a: !!binary x", "{", "\r$",
	} {
		f.Add([]byte(s))
	}
	p := load(f, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		a := Check("a", data, Options{Policy: p})
		sound(t, data, a)
		if b := Check("a", data, Options{Policy: p}); !slices.Equal(a.Findings, b.Findings) {
			t.Fatalf("two runs differ:\n%s\n%s", a, b)
		}
	})
}

// TestMutatedLines leaves out, doubles, empties and swaps lines and words of
// the examples: nothing panics.
func TestMutatedLines(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 8))
	p := load(t, nil)
	bases := []string{read(t, "envoy", "two-filters.yaml"), read(t, "envoy", "edge.yaml")}
	for range 150 {
		lines := strings.Split(bases[rng.IntN(len(bases))], "\n")
		for range 1 + rng.IntN(4) {
			i, j := rng.IntN(len(lines)), rng.IntN(len(lines))
			switch rng.IntN(6) {
			case 0:
				lines = slices.Delete(lines, i, i+1)
			case 1:
				lines = slices.Insert(lines, i, lines[i])
			case 2:
				key, _, _ := strings.Cut(lines[i], ":")
				lines[i] = key + ":"
			case 3:
				lines[i], lines[j] = lines[j], lines[i]
			case 4:
				key, _, _ := strings.Cut(lines[i], ":")
				lines[i] = key + ": " + []string{"[]", "{}", "on", "-1", "1e99", `"\0"`, "[[[{a: b}]]]", "!!binary x", "*weir_grpc"}[rng.IntN(9)]
			case 5:
				lines[i] = strings.Replace(lines[i], "{", "[", 1)
			}
		}
		data := []byte(strings.Join(lines, "\n"))
		sound(t, data, Check("mutated.yaml", data, Options{Policy: p}))
	}
}

// TestBoundsHold: what repeats itself by anchors ends soon and says why.
func TestBoundsHold(t *testing.T) {
	var b strings.Builder
	b.WriteString("node: {metadata: {a0: &a0 [x, x, x, x, x, x, x, x, x]")
	for i := 1; i < 10; i++ {
		prev := string(rune('0' + i - 1))
		one := "*a" + prev + ", "
		b.WriteString(", a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.Repeat(one, 8) + "*a" + prev + " ]")
	}
	b.WriteString("}}\n")
	for name, text := range map[string]string{"laughs": b.String(), "deep": "node: {metadata: " + strings.Repeat("{a: ", 5000) + strings.Repeat("}", 5000) + "}\n", "itself": "node: {metadata: &m {a: *m}}\n"} {
		r := Check(name, []byte(text), Options{})
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == "yaml" }) {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// TestManyClusters: a bootstrap of 2,000 clusters and routes is read in
// seconds, and the last mistake in it is found.
func TestManyClusters(t *testing.T) {
	text := read(t, "envoy", "two-filters.yaml")
	var routes, clusters strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&routes, "              - {name: r%d, match: {path: /m/%d}, route: {cluster: m%d, timeout: 0s}}\n", i, i, i)
		fmt.Fprintf(&clusters, "  - {name: m%d, type: STATIC, connect_timeout: 5s, circuit_breakers: *model_breakers, load_assignment: {cluster_name: m%d}}\n", i, i)
	}
	routes.WriteString("              - {name: last, match: {path: /m/last}, route: {cluster: m2000, timeout: 0s}}\n")
	const before = "              - name: deny-rest\n"
	text = edit(t, text, []string{before, routes.String() + before}) + clusters.String()
	start := time.Now()
	r := Check("many.yaml", []byte(text), Options{})
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("it took %v", took)
	} else {
		t.Logf("it took %v", took)
	}
	if len(r.Findings) != 1 || r.Findings[0].Rule != "cluster-missing" || !strings.Contains(r.Findings[0].Message, "m2000") {
		t.Errorf("%s", r)
	}
}
