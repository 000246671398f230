package identity

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/weirproxy/weir/policy"
)

// FromClaims makes an identity from verified claims by the policy's names.
// Numbers are float64, as JSON and dynamic metadata have them. A claim that
// is absent or null is not read; one of the wrong form is an error that names
// the claim. The tenant is required; class is a name or 0, 1, 2 (none is
// standard); scope is what ParseScopes takes, and where it is named "scope"
// and absent, "scp" is read in its place. "jti" and "exp" always have these
// names.
//
// It judges no times and no scopes: that is for the caller.
func FromClaims(claims map[string]any, names policy.Claims) (*Identity, error) {
	r := reader{claims: claims}
	id := &Identity{
		Tenant: r.text("tenant", names.Tenant),
		Key:    r.text("key", names.Key),
		User:   r.text("user", names.User),
		Tier:   r.text("tier", names.Tier),
		JTI:    r.text("jti", "jti"),
	}
	id.Class = r.class(names.Class)
	id.Colour = r.colour(names.Colour)
	id.Expires = r.instant("exp")
	id.Scopes, id.Params = r.scopes(names.Scope)
	if r.err != nil {
		return nil, r.err
	}
	if id.Tenant == "" {
		return nil, fmt.Errorf("claim %q: no tenant", names.Tenant)
	}
	return id, nil
}

// FromMetadata makes an identity from the claims that another filter verified
// and left in dynamic metadata: namespace is the content of
// identity.metadata.namespace, nil where it is absent. Errors are denials.
// The service scope is required as for a token of our own.
func FromMetadata(namespace map[string]any, p *policy.Identity) (*Identity, error) {
	claims := namespace
	if p.Metadata.Key != "" {
		claims, _ = namespace[p.Metadata.Key].(map[string]any)
	}
	if len(claims) == 0 {
		return nil, Unauthenticated(p.Realm, CodeIdentityMissing, "No verified identity reached this filter.")
	}
	id, err := FromClaims(claims, p.Claims)
	if err != nil {
		return nil, Unauthenticated(p.Realm, CodeTokenClaims, "The token makes no identity: "+err.Error()+".")
	}
	if err := id.Require(p.Realm, p.Service); err != nil {
		return nil, err
	}
	return id, nil
}

// reader takes claims one by one and keeps the first error.
type reader struct {
	claims map[string]any
	err    error
}

func (r *reader) fail(claim, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("claim %q: "+format, append([]any{claim}, args...)...)
	}
}

// text reads a name.
func (r *reader) text(what, claim string) string {
	v := r.value(claim)
	if v == nil {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		r.fail(claim, "is not a string")
		return ""
	}
	err := checkOptional(what, s)
	if what == "tenant" {
		err = CheckTenant(s)
	}
	if err != nil {
		r.fail(claim, "%w", err)
		return ""
	}
	return s
}

func (r *reader) class(claim string) policy.Class {
	v := r.value(claim)
	if v == nil {
		return policy.Standard
	}
	c, err := parseClass(v)
	if err != nil {
		r.fail(claim, "%w", err)
	}
	return c
}

func (r *reader) colour(claim string) policy.Colour {
	v := r.value(claim)
	if v == nil {
		return policy.NoColour
	}
	c, err := parseColour(v)
	if err != nil {
		r.fail(claim, "%w", err)
	}
	return c
}

func (r *reader) instant(claim string) time.Time {
	v := r.value(claim)
	if v == nil {
		return time.Time{}
	}
	t, err := Instant(v)
	if err != nil {
		r.fail(claim, "%w", err)
	}
	return t
}

func (r *reader) scopes(claim string) ([]string, []Param) {
	v := r.value(claim)
	if v == nil && claim == "scope" {
		claim = "scp"
		v = r.value(claim)
	}
	names, params, err := ParseScopes(v)
	if err != nil {
		r.fail(claim, "%w", err)
	}
	return names, params
}

// value finds a claim; "" names none.
func (r *reader) value(claim string) any {
	if claim == "" {
		return nil
	}
	v, _ := lookup(r.claims, claim)
	return v
}

// lookup descends at dots; at each level the longest undivided name is tried
// first, so that a claim named by a URL is found as it stands.
func lookup(m map[string]any, path string) (any, bool) {
	if v, ok := m[path]; ok {
		return v, true
	}
	for i := len(path) - 1; i > 0; i-- {
		if path[i] != '.' {
			continue
		}
		if sub, ok := m[path[:i]].(map[string]any); ok {
			if v, ok := lookup(sub, path[i+1:]); ok {
				return v, true
			}
		}
	}
	return nil, false
}

func parseClass(v any) (policy.Class, error) {
	switch v := v.(type) {
	case string:
		if c, ok := policy.ParseClass(strings.ToLower(v)); ok {
			return c, nil
		}
	default:
		if n, ok := numeric(v); ok && (n == 0 || n == 1 || n == 2) {
			return policy.Class(n), nil
		}
	}
	return policy.Batch, errors.New("is not critical, standard, batch or 0, 1, 2")
}

func parseColour(v any) (policy.Colour, error) {
	if s, ok := v.(string); ok {
		if c, ok := policy.ParseColour(s); ok {
			return c, nil
		}
	}
	return policy.NoColour, errors.New("is not red, yellow or green")
}

// maxInstant is the last second of the year 9999. Milliseconds taken for
// seconds lie behind it.
const maxInstant = 253402300799

// Instant reads a NumericDate of RFC 7519: seconds since 1970 as a number,
// fractions allowed, within the years 1970 to 9999, to the microsecond.
func Instant(v any) (time.Time, error) {
	n, ok := numeric(v)
	if !ok {
		return time.Time{}, errors.New("is not a number of seconds")
	}
	if n < 0 || n > maxInstant {
		return time.Time{}, errors.New("is not a time in seconds between the years 1970 and 9999")
	}
	whole, frac := math.Modf(n)
	return time.UnixMicro(int64(whole)*1e6 + int64(math.Round(frac*1e6))), nil
}
