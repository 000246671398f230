package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file, so that no file can cost more than a moment to read.
const (
	maxFile  = 1 << 20 // bytes
	maxNodes = 100_000 // YAML nodes once all aliases are followed
)

// parseDocument gives the one mapping of a YAML file, or what is wrong.
func parseDocument(name string, data []byte) (root *yaml.Node, wrong *Violation) {
	v := Violation{File: name}
	defer func() { // of the parser: a broken file must not stop a running weir
		if r := recover(); r != nil {
			v.Message = fmt.Sprintf("cannot be read as YAML: %v", r)
			root, wrong = nil, &v
		}
	}()
	if len(data) > maxFile {
		v.Message = fmt.Sprintf("is %d bytes long, at most %d (1 MiB) are read", len(data), maxFile)
		return nil, &v
	}
	if i, message := badText(data); i >= 0 {
		v.Line, v.Column = lineOf(data, i)
		v.Message = message
		return nil, &v
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			v.Message = "is empty"
			return nil, &v
		}
		v.fromYAML(err, data)
		return nil, &v
	}
	root = doc.Content[0]
	if w := checkTree(root); w != nil {
		w.File = name
		return nil, w
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		v.Line, v.Column = second.Line, second.Column
		v.Message = "holds more than one YAML document"
		return nil, &v
	} else if !errors.Is(err, io.EOF) {
		v.fromYAML(err, data)
		return nil, &v
	}
	return root, nil
}

var (
	yamlLine   = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)
	yamlAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// fromYAML takes the line out of a parser's message, or looks for the place.
func (v *Violation) fromYAML(err error, data []byte) {
	text := err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if line, err := strconv.Atoi(m[1]); err == nil {
			v.Line, v.Column = line, 1
		}
	}
	if m := yamlAnchor.FindStringSubmatch(text); m != nil {
		v.Line, v.Column = lineOf(data, max(bytes.Index(data, []byte("*"+m[1])), 0))
	}
	if v.Line == 0 {
		v.Line, v.Column = 1, 1
	}
	v.Message = "is not YAML: " + text
}

// badText finds the first byte that is no text; -1 if there is none.
func badText(data []byte) (at int, message string) {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return i, "is not UTF-8"
		case unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t':
			return i, "has a control character"
		}
		i += size
	}
	return -1, ""
}

func lineOf(data []byte, at int) (line, column int) {
	before := data[:at]
	return bytes.Count(before, []byte("\n")) + 1, at - bytes.LastIndexByte(before, '\n')
}

// tree walks a document once. size remembers what a node comes to with its
// aliases followed; -1 marks a node whose walk is not over.
type tree struct {
	size  map[*yaml.Node]int
	wrong *Violation
}

// checkTree refuses tags of one's own, aliases that contain themselves, and
// aliases that blow a small file up.
func checkTree(root *yaml.Node) *Violation {
	t := tree{size: make(map[*yaml.Node]int)}
	if n := t.walk(root); t.wrong == nil && n > maxNodes {
		t.fail(root, fmt.Sprintf("comes to more than %d nodes with its aliases", maxNodes))
	}
	return t.wrong
}

func (t *tree) fail(n *yaml.Node, message string) {
	if t.wrong == nil {
		t.wrong = &Violation{Line: n.Line, Column: n.Column, Message: message}
	}
}

func (t *tree) walk(n *yaml.Node) int {
	switch size, seen := t.size[n]; {
	case seen && size < 0:
		t.fail(n, "an alias leads back to itself")
		return 1
	case seen:
		return size
	}
	t.size[n] = -1
	size := 1
	if n.Style&yaml.TaggedStyle != 0 {
		t.fail(n, "YAML tags such as "+shown(n.Tag)+" are not taken")
	}
	if n.Kind == yaml.AliasNode {
		size += t.walk(n.Alias)
	}
	for _, child := range n.Content {
		if size > maxNodes {
			break
		}
		size += t.walk(child)
	}
	t.size[n] = size
	return size
}

// follow gives the node that an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}
