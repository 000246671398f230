package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A codec is the one description of a value in the file: it reads the value
// from a node, writes it back for Dump, and says what it looks like for the
// JSON Schema and the reference table. Tables of fields make up the document;
// they never change.
type codec[T any] struct {
	shape shape
	// read changes v only as far as the node says something; what is wrong
	// goes to d. at is the dotted path.
	read func(d *decoder, n *yaml.Node, at string, v *T)
	// write gives nil to leave the value out.
	write func(e *encoder, v *T) *yaml.Node
}

// shape describes a value.
type shape struct {
	kind     string // object, list, map, string, enum, boolean, integer, number, ratio, duration, bytes
	bounds   string // in words; "" = none beyond the kind
	enum     []string
	min, max float64 // integer, number; ratio: max alone
	minItems int     // list and map
	maxItems int     // list and map; 0 = no bound of its own
	pattern  string  // string: a regular expression; "" = none
	item     *shape  // list and map
	fields   []fieldShape
	one      []string // object: exactly one of these keys
	notBoth  []string // object: at most one of these keys
	unique   bool     // list: no item twice
	zero     bool     // duration: a bare 0 is taken; ratio: 0 is
}

type fieldShape struct {
	key      string
	required bool
	shape    shape
}

// field is one key of an object.
type field[S any] struct {
	key      string
	required bool
	shape    shape
	read     func(d *decoder, n *yaml.Node, at string, s *S)
	write    func(e *encoder, s *S) *yaml.Node
}

// key makes a field of S that holds a T.
func key[S, T any](name string, get func(*S) *T, c codec[T]) field[S] {
	return field[S]{
		key:   name,
		shape: c.shape,
		read:  func(d *decoder, n *yaml.Node, at string, s *S) { c.read(d, n, at, get(s)) },
		write: func(e *encoder, s *S) *yaml.Node { return c.write(e, get(s)) },
	}
}

// group makes a key whose object is kept in S itself.
func group[S any](name string, c codec[S]) field[S] {
	return key(name, func(s *S) *S { return s }, c)
}

// need marks a field that must be there.
func (f field[S]) need() field[S] {
	f.required = true
	return f
}

// object reads a mapping with a closed set of keys.
func object[S any](fields ...field[S]) codec[S] {
	return objectThen(nil, fields...)
}

// objectThen is object with a check of the whole; has tells which keys the
// node has.
func objectThen[S any](then func(d *decoder, n *yaml.Node, at string, s *S, has func(string) bool), fields ...field[S]) codec[S] {
	sh := shape{kind: "object"}
	for _, f := range fields {
		sh.fields = append(sh.fields, fieldShape{f.key, f.required, f.shape})
	}
	return codec[S]{
		shape: sh,
		read: func(d *decoder, n *yaml.Node, at string, s *S) {
			keys := d.mapping(n, at)
			if keys == nil {
				return
			}
			before := len(d.errs)
			readFields(d, follow(n), at, keys, fields, s)
			if then != nil && len(d.errs) == before {
				then(d, n, at, s, func(k string) bool { return keys[k] != nil })
			}
		},
		write: func(e *encoder, s *S) *yaml.Node {
			m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			for _, f := range fields {
				if v := f.write(e, s); v != nil {
					m.Content = append(m.Content, plain("!!str", f.key), v)
				}
			}
			return m
		},
	}
}

// readFields reads in the order of the file, so that errors are in its order.
func readFields[S any](d *decoder, n *yaml.Node, at string, keys map[string]*yaml.Node, fields []field[S], s *S) {
	for i := 0; i < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if keys[name] != n.Content[i+1] {
			continue // not a string, or written before
		}
		j := slices.IndexFunc(fields, func(f field[S]) bool { return f.key == name })
		if j < 0 {
			d.unknownKey(n.Content[i], at, fieldKeys(fields))
			continue
		}
		d.place(join(at, name), n.Content[i+1])
		fields[j].read(d, n.Content[i+1], join(at, name), s)
	}
	for _, f := range fields {
		if f.required && keys[f.key] == nil {
			d.report(n, join(at, f.key), "", "is missing")
		}
	}
}

func fieldKeys[S any](fields []field[S]) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}

// list reads a sequence; each item starts as fresh gives it. It replaces what
// was there; an empty list is nil.
func list[T any](item codec[T], fresh func() T, least, most int) codec[[]T] {
	return codec[[]T]{
		shape: shape{kind: "list", item: &item.shape, minItems: least, maxItems: most, bounds: itemBounds(least, most)},
		read: func(d *decoder, n *yaml.Node, at string, v *[]T) {
			items, ok := d.sequence(n, at, least, most)
			if !ok {
				return
			}
			var out []T
			for i, node := range items {
				path := at + "[" + strconv.Itoa(i) + "]"
				d.place(path, node)
				one := fresh()
				item.read(d, node, path, &one)
				out = append(out, one)
			}
			*v = out
		},
		write: func(e *encoder, v *[]T) *yaml.Node {
			s := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			for i := range *v {
				s.Content = append(s.Content, item.write(e, &(*v)[i]))
			}
			if item.shape.kind != "object" || len(*v) == 0 {
				s.Style = yaml.FlowStyle
			}
			return s
		},
	}
}

func itemBounds(least, most int) string {
	if least > 0 {
		return fmt.Sprintf("%d to %d items", least, most)
	}
	return fmt.Sprintf("at most %d items", most)
}

func zero[T any]() (t T) { return }

// maybe leaves an empty list or map out of dumps.
func maybe[T any](c codec[T], empty func(*T) bool) codec[T] {
	write := c.write
	c.write = func(e *encoder, v *T) *yaml.Node {
		if empty(v) {
			return nil
		}
		return write(e, v)
	}
	return c
}

func emptyList[T any](v *[]T) bool { return len(*v) == 0 }

func noValue[T comparable](v *T) bool { return *v == zero[T]() }

// pointer reads a value that may be absent as a whole.
func pointer[T any](c codec[T], fresh func() T) codec[*T] {
	return codec[*T]{
		shape: c.shape,
		read: func(d *decoder, n *yaml.Node, at string, v **T) {
			one := fresh()
			if *v != nil {
				one = **v
			}
			c.read(d, n, at, &one)
			*v = &one
		},
		write: func(e *encoder, v **T) *yaml.Node {
			if *v == nil {
				return nil
			}
			return c.write(e, *v)
		},
	}
}

// join makes the dotted path of a key.
func join(at, name string) string {
	if strings.ContainsAny(name, ".[] \t\"") || name == "" {
		name = strconv.Quote(shown(name))
	}
	if at == "" {
		return name
	}
	return at + "." + name
}
