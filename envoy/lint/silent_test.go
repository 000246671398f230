package lint

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/envoytest"
)

// silent are entries of the corpus that Envoy takes without a word, all in one
// file.
var silent = []string{
	"a key twice", "assignment of another", "ext_proc to nowhere", "a route name twice", "a header with a blank", "boolean in quotes",
	"override of nobody", "CEL: an unknown root", "a retry word of nobody, to weir", "per-route under a wrong name", "a runtime layer from nowhere",
	"a call twice: 5xx", "trailers skipped", "ext_authz open", "default breakers", "idle before the hold ends", "Envoy crashes",
}

func entries(t *testing.T, names []string) (text string, rules []string) {
	text = read(t, "envoy", "two-filters.yaml")
	all := slices.Concat(corpusYAML, corpusNames, corpusFilters, corpusOverrides, corpusLimits, corpusXDS)
	for _, name := range names {
		i := slices.IndexFunc(all, func(c sick) bool { return c.name == name })
		if i < 0 {
			t.Fatalf("the corpus has no %q", name)
		}
		text = edit(t, text, all[i].edits)
		rules = append(rules, all[i].rule)
	}
	return text, rules
}

// validate runs a real Envoy on a bootstrap; what it says is empty where it
// takes the file.
func validate(t *testing.T, b envoytest.Binary, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, b.Path, "--mode", "validate", "-l", "critical", "-c", file).CombinedOutput()
	if err != nil {
		return err.Error() + ": " + string(out)
	}
	return ""
}

// TestWhatEnvoyTakesSilently: seventeen mistakes in one file, with which a real
// Envoy is content; each is found here.
func TestWhatEnvoyTakesSilently(t *testing.T) {
	text, rules := entries(t, silent)
	r := Check("envoy.yaml", []byte(text), Options{})
	for i, rule := range rules {
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == rule }) {
			t.Errorf("%s: no finding of %s in\n%s", silent[i], rule, r)
		}
	}
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		if said := validate(t, b, text); said != "" {
			t.Errorf("Envoy refuses the file: %s", said)
		}
	})
}

// TestWhatEnvoyRefusesIsFound: whatever entry of the corpus a real Envoy
// refuses has an error here, for that release. It takes minutes: WEIR_LINT_ALL
// turns it on.
func TestWhatEnvoyRefusesIsFound(t *testing.T) {
	if os.Getenv("WEIR_LINT_ALL") == "" {
		t.Skip("WEIR_LINT_ALL is not set")
	}
	envoytest.EachEnvoy(t, func(t *testing.T, b envoytest.Binary) {
		release := Release(b.Minor()) //nolint:gosec // a minor number
		refused := 0
		for _, c := range slices.Concat(corpusYAML, corpusNames, corpusFilters, corpusOverrides, corpusLimits, corpusXDS) {
			base := "two-filters"
			if c.base != "" {
				base = c.base
			}
			text := edit(t, read(t, "envoy", base+".yaml"), c.edits)
			said := validate(t, b, text)
			if said != "" {
				refused++
			}
			errors := Check("envoy.yaml", []byte(text), Options{Release: release}).Errors()
			if said != "" && errors == 0 {
				t.Errorf("%s: Envoy refuses it, no error here: %s", c.name, said)
			}
			if said == "" && slices.Contains([]string{"unknown-field", "unknown-type", "bad-value", "oneof", "invalid", "release", "regex", "router", "domain-twice", "cluster-twice"}, c.rule) && errors > 0 && !c.warning {
				t.Logf("%s: Envoy takes what %s calls an error", c.name, c.rule)
			}
		}
		t.Logf("Envoy %s refuses %d of the corpus", b.Version, refused)
	})
}
