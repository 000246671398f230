package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The keys of route overrides: a closed list (E2).
const (
	keyProfile  = "profile"
	keyFunction = "function"
	keyClass    = "class"
	keyMaxWait  = "maxWait"
	keyModels   = "models"
)

// OverrideKeys is the closed list of keys that a route may set, in the order
// of the documentation.
func OverrideKeys() []string {
	return []string{keyProfile, keyFunction, keyClass, keyMaxWait, keyModels}
}

// OverridesFrom reads the map that Envoy carries. An unknown key and an empty
// value are refused; the error is Errors and names all of them. What the
// values mean is judged by For.
func OverridesFrom(m map[string]string) (Overrides, error) {
	var o Overrides
	var errs Errors
	for _, key := range slices.Sorted(maps.Keys(m)) {
		value := m[key]
		field := o.Field(key)
		switch {
		case field == nil:
			errs = append(errs, Violation{
				Field: "route override " + shown(key), Value: shown(value),
				Message: "unknown key; the keys are " + strings.Join(OverrideKeys(), ", "),
			})
		case value == "":
			errs = append(errs, Violation{Field: "route override " + key, Message: "must not be empty: leave the key out instead"})
		default:
			*field = value
		}
	}
	if errs != nil {
		return Overrides{}, errs
	}
	return o, nil
}

// Map is the overrides as Envoy carries them: OverridesFrom reads it back. nil
// when nothing is set.
func (o Overrides) Map() map[string]string {
	var m map[string]string
	for _, key := range OverrideKeys() {
		if value := *o.Field(key); value != "" {
			if m == nil {
				m = make(map[string]string)
			}
			m[key] = value
		}
	}
	return m
}

// Field is where a key of the closed list is kept; nil for any other.
func (o *Overrides) Field(key string) *string {
	switch key {
	case keyProfile:
		return &o.Profile
	case keyFunction:
		return &o.Function
	case keyClass:
		return &o.Class
	case keyMaxWait:
		return &o.MaxWait
	case keyModels:
		return &o.Models
	}
	return nil
}

// maxEffective bounds the effective policies kept for one policy. Overrides
// come from Envoy's own configuration, so there are as many as routes differ.
const maxEffective = 1024

// effectiveCache maps overrides to their outcome, errors included. Readers
// load a pointer; a writer copies the map.
type effectiveCache struct {
	writer sync.Mutex
	kept   atomic.Pointer[map[Overrides]outcome]
}

type outcome struct {
	effective *Effective
	err       error
}

// For applies a route's overrides. The error is Errors and names every key
// with its value and what is allowed. Equal overrides give the same pointer,
// as long as no more than 1024 different ones are in use.
func (p *Policy) For(o Overrides) (*Effective, error) {
	c := p.cache
	if c == nil { // put together by hand
		return p.narrow(o)
	}
	if m := c.kept.Load(); m != nil {
		if r, ok := (*m)[o]; ok {
			return r.effective, r.err
		}
	}
	return c.add(p, o)
}

func (c *effectiveCache) add(p *Policy, o Overrides) (*Effective, error) {
	e, err := p.narrow(o)
	c.writer.Lock()
	defer c.writer.Unlock()
	var old map[Overrides]outcome
	if m := c.kept.Load(); m != nil {
		old = *m
	}
	if r, ok := old[o]; ok { // another request was first
		return r.effective, r.err
	}
	if len(old) >= maxEffective {
		return e, err
	}
	next := make(map[Overrides]outcome, len(old)+1)
	maps.Copy(next, old)
	next[o] = outcome{e, err}
	c.kept.Store(&next)
	return e, err
}

// narrowing collects what is wrong with one set of overrides.
type narrowing struct {
	base *Policy
	e    *Effective
	errs Errors
}

func (n *narrowing) fail(key, value, message string) {
	n.errs = append(n.errs, Violation{Field: "route override " + key, Value: shown(value), Message: message})
}

func (p *Policy) narrow(o Overrides) (*Effective, error) {
	n := &narrowing{base: p, e: &Effective{Policy: p, base: p, overrides: o}}
	n.profile(o.Profile)
	for i := range n.e.Classes {
		n.e.MaxWait[i] = n.e.Classes[i].MaxWait
	}
	n.e.NonStreaming = n.e.Policy.NonStreaming
	n.function(o.Function)
	n.class(o.Class)
	n.maxWait(o.MaxWait)
	n.models(o.Models)
	if n.errs != nil {
		return nil, n.errs
	}
	return n.e, nil
}

