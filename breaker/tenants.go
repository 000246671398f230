package breaker

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
)

const (
	defaultTenants = 10_000
	perShard       = 128 // tenants, about
)

// Tenants are the breakers of tenants (B5, T2): a tenant whose requests fail
// where others' do not, or which demands far more than its quota, is stopped
// by itself. At most TenantBreaker.Max of them are known; for a new one the
// one goes that was used longest ago, of those that are closed and not held, or
// half-open and not heard of for another open time. A tenant that has no breaker is admitted; one whose breaker cannot be made
// because all are needed is not watched.
//
// Who is hard open has its priority requests admitted and no others; at the
// soft level B1 holds as for a pool. Safe for concurrent use. Asking takes no
// lock that tenants share, known or not, in trouble or not; what a new tenant
// costs is one copy of about 128 pointers.
type Tenants struct {
	policy  atomic.Pointer[policy.Breaker]
	journal *Journal
	shards  []shard

	mu    sync.Mutex // of who comes and goes
	rng   *rand.Rand
	known int
}

// shard is a part of the tenants: an immutable map, replaced by each who comes
// or goes.
type shard struct {
	m atomic.Pointer[map[string]*tenant]
}

type tenant struct {
	*Breaker
	used atomic.Int64 // Unix time in ns of the latest end
}

// NewTenants makes an empty set. Transitions go to the journal, nil = nowhere;
// rng seeds the tenants' dice and must not be shared, nil is a fixed seed. The
// number of shards is that of the first Max.
func NewTenants(c policy.Breaker, journal *Journal, rng *rand.Rand) *Tenants {
	if rng == nil {
		rng = rand.New(rand.NewPCG(1, 2))
	}
	t := &Tenants{journal: journal, rng: rng}
	t.policy.Store(&c)
	n := 16
	for n < t.most()/perShard && n < 1<<13 {
		n *= 2
	}
	t.shards = make([]shard, n)
	for i := range t.shards {
		t.shards[i].m.Store(&map[string]*tenant{})
	}
	return t
}

func (t *Tenants) most() int {
	if m := t.policy.Load().Tenant.Max; m > 0 {
		return m
	}
	return defaultTenants
}

// Configure changes the numbers of all. A set that is switched off forgets
// everybody, one with a smaller Max those used longest ago.
func (t *Tenants) Configure(now time.Time, c policy.Breaker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.policy.Store(&c)
	for i := range t.shards {
		for _, e := range *t.shards[i].m.Load() {
			e.Configure(now, Tenant, c)
		}
	}
	if c.Off || !c.Tenant.On {
		for i := range t.shards {
			t.change(i, func(m map[string]*tenant) { clear(m) })
		}
		return
	}
	for t.known > t.most() && t.dropOne(now, t.known&(len(t.shards)-1)) {
	}
}

// shard is where a name belongs, by FNV-1a: the same in every run, so that a
// simulation drops the same tenants.
func (t *Tenants) shard(name string) int {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return int(h) & (len(t.shards) - 1)
}

// find is a tenant's breaker; nil = it has none.
func (t *Tenants) find(name string) *tenant {
	return (*t.shards[t.shard(name)].m.Load())[name]
}

// Get is a tenant's breaker, for the operator and /debug; nil = it has none.
func (t *Tenants) Get(name string) *Breaker {
	if e := t.find(name); e != nil {
		return e.Breaker
	}
	return nil
}

// Allow judges a request of a tenant as Breaker.Allow does; one with priority
// is admitted in any state, and is never a probe.
func (t *Tenants) Allow(now time.Time, name string, class policy.Class, priority bool) Verdict {
	e := t.find(name)
	if e == nil {
		return Verdict{}
	}
	if priority {
		return Verdict{State: e.Peek(now, class).State}
	}
	return e.Allow(now, class)
}

// Peek is what Allow would say, without taking a probe.
func (t *Tenants) Peek(now time.Time, name string, class policy.Class, priority bool) Verdict {
	e := t.find(name)
	if e == nil {
		return Verdict{}
	}
	v := e.Peek(now, class)
	if priority {
		v = Verdict{State: v.State}
	}
	return v
}

// Record counts an end of a tenant's request. healthy says that the breaker of
// the pool that served it was closed and the pool well: else the end says
// nothing of the tenant, and a probe is given back.
func (t *Tenants) Record(now time.Time, name string, failed, probe, healthy bool) {
	s := t.policy.Load()
	if s.Off || !s.Tenant.On {
		return
	}
	if !healthy {
		if probe {
			t.Forget(now, name)
		}
		return
	}
	e := t.find(name)
	if e == nil {
		if e = t.add(now, name); e == nil {
			return
		}
	}
	e.used.Store(now.UnixNano())
	e.Breaker.Record(now, failed, probe)
}

