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
// is a value that is no string, a value that makes no sense, and two sources
// that select different things.
func effective(p *policy.Policy, a *authv3.AttributeContext) (*policy.Effective, error) {
	route := a.GetRouteMetadataContext().GetFilterMetadata()[p.Envoy.Namespace].GetFields()
	extensions := a.GetContextExtensions()
	if len(route) == 0 && len(extensions) == 0 {
		return p.For(policy.Overrides{})
	}
	ofRoute, err := routeOverrides(route)
	if err != nil {
		return nil, fmt.Errorf("route metadata %s: %w", p.Envoy.Namespace, err)
	}
	e, err := p.For(ofRoute)
	if err != nil {
		return nil, fmt.Errorf("route metadata %s: %w", p.Envoy.Namespace, err)
	}
	if len(extensions) == 0 {
		return e, nil
	}
	given, err := policy.OverridesFrom(extensions)
	if err == nil {
		e, err = p.For(given)
	}
	if err != nil {
		return nil, fmt.Errorf("context_extensions: %w", err)
	}
	if len(route) == 0 || given == ofRoute {
		return e, nil
	}
	// Class, wait and models are judged behind the door, where they bind;
	// here only what selects the API and its scope matters.
	both := policy.Overrides{}
	if both.Profile, err = agree("profile", ofRoute.Profile, given.Profile); err != nil {
		return nil, err
	}
	if both.Function, err = agree("function", ofRoute.Function, given.Function); err != nil {
		return nil, err
	}
	return p.For(both)
}

func routeOverrides(fields map[string]*structpb.Value) (policy.Overrides, error) {
	if len(fields) == 0 {
		return policy.Overrides{}, nil
	}
	given := make(map[string]string, len(fields))
	for key, v := range fields {
		s, ok := v.GetKind().(*structpb.Value_StringValue)
		if !ok {
			return policy.Overrides{}, fmt.Errorf("%q: the value must be a quoted string", key)
		}
		given[key] = s.StringValue
	}
	return policy.OverridesFrom(given)
}

func agree(key, a, b string) (string, error) {
	if a == "" || a == b {
		return b, nil
	}
	if b == "" {
		return a, nil
	}
	return "", fmt.Errorf("%s: route metadata says %q, context_extensions %q", key, a, b)
}
