package policy

import (
	"fmt"
	"strings"
)

// Channel is a way in which Envoy's configuration carries overrides (E2).
type Channel string

// The channels, by the names that errors and metrics use.
const (
	RouteMetadata     Channel = "route_metadata"        // of a route, in Envoy.Namespace
	ContextExtensions Channel = "context_extensions"    // of ext_authz: virtual host and route
	InitialMetadata   Channel = "grpc_initial_metadata" // of ext_proc: virtual host and route
)

// Given is what one channel says.
type Given struct {
	Channel   Channel
	Overrides Overrides
}

// OverrideError is an override that was refused, with the channel at fault.
type OverrideError struct {
	Channel Channel
	Err     error
}

// Error names the channel, then key, value and what is allowed.
func (e *OverrideError) Error() string { return string(e.Channel) + ": " + e.Err.Error() }

// Unwrap gives the reason.
func (e *OverrideError) Unwrap() error { return e.Err }

// ForAll applies what several channels say of one route. Each must be valid by
// itself; together the narrowest binds: the least important class, the
// shortest wait, the models that all of them name. Channels that select
// different profiles or functions, or models of which none is in all, are
// refused. The error is an *OverrideError.
func (p *Policy) ForAll(given ...Given) (*Effective, error) {
	var none, sum Overrides
	var e *Effective
	for _, g := range given {
		if g.Overrides == none || g.Overrides == sum {
			continue
		}
		own, err := p.For(g.Overrides)
		switch {
		case err != nil:
		case e == nil:
			sum, e = g.Overrides, own
		default:
			if sum, err = narrowest(sum, g.Overrides); err == nil {
				e, err = p.For(sum)
			}
		}
		if err != nil {
			return nil, &OverrideError{g.Channel, err}
		}
	}
	if e == nil {
		return p.For(none)
	}
	return e, nil
}

// narrowest joins two sets that are valid each by itself.
func narrowest(a, b Overrides) (out Overrides, err error) {
	if out.Profile, err = agree(keyProfile, a.Profile, b.Profile); err != nil {
		return out, err
	}
	if out.Function, err = agree(keyFunction, a.Function, b.Function); err != nil {
		return out, err
	}
	out.Class = narrower(a.Class, b.Class, func(x, y string) bool {
		cx, _ := ParseClass(x)
		cy, _ := ParseClass(y)
		return cx > cy
	})
	out.MaxWait = narrower(a.MaxWait, b.MaxWait, func(x, y string) bool {
		dx, _ := parseDuration(x, true)
		dy, _ := parseDuration(y, true)
		return dx < dy
	})
	out.Models, err = commonModels(a.Models, b.Models)
	return out, err
}

func agree(key, a, b string) (string, error) {
	switch {
	case a == "" || a == b:
		return b, nil
	case b == "":
		return a, nil
	}
	return "", fmt.Errorf("route override %s: %q, and another channel says %q", key, shown(b), shown(a))
}

func narrower(a, b string, narrow func(x, y string) bool) string {
	switch {
	case a == "":
		return b
	case b == "" || narrow(a, b):
		return a
	}
	return b
}

func commonModels(a, b string) (string, error) {
	if a == "" || b == "" {
		return a + b, nil
	}
	var common []string
	for x := range strings.SplitSeq(a, ",") {
		for y := range strings.SplitSeq(b, ",") {
			if x = strings.TrimSpace(x); x == strings.TrimSpace(y) {
				common = append(common, x)
			}
		}
	}
	if common == nil {
		return "", fmt.Errorf("route override %s: %q has no model in common with %q of another channel", keyModels, shown(b), shown(a))
	}
	return strings.Join(common, ","), nil
}
