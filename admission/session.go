package admission

import (
	"container/list"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirproxy/weir/policy"
)

// sessions remember the variant of each session (V3), so that a conversation
// does not change its precision from one call to the next. A session is one of
// a tenant, a model and a class: nobody moves another's, and a call of a lower
// class does not pull those of a higher one down. Its variant is the lowest at
// which one of its calls was admitted, and never rises while it is remembered,
// that is, until no call of it was admitted for Variants.SessionFor. It only
// narrows what the class allows, so an invented id gains nothing.
//
// Memory is bounded: beyond sessionsKept a session that was silent for long is
// forgotten, and is then as new. Only admitted calls are remembered, so making
// ids up costs seats. Safe for concurrent use. The hash's seed decides nothing
// but which sessions share a shard.
type sessions struct {
	seed   maphash.Seed
	shards [sessionShards]sessionShard
}

const (
	sessionShards = 64
	sessionsKept  = 1 << 17 // over all shards; about 150 bytes each
)

type sessionShard struct {
	mu    sync.Mutex
	byKey map[uint64]*list.Element // of *session
	order list.List                // the latest first
}

type session struct {
	key   uint64
	rank  int
	until time.Time
}

// sessionName is what a session is known by.
type sessionName struct {
	tenant, model, id string
	class             policy.Class
}

func (s *sessions) open() {
	s.seed = maphash.MakeSeed()
	for i := range s.shards {
		s.shards[i].byKey = make(map[uint64]*list.Element)
	}
}

// key is the plan's session; 0 = none, as of what P7 says the variant.
func (s *sessions) key(p *Plan) uint64 {
	r := p.Request
	if r.Session == "" || r.nonStreaming() != nil || r.Policy.Variants.SessionFor <= 0 {
		return 0
	}
	return maphash.Comparable(s.seed, sessionName{r.Identity.Tenant, p.model, r.Session, p.Class})
}

// find gives the rank of a session's variant.
func (s *sessions) find(now time.Time, key uint64) (rank int, ok bool) {
	if key == 0 {
		return 0, false
	}
	h := &s.shards[key%sessionShards]
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.byKey[key]
	if e == nil || !now.Before(e.Value.(*session).until) {
		return 0, false
	}
	return e.Value.(*session).rank, true
}

// keep notes that a call of the session was admitted at a variant.
func (s *sessions) keep(now time.Time, key uint64, rank int, lasts time.Duration) {
	if key == 0 {
		return
	}
	h := &s.shards[key%sessionShards]
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.byKey[key]; e != nil {
		v := e.Value.(*session)
		if now.Before(v.until) {
			rank = min(rank, v.rank)
		}
		v.rank, v.until = rank, now.Add(lasts)
		h.order.MoveToFront(e)
		return
	}
	h.byKey[key] = h.order.PushFront(&session{key, rank, now.Add(lasts)})
	for range 2 { // one more than came: silent sessions go in time
		if e := h.order.Back(); h.order.Len() > sessionsKept/sessionShards || !now.Before(e.Value.(*session).until) {
			h.order.Remove(e)
			delete(h.byKey, e.Value.(*session).key)
		}
	}
}
