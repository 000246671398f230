package simulate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/policy"
)

// maxScenario is how long a scenario file may be, in bytes.
const maxScenario = 1 << 20

// A value reads a node into what it was made for; at is the dotted path.
type value func(n *yaml.Node, at string)

// reader is one reading of one scenario file. It goes on after a violation,
// so that all of them are told at once.
type reader struct {
	file string
	errs policy.Errors
}

// document gives the one mapping of a file; nil after a violation.
func (r *reader) document(data []byte) *yaml.Node {
	whole := &yaml.Node{Line: 1, Column: 1}
	if len(data) > maxScenario {
		r.report(whole, "", "", fmt.Sprintf("is %d bytes long, at most %d (1 MiB) are read", len(data), maxScenario))
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		r.report(whole, "", "", "is empty")
		return nil
	case err != nil:
		r.notYAML(err)
		return nil
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		r.report(&second, "", "", "holds more than one YAML document")
		return nil
	}
	if bad := unplain(doc.Content[0]); bad != nil {
		r.report(bad, "", "", "aliases, anchors and YAML tags are not taken in a scenario")
		return nil
	}
	return doc.Content[0]
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)

func (r *reader) notYAML(err error) {
	at := &yaml.Node{Line: 1, Column: 1}
	text := err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if line, err := strconv.Atoi(m[1]); err == nil {
			at.Line = line
		}
	}
	r.report(at, "", "", "is not YAML: "+text)
}

// unplain finds a node that is more than it looks; nil if there is none.
func unplain(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return n
	}
	for _, child := range n.Content {
		if bad := unplain(child); bad != nil {
			return bad
		}
	}
	return nil
}

func (r *reader) report(n *yaml.Node, at, got, message string) {
	const most = 64
	if len(got) > most {
		got = strings.ToValidUTF8(got[:most], "") + "..."
	}
	r.errs = append(r.errs, policy.Violation{File: r.file, Line: n.Line, Column: n.Column, Field: at, Value: got, Message: message})
}

