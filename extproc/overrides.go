package extproc

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/policy"
)

// initialPrefix marks the keys of grpc_initial_metadata that are ours:
// weir-profile, weir-function, weir-class, weir-maxwait, weir-models. gRPC
// metadata keys are lower case, so they are compared without case.
const initialPrefix = "weir-"

// initialOverrides reads a stream's gRPC metadata. weir sees the whole map,
// so an unknown weir- key is an error, as is a key with two values.
func initialOverrides(md map[string][]string) (policy.Overrides, error) {
	var given map[string]string
	for key, values := range md {
		name, ours := strings.CutPrefix(strings.ToLower(key), initialPrefix)
		if !ours {
			continue
		}
		if len(values) != 1 {
			return policy.Overrides{}, fmt.Errorf("grpc_initial_metadata %s: %d values, want one", clip(key), len(values))
		}
		if given == nil {
			given = make(map[string]string)
		}
		given[overrideKey(name)] = values[0]
	}
	if given == nil {
		return policy.Overrides{}, nil
	}
	return policy.OverridesFrom(given)
}

// overrideKey gives the policy's spelling of a key, whatever its case.
func overrideKey(name string) string {
	for _, k := range policy.OverrideKeys() {
		if strings.EqualFold(k, name) {
			return k
		}
	}
	return name
}

// routeOverrides reads the route's metadata out of the attributes, where each
// is keyed by the expression that the filter asks for. Envoy hands over only
// what was asked for, so a key that nobody asks for cannot be seen here. An
// expression that names the namespace and a leaf outside the closed list is
// an error; an empty value is a key that the route does not set.
func routeOverrides(m *message, namespace string) (policy.Overrides, error) {
	var o policy.Overrides
	var bad error
	for name, value := range m.attributes {
		leaf, ours := overrideLeaf(name, namespace)
		if !ours {
			continue
		}
		at := o.Field(leaf)
		if at == nil {
			_, bad = policy.OverridesFrom(map[string]string{leaf: value})
			continue
		}
		if value != "" && *at != "" && *at != value {
			bad = fmt.Errorf("route override %s: two expressions give %q and %q", leaf, clip(*at), clip(value))
		}
		if value != "" {
			*at = value
		}
	}
	if bad != nil {
		return policy.Overrides{}, bad
	}
	return o, nil
}

// overrideLeaf finds the key that an expression reads from our namespace: the
// identifier after its last mention, as in
//
//	...filter_metadata['weir.policy'].maxWait : ''
//	...filter_metadata['weir.policy']['maxWait']
//	weir.policy.maxWait
func overrideLeaf(expression, namespace string) (leaf string, ours bool) {
	at := strings.LastIndex(expression, namespace)
	if at < 0 {
		return "", false
	}
	rest := strings.TrimLeft(expression[at+len(namespace):], `'"[].`)
	end := strings.IndexFunc(rest, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-')
	})
	if end >= 0 {
		rest = rest[:end]
	}
	return rest, true
}
