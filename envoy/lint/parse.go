package lint

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds that keep a hostile file from costing more than a moment: anchors
// can repeat a small text without end.
const (
	maxBytes = 16 << 20
	maxNodes = 1 << 18
	maxDepth = 100
)

var yamlLine = regexp.MustCompile(`line (\d+)`)

// parse reads the one document of the file and refuses duplicate keys, of
// which Envoy takes one without a word. nil where nothing can be read.
func (l *linter) parse(data []byte) *yaml.Node {
	top := at{line: 1, column: 1, path: "."}
	if len(data) > maxBytes {
		l.add(Error, "yaml", top, "the file is larger than 16 MiB", "split it")
		return nil
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := safely(func() error { return d.Decode(&doc) }); err != nil {
		if errors.Is(err, io.EOF) {
			l.add(Error, "yaml", top, "the file is empty", "start from examples/envoy/two-filters.yaml")
			return nil
		}
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			top.line, _ = strconv.Atoi(m[1])
			if strings.Contains(err.Error(), "did not find expected") {
				top.line++ // the parser counts from 0, the scanner from 1
			}
		}
		top.line = min(top.line, 1+bytes.Count(data, []byte("\n")))
		l.add(Error, "yaml", top, "no YAML: "+clip(err.Error()), "correct the syntax")
		return nil
	}
	if err := safely(func() error { return d.Decode(&more) }); !errors.Is(err, io.EOF) {
		l.add(Error, "yaml", at{line: more.Line, column: more.Column, path: "."}, "more than one document", "Envoy reads one: remove ---")
	}
	if len(doc.Content) != 1 {
		l.add(Error, "yaml", top, "the file is empty", "start from examples/envoy/two-filters.yaml")
		return nil
	}
	l.duplicates(doc.Content[0], "", 0)
	return doc.Content[0]
}

// safely turns a panic of the YAML library into an error.
func safely(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the YAML library gave up")
		}
	}()
	return f()
}

func (l *linter) duplicates(n *yaml.Node, path string, depth int) {
	if depth > maxDepth {
		return // the decoder says so
	}
	if n.Kind == yaml.MappingNode {
		seen := map[string]*yaml.Node{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if first := seen[key.Value]; first != nil && key.Kind == yaml.ScalarNode {
				l.add(Error, "duplicate-key", place(key, join(path, key.Value)), "the key "+quote(key.Value)+" is here twice, first in line "+strconv.Itoa(first.Line),
					"Envoy takes one of them without a word: keep one")
			}
			seen[key.Value] = key
			l.duplicates(n.Content[i+1], join(path, key.Value), depth+1)
		}
		return
	}
	for i, c := range n.Content {
		l.duplicates(c, path+"["+strconv.Itoa(i)+"]", depth+1)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func place(n *yaml.Node, path string) at { return at{n.Line, n.Column, path} }
