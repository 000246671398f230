package lint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// sick is an example with something broken in it. Edits are pairs of old and
// new text; each old text is there, and its first occurrence is replaced.
type sick struct {
	name    string
	base    string // "" = two-filters
	edits   []string
	policy  []string // edits of examples/policies/default.yaml; nil = no policy
	release Release
	rule    string
	warning bool
	on      string   // text of the line that the finding names
	advice  string   // part of the advice
	message string   // part of the message
	also    []string // rules that rightly find something too
}

// held is the default policy as it is.
var held = []string{}

const examples = "../../examples"

func read(t testing.TB, parts ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{examples}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func edit(t testing.TB, text string, edits []string) string {
	t.Helper()
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(text, edits[i]) {
			t.Fatalf("%q is not in the file", edits[i])
		}
		text = strings.Replace(text, edits[i], edits[i+1], 1)
	}
	return text
}

func load(t testing.TB, edits []string) *policy.Policy {
	t.Helper()
	p, err := policy.Load("weir.yaml", []byte(edit(t, read(t, "policies", "default.yaml"), edits)), policy.WithoutSecrets())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func lineOf(t *testing.T, text, part string) int {
	t.Helper()
	i := strings.Index(text, part)
	if i < 0 || part == "" {
		t.Fatalf("the file has no %q", part)
	}
	return 1 + strings.Count(text[:i], "\n")
}

func (c *sick) run(t *testing.T) {
	base := c.base
	if base == "" {
		base = "two-filters"
	}
	text := edit(t, read(t, "envoy", base+".yaml"), c.edits)
	o := Options{Release: c.release}
	if c.policy != nil {
		o.Policy = load(t, c.policy)
	}
	r := Check("envoy.yaml", []byte(text), o)
	var rules []string
	found := false
	line := lineOf(t, text, c.on)
	for _, f := range r.Findings {
		rules = append(rules, f.Rule)
		want := Error
		if c.warning {
			want = Warning
		}
		found = found || f.Rule == c.rule && f.Severity == want && f.Line == line && strings.Contains(f.Advice, c.advice) && strings.Contains(f.Message, c.message)
	}
	if !found {
		t.Errorf("no %s in line %d with advice %q, but\n%s", c.rule, line, c.advice, r)
	}
	for _, rule := range rules {
		if rule != c.rule && !slices.Contains(c.also, rule) {
			t.Errorf("%s found something too:\n%s", rule, r)
			break
		}
	}
}

func TestCorpus(t *testing.T) {
	all := slices.Concat(corpusYAML, corpusNames, corpusFilters, corpusOverrides, corpusLimits, corpusXDS)
	if len(all) < 60 {
		t.Fatalf("only %d bad bootstraps", len(all))
	}
	covered := map[string]bool{}
	for _, c := range all {
		covered[c.rule] = true
		t.Run(c.name, c.run)
	}
	for _, r := range Rules() {
		if !covered[r.ID] {
			t.Errorf("rule %s: no bad bootstrap shows it", r.ID)
		}
	}
}

// TestExamplesAreClean: with the policy that each is written for.
func TestExamplesAreClean(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examples, "envoy", "*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for release := Release(0); release <= Newest; release++ {
			if release != 0 && release < Oldest {
				continue
			}
			r := Check(name, data, Options{Release: release, Policy: policyOf(t, name)})
			r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.Rule == "local-reply" }) // one file for all releases
			if len(r.Findings) != 0 {
				t.Errorf("%s", r)
			}
		}
		if r := Check(name, data, Options{}); r.Errors() != 0 {
			t.Errorf("without a policy: %s", r)
		}
	}
}

func policyOf(t *testing.T, name string) *policy.Policy {
	t.Helper()
	if _, err := os.Stat(filepath.Join(examples, "policies", name)); err == nil {
		p, err := policy.LoadFile(filepath.Join(examples, "policies", name), policy.WithoutSecrets())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if name == "one-filter.yaml" {
		return load(t, []string{"from: authz", "from: extproc"})
	}
	return load(t, nil)
}

// No cluster is proposed whose name is another word: weir's own is near to
// every name of three letters.
func TestNearIsNear(t *testing.T) {
	for cluster, near := range map[string]string{"tri": "", "gpu": "", "wer": "weir", "infr": "infer", "chat": "", "chat-int9": "chat-int8"} {
		p := load(t, []string{"    variant: int8\n", "    variant: int8\n    envoy: {cluster: " + cluster + "}\n"})
		r := Check("envoy.yaml", []byte(read(t, "envoy", "two-filters.yaml")), Options{Policy: p})
		got := ""
		for _, f := range r.Findings {
			if _, name, ok := strings.Cut(f.Advice, "did you mean "); f.Rule == "pool-cluster" && ok {
				got = strings.TrimSuffix(name, "?")
			}
		}
		if got != near {
			t.Errorf("for cluster %q %q is proposed, want %q", cluster, got, near)
		}
	}
}
