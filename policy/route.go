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
	Function    string                    // the route's function scope; "" = none of its own
	ClassCap    *Class                    // the class may not be more important than this
	MaxWait     [NumClasses]time.Duration // per class, narrowed
	Models      []string                  // allowed model names; nil = all

	NonStreaming *NonStreaming // the policy's, narrowed; nil = off

	base      *Policy // whose For made it; nil = put together by hand
	overrides Overrides
}

// ID names the policy for decisions and logs: its hash, and "/profile" where
// a route selected one.
func (e *Effective) ID() string {
	if e.ProfileName == "" {
		return e.Hash
	}
	return e.Hash + "/" + e.ProfileName
}

// In is the same route by another policy; e itself where it is the same one,
// or was put together by hand. The error says which of the route's overrides
// that policy does not take.
func (e *Effective) In(p *Policy) (*Effective, error) {
	if e.base == p || e.base == nil {
		return e, nil
	}
	return p.For(e.overrides)
}

// Model finds a model by what a caller asks for (FindModel); a model that the
// route does not allow is as unknown as one that is not there.
func (e *Effective) Model(name string) (*Model, bool) {
	m, ok := e.FindModel(name)
	if !ok || !e.Allows(m.Name) {
		return nil, false
	}
	return m, true
}

// Allows reports whether the route serves a model, by the model's own name.
func (e *Effective) Allows(model string) bool {
	if e.Models == nil {
		return true
	}
	for _, m := range e.Models {
		if m == model {
			return true
		}
	}
	return false
}

// Cap lowers a class to what the route allows.
func (e *Effective) Cap(c Class) Class {
	if e.ClassCap == nil {
		return c
	}
	return c.Lower(*e.ClassCap)
}

// ModeOf is the mode of a class on this route (O4). A policy in pass mode
// passes every class.
func (e *Effective) ModeOf(c Class) Mode {
	if e.Mode == Pass {
		return Pass
	}
	return e.Classes[c].Mode
}

// FunctionOf names what a call of an API is counted as on this route: the
// route's function, else the API's. Which scopes it needs, FunctionsOf says.
func (e *Effective) FunctionOf(api *API) string {
	if e.Function != "" {
		return e.Function
	}
	return api.Function
}

// FunctionsOf lists the function scopes that a call of an API needs on this
// route (K1): the route's and the API's, because a route may only narrow;
// with Envoy.AllowLoosen the route's stands in place of the API's. "" needs
// nothing.
func (e *Effective) FunctionsOf(api *API) [2]string {
	if e.Function == "" {
		return [2]string{api.Function}
	}
	if e.Envoy.AllowLoosen || e.Function == api.Function {
		return [2]string{e.Function}
	}
	return [2]string{e.Function, api.Function}
}

// Longest is the longest time a request of a class may be held on this route:
// its wait, and the retry queue's limit where that follows (P3); or the wait
// of those that do not stream (P7), where that is longer.
func (e *Effective) Longest(c Class) time.Duration {
	hold := longest(e.MaxWait[c], &e.Classes[c], &e.Queue)
	if e.NonStreaming != nil {
		hold = max(hold, e.NonStreaming.MaxWait)
	}
	return hold
}

func longest(wait time.Duration, c *ClassPolicy, q *Queue) time.Duration {
	if wait > 0 && c.OnExpiry == ExpireRetry && q.RetryQueue.Length > 0 {
		wait += q.RetryQueue.Limit
	}
	return wait
}
