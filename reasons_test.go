package weir

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/admission"
)

// TestReasonsAreDocumented walks the reason table to its end and holds
// docs/reasons.md against it.
func TestReasonsAreDocumented(t *testing.T) {
	doc := read(t, "docs/reasons.md")
	for r := range admission.Reason(admission.NumReasons) {
		row := r.Row()
		want := fmt.Sprintf("| `%s` | ", row.Name)
		if !r.Admits() {
			want = fmt.Sprintf("| `%s` | %d | %d | `%s` | ", row.Name, row.HTTP, row.GRPC, row.Code)
		}
		line := ""
		for l := range strings.Lines(doc) {
			if strings.HasPrefix(l, want) {
				line = l
			}
		}
		if line == "" {
			t.Errorf("docs/reasons.md has no row that begins %q", want)
			continue
		}
		if !strings.Contains(line, row.Message) {
			t.Errorf("docs/reasons.md: %s says another sentence than %q", row.Name, row.Message)
		}
	}
}
