package admission

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/policy"
)

// floor is the core's picture of one policy: its pools and, found on first
// use, the pools of each model of the policy and its profiles. Readers take
// no lock.
type floor struct {
	policy *policy.Policy
	number uint64 // of the policies that the core has had
	pools  map[string]*pool
	order  []*pool // in file order

	chosen *chosen // V3; outlives the policy

	models atomic.Pointer[map[modelKey]*modelPools]
	mu     sync.Mutex // of writers of models
}

type modelKey struct {
	policy *policy.Policy
	name   string
}

// modelPools is a model with its pools, highest precision first.
type modelPools struct {
	known     bool
	name      string
	maxOutput int64
	pools     []*pool
	ranks     []int
	chosen    *[policy.NumClasses]atomic.Pointer[choice]
}

// maxModels bounds the cache against callers who make names up: such names
// are not kept.
const maxModels = 10000

// model finds a model by name in the policy that judges the request; "" is
// the API's model, else the policy's first.
func (f *floor) model(r *Request) *modelPools {
	name := r.Model
	if name == "" && r.API != nil {
		name = r.API.Model
	}
	key := modelKey{r.Policy.Policy, name}
	if m := (*f.models.Load())[key]; m != nil {
		return m
	}
	m := f.resolve(key.policy, name)
	if m.known {
		m.chosen = f.chosen.of(r.Policy.ProfileName, m.name)
		f.keep(key, m)
	}
	return m
}

func (f *floor) resolve(p *policy.Policy, name string) *modelPools {
	var found *policy.Model
	if name == "" && len(p.Models) > 0 {
		found = &p.Models[0]
	} else if m, ok := p.FindModel(name); ok {
		found = m
	}
	if found == nil {
		return &modelPools{}
	}
	out := f.serve(found)
	if len(out.pools) == 0 && p != f.policy { // of a policy that was replaced: its pools may have other names now
		if now := f.resolve(f.policy, found.Name); len(now.pools) > 0 {
			return now
		}
	}
	return out
}

// serve lists the pools of a model.
func (f *floor) serve(found *policy.Model) *modelPools {
	out := &modelPools{known: true, name: found.Name, maxOutput: found.MaxOutput}
	for _, n := range found.Pools {
		if l := f.pools[n]; l != nil {
			out.pools = append(out.pools, l)
		}
	}
	slices.SortStableFunc(out.pools, func(a, b *pool) int {
		return cmp.Compare(b.spec.Load().Variant.Rank(), a.spec.Load().Variant.Rank())
	})
	for _, l := range out.pools {
		out.ranks = append(out.ranks, l.spec.Load().Variant.Rank())
	}
	return out
}

func (f *floor) keep(key modelKey, m *modelPools) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := *f.models.Load()
	if len(old) >= maxModels {
		return
	}
	next := maps.Clone(old)
	next[key] = m
	f.models.Store(&next)
}

// level is the range of pools that serve a variant (V1), by its rank.
func (m *modelPools) level(want int) (from, to int) {
	for i, rank := range m.ranks {
		if i == 0 || policy.Nearer(rank, m.ranks[from], want) {
			from = i
		}
	}
	return from, sameRank(m.ranks, from)
}

// notAbove is where the pools at or below a rank begin, from top on; the last
// variant where all that are left are above.
func (m *modelPools) notAbove(rank, top int) int {
	for at := top; ; at = sameRank(m.ranks, at) {
		if m.ranks[at] <= rank || sameRank(m.ranks, at) == len(m.ranks) {
			return at
		}
	}
}

// sameRank is the end of the range of equal ranks that begins at from.
func sameRank(ranks []int, from int) int {
	end := from
	for end < len(ranks) && ranks[end] == ranks[from] {
		end++
	}
	return end
}
