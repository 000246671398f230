package lint

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kind is what Envoy's YAML reader takes a scalar for.
type kind uint8

const (
	null kind = iota
	boolean
	integer
	text
)

func (k kind) String() string { return [...]string{"nothing", "a boolean", "a number", "a string"}[k] }

// scalar is a scalar as Envoy reads it: y, yes, on and their like are
// booleans, numbers are only those of 32 bit (010 is 8, 0x10 is 16), and
// everything else, 1.5 and 1e3 included, is a string.
type scalar struct {
	kind   kind
	text   string // canonical: "true", "8"
	quoted bool
	odd    string // "" or how a person would have read it otherwise
}

var plainNumber = regexp.MustCompile(`^[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)$`)
var numberLike = regexp.MustCompile(`^[+-]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][+-]?[0-9]+)?$`)

func readScalar(n *yaml.Node) scalar {
	s := n.Value
	const quotes = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Style&quotes != 0 && n.Style&yaml.TaggedStyle == 0 { // a tag undoes the quotes
		return scalar{kind: text, text: s, quoted: true}
	}
	switch s {
	case "", "~", "null", "Null", "NULL":
		return scalar{kind: null, text: s}
	}
	if low := strings.ToLower(s); s == low || s == strings.ToUpper(s) || s == low[:1] || s[1:] == low[1:] {
		switch low {
		case "true", "false":
			return scalar{kind: boolean, text: low}
		case "y", "yes", "on":
			return scalar{kind: boolean, text: "true", odd: "a word"}
		case "n", "no", "off":
			return scalar{kind: boolean, text: "false", odd: "a word"}
		}
	}
	if plainNumber.MatchString(s) {
		if i, err := strconv.ParseInt(strings.TrimPrefix(s, "+"), 0, 64); err == nil && i >= math.MinInt32 && i <= math.MaxInt32 {
			odd := ""
			if digits := strings.TrimLeft(s, "+-"); len(digits) > 1 && digits[0] == '0' {
				odd = "a decimal number"
			}
			return scalar{kind: integer, text: strconv.FormatInt(i, 10), odd: odd}
		}
		return scalar{kind: text, text: s, odd: "a number"}
	}
	if numberLike.MatchString(s) {
		return scalar{kind: text, text: s, odd: "a number"}
	}
	return scalar{kind: text, text: s}
}
