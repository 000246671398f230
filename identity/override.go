package identity

import (
	"fmt"

	"github.com/weirproxy/weir/policy"
)

// overridesField holds, beside the identity, what ext_authz read in
// context_extensions: ext_proc cannot see them itself.
const overridesField = "overrides"

// OverrideFields is the field of metadata that hands a route's overrides on,
// in a form that goes into a protobuf Struct; nil when there are none.
func OverrideFields(o policy.Overrides) map[string]any {
	given := o.Map()
	if given == nil {
		return nil
	}
	m := make(map[string]any, len(given))
	for key, value := range given {
		m[key] = value
	}
	return map[string]any{overridesField: m}
}

// OverridesFrom reads the overrides beside an identity in the metadata of
// ext_authz. It is as strict as FromFields: what cannot be read is an error,
// so that no narrowing is lost.
func OverridesFrom(f map[string]any) (policy.Overrides, error) {
	v, ok := f[overridesField]
	if !ok {
		return policy.Overrides{}, nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return policy.Overrides{}, fmt.Errorf("identity metadata: field %s: not a structure", overridesField)
	}
	given := make(map[string]string, len(m))
	for key, v := range m {
		s, ok := v.(string)
		if !ok {
			return policy.Overrides{}, fmt.Errorf("identity metadata: field %s: %q is not a string", overridesField, clip(key))
		}
		given[key] = s
	}
	return policy.OverridesFrom(given)
}
