package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnvoyCheck(t *testing.T) {
	const good, policy = "../../examples/envoy/two-filters.yaml", "../../examples/policies/default.yaml"
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	write := func(old, put string) string {
		t.Helper()
		if !strings.Contains(string(text), old) {
			t.Fatalf("no %q in the example", old)
		}
		file := filepath.Join(t.TempDir(), "envoy.yaml")
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, put, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	before, _, _ := strings.Cut(string(text), "cluster: infer,")
	line := 1 + strings.Count(before, "\n")
	bad := write("cluster: infer,", "cluster: infr,")
	odd := write("merge_slashes: true", "merge_slashes: false")
	short := write("max_message_timeout: 30s", "max_message_timeout: 5s")
	for _, c := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // parts
	}{
		{"well", []string{good, "--config", policy}, 0, "0 errors, 0 warnings for Envoy 1.36 to 1.40\n", ""},
		{"without a policy", []string{good, "--release", "1.38"}, 0, "for Envoy 1.38; not held against a policy", ""},
		{"an error", []string{bad}, 1, fmt.Sprintf("envoy.yaml:%d:25: error: no cluster \"infr\" [cluster-missing]\n", line), ""},
		{"a warning", []string{odd}, 0, "[paths]", ""},
		{"against the policy", []string{short, "--config", policy}, 1, "[message-timeout]", ""},
		{"which without one is not seen", []string{short}, 0, "0 errors, 0 warnings", ""},
		{"rules", []string{"--rules"}, 0, "cluster-missing  a cluster that is named anywhere", ""},
		{"no file", nil, 2, "", "takes one file"},
		{"two files", []string{good, good}, 2, "", "takes one file"},
		{"a release of nobody", []string{good, "--release", "1.35"}, 2, "", "1.36 to 1.40"},
		{"an unknown flag", []string{good, "--relase", "1.36"}, 2, "", "unknown flag"},
		{"a missing file", []string{good + "x"}, 1, "", "no such file"},
		{"a file without end", []string{"/dev/zero"}, 1, "", "/dev/zero: more than 67108864 bytes"},
		{"a directory", []string{t.TempDir()}, 1, "", "is a directory"},
		{"a missing policy", []string{good, "--config", policy + "x"}, 1, "", "no such file"},
	} {
		stdout, stderr, code := execute(t, append([]string{"envoy", "check"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: code %d, stdout %q, stderr %q", c.name, code, stdout, stderr)
		}
	}
	stdout, _, code := execute(t, "envoy", "check", bad, "--json")
	var report struct {
		Policy   bool
		Findings []struct {
			Line           int
			Rule, Severity string
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 1 || report.Policy || len(report.Findings) != 1 ||
		report.Findings[0].Line != line || report.Findings[0].Rule != "cluster-missing" || report.Findings[0].Severity != "error" {
		t.Errorf("--json: code %d, %v: %s", code, err, stdout)
	}
}
