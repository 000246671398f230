package weir

import (
	"regexp"
	"strings"
	"testing"
)

// TestMechanismIDsAreExplained: an id that a reader meets in the documents or
// the floor plan has a row in docs/mechanisms.md.
func TestMechanismIDsAreExplained(t *testing.T) {
	rows := make(map[string]bool)
	row := regexp.MustCompile(`^\| ([QPVBTKEHOG]\d+) \| [^|]+ \| [^|]+ \|$`)
	for l := range strings.Lines(read(t, "docs/mechanisms.md")) {
		if m := row.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
			rows[m[1]] = true
		}
	}
	cited := regexp.MustCompile(`\b([QPVBTKEHOG]\d{1,2})\b`)
	for _, file := range []string{"docs/policy.md", "docs/metrics.md", "docs/envoy.md", "doc.go", "policy/doc.go", "admission/doc.go", "queue/queue.go", "breaker/breaker.go", "envoy/watch/reading.go", "envoy/protect/doc.go"} {
		for _, m := range cited.FindAllStringSubmatch(read(t, file), -1) {
			if !rows[m[1]] {
				t.Errorf("%s cites %s, which docs/mechanisms.md does not explain", file, m[1])
			}
		}
	}
}

// TestMechanismsAreHeld: each rule of the waiting room, the fuse box and the
// street, and each claim of the source, has tests that hold it, and they exist.
func TestMechanismsAreHeld(t *testing.T) {
	explained, held, found := strings.Cut(read(t, "docs/mechanisms.md"), "\n## Held by\n")
	if !found {
		t.Fatal("docs/mechanisms.md does not say which tests hold the rules")
	}
	tests := testNames(t)
	rows := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^\| ([QPVBGTEHO]\d+) \| (.+) \|$`).FindAllStringSubmatch(held, -1) {
		rows[m[1]] = true
		for name := range strings.SplitSeq(m[2], ", ") {
			if !tests[name] {
				t.Errorf("%s: there is no test %s", m[1], name)
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\| ([QPVBGH]\d+|E4|T2) \|`).FindAllStringSubmatch(explained, -1) {
		if !rows[m[1]] {
			t.Errorf("%s: no test is named", m[1])
		}
	}
}
