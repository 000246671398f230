package lint

import (
	"fmt"
	"strconv"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// decoder builds messages from YAML, scalar by scalar, so that each mistake
// has its place and none hides the next. What is wrong is told and left out.
type decoder struct {
	l     *linter
	doc   *document
	nodes int
}

func (l *linter) decode(root *yaml.Node) *document {
	doc := &document{root: new(bootstrapv3.Bootstrap), places: map[proto.Message]*source{}, inner: map[*anypb.Any]proto.Message{}}
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
		for i, c := range n.Content {
			if v, ok := d.one(c, m, fd, path+"["+strconv.Itoa(i)+"]", depth, list.NewElement); ok {
				list.Append(v)
			}
		}
	default:
		newValue := func() protoreflect.Value { return m.ProtoReflect().NewField(fd) }
		if v, ok := d.one(n, m, fd, path, depth, newValue); ok {
			m.ProtoReflect().Set(fd, v)
		}
	}
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

// one reads a single value: an element, a map's value or a plain field.
func (d *decoder) one(n *yaml.Node, m proto.Message, fd protoreflect.FieldDescriptor, path string, depth int, newValue func() protoreflect.Value) (protoreflect.Value, bool) {
	n = resolve(n)
	if n == nil || d.spent(n, path, depth) {
		return protoreflect.Value{}, false
	}
	if fd.Kind() != protoreflect.MessageKind || isLeaf(fd.Message().FullName()) {
		return d.leaf(n, fd, path)
	}
	v := newValue()
	inner := v.Message().Interface()
	switch inner := inner.(type) {
	case *anypb.Any:
		return v, d.any(n, inner, m, path, depth+1)
	case *structpb.Struct:
		d.remember(n, inner, m, path)
		if n.Kind != yaml.MappingNode {
			d.l.add(Error, "bad-value", place(n, path), "must be a mapping", "write {key: value}")
			return v, false
		}
		inner.Fields = d.value(n, path, depth).GetStructValue().GetFields()
		return v, true
	case *structpb.Value:
		proto.Merge(inner, d.value(n, path, depth))
		return v, true
	case *structpb.ListValue:
		inner.Values = d.value(n, path, depth).GetListValue().GetValues()
		return v, true
	}
	d.message(n, inner, m, path, depth+1)
	return v, true
}

// remember keeps the place of a message that is not read field by field.
func (d *decoder) remember(n *yaml.Node, m, parent proto.Message, path string) {
	d.doc.places[m] = &source{node: n, path: path, parent: parent}
	d.doc.messages = append(d.doc.messages, m)
}

func isLeaf(name protoreflect.FullName) bool {
	if !strings.HasPrefix(string(name), "google.protobuf.") {
		return false
	}
	switch name.Name() {
	case "Any", "Struct", "Value", "ListValue", "Empty":
		return false
	}
	return true
}

// any opens an Any by its type URL.
func (d *decoder) any(n *yaml.Node, a *anypb.Any, parent proto.Message, path string, depth int) bool {
	d.remember(n, a, parent, path)
	e, ok := find(n, "@type")
	if !ok {
		d.l.add(Error, "unknown-type", place(n, path), "no @type", `write "@type": type.googleapis.com/envoy....`)
		return false
	}
	url := e.value.Value
	if r := resolve(e.value); r != nil {
		url = r.Value
	}
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err != nil {
		d.l.add(Error, "unknown-type", place(e.value, join(path, "@type")), "Envoy "+Newest.String()+" has no type "+quote(url),
			"look the type up in Envoy's API; an extension of a contrib build is not known here")
		return false
	}
	d.l.checkSince(string(t.Descriptor().FullName()), string(t.Descriptor().Name()), place(e.value, join(path, "@type")))
	m := t.New().Interface()
	if s, ok := m.(*structpb.Struct); ok {
		d.remember(n, s, parent, path)
	} else {
		d.message(n, m, a, path, depth, "@type")
	}
	d.doc.inner[a] = m
	a.TypeUrl = url
	a.Value, err = proto.MarshalOptions{AllowPartial: true}.Marshal(m)
	return err == nil
}

// leaf reads a scalar by Envoy's reading of YAML and protobuf's JSON rules.
func (d *decoder) leaf(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (protoreflect.Value, bool) {
	none := protoreflect.Value{}
	if n.Kind != yaml.ScalarNode {
		d.l.add(Error, "bad-value", place(n, path), "must be one value, not a "+map[bool]string{true: "list", false: "mapping"}[n.Kind == yaml.SequenceNode], "write a "+wanted(fd))
		return none, false
	}
	s := readScalar(n)
	if s.kind == null {
		return none, false
	}
	literal := s.text
	if s.kind == text {
		if isBool(fd) && (s.text == "true" || s.text == "false") {
			d.l.add(Error, "scalar", place(n, path), "a string where a boolean belongs; Envoy takes it without a word", "write "+s.text+" without quotes")
		} else {
			literal = quoteJSON(s.text)
		}
	} else if s.odd != "" {
		d.l.add(Warning, "scalar", place(n, path), fmt.Sprintf("Envoy reads %s as %s", quote(n.Value), s.text), "write "+s.text+", or quote it")
	}
	// A message with this field alone reads the value by all the rules of protobuf's JSON.
	holder := newHolder(fd)
	if holder == nil {
		return none, false
	}
	field := holder.ProtoReflect().Descriptor().Fields().ByNumber(fd.Number())
	if fd.IsList() {
		literal = "[" + literal + "]"
	}
	if err := protojson.Unmarshal([]byte(`{"`+string(fd.Name())+`":`+literal+`}`), holder); err != nil {
		d.l.add(Error, "bad-value", place(n, path), fmt.Sprintf("%s is no %s", quote(n.Value), wanted(fd)), "write "+example(fd))
		return none, false
	}
	v := holder.ProtoReflect().Get(field)
	if fd.IsList() {
		v = v.List().Get(0)
	}
	if fd.Kind() == protoreflect.EnumKind && fd.Enum().Values().ByNumber(v.Enum()) == nil {
		d.l.add(Error, "bad-value", place(n, path), fmt.Sprintf("%s is no %s", quote(n.Value), wanted(fd)), "write "+example(fd))
		return none, false
	}
	return v, true
}
