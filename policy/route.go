package policy

import "time"

// Overrides are the values that Envoy's own configuration may set for a
// route (E2): route metadata, context_extensions, grpc_initial_metadata.
// They are strings as Envoy carries them; "" = not set.
type Overrides struct {
	Profile  string
	Function string
	Class    string
	MaxWait  string
	Models   string // comma separated
}

// Effective is the policy one request is judged by: a profile's policy with
// the route's narrowing applied. It is immutable; equal overrides on the same
// Policy give the same pointer, so hot paths pay a map look-up.
type Effective struct {
	*Policy                               // of the profile, or the base
	ProfileName string                    // "" = base
	Function    string                    // the route's function scope; "" = the API's
	ClassCap    *Class                    // the class may not be more important than this
	MaxWait     [NumClasses]time.Duration // per class, narrowed
	Models      []string                  // allowed model names; nil = all
}
