package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// scalarOf makes a codec of a plain value. parse gives "" or what is wrong;
// tags says which YAML types may stand there.
func scalarOf[T any](sh shape, what string, tags string, parse func(string) (T, string), format func(T) (tag, text string)) codec[T] {
	return codec[T]{
		shape: sh,
		read: func(d *decoder, n *yaml.Node, at string, v *T) {
			text, tag, ok := d.scalar(n, at, what)
			if !ok {
				return
			}
			if !strings.Contains(tags, tag) {
				message := "must be " + what
				if strings.Contains(tags, "!!str") {
					message += ": put it in quotes"
				}
				d.fail(n, at, message)
				return
			}
			got, message := parse(text)
			if message != "" {
				d.fail(n, at, message)
				return
			}
			*v = got
		},
		write: func(_ *encoder, v *T) *yaml.Node { return plain(format(*v)) },
	}
}

// text reads a string of least to most bytes without control characters.
func text(least, most int) codec[string] {
	bounds := fmt.Sprintf("%d to %d bytes", least, most)
	return scalarOf(shape{kind: "string", bounds: bounds, min: float64(least), max: float64(most)}, "a string", "!!str", func(s string) (string, string) {
		if len(s) < least || len(s) > most {
			return "", "must have " + bounds
		}
		if strings.ContainsFunc(s, unicode.IsControl) {
			return "", "must not have control characters"
		}
		return s, ""
	}, func(s string) (string, string) { return "!!str", s })
}

// checked adds a rule to a codec; rule gives "" or what is wrong.
func checked[T any](c codec[T], bounds string, rule func(T) string) codec[T] {
	read := c.read
	if bounds != "" {
		c.shape.bounds = bounds
	}
	c.read = func(d *decoder, n *yaml.Node, at string, v *T) {
		var got T
		before := len(d.errs)
		if read(d, n, at, &got); len(d.errs) > before {
			return
		}
		if message := rule(got); message != "" {
			d.fail(n, at, message)
			return
		}
		*v = got
	}
	return c
}

// name reads an identifier that appears in metrics, headers and keys.
func name() codec[string] {
	return matching(checked(text(1, 64), "letters, digits and _ . : -, at most 64", func(s string) string {
		if !isScope(s) {
			return scopeRule
		}
		return ""
	}), scopeName.String())
}

// pattern reads a value of a match: text with at most one "*", at its end.
func pattern() codec[string] {
	return matching(maybe(checked(text(1, 256), "exact, or with * at the end", globRule), noValue), globPattern)
}

// globPattern is globRule for the JSON Schema.
const globPattern = `^[^*]*\*?$`

// matching adds what a rule comes to as a regular expression, for the schema.
func matching[T any](c codec[T], pattern string) codec[T] {
	c.shape.pattern = pattern
	return c
}

func globRule(s string) string {
	if i := strings.IndexByte(s, '*'); i >= 0 && i != len(s)-1 {
		return `may have "*" only at its end`
	}
	return ""
}

// boolean reads true or false.
func boolean() codec[bool] {
	return scalarOf(shape{kind: "boolean"}, "true or false", "!!bool", func(s string) (bool, string) {
		if s != "true" && s != "false" {
			return false, "must be true or false"
		}
		return s == "true", ""
	}, func(b bool) (string, string) { return "!!bool", strconv.FormatBool(b) })
}

// choice is one value of an enumeration.
type choice[T any] struct {
	name  string
	value T
}

// enum reads one of the names.
func enum[T comparable](choices ...choice[T]) codec[T] {
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = c.name
	}
	rule := "must be one of " + strings.Join(names, ", ")
	return scalarOf(shape{kind: "enum", enum: names}, "one of "+strings.Join(names, ", "), "!!str !!bool !!int !!float !!timestamp", func(s string) (T, string) {
		for _, c := range choices {
			if c.name == s {
				return c.value, ""
			}
		}
		return zero[T](), rule
	}, func(v T) (string, string) {
		i := slices.IndexFunc(choices, func(c choice[T]) bool { return c.value == v })
		return "!!str", names[max(i, 0)]
	})
}

// whole reads an integer of least to most.
func whole[T ~int | ~int64](least, most T) codec[T] {
	bounds := fmt.Sprintf("%d to %d", least, most)
	sh := shape{kind: "integer", bounds: bounds, min: float64(least), max: float64(most)}
	return scalarOf(sh, "a whole number", "!!int !!float", func(s string) (T, string) {
		if !integer.MatchString(s) {
			return 0, "must be a whole number in decimal digits"
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return 0, "must be " + bounds
		}
		return T(n), ""
	}, func(v T) (string, string) { return "!!int", strconv.FormatInt(int64(v), 10) })
}

