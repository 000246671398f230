package lint

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// broken is what the generated validators return for one rule.
type broken interface {
	Field() string
	Reason() string
	Cause() error
}

// validate holds the bootstrap and what each Any in it holds against the
// rules of their protos, which go down to the embedded messages.
func (l *linter) validate() {
	for _, m := range l.doc.messages {
		s := l.doc.places[m]
		if _, inAny := s.parent.(*anypb.Any); s.parent != nil && !inAny {
			continue
		}
		if v, ok := m.(interface{ ValidateAll() error }); ok {
			l.brokenRules(m, v.ValidateAll())
		}
	}
}

// brokenRules follows an error down to the messages that caused it.
func (l *linter) brokenRules(m proto.Message, err error) {
	many, ok := err.(interface{ AllErrors() []error }) //nolint:errorlint // generated, never wrapped
	if !ok {
		return
	}
	for _, err := range many.AllErrors() {
		b, ok := err.(broken) //nolint:errorlint // generated, never wrapped
		if !ok {
			continue
		}
		if isPart(b.Cause()) {
			if part := partOf(m, b.Field()); part != nil {
				l.brokenRules(part, b.Cause())
				continue
			}
		}
		p, name := l.brokenAt(m, b.Field())
		l.add(Error, "invalid", p, name+": "+clip(b.Reason()), "Envoy refuses to start: correct the value")
	}
}

// partOf is the embedded message that a Go field name means, with an index or
// key: Listeners[0]. nil where there is none.
func partOf(m proto.Message, field string) proto.Message {
	name, index, _ := strings.Cut(strings.TrimSuffix(field, "]"), "[")
	fd := fieldNamed(m, name)
	if fd == nil || !m.ProtoReflect().Has(fd) {
		return nil
	}
	v := m.ProtoReflect().Get(fd)
	switch {
	case fd.IsMap() && fd.MapValue().Message() != nil && fd.MapKey().Kind() == protoreflect.StringKind:
		if v = v.Map().Get(protoreflect.ValueOfString(index).MapKey()); v.IsValid() {
			return v.Message().Interface()
		}
	case fd.IsList() && fd.Message() != nil:
		if i, err := strconv.Atoi(index); err == nil && i < v.List().Len() {
			return v.List().Get(i).Message().Interface()
		}
	case fd.Message() != nil && !fd.IsMap():
		return v.Message().Interface()
	}
	return nil
}

func fieldNamed(m proto.Message, name string) protoreflect.FieldDescriptor {
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if strings.EqualFold(strings.ReplaceAll(string(fields.Get(i).Name()), "_", ""), name) {
			return fields.Get(i)
		}
	}
	return nil
}

// isPart is whether an error was caused by an embedded message.
func isPart(err error) bool {
	if err == nil {
		return false
	}
	_, one := err.(broken)                            //nolint:errorlint // generated, never wrapped
	_, many := err.(interface{ AllErrors() []error }) //nolint:errorlint // generated, never wrapped
	return one || many
}

// brokenAt finds the place of a Go field name: Domains[0], StatPrefix.
func (l *linter) brokenAt(m proto.Message, field string) (at, string) {
	name, rest, list := strings.Cut(strings.TrimSuffix(field, "]"), "[")
	d := fieldNamed(m, name)
	if d == nil {
		return l.doc.of(m), field
	}
	fd := string(d.Name())
	if i, err := strconv.Atoi(rest); list && err == nil && l.doc.has(m, fd) {
		return l.doc.item(m, fd, i), fd
	}
	return l.doc.field(m, fd), fd
}
