package queue

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// model is the line written for clarity alone: slices, linear searches, no
// bookkeeping. Its order is by definition: the least start tag of the class,
// then of the tenant, v being the fluid server's virtual time.
type model struct {
	cfg      Config
	now      time.Duration
	waiting  []*entry // by arrival
	retrying []*entry // by entry
	running  []*entry
	lanes    [2]modelLane
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
}

type ask struct {
	at     time.Duration
	class  policy.Class
	tenant string
}

func (m *model) own(t time.Time) time.Duration { return t.Sub(epoch) }

func (m *model) need(w *Waiter) int64 {
	if m.cfg.Seats.Tokens > 0 {
		return min(w.Tokens, m.cfg.Seats.Tokens)
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
	u := m.used()
	return u.Requests < m.cfg.Seats.Requests && (m.cfg.Seats.Tokens == 0 || u.Tokens+m.need(w) <= m.cfg.Seats.Tokens)
}

func (m *model) count(f func(e *entry) bool) (n int) {
	for _, e := range m.waiting {
		if f(e) {
			n++
		}
	}
	return n
}

// head is whose turn it is.
func (m *model) head() *entry {
	for lane := range m.lanes {
		in := slices.DeleteFunc(slices.Clone(m.waiting), func(e *entry) bool { return laneOf(e.w.Colour) != lane })
		if len(in) == 0 {
			continue
		}
		tag := func(l *modelLevel, name string) float64 { return l.find(name).tag }
		ml := &m.lanes[lane]
		return slices.MinFunc(in, func(a, b *entry) int {
			for _, d := range []float64{
				tag(&ml.classes, a.w.Class.String()) - tag(&ml.classes, b.w.Class.String()),
				float64(a.w.Class) - float64(b.w.Class),
				tag(&ml.tenants[a.w.Class], a.w.Tenant) - tag(&ml.tenants[b.w.Class], b.w.Tenant),
			} {
				if d != 0 && !math.IsNaN(d) {
					return int(math.Copysign(1, d))
				}
			}
			// Equal tags: the tenant whose first waiter came first.
			return int(int64(m.firstOf(a).seq) - int64(m.firstOf(b).seq))
		})
	}
	return nil
}

func (m *model) settle(e *entry, cost int64) {
	work := float64(max(1, cost)) - e.charged
	if e.charged == 0 || m.cfg.Price != policy.ByTokens {
		return
	}
	e.charged = 0
	lane := laneOf(e.w.Colour)
	in := func(o *entry) bool { return laneOf(o.w.Colour) == lane }
	if m.count(in) > 0 {
		m.lanes[lane].classes.correct(e.w.Class.String(), float64(m.cfg.Weights[e.w.Class]), work)
	}
	if m.count(func(o *entry) bool { return in(o) && o.w.Class == e.w.Class }) > 0 {
		m.lanes[lane].tenants[e.w.Class].correct(e.w.Tenant, e.w.Weight, work)
	}
}

// firstOf is the first waiter of e's flow; within a flow it goes first.
func (m *model) firstOf(e *entry) *entry {
	for _, o := range m.waiting {
		if o.w.Class == e.w.Class && o.w.Tenant == e.w.Tenant && laneOf(o.w.Colour) == laneOf(e.w.Colour) {
			return o
		}
	}
	return nil
}

func (m *model) drop(e *entry) {
	m.waiting = slices.DeleteFunc(m.waiting, func(o *entry) bool { return o == e })
	ml := &m.lanes[laneOf(e.w.Colour)]
	same := func(o *entry) bool { return laneOf(o.w.Colour) == laneOf(e.w.Colour) && o.w.Class == e.w.Class }
	if m.count(func(o *entry) bool { return same(o) && o.w.Tenant == e.w.Tenant }) == 0 {
		ml.tenants[e.w.Class].rest(e.w.Tenant)
	}
	if m.count(same) == 0 {
		ml.classes.rest(e.w.Class.String())
	}
}

func (m *model) seat(e *entry) {
	e.tokens = m.need(e.w)
	m.running = append(m.running, e)
}

func (m *model) dispatch(e *entry) {
	ml, cost := &m.lanes[laneOf(e.w.Colour)], 1.0
	if m.cfg.Price == policy.ByTokens {
		cost = float64(e.w.Cost)
		ml.tenants[e.w.Class].serve(e.w.Tenant, cost)
	}
	ml.classes.serve(e.w.Class.String(), cost)
	e.charged = cost
	m.drop(e)
	m.seat(e)
}

func (m *model) grant() {
	for h := m.head(); h != nil && m.fits(h.w); h = m.head() {
		h = m.firstOf(h)
		m.dispatch(h)
		m.pending = append(m.pending, Exit{Waiter: h.w, Granted: true, Waited: m.now - h.since})
	}
	for len(m.waiting) == 0 && len(m.retrying) > 0 && !m.paused && m.fits(m.retrying[0].w) {
		e := m.retrying[0]
		m.retrying = m.retrying[1:]
		m.seat(e)
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
	m.grant()
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
			flows[fmt.Sprint(laneOf(e.w.Colour), e.w.Tenant)] = true
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
		m.seat(e)
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
	ml := &m.lanes[laneOf(w.Colour)]
	ml.tenants[w.Class].arrive(w.Tenant, w.Weight)
	ml.classes.arrive(w.Class.String(), float64(m.cfg.Weights[w.Class]))
	if m.firstOf(m.head()) == e && m.fits(w) {
		m.dispatch(e)
		m.grant()
		return Taken, true
	}
	return Taken, false
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
