package extproc

import (
	"strings"

	"github.com/weirproxy/weir/policy"
)

// standing is what P1 makes of a token, a route and the caller's headers.
type standing struct {
	class  policy.Class
	colour policy.Colour
}

// judgeStanding starts from what the token allows, capped by the route, and
// lets the priority headers lower it. A header that asks for more than the
// token allows changes nothing, and so does a value that is neither a class nor
// a colour: clients send such headers to other servers too.
func judgeStanding(allowed standing, limit *policy.Class, names []string, h header) standing {
	s := allowed
	if limit != nil {
		s.class = s.class.Lower(*limit)
	}
	for _, name := range names {
		for _, value := range h.values(strings.ToLower(name)) {
			s.lower(marking(value))
		}
	}
	return s
}

func (s *standing) lower(v string) {
	if c, ok := policy.ParseClass(v); ok {
		s.class = s.class.Lower(c)
	} else if c, ok := policy.ParseColour(v); ok {
		s.colour = s.colour.Lower(c)
	}
}

// marks lists the priority headers of a request: those that weir reads are not
// for the model.
func marks(names []string, h header) []string {
	var out []string
	for _, name := range names {
		if name = strings.ToLower(name); h.has(name) {
			out = append(out, name)
		}
	}
	return out
}

// marking is a priority header's value as classes and colours are named.
func marking(value string) string { return strings.ToLower(strings.TrimSpace(value)) }

// asksPriority reports a request with priority (P8): one of its priority
// headers asks for class critical or colour red, and its token, route and other
// headers leave it one of the two.
func asksPriority(s standing, names []string, h header) bool {
	if s.class != policy.Critical && s.colour != policy.Red {
		return false
	}
	for _, name := range names {
		for _, value := range h.values(strings.ToLower(name)) {
			value = marking(value)
			class, ok := policy.ParseClass(value)
			if colour, _ := policy.ParseColour(value); ok && class == policy.Critical || colour == policy.Red {
				return true
			}
		}
	}
	return false
}

// clip bounds what an error repeats of a caller's value.
func clip(s string) string {
	const longest = 64
	if len(s) > longest {
		return strings.ToValidUTF8(s[:longest], "?") + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
