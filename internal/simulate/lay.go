package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/policy"
)

// Path is where a file named in the scenario lies.
func (s *Scenario) Path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(s.File), name)
}

// Lay reads a policy with the scenario's topology and overlay laid over it.
// Each of its pools must have an engine. Secrets are not read. What is wrong
// is told with the file and line that it stands in, the policy's or the
// scenario's.
func (s *Scenario) Lay(file string, data []byte) (*policy.Policy, error) {
	p, err := s.layOver(file, data)
	if err != nil {
		return nil, err
	}
	var wrong policy.Errors
	for i := range p.Pools {
		name := p.Pools[i].Name
		if _, ok := s.Engines[name]; !ok {
			wrong = append(wrong, policy.Violation{
				File: s.File, Field: join("engines", name),
				Message: "is missing: " + file + " has this pool; the engines are of " + strings.Join(slices.Sorted(maps.Keys(s.Engines)), ", ") +
					"; give it one, play a policy that has their pools, or lay models and pools over it by topology",
			})
		}
	}
	if wrong != nil {
		return nil, wrong
	}
	return p, nil
}

// Text is a policy as YAML with the scenario's topology and overlay laid over
// it, as Lay reads it. It is not checked.
func (s *Scenario) Text(file string, data []byte) ([]byte, error) {
	if s.Overlay == nil {
		return data, nil
	}
	_, out, err := s.merge(file, data)
	return out, err
}

// merge lays the overlay over a policy, as a tree and as text.
func (s *Scenario) merge(file string, data []byte) (*yaml.Node, []byte, error) {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		_, err := policy.Load(file, data, policy.WithoutSecrets()) // says what is wrong
		if err == nil {
			err = fmt.Errorf("%s: is not a mapping", file)
		}
		return nil, nil, err
	}
	if bad := unplain(doc.Content[0]); bad != nil {
		return nil, nil, policy.Errors{{File: file, Line: bad.Line, Column: bad.Column, Message: "aliases, anchors and YAML tags are not taken where a scenario is laid over a policy"}}
	}
	merged := lay(doc.Content[0], s.Overlay)
	var out bytes.Buffer
	if err := yaml.NewEncoder(&out).Encode(merged); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return merged, out.Bytes(), nil
}

func (s *Scenario) layOver(file string, data []byte) (*policy.Policy, error) {
	if s.Overlay == nil {
		return policy.Load(file, data, policy.WithoutSecrets())
	}
	merged, text, err := s.merge(file, data)
	if err != nil {
		return nil, err
	}
	p, err := policy.Load(file, text, policy.WithoutSecrets())
	var wrong policy.Errors
	if !errors.As(err, &wrong) {
		return p, err
	}
	ours := make(map[*yaml.Node]bool)
	mark(s.Overlay, ours)
	for i := range wrong {
		v := &wrong[i]
		n := find(merged, v.Field)
		v.Line, v.Column = n.Line, n.Column
		if ours[n] {
			v.File = s.File
		}
	}
	return nil, wrong
}

// lay gives the base with over laid over it: mappings key by key, classes by
// name as a policy's own are, anything else replaced; null takes a key out, so
// that its default holds. Neither is changed.
func lay(base, over *yaml.Node) *yaml.Node {
	if base.Kind != yaml.MappingNode || over.Kind != yaml.MappingNode {
		return over
	}
	out := *base
	out.Content = slices.Clone(base.Content)
	for i := 0; i+1 < len(over.Content); i += 2 {
		k, v, at := over.Content[i], over.Content[i+1], 0
		for at < len(out.Content) && out.Content[at].Value != k.Value {
			at += 2
		}
		switch there := at < len(out.Content); {
		case v.ShortTag() == "!!null" && there:
			out.Content = slices.Delete(out.Content, at, at+2)
		case v.ShortTag() == "!!null":
		case !there:
			out.Content = append(out.Content, k, empty(v))
			fallthrough
		default:
			into := lay
			if k.Value == "classes" {
				into = layNamed
			}
			out.Content[at+1] = into(out.Content[at+1], v)
		}
	}
	return &out
}

// empty is a node of the same kind and place with nothing in it.
func empty(n *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: n.Kind, Tag: n.Tag, Style: n.Style, Line: n.Line, Column: n.Column}
}

// layNamed is lay for lists whose items have names.
func layNamed(base, over *yaml.Node) *yaml.Node {
	if base.Kind != yaml.SequenceNode || over.Kind != yaml.SequenceNode {
		return over
	}
	out := *base
	out.Content = slices.Clone(base.Content)
	for _, item := range over.Content {
		name := child(item, "name")
		at := slices.IndexFunc(base.Content, func(n *yaml.Node) bool {
			have := child(n, "name")
			return name != nil && have != nil && have.Value == name.Value
		})
		if at < 0 {
			out.Content = append(out.Content, lay(empty(item), item))
			continue
		}
		out.Content[at] = lay(base.Content[at], item)
	}
	return &out
}

// unite joins two mappings without a key in common; nil where both are.
func unite(a, b *yaml.Node) *yaml.Node {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	out := *a
	out.Content = append(slices.Clone(a.Content), b.Content...)
	return &out
}

// child is the value of a key; nil where there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// find is the node nearest to a dotted path: queue.softLimit,
// pools[0].seats.requests.
func find(n *yaml.Node, path string) *yaml.Node {
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' }) {
		var next *yaml.Node
		if index, ok := strings.CutSuffix(step, "]"); ok {
			if i, err := strconv.Atoi(index); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
				next = n.Content[i]
			}
		} else {
			next = child(n, step)
		}
		if next == nil {
			return n
		}
		n = next
	}
	return n
}

func mark(n *yaml.Node, seen map[*yaml.Node]bool) {
	seen[n] = true
	for _, c := range n.Content {
		mark(c, seen)
	}
}
