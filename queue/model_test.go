package queue

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// model is the line written for clarity alone: slices, linear searches, no
// bookkeeping. Its order in a lane is by definition: the least start tag of the
// class, then of the tenant, v being the fluid server's virtual time; between
// lanes it is that of modelshares_test.go.
type model struct {
	cfg      Config
	now      time.Duration
	waiting  []*entry // by arrival
	retrying []*entry // by entry
	running  []*entry
	lanes    map[string]*modelLane // by name: red, priority, leaf 0.1 of group 0
	served   map[string]int        // when a part last got a seat, counted in seats given
	given    int
	asked    []ask
	paused   bool
	draining bool
	pending  []Exit
}

type entry struct {
	w        *Waiter
	seq      uint64
	since    time.Duration
	expires  time.Duration
	deadline time.Duration
	b        Bounds
	tokens   int64
	charged  float64 // 0 = was not charged, or is settled
	borne    float64 // of it, in the twin
	given    int     // seats given when it was charged
	via      *modelLane
	group    int // that the seat counts to
	favoured bool
	turns    map[string]uint64 // by lane: the arrival whose place it has
}

type ask struct {
	at     time.Duration
	class  policy.Class
	tenant string
}

func (m *model) own(t time.Time) time.Duration { return t.Sub(epoch) }

func (m *model) need(w *Waiter) int64 {
	if t := m.usable().Tokens; t > 0 {
		return min(w.Tokens, t)
	}
	return w.Tokens
}

func (m *model) used() (s policy.Seats) {
	for _, e := range m.running {
		s.Requests++
		s.Tokens += e.tokens
	}
	return s
}

func (m *model) fits(w *Waiter) bool {
	u, all := m.used(), m.usable()
	return u.Requests < all.Requests && (all.Tokens == 0 || u.Tokens+m.need(w) <= all.Tokens)
}

func (m *model) count(f func(e *entry) bool) (n int) {
	for _, e := range m.waiting {
		if f(e) {
			n++
		}
	}
	return n
}

func standing(e *entry) time.Duration { return e.since + e.w.Handicap }

// head is the first of w's flow in a lane; nil when there is none.
func (m *model) head(name string, w *Waiter) *entry {
	var flow []*entry
	for _, o := range m.in(name) {
		if o.w.Class == w.Class && o.w.Tenant == w.Tenant {
			flow = append(flow, o)
		}
	}
	if len(flow) == 0 {
		return nil
	}
	return slices.MinFunc(flow, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(standing(a), standing(b)), cmp.Compare(a.seq, b.seq))
	})
}

// turnOf is the arrival by which w's flow stands in a lane among equal tags:
// of its first, or, where requests are the price, its first turn.
func (m *model) turnOf(name string, w *Waiter) uint64 {
	if m.cfg.Price == policy.ByTokens {
		return m.head(name, w).seq
	}
	return m.earliest(name, w).turns[name]
}

// earliest is who has the first turn of w's flow in a lane.
func (m *model) earliest(name string, w *Waiter) (first *entry) {
	for _, o := range m.in(name) {
		if o.w.Class == w.Class && o.w.Tenant == w.Tenant && (first == nil || o.turns[name] < first.turns[name]) {
			first = o
		}
	}
	return first
}

// first is the next of those in a lane; nil when there is none.
func (m *model) first(name string) *entry {
	in := m.in(name)
	if len(in) == 0 {
		return nil
	}
	ml := m.lanes[name]
	return slices.MinFunc(in, func(a, b *entry) int {
		return cmp.Or(
			cmp.Compare(ml.classes.find(a.w.Class.String()).tag, ml.classes.find(b.w.Class.String()).tag),
			cmp.Compare(a.w.Class, b.w.Class),
			cmp.Compare(ml.tenants[a.w.Class].find(a.w.Tenant).tag, ml.tenants[b.w.Class].find(b.w.Tenant).tag),
			cmp.Compare(m.turnOf(name, a.w), m.turnOf(name, b.w)),
			cmp.Compare(standing(a), standing(b)),
			cmp.Compare(a.seq, b.seq),
		)
	})
}

func (m *model) settle(e *entry, cost int64) {
	work := float64(max(1, cost)) - e.charged
	if e.charged == 0 || m.cfg.Price != policy.ByTokens {
		return
	}
	e.charged = 0
	if e.via.classes.busy() {
		e.via.classes.correct(e.w.Class.String(), float64(m.cfg.Weights[e.w.Class]), work, e.given)
	}
	e.via.tenants[e.w.Class].account(e.w, work, e.given, false)
	if work < 0 {
		work = min(0, float64(max(1, cost))-e.borne)
	}
	m.twin(e.via).tenants[e.w.Class].account(e.w, work, e.given, true)
}

