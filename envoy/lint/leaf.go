package lint

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// wanted says in words what a field takes, or a message that is one value.
func wanted(of protoreflect.Descriptor) string {
	switch of := of.(type) {
	case protoreflect.MessageDescriptor:
		if of.Name() == "Duration" {
			return "duration in seconds"
		}
		if value := of.Fields().ByName("value"); value != nil {
			return wanted(value)
		}
		return strings.ToLower(string(of.Name()))
	case protoreflect.FieldDescriptor:
		switch of.Kind() {
		case protoreflect.EnumKind:
			return string(of.Enum().Name())
		case protoreflect.BoolKind:
			return "boolean"
		}
		return of.Kind().String()
	}
	return "value"
}

// example says how to write a value.
func example(of protoreflect.Descriptor) string {
	if fd, ok := of.(protoreflect.FieldDescriptor); ok && fd.Kind() == protoreflect.EnumKind {
		var names []string
		for i := range fd.Enum().Values().Len() {
			if i == 12 {
				names = append(names, "...")
				break
			}
			names = append(names, string(fd.Enum().Values().Get(i).Name()))
		}
		return "one of " + strings.Join(names, ", ")
	}
	switch what := wanted(of); what {
	case "duration in seconds":
		return "seconds with the letter s: 0.5s, 60s (not 500ms or 1m)"
	case "boolean":
		return "true or false"
	case "string":
		return "it in quotes"
	default:
		return "a " + what
	}
}

func quoteJSON(s string) string {
	b, err := json.Marshal(strings.ToValidUTF8(s, "\uFFFD"))
	if err != nil {
		return `""`
	}
	return string(b)
}

// value reads free YAML (google.protobuf.Value) as Envoy does, and tells where
// that is not what stands there.
func (d *decoder) value(n *yaml.Node, path string, depth int) *structpb.Value {
	n = resolve(n)
	if n == nil || d.spent(n, path, depth) {
		return structpb.NewNullValue()
	}
	switch n.Kind {
	case yaml.MappingNode:
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i].Value
			s.Fields[k] = d.value(n.Content[i+1], join(path, k), depth+1)
		}
		return structpb.NewStructValue(s)
	case yaml.SequenceNode:
		list := &structpb.ListValue{}
		for i, c := range n.Content {
			list.Values = append(list.Values, d.value(c, fmt.Sprintf("%s[%d]", path, i), depth+1))
		}
		return structpb.NewListValue(list)
	}
	s := readScalar(n)
	if s.odd != "" && !(s.kind == text && strings.HasPrefix(path, "layered_runtime.")) { // the runtime reads numbers from strings
		d.l.add(Warning, "scalar", place(n, path), fmt.Sprintf("%s looks like %s, Envoy reads %s %s", quote(n.Value), s.odd, s.kind, quote(s.text)), "quote it where a string is meant")
	}
	switch s.kind {
	case null:
		return structpb.NewNullValue()
	case boolean:
		return structpb.NewBoolValue(s.text == "true")
	case integer:
		var f float64
		if json.Unmarshal([]byte(s.text), &f) != nil {
			f = 0
		}
		return structpb.NewNumberValue(f)
	case text:
	}
	return structpb.NewStringValue(s.text)
}

// distance is the number of letters to change, add or drop between a and b.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