// result is the violations in the order of the file; nil for none.
func (r *reader) result() error {
	if len(r.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(r.errs, func(a, b policy.Violation) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return r.errs
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// object reads a mapping with a closed set of keys and says which were there;
// those of need must be.
func (r *reader) object(n *yaml.Node, at string, known map[string]value, need ...string) map[string]*yaml.Node {
	has := make(map[string]*yaml.Node)
	if n.Kind != yaml.MappingNode {
		r.report(n, at, n.Value, "must be a mapping (key: value)")
		return has
	}
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		read, ok := known[k.Value]
		switch {
		case k.Kind != yaml.ScalarNode:
			r.report(k, at, "", "keys must be plain strings")
		case has[k.Value] != nil:
			r.report(k, join(at, k.Value), "", "is written twice, first on line "+strconv.Itoa(has[k.Value].Line))
		case !ok:
			r.report(k, join(at, k.Value), "", "unknown key; the keys here are "+strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		default:
			has[k.Value] = v
			read(v, join(at, k.Value))
		}
	}
	for _, key := range need {
		if has[key] == nil {
			r.report(n, join(at, key), "", "is missing")
		}
	}
	return has
}

// listOf reads a sequence of least to most items.
func listOf[T any](r *reader, v *[]T, least, most int, item func(n *yaml.Node, at string) T) value {
	return func(n *yaml.Node, at string) {
		if n.Kind != yaml.SequenceNode {
			r.report(n, at, n.Value, "must be a list")
			return
		}
		if len(n.Content) < least || len(n.Content) > most {
			r.report(n, at, "", fmt.Sprintf("has %d items, must have %d to %d", len(n.Content), least, most))
			return
		}
		for i, one := range n.Content {
			*v = append(*v, item(one, at+"["+strconv.Itoa(i)+"]"))
		}
	}
}

// plain reads a scalar of the given YAML types; parse gives "" or what is
// wrong.
func (r *reader) plain(types string, parse func(text string) string) value {
	return func(n *yaml.Node, at string) {
		message := "must be a plain value"
		switch {
		case n.Kind == yaml.ScalarNode && strings.Contains(types, n.ShortTag()):
			message = parse(n.Value)
		case types == "!!str":
			message = "must be a string: put it in quotes"
		case types == "!!bool":
			message = "must be true or false"
		}
		if message != "" {
			r.report(n, at, n.Value, message)
		}
	}
}

const numbers = "!!int !!float !!str"

// duration reads 200ms or 1m30s; a bare 0 where 0 is allowed.
func (r *reader) duration(v *time.Duration, least, most time.Duration) value {
	return r.plain(numbers, func(s string) string {
		d, err := time.ParseDuration(s)
		switch {
		case strings.Trim(s, "0123456789.-") == "" && s != "0":
			return "needs a unit: us, ms, s, m or h"
		case err != nil:
			return "must be a duration such as 200ms, 5s or 1m30s"
		case d < least || d > most:
			return fmt.Sprintf("must lie between %v and %v", least, most)
		}
		*v = d
		return ""
	})
}

var decimal = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// number reads a finite decimal number.
func (r *reader) number(v *float64, least, most float64) value {
	return r.plain(numbers, func(s string) string {
		f, err := strconv.ParseFloat(s, 64)
		switch {
		case !decimal.MatchString(s) || err != nil:
			return "must be a number"
		case f < least || f > most:
			return "must lie between " + bare(least) + " and " + bare(most)
		}
		*v = f
		return ""
	})
}

func bare(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// ratio reads 0.8 or 80%, at least least (0 or a little above it) and at
// most 1.
func (r *reader) ratio(v *float64, least float64) value { return r.times(v, least, 1) }

// times reads how many times as much: 0.8, 80% or 2.
func (r *reader) times(v *float64, least, most float64) value {
	return r.plain(numbers, func(s string) string {
		text, percent := strings.CutSuffix(s, "%")
		f, err := strconv.ParseFloat(text, 64)
		if percent {
			f /= 100
		}
		switch {
		case !decimal.MatchString(text) || err != nil:
			return "must be a ratio such as 0.8 or 80%"
		case f < least || f > most:
			return "must lie between " + bare(least) + " and " + bare(most) + " (" + bare(100*most) + "%)"
		}
		*v = f
		return ""
	})
}

// share reads a ratio, or true for all and false for none.
func (r *reader) share(v *float64) value {
	return func(n *yaml.Node, at string) {
		if n.ShortTag() != "!!bool" {
			r.ratio(v, 0)(n, at)
			return
		}
		var all bool
		if r.truth(&all)(n, at); all {
			*v = 1
		}
	}
}

// whole reads a whole number.
func whole[T int | int64 | uint64](r *reader, v *T, least, most T) value {
	return r.plain(numbers, func(s string) string {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return fmt.Sprintf("must be a whole number between %d and %d", least, most)
		}
		*v = T(n)
		return ""
	})
}

func (r *reader) truth(v *bool) value {
	return r.plain("!!bool", func(s string) string {
		*v = s == "true"
		if s != "true" && s != "false" {
			return "must be true or false"
		}
		return ""
	})
}

// text reads a string of 1 to 256 bytes.
func (r *reader) text(v *string) value {
	return r.plain("!!str", func(s string) string {
		if s == "" || len(s) > 256 {
			return "must have 1 to 256 bytes"
		}
		*v = s
		return ""
	})
}

// oneOf reads a name of a closed list; the values are 0, 1, ... in its order.
func oneOf[T ~uint8](r *reader, v *T, names ...string) value {
	return r.plain("!!str", func(s string) string {
		i := slices.Index(names, s)
		if i < 0 {
			return "must be one of " + strings.Join(names, ", ")
		}
		*v = T(i)
		return ""
	})
}
