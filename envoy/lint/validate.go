package lint

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
)

// broken is what the generated validators return for one rule.
type broken interface {
	Field() string
	Reason() string
	Cause() error
}

// validate holds every message, those inside an Any included, against the
// rules of its own proto. A message repeats what its parts break: only its own
// rules are told here.
func (l *linter) validate() {
	for _, m := range l.doc.messages {
		v, ok := m.(interface{ ValidateAll() error })
		if !ok {
			continue
		}
		err := v.ValidateAll()
		many, ok := err.(interface{ AllErrors() []error }) //nolint:errorlint // generated, never wrapped
		if !ok {
			continue
		}
		for _, err := range many.AllErrors() {
			b, ok := err.(broken) //nolint:errorlint // generated, never wrapped
			if !ok || isPart(b.Cause()) {
				continue
			}
			p, name := l.brokenAt(m, b.Field())
			l.add(Error, "invalid", p, name+": "+clip(b.Reason()), "Envoy refuses to start: correct the value")
		}
	}
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
	name, rest, list := strings.Cut(field, "[")
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := string(fields.Get(i).Name())
		if !strings.EqualFold(strings.ReplaceAll(fd, "_", ""), name) {
			continue
		}
		if i, err := strconv.Atoi(strings.TrimSuffix(rest, "]")); list && err == nil && l.doc.has(m, fd) {
			return l.doc.item(m, fd, i), fd
		}
		return l.doc.field(m, fd), fd
	}
	return l.doc.of(m), field
}
