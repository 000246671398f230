package authz

import (
	"fmt"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/policy"
)

// effective finds the rules of the call's route (E2): the metadata of the
// matched route in the policy's namespace, and context_extensions, which
// Envoy has merged from virtual host and route. Both come from Envoy's own
// configuration. weir sees both maps whole, so an unknown key is an error, as
// is a value that is no string and a value that makes no sense. extensions
// are for ext_proc, which reads the route's metadata itself. The error is a
// *policy.OverrideError.
func effective(p *policy.Policy, a *authv3.AttributeContext) (e *policy.Effective, extensions policy.Overrides, err error) {
	route, err := routeOverrides(a.GetRouteMetadataContext().GetFilterMetadata()[p.Envoy.Namespace].GetFields())
	if err != nil {
		return nil, extensions, &policy.OverrideError{Channel: policy.RouteMetadata, Err: err}
	}
	if given := a.GetContextExtensions(); len(given) > 0 {
		if extensions, err = policy.OverridesFrom(given); err != nil {
			return nil, extensions, &policy.OverrideError{Channel: policy.ContextExtensions, Err: err}
		}
	}
	e, err = p.ForAll(
		policy.Given{Channel: policy.RouteMetadata, Overrides: route},
		policy.Given{Channel: policy.ContextExtensions, Overrides: extensions})
	return e, extensions, err
}

func routeOverrides(fields map[string]*structpb.Value) (policy.Overrides, error) {
	if len(fields) == 0 {
		return policy.Overrides{}, nil
	}
	given := make(map[string]string, len(fields))
	for key, v := range fields {
		s, ok := v.GetKind().(*structpb.Value_StringValue)
		if !ok {
			return policy.Overrides{}, fmt.Errorf("route override %q: the value must be a quoted string", key)
		}
		given[key] = s.StringValue
	}
	return policy.OverridesFrom(given)
}
