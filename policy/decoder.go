package policy

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder is one reading of one file.
type decoder struct {
	file    string
	dir     string // for relative file names
	secrets bool   // read the files of secrets
	places  map[string]*yaml.Node
	named   map[string]string // path of a list's item by list and name: classes.batch
	errs    Errors

	profiles map[string]*yaml.Node // read after the base
	profile  string                // path of the profile that is being read; "" = none
	unread   map[string]bool       // sections with a value that could not be read
}

func newDecoder(file, dir string, secrets bool) *decoder {
	return &decoder{file: file, dir: dir, secrets: secrets, places: make(map[string]*yaml.Node), named: make(map[string]string)}
}

// place remembers where a path stands, for checks over the whole file.
func (d *decoder) place(at string, n *yaml.Node) { d.places[at] = n }

func (d *decoder) report(n *yaml.Node, at, value, message string) {
	d.errs = append(d.errs, Violation{
		File: d.file, Line: n.Line, Column: n.Column, Field: at, Value: shown(value), Message: message,
	})
}

// fail reports what is wrong with a node's own value.
func (d *decoder) fail(n *yaml.Node, at, message string) {
	d.report(n, at, follow(n).Value, message)
}

// failAt reports against a path: at the nearest place of it in the file.
func (d *decoder) failAt(at, value, message string) {
	v := Violation{File: d.file, Field: at, Value: shown(value), Message: message}
	for path := at; ; {
		if n := d.places[path]; n != nil {
			v.Line, v.Column = n.Line, n.Column
			break
		}
		if path == "" {
			break
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	d.errs = append(d.errs, v)
}

// result is the errors in the order of the file, each once; nil for none.
func (d *decoder) result() error {
	if len(d.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(d.errs, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.Compact(d.errs)
}

// mapping gives the values of a mapping by key, nil after an error.
func (d *decoder) mapping(n *yaml.Node, at string) map[string]*yaml.Node {
	m := follow(n)
	if m.Kind != yaml.MappingNode {
		d.wrongKind(n, at, "a mapping (key: value)")
		return nil
	}
	keys := make(map[string]*yaml.Node, len(m.Content)/2)
	lines := make(map[string]int)
	for i := 0; i < len(m.Content); i += 2 {
		k := m.Content[i]
		switch {
		case k.Kind != yaml.ScalarNode || k.ShortTag() != "!!str":
			what := "keys must be plain strings"
			if k.ShortTag() == "!!merge" {
				what = "merge keys (<<) are not taken: use an alias for the whole value"
			}
			d.report(k, at, k.Value, what)
		case lines[k.Value] != 0:
			d.report(k, join(at, k.Value), "", "is written twice, first on line "+strconv.Itoa(lines[k.Value]))
		default:
			keys[k.Value], lines[k.Value] = m.Content[i+1], k.Line
		}
	}
	return keys
}

// sequence gives the items of a list; false after an error.
func (d *decoder) sequence(n *yaml.Node, at string, least, most int) ([]*yaml.Node, bool) {
	s := follow(n)
	switch {
	case s.Kind != yaml.SequenceNode:
		d.wrongKind(n, at, "a list")
		return nil, false
	case len(s.Content) < least || len(s.Content) > most:
		d.report(n, at, "", fmt.Sprintf("has %d items, must have %s", len(s.Content), strings.TrimSuffix(itemBounds(least, most), " items")))
		return nil, false
	}
	return s.Content, true
}

// scalar gives the text of a scalar; false after an error. Only a quoted or
// plain string has stringly true.
func (d *decoder) scalar(n *yaml.Node, at, what string) (text string, tag string, ok bool) {
	s := follow(n)
	tag = s.ShortTag()
	if s.Kind != yaml.ScalarNode || tag == "!!null" {
		d.wrongKind(n, at, what)
		return "", "", false
	}
	return s.Value, tag, true
}

func (d *decoder) wrongKind(n *yaml.Node, at, what string) {
	got, value := "a list", ""
	switch s := follow(n); {
	case s.Kind == yaml.MappingNode:
		got = "a mapping"
	case s.Kind == yaml.ScalarNode && s.ShortTag() == "!!null":
		got = "nothing"
	case s.Kind == yaml.ScalarNode:
		got, value = "a plain value", s.Value
	}
	d.report(n, at, value, "must be "+what+", not "+got)
}

func (d *decoder) unknownKey(k *yaml.Node, at string, known []string) {
	message := "unknown key"
	if d.profile != "" && isKey(strings.TrimPrefix(join(at, k.Value), d.profile+".")) {
		d.report(k, join(at, k.Value), "", "is not for profiles, which share it: set it outside them; the keys here are "+strings.Join(known, ", "))
		return
	}
	for _, name := range known {
		if strings.EqualFold(name, k.Value) || distance(name, k.Value) <= 2 {
			d.report(k, join(at, k.Value), "", message+"; did you mean "+name+"?")
			return
		}
	}
	d.report(k, join(at, k.Value), "", message+"; the keys here are "+strings.Join(known, ", "))
}

// isKey reports whether the file has a key of this path outside profiles.
func isKey(path string) bool {
	at := sections().shape
	for part := range strings.SplitSeq(path, ".") {
		part, _, _ = strings.Cut(part, "[")
		i := slices.IndexFunc(at.fields, func(f fieldShape) bool { return f.key == part })
		if i < 0 {
			return false
		}
		if at = at.fields[i].shape; at.kind == "list" {
			at = *at.item
		}
	}
	return true
}

// distance is Levenshtein's, for short words; long ones are simply far.
func distance(a, b string) int {
	if len(a) < 4 || len(b) < 4 || len(a) > 32 || len(b) > 32 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// resolve makes a file name independent of the working directory's choice:
// relative names are relative to the policy file.
func (d *decoder) resolve(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(d.dir, name)
}

// encoder is one writing of one policy.
type encoder struct{ dir string }

// relative undoes resolve, so that a policy is the same wherever it lies.
func (e *encoder) relative(name string) string {
	if e.dir == "" || e.dir == "." {
		return name
	}
	if rest, ok := strings.CutPrefix(name, strings.TrimSuffix(e.dir, "/")+"/"); ok {
		return rest
	}
	return name
}

func plain(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}