func (m *model) drop(e *entry) {
	m.waiting = slices.DeleteFunc(m.waiting, func(o *entry) bool { return o == e })
	for _, name := range m.homes(e.w) {
		ml := m.lanes[name]
		class := slices.DeleteFunc(m.in(name), func(o *entry) bool { return o.w.Class != e.w.Class })
		if !slices.ContainsFunc(class, func(o *entry) bool { return o.w.Tenant == e.w.Tenant }) {
			ml.tenants[e.w.Class].rest(e.w.Tenant)
		} else {
			ml.tenants[e.w.Class].find(e.w.Tenant).weight = m.head(name, e.w).w.Weight
		}
		if len(class) == 0 {
			ml.classes.rest(e.w.Class.String())
		}
	}
}

func (m *model) seat(e *entry, favoured bool) {
	e.tokens, e.favoured, e.group = m.need(e.w), favoured, m.groupOf(e.w)
	m.given++
	if !favoured {
		m.served[fmt.Sprint(e.group)], m.served[leafName(e.group, e.w.Stream)] = m.given, m.given
	}
	m.running = append(m.running, e)
}

// dispatch seats the first of a lane.
func (m *model) dispatch(name string) *entry {
	e, ml, cost := m.first(name), m.lanes[name], 1.0
	if m.cfg.Price == policy.ByTokens {
		cost = float64(e.w.Cost)
		ml.tenants[e.w.Class].serve(e.w.Tenant, cost)
		e.borne = m.twin(ml).tenants[e.w.Class].account(e.w, cost, m.given, true)
	}
	ml.classes.serve(e.w.Class.String(), cost)
	o := m.earliest(name, e.w)
	e.turns[name], o.turns[name] = o.turns[name], e.turns[name]
	e.charged, e.given, e.via, ml.passed = cost, m.given, ml, 0
	m.drop(e)
	m.seat(e, name == "priority")
	return e
}

func (m *model) grant(offered *entry) {
	for name := m.turn(); name != ""; name = m.turn() {
		if e := m.dispatch(name); e != offered {
			m.pending = append(m.pending, Exit{Waiter: e.w, Granted: true, Waited: m.now - e.since})
		}
	}
	for len(m.waiting) == 0 && len(m.retrying) > 0 && !m.paused && m.fits(m.retrying[0].w) {
		e := m.retrying[0]
		m.retrying = m.retrying[1:]
		m.seat(e, m.favours(e.w))
		m.pending = append(m.pending, Exit{Waiter: e.w, Granted: true, Retried: true, Waited: m.now - e.since})
	}
}

// due is the one whose time ends first, and whether it retries.
func (m *model) due() (first *entry, retries bool) {
	for i, list := range [][]*entry{m.waiting, m.retrying} {
		for _, e := range list {
			if first == nil || e.expires < first.expires || e.expires == first.expires && e.seq < first.seq {
				first, retries = e, i == 1
			}
		}
	}
	return first, retries
}

func (m *model) expire(until time.Duration) {
	for {
		e, retries := m.due()
		if e == nil || e.expires > until {
			return
		}
		late := e.expires >= e.deadline
		if retries {
			m.retrying = slices.DeleteFunc(m.retrying, func(o *entry) bool { return o == e })
		} else {
			m.drop(e)
			if e.w.OnExpiry == policy.ExpireRetry && !late && e.b.RetryLimit > 0 && len(m.retrying) < e.b.RetryLen {
				e.expires = min(e.expires+e.b.RetryLimit, e.deadline)
				m.retrying = append(m.retrying, e)
				continue
			}
		}
		x := Exit{Waiter: e.w, Action: e.w.OnExpiry, Retried: retries, Late: late, Waited: m.now - e.since}
		if late {
			x.Action = policy.ExpireDrop
		}
		m.pending = append(m.pending, x)
	}
}

// begin is what every call does first.
func (m *model) begin(now time.Time) {
	m.now = m.own(now)
	m.expire(m.now - 1)
	m.grant(nil)
}

func (m *model) flush() []Exit {
	x := m.pending
	m.pending = nil
	return x
}