func (n *narrowing) profile(name string) {
	if name == "" {
		return
	}
	profile, ok := n.base.profiles[name]
	if !ok {
		n.fail(keyProfile, name, "unknown profile; "+listOf("the profiles are", n.base.ProfileNames(), "the policy has none"))
		return
	}
	n.e.Policy, n.e.ProfileName = profile, name
}

func (n *narrowing) function(name string) {
	if name != "" && !isScope(name) {
		n.fail(keyFunction, name, scopeRule)
		return
	}
	n.e.Function = name
}

func (n *narrowing) class(name string) {
	if name == "" {
		return
	}
	c, ok := ParseClass(name)
	if !ok {
		n.fail(keyClass, name, "must be critical, standard or batch")
		return
	}
	n.e.ClassCap = &c
}

// maxWait shortens the waits that are longer. A value above every class's
// wait would loosen and is refused, unless the policy allows it: then it is
// the wait of each class, within what Envoy holds.
func (n *narrowing) maxWait(text string) {
	if text == "" {
		return
	}
	wait, message := parseDuration(text, true)
	if message == "" && wait < 0 {
		message = "must not be negative"
	}
	if message != "" {
		n.fail(keyMaxWait, text, message)
		return
	}
	if n.base.Envoy.AllowLoosen {
		n.loosen(text, wait)
		return
	}
	narrows := n.nonStreaming(wait, false)
	for i, w := range n.e.MaxWait {
		narrows = narrows || wait <= w
		n.e.MaxWait[i] = min(w, wait)
	}
	if !narrows {
		most := slices.Max(n.e.MaxWait[:])
		if p := n.e.NonStreaming; p != nil {
			most = max(most, p.MaxWait)
		}
		n.fail(keyMaxWait, text, "may only shorten: at most "+formatDuration(most)+
			" here (envoy.allowLoosen is off)")
	}
}

// nonStreaming narrows P7's wait, or sets it; false where nothing follows.
func (n *narrowing) nonStreaming(wait time.Duration, loosen bool) bool {
	p := n.e.NonStreaming
	if p == nil || wait > p.MaxWait && !loosen {
		return false
	}
	n.e.NonStreaming = &NonStreaming{Variant: p.Variant, MaxWait: wait}
	return true
}

func (n *narrowing) loosen(text string, wait time.Duration) {
	n.nonStreaming(wait, true)
	room := n.base.Envoy.holdRoom()
	for i := range n.e.MaxWait {
		n.e.MaxWait[i] = wait
		hold := longest(wait, &n.e.Classes[i], &n.e.Queue) + HoldMargin
		if hold > room {
			n.fail(keyMaxWait, text, "would hold class "+Class(i).String()+" for "+formatDuration(hold)+
				", Envoy holds at most "+formatDuration(room))
			return
		}
	}
}

// models keeps the models named; each must be one of the policy's.
func (n *narrowing) models(list string) {
	if list == "" {
		return
	}
	var names []string
	for part := range strings.SplitSeq(list, ",") {
		name := strings.TrimSpace(part)
		switch {
		case !slices.ContainsFunc(n.base.Models, func(m Model) bool { return m.Name == name }):
			n.fail(keyModels, list, "unknown model "+strconv.Quote(shown(name))+"; "+
				listOf("the models are", modelNames(n.base.Models), "the policy has none"))
			return
		case slices.Contains(names, name):
			n.fail(keyModels, list, "names "+strconv.Quote(name)+" twice")
			return
		}
		names = append(names, name)
	}
	n.e.Models = names
}

// ProfileNames lists the profiles that a route may select, sorted.
func (p *Policy) ProfileNames() []string { return slices.Sorted(maps.Keys(p.profiles)) }

func modelNames(models []Model) []string {
	names := make([]string, len(models))
	for i := range models {
		names[i] = models[i].Name
	}
	return names
}

func listOf(intro string, names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return intro + " " + strings.Join(names, ", ")
}
