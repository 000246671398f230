package envoy

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// document is a message of Envoy's as YAML that people read: fields in the
// order of the message, notes above them.
type document struct{ root *yaml.Node }

func documentOf(m proto.Message) (*document, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil { // JSON is YAML
		return nil, err
	}
	plain(doc.Content[0])
	return &document{doc.Content[0]}, nil
}

// note puts comments above the field at a path of keys and indexes; one that
// is not there has none.
func (d *document) note(path string, lines ...string) {
	node, key := d.root, (*yaml.Node)(nil)
	for step := range strings.SplitSeq(path, ".") {
		var next *yaml.Node
		if i, err := strconv.Atoi(step); err == nil && node.Kind == yaml.SequenceNode && i < len(node.Content) {
			next = node.Content[i]
		}
		for i := 0; node.Kind == yaml.MappingNode && i < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				key, next = node.Content[i], node.Content[i+1]
			}
		}
		if next == nil {
			return
		}
		node.Style &^= yaml.FlowStyle // comments stand in lines of their own
		node = next
	}
	if key != nil {
		key.HeadComment = strings.Join(lines, "\n")
	}
}

// text is the document, each line behind indent.
func (d *document) text(indent string) string {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if e.Encode(d.root) != nil || e.Close() != nil {
		return "" // nodes that were decoded encode
	}
	lines := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
	return indent + strings.Join(lines, indent) + "\n"
}

// item is the document as an item of a list that stands behind indent.
func (d *document) item(indent string) string {
	return indent + "- " + strings.TrimPrefix(d.text(indent+"  "), indent+"  ")
}

// plain turns JSON's style into YAML's: blocks, short leaves in one line, and
// quotes where Envoy's reader could see anything but a string.
func plain(n *yaml.Node) {
	short := len(n.Content) <= 6
	for i, c := range n.Content {
		plain(c)
		isKey := n.Kind == yaml.MappingNode && i%2 == 0
		short = short && (isKey || c.Kind == yaml.ScalarNode || len(c.Content) == 0)
	}
	n.Style = 0
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str" && !bare(n.Value):
		n.Style = yaml.DoubleQuotedStyle
	case n.Kind != yaml.ScalarNode && short:
		n.Style = yaml.FlowStyle
	}
}

// bare reports whether a string needs no quotes: a word of letters that no
// reader takes for a truth, a number or nothing, or a duration.
func bare(s string) bool {
	if d, ok := strings.CutSuffix(s, "s"); ok {
		if _, err := strconv.ParseFloat(d, 64); err == nil && d != "" && d[0] >= '0' && d[0] <= '9' {
			return true
		}
	}
	if len(s) < 4 || strings.Contains(" true false null ", " "+strings.ToLower(s)+" ") {
		return false
	}
	for i := range len(s) {
		c := s[i] | 0x20
		letter, digit := c >= 'a' && c <= 'z', s[i] >= '0' && s[i] <= '9'
		if !letter && (i == 0 || !digit && strings.IndexByte("_.-", s[i]) < 0) {
			return false
		}
	}
	return true
}

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
