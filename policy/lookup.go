package policy

import (
	"cmp"
	"slices"
	"strings"
)

// index holds look-up tables made from a policy; immutable.
type index struct {
	models  map[string]*Model // names and exact aliases
	globs   []modelGlob       // longest prefix first
	pools   map[string]*Pool
	tiers   map[string]float64
	tenants patterns          // by the number of the rule
	literal map[string][]*API // templates without parameters, by path
	routes  []route           // the others, most specific first

	clusters []Cluster // by name; those of the base in profiles too
}

type modelGlob struct {
	prefix string
	model  *Model
}

type route struct {
	template template
	api      *API
}

func newIndex(p *Policy) *index {
	x := &index{
		models:  make(map[string]*Model),
		pools:   make(map[string]*Pool),
		tiers:   make(map[string]float64),
		literal: make(map[string][]*API),
	}
	for i := range p.Pools {
		x.pools[p.Pools[i].Name] = &p.Pools[i]
	}
	for _, t := range p.Tiers {
		x.tiers[t.Name] = t.Weight
	}
	for i := range p.Tenants {
		x.tenants.add(p.Tenants[i].Match.Tenant, i)
	}
	x.addModels(p.Models)
	x.addAPIs(p.APIs)
	return x
}

func (x *index) addModels(models []Model) {
	for i := range models {
		m := &models[i]
		for _, a := range m.Aliases {
			if prefix, glob := strings.CutSuffix(a, "*"); glob {
				x.globs = append(x.globs, modelGlob{prefix, m})
			} else if x.models[a] == nil {
				x.models[a] = m
			}
		}
	}
	for i := range models { // a name goes before any alias
		x.models[models[i].Name] = &models[i]
	}
	slices.SortStableFunc(x.globs, func(a, b modelGlob) int { return cmp.Compare(len(b.prefix), len(a.prefix)) })
}

func (x *index) addAPIs(apis []API) {
	for i := range apis {
		api := &apis[i]
		t, err := parseTemplate(api.Path)
		if err != nil {
			continue // refused when the policy was checked
		}
		if t.isLiteral() {
			x.literal[api.Path] = append(x.literal[api.Path], api)
		} else {
			x.routes = append(x.routes, route{t, api})
		}
	}
	slices.SortStableFunc(x.routes, func(a, b route) int {
		return cmp.Or(a.template.compare(b.template), byMethod(a.api, b.api))
	})
	for _, same := range x.literal {
		slices.SortStableFunc(same, byMethod)
	}
}

// byMethod puts "*" behind named methods.
func byMethod(a, b *API) int { return cmp.Compare(len(b.Method), len(a.Method)) }

// tables gives the index; a policy that was put together by hand, without
// Load or Default, pays for one on each call.
func (p *Policy) tables() *index {
	if p.index != nil {
		return p.index
	}
	return newIndex(p)
}

// Pool finds a pool by name.
func (p *Policy) Pool(name string) (*Pool, bool) {
	pool, ok := p.tables().pools[name]
	return pool, ok
}

// TierWeight is the weight of a tier inside a class (P2); a tier that the
// policy does not declare, "" included, weighs what "silver" weighs.
func (p *Policy) TierWeight(name string) float64 {
	tiers := p.tables().tiers
	if w, ok := tiers[name]; ok {
		return w
	}
	if w, ok := tiers[DefaultTier]; ok {
		return w
	}
	return 1
}

// tierShare is what is guaranteed to a tier (P9), to one that is not declared
// what is to "silver".
func (p *Policy) tierShare(name string) Ratio {
	if !hasTier(p, name) {
		name = DefaultTier
	}
	for _, t := range p.Tiers {
		if t.Name == name {
			return t.Share
		}
	}
	return 0
}

// Tenant is the first rule that matches a tenant, nil if none does.
func (p *Policy) Tenant(tenant string) *TenantRule {
	if i := p.tables().tenants.fit(tenant); i >= 0 {
		return &p.Tenants[i]
	}
	return nil
}

// Route finds the API of a call by its method and a path that CleanPath gave.
// The most specific template wins: segment by segment a literal goes before
// {name}, and {name} before {name...}; with equal templates a named method
// goes before "*". No API means that the call is refused.
func (p *Policy) Route(method, path string) (*API, bool) {
	x := p.tables()
	for _, api := range x.literal[path] {
		if api.Method == method || api.Method == "*" {
			return api, true
		}
	}
	for i := range x.routes {
		r := &x.routes[i]
		if (r.api.Method == method || r.api.Method == "*") && r.template.matches(path) {
			return r.api, true
		}
	}
	return nil, false
}

// FindModel finds a model by what a caller asks for: its name, else an exact
// alias, else the glob with the longest prefix.
func (p *Policy) FindModel(name string) (*Model, bool) {
	if name == "" {
		return nil, false
	}
	x := p.tables()
	if m, ok := x.models[name]; ok {
		return m, true
	}
	for _, g := range x.globs {
		if strings.HasPrefix(name, g.prefix) {
			return g.model, true
		}
	}
	return nil, false
}

// PoolsFor lists the pools that serve a model at a variant (V1): those of
// that precision; if the model has none, those of the next higher precision;
// if there is none either, those of the highest precision below. In file
// order; empty only for a model without pools.
func (p *Policy) PoolsFor(m *Model, v Variant) []*Pool {
	x := p.tables()
	want, best := v.Rank(), 0
	for _, name := range m.Pools {
		if pool := x.pools[name]; pool != nil && Nearer(pool.Variant.Rank(), best, want) {
			best = pool.Variant.Rank()
		}
	}
	var out []*Pool
	for _, name := range m.Pools {
		if pool := x.pools[name]; pool != nil && pool.Variant.Rank() == best {
			out = append(out, pool)
		}
	}
	return out
}

// Nearer reports whether a pool whose variant has rank a serves one who wants
// rank want better than a pool of rank b does (V1); b is 0 where there is none.
func Nearer(a, b, want int) bool {
	if b == 0 {
		return true
	}
	if (a >= want) != (b >= want) {
		return a >= want
	}
	if a >= want {
		return a < b
	}
	return a > b
}