// number reads a decimal number of least to most.
func number(least, most float64) codec[float64] {
	bounds := plainNumber(least) + " to " + plainNumber(most)
	return scalarOf(shape{kind: "number", bounds: bounds, min: least, max: most}, "a number", "!!int !!float", func(s string) (float64, string) {
		f, ok := parseNumber(s)
		if !ok {
			return 0, "must be a decimal number"
		}
		if f < least || f > most {
			return 0, "must be " + bounds
		}
		return f, ""
	}, func(f float64) (string, string) {
		if f == math.Trunc(f) && math.Abs(f) < 1e15 {
			return "!!int", strconv.FormatFloat(f, 'f', 0, 64)
		}
		return "!!float", formatNumber(f)
	})
}

// ratio reads a share as 0.8 or 80%; positive ones exclude 0.
func ratio(positive bool) codec[Ratio] { return ratioTo(1, positive) }

// ratioTo reads a share of at most most.
func ratioTo(most Ratio, positive bool) codec[Ratio] {
	bounds := "0.." + formatNumber(float64(most)) + " or 0%.." + formatRatio(most)
	if positive {
		bounds = "above 0, up to " + formatNumber(float64(most)) + " or " + formatRatio(most)
	}
	sh := shape{kind: "ratio", bounds: bounds, max: float64(most), zero: !positive}
	return scalarOf(sh, "a ratio", "!!str !!int !!float", func(s string) (Ratio, string) {
		r, ok := parseRatio(s)
		if !ok || r < 0 || r > most || positive && r == 0 {
			return 0, "must be a ratio: " + bounds
		}
		return r, ""
	}, func(r Ratio) (string, string) {
		s := formatRatio(r)
		if strings.HasSuffix(s, "%") {
			return "!!str", s
		}
		return "!!float", s
	})
}

// duration reads a span of least to most; off says that 0 turns it off and
// may be written without a unit, whatever least is.
func duration(least, most time.Duration, off bool) codec[time.Duration] {
	bounds := formatDuration(least) + " to " + formatDuration(most)
	if off && least > 0 {
		bounds = "0 (off) or " + bounds
	}
	sh := shape{kind: "duration", bounds: bounds, zero: off}
	return scalarOf(sh, "a duration", "!!str !!int !!float", func(s string) (time.Duration, string) {
		v, message := parseDuration(s, off || least > 0)
		if message != "" {
			return 0, message
		}
		if (v < least || v > most) && !(off && v == 0) {
			return 0, "must be " + bounds
		}
		return v, ""
	}, func(v time.Duration) (string, string) { return "!!str", formatDuration(v) })
}

// size reads bytes with a unit.
func size(least, most int64) codec[int64] {
	bounds := formatBytes(least) + " to " + formatBytes(most)
	return scalarOf(shape{kind: "bytes", bounds: bounds}, "a size in bytes", "!!str !!int !!float", func(s string) (int64, string) {
		n, message := parseBytes(s)
		if message != "" {
			return 0, message
		}
		if n < least || n > most {
			return 0, "must be " + bounds
		}
		return n, ""
	}, func(n int64) (string, string) { return "!!str", formatBytes(n) })
}

// fileName reads the name of a file; relative to the policy file.
func fileName() codec[string] {
	c := text(1, 4096)
	read := c.read
	c.shape.bounds = "a file; relative to the policy file"
	c.read = func(d *decoder, n *yaml.Node, at string, v *string) {
		var got string
		if read(d, n, at, &got); got != "" {
			*v = d.resolve(got)
		}
	}
	c.write = func(e *encoder, v *string) *yaml.Node {
		if *v == "" {
			return nil
		}
		return plain("!!str", e.relative(*v))
	}
	return c
}

// labels reads a mapping of strings.
func labels() codec[map[string]string] {
	value := text(0, 256)
	return codec[map[string]string]{
		shape: shape{kind: "map", item: &value.shape, maxItems: 64, bounds: "at most 64 entries"},
		read: func(d *decoder, n *yaml.Node, at string, v *map[string]string) {
			keys := d.mapping(n, at)
			if len(keys) > 64 {
				d.report(n, at, "", "has more than 64 entries")
				return
			}
			var out map[string]string
			for k, node := range keys {
				var s string
				value.read(d, node, join(at, k), &s)
				if out == nil {
					out = make(map[string]string)
				}
				out[k] = s
			}
			*v = out
		},
		write: func(_ *encoder, v *map[string]string) *yaml.Node {
			return writeLabels(*v)
		},
	}
}

func writeLabels(m map[string]string) *yaml.Node {
	if len(m) == 0 {
		return nil
	}
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		n.Content = append(n.Content, plain("!!str", k), plain("!!str", m[k]))
	}
	return n
}
