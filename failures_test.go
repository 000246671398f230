package weir

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestFailureTable walks docs/failures.md (E3): every row names what callers
// see, a bound, a metric that is documented, and tests that exist.
func TestFailureTable(t *testing.T) {
	tests := testNames(t)
	metrics := read(t, "docs/metrics.md")
	rows := 0
	for line := range strings.Lines(read(t, "docs/failures.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 7 || strings.HasPrefix(strings.TrimSpace(cells[0]), "id") || strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows++
		id := strings.TrimSpace(cells[0])
		for i, what := range []string{"id", "what fails", "what callers see", "bound", "metric", "healing", "test"} {
			if strings.TrimSpace(cells[i]) == "" {
				t.Errorf("%s: %s is empty", id, what)
			}
		}
		for _, m := range regexp.MustCompile(`weir_[a-z_]+`).FindAllString(cells[4], -1) {
			if !strings.Contains(metrics, "`"+m+"`") {
				t.Errorf("%s: metric %s is not in docs/metrics.md", id, m)
			}
		}
		for name := range strings.FieldsFuncSeq(cells[6], func(r rune) bool { return r == ',' || r == ' ' }) {
			if !tests[name] {
				t.Errorf("%s: there is no test %s", id, name)
			}
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows were read from docs/failures.md", rows)
	}
}

// testNames are all test functions of the house.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	walkGo(t, func(path, _ string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				names[fn.Name.Name] = true
			}
		}
	})
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
