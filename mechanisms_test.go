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
	row := regexp.MustCompile(`^\| ([QPVBTKEO]\d+) \| [^|]+ \| [^|]+ \|$`)
	for l := range strings.Lines(read(t, "docs/mechanisms.md")) {
		if m := row.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
			rows[m[1]] = true
		}
	}
	cited := regexp.MustCompile(`\b([QPVBTKEO]\d{1,2})\b`)
	for _, file := range []string{"docs/policy.md", "docs/metrics.md", "doc.go", "policy/doc.go", "admission/doc.go", "queue/queue.go"} {
		for _, m := range cited.FindAllStringSubmatch(read(t, file), -1) {
			if !rows[m[1]] {
				t.Errorf("%s cites %s, which docs/mechanisms.md does not explain", file, m[1])
			}
		}
	}
}
