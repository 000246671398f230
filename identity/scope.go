package identity

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of one scope value.
const (
	maxScopes = 256 // scopes in one value
	maxScope  = 256 // bytes of one scope
)

// ParseScopes reads a scope value: nil (none), a string with scopes between
// spaces (RFC 6749 section 3.3), or a list of strings with one scope each.
// Names come back sorted and once; parameter scopes are those with an
// operator. Anything else, in whole or in one element, is an error, so that
// no bound is lost by being misspelt.
func ParseScopes(v any) (names []string, params []Param, err error) {
	list, err := scopeList(v)
	if err != nil {
		return nil, nil, err
	}
	if len(list) > maxScopes {
		return nil, nil, fmt.Errorf("scope: %d scopes, at most %d allowed", len(list), maxScopes)
	}
	for _, s := range list {
		if err := checkScope(s); err != nil {
			return nil, nil, err
		}
		if !strings.ContainsAny(s, "<>=") {
			names = append(names, s)
			continue
		}
		p, err := ParseParam(s)
		if err != nil {
			return nil, nil, err
		}
		params = append(params, p)
	}
	slices.Sort(names)
	return slices.Compact(names), mergeParams(params), nil
}

func scopeList(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return strings.FieldsFunc(v, func(r rune) bool { return r == ' ' }), nil
	case []string:
		return v, nil
	case []any:
		list := make([]string, 0, len(v))
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, errors.New("scope: an element of the list is not a string")
			}
			list = append(list, s)
		}
		return list, nil
	}
	return nil, errors.New("scope: neither a string nor a list of strings")
}

// checkScope holds one scope against RFC 6749: printable ASCII without space,
// quote and backslash.
func checkScope(s string) error {
	if s == "" || len(s) > maxScope {
		return fmt.Errorf("scope: a scope has 1 to %d bytes", maxScope)
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return fmt.Errorf("scope %q: only printable ASCII without space, quote and backslash is allowed", clip(s))
		}
	}
	return nil
}

// Narrow returns what both identities allow: the child's names within the
// parent's rights. The tenants must be the same. Scopes are cut to those of
// both, parameter scopes of both bind, the less important class and the
// weaker colour win, the tier stays the parent's and the earlier end counts.
// Neither argument is changed.
func Narrow(parent, child *Identity) (*Identity, error) {
	if parent.Tenant != child.Tenant {
		return nil, errors.New("narrow: the tenants differ")
	}
	out := *child
	out.Class = parent.Class.Lower(child.Class)
	out.Colour = child.Colour.Lower(parent.Colour)
	out.Tier = parent.Tier
	out.Scopes = nil
	for _, s := range child.Scopes {
		if parent.HasScope(s) {
			out.Scopes = append(out.Scopes, s)
		}
	}
	out.Params = mergeParams(slices.Concat(parent.Params, child.Params))
	if out.Expires.IsZero() || !parent.Expires.IsZero() && parent.Expires.Before(out.Expires) {
		out.Expires = parent.Expires
	}
	return &out, nil
}

// mergeParams sorts params and folds those on one field and operator into
// the tighter one. Two enums without a common value both stay, so that
// nothing passes.
func mergeParams(params []Param) []Param {
	if len(params) == 0 {
		return nil
	}
	params = slices.Clone(params)
	slices.SortFunc(params, compareParams)
	out := params[:1]
	for _, p := range params[1:] {
		if last := &out[len(out)-1]; !last.tighten(p) {
			out = append(out, p)
		}
	}
	return out
}

// tighten folds q into p where both can be said in one; it reports whether it
// could.
func (p *Param) tighten(q Param) bool {
	if p.Field != q.Field || p.Op != q.Op {
		return false
	}
	switch p.Op {
	case AtMost:
		p.Bound = min(p.Bound, q.Bound)
		return true
	case AtLeast:
		p.Bound = max(p.Bound, q.Bound)
		return true
	}
	var common []string
	for _, v := range p.Enum {
		if slices.Contains(q.Enum, v) {
			common = append(common, v)
		}
	}
	if common == nil {
		return false
	}
	p.Enum = common
	return true
}

func compareParams(a, b Param) int {
	if c := strings.Compare(a.Field, b.Field); c != 0 {
		return c
	}
	if a.Op != b.Op {
		return int(a.Op) - int(b.Op)
	}
	if a.Op == Equal {
		return slices.Compare(a.Enum, b.Enum)
	}
	switch {
	case a.Bound < b.Bound:
		return -1
	case a.Bound > b.Bound:
		return 1
	}
	return 0
}
