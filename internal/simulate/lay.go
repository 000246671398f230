package simulate

import (
	"bytes"
	"errors"
	"fmt"
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
// Secrets are not read. What is wrong is told with the file and line that it
// stands in, the policy's or the scenario's.
func (s *Scenario) Lay(file string, data []byte) (*policy.Policy, error) {
	if s.Overlay == nil {
		return policy.Load(file, data, policy.WithoutSecrets())
	}
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		_, err := policy.Load(file, data, policy.WithoutSecrets()) // says what is wrong
		if err == nil {
			err = fmt.Errorf("%s: is not a mapping", file)
		}
		return nil, err
	}
	if bad := unplain(doc.Content[0]); bad != nil {
		return nil, policy.Errors{{File: file, Line: bad.Line, Column: bad.Column, Message: "aliases, anchors and YAML tags are not taken where a scenario is laid over a policy"}}
	}
	merged := lay(doc.Content[0], s.Overlay)
	var out bytes.Buffer
	if err := yaml.NewEncoder(&out).Encode(merged); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	p, err := policy.Load(file, out.Bytes(), policy.WithoutSecrets())
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

// lay gives the base with over laid over it: mappings key by key, anything
// else replaced. Neither is changed.
func lay(base, over *yaml.Node) *yaml.Node {
	if base.Kind != yaml.MappingNode || over.Kind != yaml.MappingNode {
		return over
	}
	out := *base
	out.Content = slices.Clone(base.Content)
	for i := 0; i+1 < len(over.Content); i += 2 {
		k, v, at := over.Content[i], over.Content[i+1], 0
		for at < len(base.Content) && base.Content[at].Value != k.Value {
			at += 2
		}
		if at < len(base.Content) {
			out.Content[at+1] = lay(base.Content[at+1], v)
			continue
		}
		out.Content = append(out.Content, k, v)
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
