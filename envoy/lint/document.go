package lint

import (
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// document is the decoded bootstrap with the place of everything in it.
type document struct {
	root     *bootstrapv3.Bootstrap
	messages []proto.Message // in the order of the file; what an Any holds included
	places   map[proto.Message]*source
	inner    map[*anypb.Any]proto.Message
	wrapped  map[*anypb.Any]bool // in a TypedStruct
}

// source is where a message came from.
type source struct {
	node   *yaml.Node    // the mapping, or the scalar of a leaf
	path   string        // from the root
	parent proto.Message // nil for the root
	fields map[string]entry
}

// entry is a key of a mapping and its value.
type entry struct{ key, value *yaml.Node }

// open is the message in an Any; nil where there is none or it was no good.
func (d *document) open(a *anypb.Any) proto.Message {
	if a == nil {
		return nil
	}
	return d.inner[a]
}

// of is the place of a message.
func (d *document) of(m proto.Message) at {
	s := d.places[m]
	if s == nil {
		return at{path: "."}
	}
	return at{s.node.Line, s.node.Column, s.path}
}

// field is the place of a field's key; that of the message where the field is
// not there.
func (d *document) field(m proto.Message, name string) at {
	s := d.places[m]
	if s == nil {
		return at{path: "."}
	}
	if e, ok := s.fields[name]; ok {
		return at{e.key.Line, e.key.Column, join(s.path, name)}
	}
	return at{s.node.Line, s.node.Column, s.path}
}

// has is whether the file sets a field.
func (d *document) has(m proto.Message, name string) bool {
	s := d.places[m]
	if s == nil {
		return false
	}
	_, ok := s.fields[name]
	return ok
}

// value is the YAML of a field, nil where it is not there.
func (d *document) value(m proto.Message, name string) *yaml.Node {
	if s := d.places[m]; s != nil {
		return resolve(s.fields[name].value)
	}
	return nil
}

// item is the place of an element of a list.
func (d *document) item(m proto.Message, name string, i int) at {
	p := d.field(m, name)
	p.path += "[" + strconv.Itoa(i) + "]"
	if n := d.value(m, name); n != nil && n.Kind == yaml.SequenceNode && i >= 0 && i < len(n.Content) {
		p.line, p.column = n.Content[i].Line, n.Content[i].Column
	}
	return p
}

// entryOf is the place of a key in a map.
func (d *document) entryOf(m proto.Message, name, key string) at {
	p := d.field(m, name)
	p.path = join(p.path, key)
	if e, ok := find(d.value(m, name), key); ok {
		p.line, p.column = e.key.Line, e.key.Column
	}
	return p
}

func find(n *yaml.Node, key string) (entry, bool) {
	n = resolve(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return entry{}, false
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return entry{n.Content[i], n.Content[i+1]}, true
		}
	}
	return entry{}, false
}

// resolve follows aliases, a bounded number of them.
func resolve(n *yaml.Node) *yaml.Node {
	for i := 0; n != nil && n.Kind == yaml.AliasNode; i++ {
		if i > maxDepth {
			return nil
		}
		n = n.Alias
	}
	return n
}

// within is the nearest message of type M around m; nil where there is none.
func within[M proto.Message](d *document, m proto.Message) (found M, ok bool) {
	for s := d.places[m]; s != nil && s.parent != nil; s = d.places[s.parent] {
		if found, ok = s.parent.(M); ok {
			return found, true
		}
	}
	return found, false
}

// all calls f with every message of type M.
func all[M proto.Message](d *document, f func(M)) {
	for _, m := range d.messages {
		if m, ok := m.(M); ok {
			f(m)
		}
	}
}