func (m *model) lately(f func(ask) bool) bool {
	return slices.ContainsFunc(m.asked, func(a ask) bool {
		return m.now-a.at <= slices.Max(m.cfg.MaxWaits[:]) && f(a)
	})
}

// room is P2, Q5 and Q6 in the words of Line.room.
func (m *model) room(w *Waiter, b Bounds) Refusal {
	n := len(m.waiting)
	if m.entitled(w) {
		return Taken
	}
	if n >= b.Length {
		return Full
	}
	var c caps
	c.resize(b.Length, &m.cfg)
	of := func(class policy.Class) int { return m.count(func(e *entry) bool { return e.w.Class == class }) }
	mine := m.count(func(e *entry) bool { return e.w.Class == w.Class && e.w.Tenant == w.Tenant })
	share := b.Length
	if b.PerTenant > 0 && b.PerTenant < 1 {
		share = max(1, int(float64(c.places[w.Class])*float64(b.PerTenant)))
	}
	// The line remembers of a class its last asks by two tenants.
	others := m.lately(func(a ask) bool { return a.class == w.Class && a.tenant != w.Tenant })
	if mine >= share && (of(w.Class) > mine || others) {
		return TenantFull
	}
	flows := map[string]bool{}
	for _, e := range m.waiting {
		if e.w.Class == w.Class {
			flows[fmt.Sprint(m.homes(e.w)[0], e.w.Tenant)] = true
		}
	}
	if mine == 0 && of(w.Class) > share*len(flows) {
		return Taken
	}
	owed := 0
	for o := range policy.Class(policy.NumClasses) {
		if o != w.Class && (of(o) > 0 || m.lately(func(a ask) bool { return a.class == o })) {
			owed += max(0, c.places[o]-of(o))
		}
	}
	if of(w.Class) >= c.places[w.Class] && n+owed >= b.Length {
		return ClassFull
	}
	if b.Soft > 0 && n >= b.Soft && !b.Exempt {
		return SoftFull
	}
	return Taken
}

func (m *model) offer(now time.Time, w *Waiter, b Bounds) (r Refusal, seated bool) {
	m.begin(now)
	e := &entry{w: w, seq: uint64(len(m.asked)) + 1, since: m.now, deadline: never, b: b}
	if !w.Deadline.IsZero() {
		e.deadline = m.own(w.Deadline)
	}
	switch {
	case m.draining:
		return Draining, false
	case m.cfg.Seats.Tokens > 0 && w.Tokens > m.cfg.Seats.Tokens:
		return TooLarge, false
	case e.deadline <= m.now:
		return CannotMeet, false
	case len(m.waiting) == 0 && m.fits(w):
		m.seat(e, m.favours(w))
		return Taken, true
	case b.Length <= 0 || w.MaxWait <= 0:
		return Full, false
	}
	m.asked = append(m.asked, ask{m.now, w.Class, w.Tenant})
	e.seq = uint64(len(m.asked))
	return m.place(e, b)
}

func (m *model) place(e *entry, b Bounds) (Refusal, bool) {
	if r := m.room(e.w, b); r != Taken {
		return r, false
	}
	w := e.w
	e.expires = min(m.now+w.MaxWait, e.deadline)
	m.waiting = append(m.waiting, e)
	m.join(e)
	m.grant(e)
	return Taken, slices.Contains(m.running, e)
}

func (m *model) join(e *entry) {
	e.turns = map[string]uint64{}
	for _, name := range m.homes(e.w) {
		ml := m.lanes[name]
		e.turns[name] = e.seq
		ml.tenants[e.w.Class].arrive(e.w.Tenant, m.head(name, e.w).w.Weight, m.given)
		ml.classes.arrive(e.w.Class.String(), float64(m.cfg.Weights[e.w.Class]), m.given)
	}
}

func (m *model) next() (time.Time, bool) {
	if len(m.pending) > 0 {
		return at(m.now), true
	}
	if e, _ := m.due(); e != nil {
		return at(e.expires), true
	}
	return time.Time{}, false
}

func (m *model) stats() (s Stats) {
	s.SeatsTotal, s.SeatsUsed, s.Retrying = m.cfg.Seats, m.used(), len(m.retrying)
	for _, e := range m.waiting {
		s.Waiting[e.w.Class]++
		s.HeldBytes += e.w.Bytes
	}
	for _, e := range m.retrying {
		s.HeldBytes += e.w.Bytes
	}
	for _, e := range m.running {
		s.Running[e.w.Class]++
	}
	return s
}
