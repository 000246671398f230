package policy

import (
	"fmt"
	"strings"
)

// Violation is one thing wrong with a policy or with a route's overrides.
type Violation struct {
	File    string // "" for route overrides
	Line    int    // 1-based; 0 = unknown
	Column  int    // 1-based; 0 = unknown
	Field   string // dotted path: queue.softLimit, pools[0].seats.requests
	Value   string // as written, cut to 64 bytes; "" where there is none
	Message string // what is wrong and which bound or values hold
}

// String is one line: file:line:column: field: message (got "value").
func (v Violation) String() string {
	var b strings.Builder
	if v.File != "" {
		b.WriteString(v.File)
		if v.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", v.Line, v.Column)
		}
		b.WriteString(": ")
	}
	if v.Field != "" {
		b.WriteString(v.Field)
		b.WriteString(": ")
	}
	b.WriteString(v.Message)
	if v.Value != "" {
		fmt.Fprintf(&b, " (got %q)", v.Value)
	}
	return b.String()
}

// Errors are all violations found in one file or one set of overrides, in
// the order of the file. It is never empty as an error.
type Errors []Violation

// Error lists the violations, one a line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, v := range e {
		lines[i] = v.String()
	}
	return strings.Join(lines, "\n")
}

// maxShown is how much of a bad value an error repeats.
const maxShown = 64

func shown(s string) string {
	if len(s) > maxShown {
		return strings.ToValidUTF8(s[:maxShown], "") + "..."
	}
	return s
}
