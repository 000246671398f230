package policy

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// template is a parsed API path.
type template []segment

// segment is one part of a template; a literal has its text.
type segment struct {
	kind segmentKind
	text string
}

type segmentKind uint8

// The kinds of segment, most specific first.
const (
	literalSegment segmentKind = iota
	paramSegment               // {name}: one segment, not empty
	restSegment                // {name...}: any rest, also none
)

var paramName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// parseTemplate reads an API path. Literal segments obey CleanPath, so that a
// template can be met at all.
func parseTemplate(s string) (template, error) {
	if !strings.HasPrefix(s, "/") {
		return nil, errors.New(`must begin with "/"`)
	}
	var t template
	var probe strings.Builder
	names := make(map[string]bool)
	parts := strings.Split(s[1:], "/")
	for i, part := range parts {
		seg, name, err := parseSegment(part)
		switch {
		case err != nil:
			return nil, err
		case name != "" && names[name]:
			return nil, fmt.Errorf("parameter %q is named twice", name)
		case seg.kind == restSegment && i != len(parts)-1:
			return nil, fmt.Errorf("segment %q: only the last one may take the rest", part)
		}
		names[name] = true
		t = append(t, seg)
		probe.WriteString("/" + seg.text + name)
	}
	if got, ok := CleanPath(probe.String()); !ok || got != probe.String() {
		return nil, errors.New("can never be met: paths spelt like this are refused")
	}
	return t, nil
}

func parseSegment(part string) (seg segment, name string, err error) {
	name, open := strings.CutPrefix(part, "{")
	if !open {
		if strings.ContainsAny(part, "{}") {
			return seg, "", fmt.Errorf("segment %q: a parameter is a whole segment", part)
		}
		return segment{literalSegment, part}, "", nil
	}
	name, closed := strings.CutSuffix(name, "}")
	name, rest := strings.CutSuffix(name, "...")
	if !closed || !paramName.MatchString(name) {
		return seg, "", fmt.Errorf("segment %q: must be {name} or a last {name...}", part)
	}
	if rest {
		return segment{kind: restSegment}, name, nil
	}
	return segment{kind: paramSegment}, name, nil
}

func (t template) isLiteral() bool {
	for _, s := range t {
		if s.kind != literalSegment {
			return false
		}
	}
	return true
}

// matches takes a path that CleanPath gave. It does not allocate.
func (t template) matches(path string) bool {
	rest := path[1:]
	for i, s := range t {
		if s.kind == restSegment {
			return true
		}
		part, after, more := strings.Cut(rest, "/")
		if s.kind == literalSegment && part != s.text || s.kind == paramSegment && part == "" {
			return false
		}
		if more != (i < len(t)-1) {
			return false
		}
		rest = after
	}
	return true
}

// compare puts the more specific template first. Templates of the same shape
// compare equal: each path that one of them matches, the other does too.
func (t template) compare(u template) int {
	for i := range min(len(t), len(u)) {
		if c := cmp.Compare(t[i].kind, u[i].kind); c != 0 {
			return c
		}
		if c := cmp.Compare(t[i].text, u[i].text); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(u), len(t))
}
