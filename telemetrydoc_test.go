package weir

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// TestTelemetryGuide: docs/telemetry.md helps to choose among all kinds of
// source, and its example is a policy that weir takes.
func TestTelemetryGuide(t *testing.T) {
	_, guide, _ := strings.Cut(read(t, "docs/telemetry.md"), "\n## Which source\n")
	guide, _, found := strings.Cut(guide, "\n## ")
	if !found {
		t.Fatal("docs/telemetry.md does not say which source to take")
	}
	row := regexp.MustCompile("(?m)^\\| `pools\\[\\]\\.telemetry\\[\\]\\.kind` \\| string \\| (.*), or the name").FindStringSubmatch(read(t, "docs/policy.md"))
	if row == nil {
		t.Fatal("docs/policy.md does not list the kinds")
	}
	for kind := range strings.SplitSeq(row[1], ", ") {
		if !strings.Contains(guide, "`"+kind+"`") {
			t.Errorf("the guide does not speak of kind %s", kind)
		}
	}
	_, example, _ := strings.Cut(guide, "```yaml\n")
	example, _, found = strings.Cut(example, "```\n")
	if !found {
		t.Fatal("the guide has no example")
	}
	dir := t.TempDir()
	text := "version: 1\nidentity: {from: metadata}\nmodels: [{name: m, pools: [chat-fp16]}]\n" +
		strings.Replace(example, "- name: chat-fp16\n", "- name: chat-fp16\n    variant: fp16\n", 1)
	for name, content := range map[string]string{"weir.yaml": text, "dcgm-token": "s3cret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := policy.LoadFile(filepath.Join(dir, "weir.yaml"))
	if err != nil {
		t.Fatalf("the example is refused: %v", err)
	}
	if n := len(p.Pools[0].Telemetry); n != 3 {
		t.Errorf("%d sources were read, want 3", n)
	}
}
