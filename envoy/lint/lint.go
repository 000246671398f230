// Package lint finds what is wrong with an Envoy bootstrap that stands before
// weir, above all what Envoy itself accepts without a word: names of clusters
// and filters that do not exist, metadata that nobody reads, clocks that cut
// what weir holds, limits below what the policy lets run.
//
// The file is read once, strictly, into bootstrap.v3.Bootstrap, keeping for
// each message the YAML it came from (decode.go); every message is held
// against its own rules (validate.go); then each rule of the table (rules.go)
// looks at the whole.
//
// Sources: Envoy's v3 protos and their comments; what the releases 1.36.4,
// 1.37.0, 1.38.3, 1.39.3 and 1.40.0 did when they were run (the tests hold
// the figures); RE2's compiler for program sizes.
//
// Invariants: no input makes it panic; a finding names file, line and column;
// equal input gives equal output, in the order of the file; nothing is opened
// or asked over a network.
package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/policy"
)

// Severity says whether a bootstrap may be used.
type Severity uint8

// A Warning may be meant; an Error breaks or opens something.
const (
	Warning Severity = iota
	Error
)

// String is "warning" or "error".
func (s Severity) String() string {
	if s == Error {
		return "error"
	}
	return "warning"
}

// MarshalText is String, for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing wrong, at its place in the file.
type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`   // 1-based
	Column   int      `json:"column"` // 1-based
	Path     string   `json:"path"`   // static_resources.clusters[0].name
	Rule     string   `json:"rule"`   // an id of Rules
	Severity Severity `json:"severity"`
	Message  string   `json:"message"` // what is wrong
	Advice   string   `json:"advice"`  // what to write
}

// String is two lines: file:line:column: severity: message [rule], and the
// path with the advice.
func (f Finding) String() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s [%s]\n    %s: %s", f.File, f.Line, f.Column, f.Severity, f.Message, f.Rule, f.Path, f.Advice)
}

// Options say what to hold the file against.
type Options struct {
	Policy  *policy.Policy // nil skips what needs one
	Release Release        // 0 = every supported release
}

// Report is the outcome of one file.
type Report struct {
	File     string    `json:"file"`
	Source   Source    `json:"source"`  // what it was read as
	Release  string    `json:"release"` // "1.36", or "1.36 to 1.40"
	Policy   bool      `json:"policy"`  // held against a policy
	Findings []Finding `json:"findings"`
}

// Errors counts the findings that are errors.
func (r *Report) Errors() int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == Error {
			n++
		}
	}
	return n
}

// Summary counts in words: 1 error, 2 warnings.
func (r *Report) Summary() string {
	count := func(n int, of string) string {
		if n != 1 {
			of += "s"
		}
		return fmt.Sprintf("%d %s", n, of)
	}
	return count(r.Errors(), "error") + ", " + count(len(r.Findings)-r.Errors(), "warning")
}

// String lists the findings and sums them up.
func (r *Report) String() string {
	var b strings.Builder
	for _, f := range r.Findings {
		b.WriteString(f.String())
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s (%s): %s for Envoy %s", r.File, r.Source, r.Summary(), r.Release)
	if !r.Policy {
		b.WriteString("; not held against a policy (--config weir.yaml): its waits, seats, body limit, pools and names are unchecked")
	}
	b.WriteByte('\n')
	return b.String()
}

// startRules find what Envoy refuses to start with. What runs was taken by
// Envoy, perhaps of another build: of a dump they say nothing.
var startRules = []string{
	"duplicate-key", "scalar", "unknown-field", "unknown-type", "bad-value", "oneof", "invalid", "release",
	"extension", "regex", "log-format", "router", "domain-twice", "cluster-twice",
}

// Check reads a bootstrap, or a dump of what runs (YAML or JSON); name is how
// findings call it.
func Check(name string, data []byte, o Options) *Report {
	r := &Report{File: name, Source: FromBootstrap, Release: o.Release.String(), Policy: o.Policy != nil, Findings: []Finding{}}
	l := &linter{file: name, Options: o}
	if root := l.parse(data); root != nil {
		root, l.source = bootstrapOf(root)
		r.Source = l.source
		l.doc = l.decode(root)
		l.validate()
		checkNumbers(l)
		l.scene = l.doc.scene(o.Policy)
		for _, rule := range ruleTable {
			if rule.check != nil {
				l.rule = rule.ID
				rule.check(l)
			}
		}
	}
	r.Findings = append(r.Findings, l.sorted()...)
	return r
}

// linter is one run over one file.
type linter struct {
	Options
	file     string
	source   Source
	doc      *document
	scene    *scene
	rule     string // being checked
	findings []Finding
}

// at is a place in the file that a finding points to.
type at struct {
	line, column int
	path         string
}

// maxPath is how much of a path a finding shows; only what nests without end
// is longer.
const maxPath = 1000

func (l *linter) add(s Severity, rule string, p at, message, advice string) {
	if l.source == FromDump && slices.Contains(startRules, rule) {
		return
	}
	switch {
	case p.path == "":
		p.path = "." // the whole
	case len(p.path) > maxPath:
		p.path = strings.ToValidUTF8(p.path[:maxPath], "") + "..."
	}
	l.findings = append(l.findings, Finding{
		File: l.file, Line: max(p.line, 1), Column: max(p.column, 1), Path: p.path,
		Rule: rule, Severity: s, Message: message, Advice: advice,
	})
}

// fail and warn report what the rule being checked found.
func (l *linter) fail(p at, message, advice string) { l.add(Error, l.rule, p, message, advice) }
func (l *linter) warn(p at, message, advice string) { l.add(Warning, l.rule, p, message, advice) }

// sorted puts findings in the order of the file. What an anchor repeats is
// told once.
func (l *linter) sorted() []Finding {
	slices.SortStableFunc(l.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	return slices.CompactFunc(l.findings, func(a, b Finding) bool {
		return a.Line == b.Line && a.Column == b.Column && a.Rule == b.Rule && a.Message == b.Message
	})
}

// clip shortens what a message repeats of the file.
func clip(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}

func quote(s string) string { return fmt.Sprintf("%q", clip(s)) }
