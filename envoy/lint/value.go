package lint

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// one reads a single value: an element, a map's value or a plain field.
func (d *decoder) one(n *yaml.Node, m proto.Message, fd protoreflect.FieldDescriptor, path string, depth int, newValue func() protoreflect.Value) (protoreflect.Value, bool) {
	n = resolve(n)
	if n == nil || d.spent(n, path, depth) {
		return protoreflect.Value{}, false
	}
	if fd.Kind() != protoreflect.MessageKind {
		s, ok := d.scalar(n, fd, path)
		if !ok {
			return protoreflect.Value{}, false
		}
		v, since, ok := s.plain(fd)
		if !ok || fd.Kind() == protoreflect.EnumKind && fd.Enum().Values().ByNumber(v.Enum()) == nil {
			return protoreflect.Value{}, d.badValue(n, fd, path)
		}
		d.form(n, since, path)
		return v, true
	}
	v := newValue()
	return v, d.into(n, v.Message().Interface(), m, path, depth)
}

// into fills a message; protobuf's well-known ones have forms of their own.
func (d *decoder) into(n *yaml.Node, m, parent proto.Message, path string, depth int) bool {
	switch m := m.(type) {
	case *anypb.Any:
		return d.any(n, m, parent, path, depth+1)
	case *structpb.Struct:
		d.remember(n, m, parent, path)
		if n.Kind != yaml.MappingNode {
			d.l.add(Error, "bad-value", place(n, path), "must be a mapping", "write {key: value}")
			return false
		}
		m.Fields = d.value(n, path, depth).GetStructValue().GetFields()
		return true
	case *structpb.Value:
		proto.Merge(m, d.value(n, path, depth))
		return true
	case *structpb.ListValue:
		m.Values = d.value(n, path, depth).GetListValue().GetValues()
		return true
	}
	kind := m.ProtoReflect().Descriptor()
	if !hasOwnForm(kind.FullName()) || n.Kind == yaml.MappingNode {
		d.message(n, m, parent, path, depth+1)
		return true
	}
	s, ok := d.scalar(n, kind, path)
	if !ok {
		return false
	}
	since, ok := s.read(m)
	if !ok {
		return d.badValue(n, kind, path)
	}
	d.form(n, since, path)
	return true
}

// form tells of a way of writing a value that not every release takes.
func (d *decoder) form(n *yaml.Node, since Release, path string) {
	d.l.checkRelease(since, "the number "+quote(n.Value)+" in this form", place(n, path))
}

// remember keeps the place of a message that is not read field by field.
func (d *decoder) remember(n *yaml.Node, m, parent proto.Message, path string) {
	d.doc.places[m] = &source{node: n, path: path, parent: parent}
	d.doc.messages = append(d.doc.messages, m)
}

// hasOwnForm is whether protobuf's JSON writes a message otherwise than by its
// fields.
func hasOwnForm(name protoreflect.FullName) bool {
	return name.Parent() == "google.protobuf" && name.Name() != "Empty"
}

// any opens an Any by its type URL. An empty one is none, and allowed.
func (d *decoder) any(n *yaml.Node, a *anypb.Any, parent proto.Message, path string, depth int) bool {
	d.remember(n, a, parent, path)
	e, ok := find(n, "@type")
	if !ok {
		if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
			return true
		}
		d.l.add(Error, "unknown-type", place(n, path), "no @type", `write "@type": type.googleapis.com/envoy....`)
		return false
	}
	m := d.typed(e, join(path, "@type"), true)
	if m == nil {
		return false
	}
	if hasOwnForm(m.ProtoReflect().Descriptor().FullName()) {
		d.wellKnown(n, m, a, path, depth)
	} else {
		d.message(n, m, a, path, depth, "@type")
	}
	if m.ProtoReflect().Descriptor().Name() == "TypedStruct" {
		d.doc.wrapped[a] = true
		if m = d.typedStruct(n, a, path, depth); m == nil {
			return true
		}
	}
	d.doc.inner[a] = m
	a.TypeUrl = "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
	var err error
	a.Value, err = proto.MarshalOptions{AllowPartial: true}.Marshal(m)
	return err == nil
}

// wellKnown reads a message that stands in an Any under the key value.
func (d *decoder) wellKnown(n *yaml.Node, m proto.Message, a *anypb.Any, path string, depth int) {
	d.remember(n, m, a, path)
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch key := n.Content[i]; key.Value {
		case "@type":
		case "value":
			if v := resolve(n.Content[i+1]); v != nil && !isNull(v) {
				d.into(v, m, a, join(path, "value"), depth)
			}
		default:
			d.unknown(key, path, m)
		}
	}
}

// typed is an empty message of the type that a URL names; nil where Envoy has
// none. Only strict URLs need a slash.
func (d *decoder) typed(e entry, path string, strict bool) proto.Message {
	url := e.value.Value
	if r := resolve(e.value); r != nil {
		url = r.Value
	}
	if i := strings.LastIndexByte(url, '/'); strict && (i < 1 || i == len(url)-1) {
		d.l.add(Error, "unknown-type", place(e.value, path), "a type URL without a slash and a name on each side: "+quote(url), "write type.googleapis.com/envoy....")
		return nil
	}
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err != nil {
		d.l.add(Error, "unknown-type", place(e.value, path), "Envoy "+Newest.String()+" has no type "+quote(url),
			"look the type up in Envoy's API; an extension of a contrib build is not known here")
		return nil
	}
	d.l.checkSince(string(t.Descriptor().FullName()), string(t.Descriptor().Name()), place(e.value, path))
	return t.New().Interface()
}

// typedStruct reads what a TypedStruct holds as the type that it names.
func (d *decoder) typedStruct(n *yaml.Node, a *anypb.Any, path string, depth int) proto.Message {
	e, ok := find(n, "type_url")
	if !ok {
		d.l.add(Error, "unknown-type", place(n, path), "a TypedStruct without type_url", "write type_url: type.googleapis.com/envoy....")
		return nil
	}
	m := d.typed(e, join(path, "type_url"), false)
	if m == nil {
		return nil
	}
	if v, ok := find(n, "value"); ok {
		d.message(v.value, m, a, join(path, "value"), depth)
		return m
	}
	d.remember(n, m, a, path)
	return m
}

// scalar reads a scalar as Envoy reads YAML, for a field or a message.
func (d *decoder) scalar(n *yaml.Node, of protoreflect.Descriptor, path string) (scalar, bool) {
	if n.Kind != yaml.ScalarNode {
		d.l.add(Error, "bad-value", place(n, path), "must be one value, not a "+map[bool]string{true: "list", false: "mapping"}[n.Kind == yaml.SequenceNode], "write a "+wanted(of))
		return scalar{}, false
	}
	s := readScalar(n)
	if s.odd != "" && s.kind != text {
		d.l.add(Warning, "scalar", place(n, path), fmt.Sprintf("Envoy reads %s as %s", quote(n.Value), s.text), "write "+s.text+", or quote it")
	}
	if s.kind == text && wanted(of) == "boolean" {
		d.l.add(Warning, "scalar", place(n, path), "a string where a boolean belongs; Envoy takes some without a word", "write true or false without quotes")
	}
	return s, s.kind != null
}

// badValue tells of a value that does not fit; always false.
func (d *decoder) badValue(n *yaml.Node, of protoreflect.Descriptor, path string) bool {
	d.l.add(Error, "bad-value", place(n, path), fmt.Sprintf("%s is no %s", quote(n.Value), wanted(of)), "write "+example(of))
	return false
}
