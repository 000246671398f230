package identity

import (
	"time"

	"github.com/weirproxy/weir/policy"
)

// Identity is who is asking, as verified. It is immutable once made and may
// be shared by requests.
type Identity struct {
	Tenant  string // never empty in an accepted identity; at most MaxName bytes
	Key     string // id of the API key or token; may be empty
	User    string
	Class   policy.Class  // the highest (most important) allowed
	Colour  policy.Colour // red only if the token says so
	Tier    string
	Scopes  []string // service and function names, sorted
	Params  []Param  // parameter level of K1
	JTI     string
	Expires time.Time
}

// Param is one parameter scope: "max_tokens<=1024", "n=1",
// "temperature>=0", "model=a|b" (any numeric or enum field of the body).
type Param struct {
	Field string // top-level field of the body
	Op    Op
	Bound float64  // for numeric operators
	Enum  []string // for Equal with names; a number is compared as a number too
}

// Op compares a body's field with a bound.
type Op uint8

// The operators. AtMost and AtLeast also say what a missing field is clamped
// to where the policy clamps.
const (
	AtMost Op = iota
	AtLeast
	Equal
)
