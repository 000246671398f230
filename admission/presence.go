package admission

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/policy"
	"github.com/weirproxy/weir/quota"
)

// presence is what is in this replica, by its own memory and without a word of
// the store: how many requests each counter of concurrency has here, from
// their headers to their ends, and how many bytes of bodies are still to come.
// It lies in shards; no lock is shared by all requests.
type presence struct {
	seed   maphash.Seed
	bodies atomic.Int64 // awaited
	bytes  atomic.Int64 // of these
	shards [presenceShards]presenceShard
}

const presenceShards = 64

type presenceShard struct {
	mu       sync.Mutex
	counters map[counterKey]int64
	tenants  map[string]int64 // bytes awaited
}

// counterKey is a counter of concurrency: the slot and the key of a claim.
type counterKey struct{ tenant, key string }

func (p *presence) open() {
	p.seed = maphash.MakeSeed()
	for i := range p.shards {
		p.shards[i].counters, p.shards[i].tenants = make(map[counterKey]int64), make(map[string]int64)
	}
}

func (p *presence) shard(tenant string) *presenceShard {
	return &p.shards[maphash.String(p.seed, tenant)%presenceShards]
}

// together gives the claim's limit of concurrency.
func together(c *quota.Claim) (policy.Limit, bool) {
	for _, l := range c.Limits {
		if l.Unit == policy.Concurrency {
			return l, true
		}
	}
	return policy.Limit{}, false
}

// full reports a limit of concurrency that those who are here fill.
func (p *presence) full(claims []quota.Claim) (quota.Verdict, bool) {
	var t quota.Tally
	for i := range claims {
		c := &claims[i]
		if l, ok := together(c); ok {
			s := p.shard(c.Tenant)
			s.mu.Lock()
			used := s.counters[counterKey{c.Tenant, c.Key}]
			s.mu.Unlock()
			if quota.Refuses(l, 1, used) {
				t.Refuse(c.Rule, l, 1, used, 0)
			}
		}
	}
	v := t.Verdict()
	return v, !v.Allowed
}

// take counts one request at each counter of concurrency, or at none where
// there is no room.
func (p *presence) take(claims []quota.Claim) (quota.Verdict, bool) {
	for i := range claims {
		c := &claims[i]
		l, ok := together(c)
		if !ok {
			continue
		}
		if used, ok := p.takeOne(c, l); !ok {
			p.drop(claims[:i])
			return quota.Verdict{Rule: c.Rule, Limit: l, Used: used}, false
		}
	}
	return quota.Verdict{}, true
}

func (p *presence) takeOne(c *quota.Claim, l policy.Limit) (used int64, ok bool) {
	s, key := p.shard(c.Tenant), counterKey{c.Tenant, c.Key}
	s.mu.Lock()
	defer s.mu.Unlock()
	if used = s.counters[key]; quota.Refuses(l, 1, used) {
		return used, false
	}
	s.counters[key]++
	return used, true
}

func (p *presence) drop(claims []quota.Claim) {
	for i := range claims {
		c := &claims[i]
		if _, ok := together(c); ok {
			p.add(c, -1)
		}
	}
}

func (p *presence) add(c *quota.Claim, n int64) {
	s, key := p.shard(c.Tenant), counterKey{c.Tenant, c.Key}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n += s.counters[key]; n > 0 {
		s.counters[key] = n
	} else {
		delete(s.counters, key)
	}
}

// enter counts a plan whose claims the store took; nobody else has it yet.
func (p *presence) enter(plan *Plan) {
	plan.inside = true
	for i := range plan.Claims {
		if _, ok := together(&plan.Claims[i]); ok {
			p.add(&plan.Claims[i], 1)
		}
	}
}

// leave forgets a plan whose claims are settled.
func (p *presence) leave(plan *Plan) {
	if plan.inside {
		plan.inside = false
		p.drop(plan.Claims)
	}
}

// Awaited is a request whose body is to come. Leave gives its place back, at
// whatever comes first: its body, its end. A nil Awaited has none.
type Awaited struct {
	presence *presence
	tenant   string
	bytes    int64
	claims   []quota.Claim
	left     atomic.Bool
}

// Leave may be called more than once; only the first call counts.
func (a *Awaited) Leave() {
	if a == nil || !a.left.CompareAndSwap(false, true) {
		return
	}
	a.presence.arrived(a.tenant, a.bytes)
	a.presence.drop(a.claims)
}

// Await is Precheck for a request whose body of at most n bytes is to come, and
// takes its place: one at each limit of concurrency, and its bytes of what may
// be awaited of a tenant, and of all. True is a refusal, which took nothing.
// Where the policy does not enforce, the bytes are counted and nothing is
// refused.
func (d *Desk) Await(now time.Time, r *Request, n int64) (*Awaited, Decision, bool) {
	dec, claims, refused := d.precheck(now, r)
	if refused {
		return nil, dec, true
	}
	a := &Awaited{presence: &d.presence, tenant: r.tenant(), bytes: max(n, 0)}
	if modeOf(r, false) != policy.Enforce {
		d.presence.expect(a.tenant, a.bytes)
		return a, Decision{}, false
	}
	if v, ok := d.presence.take(claims); !ok {
		return nil, d.quotaRefusal(now, r, v), true
	}
	if reason, used, limit := d.presence.admit(a.tenant, a.bytes, r.Policy); reason != Admitted {
		d.presence.drop(claims)
		return nil, d.awaitRefusal(now, r, reason, used, limit), true
	}
	a.claims = claims
	return a, Decision{}, false
}

func (d *Desk) awaitRefusal(now time.Time, r *Request, reason Reason, used, limit int64) Decision {
	p := &Plan{Request: r}
	p.Decision.Policy = r.Policy.ID()
	p.step(RoomQuota, "awaited_bytes", float64(used), float64(limit), false)
	p.refuse(now, reason, 0, "")
	d.Refused(r, &p.Decision)
	return p.Decision
}

// admit counts n bytes more of a tenant where there is room. A tenant may have
// no more than it leaves free for all others, so that neither one nor many
// together leave a newcomer without room.
func (p *presence) admit(tenant string, n int64, e *policy.Effective) (refused Reason, used, limit int64) {
	body := e.Policy.Server.MaxBody
	most := max(e.Queue.MaxAwaited, 2*body)
	s := p.shard(tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	all, own := p.bytes.Load(), s.tenants[tenant]
	limit = min(max(e.Queue.MaxAwaitedBy, body), most-all-n)
	if own+n > limit {
		if own == 0 {
			return HeldBytes, all, most
		}
		return AwaitedBytes, own, limit
	}
	p.bytes.Add(n)
	p.bodies.Add(1)
	s.tenants[tenant] = own + n
	return Admitted, 0, 0
}

// expect counts n bytes more of a tenant.
func (p *presence) expect(tenant string, n int64) {
	s := p.shard(tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.bytes.Add(n)
	p.bodies.Add(1)
	s.tenants[tenant] += n
}

// arrived takes n bytes of a tenant off again.
func (p *presence) arrived(tenant string, n int64) {
	s := p.shard(tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.bytes.Add(-n)
	p.bodies.Add(-1)
	if n = s.tenants[tenant] - n; n > 0 {
		s.tenants[tenant] = n
	} else {
		delete(s.tenants, tenant)
	}
}