// Untried gives back a probe that never ran.
func (t *Tenants) Untried(now time.Time, name string) {
	if e := t.find(name); e != nil {
		e.Breaker.Untried(now)
	}
}

// Forget gives a probe back that ran and brought no verdict.
func (t *Tenants) Forget(now time.Time, name string) {
	if e := t.find(name); e != nil {
		e.Breaker.Forget(now)
	}
}

// Overrun opens a tenant's breaker hard because it demands far more than its
// quota (T2); by says how much. While it is open further words change nothing
// and prolong nothing; in recovery one is a probe that failed. False if the
// tenant cannot be watched, or its breaker is held or switched off.
func (t *Tenants) Overrun(now time.Time, name, by string) bool {
	return t.with(now, name, func(b *Breaker) bool { return b.overrun(now, by) })
}

// Trip is Breaker.Trip of a tenant, known before or not.
func (t *Tenants) Trip(now time.Time, name string, level State, open time.Duration, by string) bool {
	return t.with(now, name, func(b *Breaker) bool { return b.Trip(now, level, open, by) })
}

// Hold is Breaker.Hold of a tenant, known before or not.
func (t *Tenants) Hold(now time.Time, name string, until time.Time, by string) bool {
	return t.with(now, name, func(b *Breaker) bool { return b.Hold(now, until, by) })
}

// Restore is Breaker.Restore of a tenant, known before or not.
func (t *Tenants) Restore(now time.Time, name string, level State, left time.Duration, from string) bool {
	return t.with(now, name, func(b *Breaker) bool { return b.Restore(now, level, left, from) })
}

// with does something to a tenant's breaker, made for it; again where that was
// dropped meanwhile.
func (t *Tenants) with(now time.Time, name string, do func(*Breaker) bool) bool {
	if s := t.policy.Load(); s.Off || !s.Tenant.On || name == "" {
		return false
	}
	for range 3 {
		e := t.find(name)
		if e == nil {
			if e = t.add(now, name); e == nil {
				return false
			}
		}
		e.used.Store(now.UnixNano())
		if do(e.Breaker) {
			return true
		}
		if e == t.find(name) {
			return false
		}
	}
	return false
}

// add makes a tenant's breaker, or finds the one that another has just made;
// nil = all places are taken by those that are needed.
func (t *Tenants) add(now time.Time, name string) *tenant {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.find(name); e != nil {
		return e
	}
	c := t.policy.Load()
	if c.Off || !c.Tenant.On {
		return nil
	}
	at := t.shard(name)
	if t.known >= t.most() && !t.dropOne(now, at) {
		return nil
	}
	e := &tenant{Breaker: New(name, Tenant, *c, t.journal, rand.New(rand.NewPCG(t.rng.Uint64(), t.rng.Uint64())))}
	e.used.Store(now.UnixNano())
	t.change(at, func(m map[string]*tenant) { m[name] = e })
	return e
}

// change replaces the map of a shard. The lock is held.
func (t *Tenants) change(at int, do func(map[string]*tenant)) {
	old := *t.shards[at].m.Load()
	next := maps.Clone(old)
	do(next)
	t.known += len(next) - len(old)
	t.shards[at].m.Store(&next)
}

// dropOne drops the tenant used longest ago of those that can be spared, among
// 128 or so from one shard on; where none of them can, of the next. False if
// all are needed. The lock is held.
func (t *Tenants) dropOne(now time.Time, from int) bool {
	var some []*tenant
	for i := range t.shards {
		some = slices.AppendSeq(some, maps.Values(*t.shards[(from+i)&(len(t.shards)-1)].m.Load()))
		if len(some) < perShard && i < len(t.shards)-1 {
			continue
		}
		slices.SortFunc(some, func(a, b *tenant) int {
			return cmp.Or(cmp.Compare(a.used.Load(), b.used.Load()), cmp.Compare(a.name, b.name))
		})
		for _, e := range some {
			if e.retire(now) {
				t.change(t.shard(e.name), func(m map[string]*tenant) { delete(m, e.name) })
				return true
			}
		}
		some = some[:0]
	}
	return false
}

// Known is how many tenants have a breaker.
func (t *Tenants) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known
}

// Advance makes the transitions that time alone brings.
func (t *Tenants) Advance(now time.Time) {
	for i := range t.shards {
		for _, e := range *t.shards[i].m.Load() {
			e.Breaker.Advance(now)
		}
	}
}

// Troubled are pictures of the breakers that are not closed or held, by name.
func (t *Tenants) Troubled(now time.Time) []View {
	var out []View
	for i := range t.shards {
		for _, e := range *t.shards[i].m.Load() {
			if p := e.phase.Load(); p.state != Closed || p.held(now) {
				out = append(out, e.View(now))
			}
		}
	}
	slices.SortFunc(out, func(a, b View) int { return strings.Compare(a.Name, b.Name) })
	return out
}
