package lint

import (
	"fmt"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// decoder builds messages from YAML, scalar by scalar, so that each mistake
// has its place and none hides the next. What is wrong is told and left out.
type decoder struct {
	l     *linter
	doc   *document
	nodes int
}

func (l *linter) decode(root *yaml.Node) *document {
	doc := &document{root: new(bootstrapv3.Bootstrap), places: map[proto.Message]*source{}, inner: map[*anypb.Any]proto.Message{}, wrapped: map[*anypb.Any]bool{}}
	d := &decoder{l: l, doc: doc}
	d.message(root, doc.root, nil, "", 0)
	return doc
}

// spent is whether the bounds on size and depth are used up.
func (d *decoder) spent(n *yaml.Node, path string, depth int) bool {
	d.nodes++
	if d.nodes < maxNodes && depth < maxDepth {
		return false
	}
	if d.nodes <= maxNodes {
		d.l.add(Error, "yaml", place(n, path), "nested too deep, or repeated too often by anchors", "write less")
		d.nodes = maxNodes + 1
	}
	return true
}

// message fills m from a mapping. skip names keys that are not fields.
func (d *decoder) message(n *yaml.Node, m proto.Message, parent proto.Message, path string, depth int, skip ...string) {
	n = resolve(n)
	if n == nil || d.spent(n, path, depth) || isNull(n) {
		return
	}
	s := &source{node: n, path: path, parent: parent, fields: map[string]entry{}}
	d.doc.places[m] = s
	d.doc.messages = append(d.doc.messages, m)
	if n.Kind != yaml.MappingNode {
		d.l.add(Error, "bad-value", place(n, path), "must be a mapping (a "+shortName(m)+")", "write {field: value}")
		return
	}
	fields := m.ProtoReflect().Descriptor().Fields()
keys:
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		for _, k := range skip {
			if key.Value == k {
				continue keys
			}
		}
		fd := fields.ByName(protoreflect.Name(key.Value))
		if fd == nil {
			fd = fields.ByJSONName(key.Value)
		}
		if fd == nil {
			d.unknown(key, path, m)
			continue
		}
		name := string(fd.Name())
		if v := resolve(value); v == nil || isNull(v) {
			continue // Envoy takes null for not set
		}
		d.l.checkSince(string(m.ProtoReflect().Descriptor().FullName())+" "+name, name, place(key, join(path, name)))
		if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
			if other := m.ProtoReflect().WhichOneof(o); other != nil && other != fd {
				d.l.add(Error, "oneof", place(key, join(path, name)), fmt.Sprintf("%s and %s exclude each other", other.Name(), name), "keep one of them")
				continue
			}
		}
		s.fields[name] = entry{key, value}
		d.field(value, m, fd, join(path, name), depth)
	}
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && readScalar(n).kind == null
}

func shortName(m proto.Message) string { return string(m.ProtoReflect().Descriptor().Name()) }

func (d *decoder) unknown(key *yaml.Node, path string, m proto.Message) {
	advice := shortName(m) + " has no such field"
	if key.Value == "<<" {
		d.l.add(Error, "unknown-field", place(key, join(path, "<<")), "Envoy does not know merge keys", "write the fields out, or use the whole anchor")
		return
	}
	best, name := 4, ""
	for i := range m.ProtoReflect().Descriptor().Fields().Len() {
		f := string(m.ProtoReflect().Descriptor().Fields().Get(i).Name())
		if n := distance(key.Value, f); n < best {
			best, name = n, f
		}
	}
	if name != "" {
		advice += "; did you mean " + name + "?"
	} else {
		advice += ": look at the indentation"
	}
	d.l.add(Error, "unknown-field", place(key, join(path, clip(key.Value))), "no such field: "+quote(key.Value), advice)
}

func (d *decoder) field(n *yaml.Node, m proto.Message, fd protoreflect.FieldDescriptor, path string, depth int) {
	n = resolve(n)
	switch {
	case fd.IsMap():
		d.entries(n, m, fd, path, depth)
	case fd.IsList():
		list := m.ProtoReflect().Mutable(fd).List()
		if n.Kind != yaml.SequenceNode { // Envoy takes it for a list of one
			d.l.add(Warning, "bad-value", place(n, path), "must be a list", "write [value, ...]")
			if v, ok := d.one(n, m, fd, path+"[0]", depth, list.NewElement); ok {
				list.Append(v)
			}
			return
		}
		d.elements(n, m, fd, path, depth, list)
	default:
		newValue := func() protoreflect.Value { return m.ProtoReflect().NewField(fd) }
		if v, ok := d.one(n, m, fd, path, depth, newValue); ok {
			m.ProtoReflect().Set(fd, v)
		}
	}
}

// elements appends to a list. One inside another is taken for part of it.
func (d *decoder) elements(n *yaml.Node, m proto.Message, fd protoreflect.FieldDescriptor, path string, depth int, list protoreflect.List) {
	for i, c := range n.Content {
		at := path + "[" + strconv.Itoa(i) + "]"
		if c = resolve(c); c == nil {
			continue
		}
		if c.Kind == yaml.SequenceNode && !takesLists(fd) {
			if d.spent(c, at, depth) {
				return
			}
			d.l.add(Warning, "bad-value", place(c, at), "a list in a list; Envoy takes it for one", "write its values one level up")
			d.elements(c, m, fd, at, depth+1, list)
			continue
		}
		if v, ok := d.one(c, m, fd, at, depth, list.NewElement); ok {
			list.Append(v)
		}
	}
}

func takesNull(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Value"
}

func takesLists(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && (fd.Message().FullName() == "google.protobuf.ListValue" || fd.Message().FullName() == "google.protobuf.Value")
}

func (d *decoder) entries(n *yaml.Node, m proto.Message, fd protoreflect.FieldDescriptor, path string, depth int) {
	if n.Kind != yaml.MappingNode {
		d.l.add(Error, "bad-value", place(n, path), "must be a mapping", "write {key: value}")
		return
	}
	entries := m.ProtoReflect().Mutable(fd).Map()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		k, err := mapKey(key.Value, fd.MapKey())
		if err != nil {
			d.l.add(Error, "bad-value", place(key, path), "key "+quote(key.Value)+": "+err.Error(), "correct the key")
			continue
		}
		if v := resolve(n.Content[i+1]); v == nil || isNull(v) && !takesNull(fd.MapValue()) {
			if fd.MapValue().Message() != nil {
				entries.Set(k, entries.NewValue()) // null is an empty message
			}
			continue
		}
		if v, ok := d.one(n.Content[i+1], m, fd.MapValue(), join(path, key.Value), depth, entries.NewValue); ok {
			entries.Set(k, v)
		}
	}
}

func mapKey(s string, fd protoreflect.FieldDescriptor) (protoreflect.MapKey, error) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(s).MapKey(), nil
	case protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(s, 10, 32)
		return protoreflect.ValueOfUint32(uint32(n)).MapKey(), err
	case protoreflect.Int32Kind:
		n, err := strconv.ParseInt(s, 10, 32)
		return protoreflect.ValueOfInt32(int32(n)).MapKey(), err
	}
	return protoreflect.MapKey{}, fmt.Errorf("keys of kind %v are not read here", fd.Kind())
}
