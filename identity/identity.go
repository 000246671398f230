package identity

import (
	"slices"
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
	Expires time.Time // zero: the source stated no end
}

// HasScope reports whether the identity holds a service or function scope.
// The empty name is no scope and is always held.
func (id *Identity) HasScope(name string) bool {
	if name == "" {
		return true
	}
	_, ok := slices.BinarySearch(id.Scopes, name)
	return ok
}

// MissingFunction is the first of the function scopes (K1, second level) that a
// call needs and the identity lacks; "" where it holds them all.
func (id *Identity) MissingFunction(needed [2]string) string {
	for _, f := range needed {
		if !id.HasScope(f) {
			return f
		}
	}
	return ""
}

// ModelAllowed reports whether the identity's parameter scopes on the field
// "model" let a model name pass. Without such a scope every model passes.
func (id *Identity) ModelAllowed(model string) bool {
	for i := range id.Params {
		if id.Params[i].Field == modelField && id.Params[i].Check(model) != nil {
			return false
		}
	}
	return true
}

const modelField = "model"

// Require returns a denial (403, insufficient_scope) for the first scope of
// names that the identity lacks, else nil. Empty names need nothing.
func (id *Identity) Require(realm string, names ...string) error {
	for _, name := range names {
		if !id.HasScope(name) {
			return MissingScope(realm, name)
		}
	}
	return nil
}
