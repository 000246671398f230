package queue

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/weirproxy/weir/policy"
)

// The model's shares: everything is counted anew from who runs.

func leafName(group int, stream bool) string {
	if stream {
		return fmt.Sprint(group, ".0")
	}
	return fmt.Sprint(group, ".1")
}

func (m *model) groups() int { return max(1, len(m.cfg.Shares.Groups)) }

func (m *model) share(group int) float64 {
	if len(m.cfg.Shares.Groups) == 0 {
		return 1
	}
	return float64(m.cfg.Shares.Groups[group].Share)
}

func (m *model) groupOf(w *Waiter) int {
	if w.Group < 0 {
		return m.groups() - 1
	}
	return min(w.Group, m.groups()-1)
}

func (m *model) splits() bool { return m.cfg.Shares.Streaming > 0 && m.cfg.Shares.Streaming < 1 }

// twin is the other leaf of a leaf's group; one that nobody waits in, where it
// has none.
func (m *model) twin(ml *modelLane) *modelLane {
	for g := range m.groups() {
		a, b := m.lanes[leafName(g, true)], m.lanes[leafName(g, false)]
		switch {
		case !m.splits():
		case ml == a:
			return b
		case ml == b:
			return a
		}
	}
	return &modelLane{}
}

// homes are the lanes in which w waits, its own first.
func (m *model) homes(w *Waiter) []string {
	if w.Colour == policy.Red {
		return []string{"red"}
	}
	names := []string{leafName(m.groupOf(w), !m.splits() || w.Stream)}
	if w.Priority && m.cfg.Shares.Priority > 0 {
		names = append(names, "priority")
	}
	return names
}

// in are those who wait in a lane, by arrival.
func (m *model) in(name string) (es []*entry) {
	for _, e := range m.waiting {
		if slices.Contains(m.homes(e.w), name) {
			es = append(es, e)
		}
	}
	return es
}

func share(part policy.Ratio, n int64) int64 { return int64(math.Round(float64(part) * float64(n))) }

func (m *model) usable() policy.Seats {
	all, h := m.cfg.Seats, m.cfg.Shares.Headroom
	return policy.Seats{
		Requests: max(min(1, all.Requests), all.Requests-share(h, all.Requests)),
		Tokens:   max(min(1, all.Tokens), all.Tokens-share(h, all.Tokens)),
	}
}

// lane is what the priority lane is guaranteed.
func (m *model) lane() (s policy.Seats) {
	p, u := m.cfg.Shares.Priority, m.usable()
	if p > 0 && u.Requests > 1 {
		s.Requests = min(max(1, share(p, u.Requests)), u.Requests-1)
	}
	if p > 0 && u.Tokens > 0 {
		s.Tokens = max(1, share(p, u.Tokens))
	}
	return s
}

// favours reports whether w would get a seat of the priority lane.
func (m *model) favours(w *Waiter) bool {
	return slices.Contains(m.homes(w), "priority") && m.laneShort()
}

func (m *model) laneShort() bool {
	return m.short(m.held(func(e *entry) bool { return e.favoured }), m.lane())
}

// entitled reports whether w's group, or the priority lane, is short of more
// seats than those wait for who have the same claim.
func (m *model) entitled(w *Waiter) bool {
	if w.Colour == policy.Red {
		return false
	}
	g := m.groupOf(w)
	held := m.held(func(e *entry) bool { return !e.favoured && e.group == g })
	wait := m.count(func(e *entry) bool { return e.w.Colour != policy.Red && m.groupOf(e.w) == g })
	due := m.guarantees()[g]
	if m.groups() > 1 && m.short(held, policy.Seats{Requests: due, Tokens: m.tokens(g)}) && int64(wait) < due-held.Requests {
		return true
	}
	held, lane := m.held(func(e *entry) bool { return e.favoured }), m.lane()
	return slices.Contains(m.homes(w), "priority") && m.short(held, lane) && int64(len(m.in("priority"))) < lane.Requests-held.Requests
}

func (m *model) short(held, due policy.Seats) bool {
	return held.Requests < due.Requests && (due.Tokens == 0 || held.Tokens < due.Tokens)
}

// tokens are what a group is guaranteed; 0 = tokens have no bound.
func (m *model) tokens(group int) int64 {
	if m.usable().Tokens == 0 {
		return 0
	}
	return max(1, int64(math.Round(m.share(group)*float64(m.usable().Tokens-m.lane().Tokens))))
}

func (m *model) held(f func(*entry) bool) (s policy.Seats) {
	for _, e := range m.running {
		if f(e) {
			s.Requests++
			s.Tokens += e.tokens
		}
	}
	return s
}

// guarantees are the whole seats of the groups (P9): largest remainder, and
// one at least.
func (m *model) guarantees() []int64 {
	n := m.usable().Requests - m.lane().Requests
	got, order, left := make([]int64, m.groups()), []int{}, 0.0
	due := func(i int) float64 { return m.share(i) * float64(n) }
	for i := range got {
		got[i] = int64(math.Floor(due(i) + 1e-9))
		left += due(i) - float64(got[i])
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		d := (due(b) - float64(got[b])) - (due(a) - float64(got[a]))
		if math.Abs(d) < 1e-6 {
			return 0
		}
		return cmp.Compare(d, 0)
	})
	for i := range int(math.Round(left)) {
		got[order[i]]++
	}
	for i := range got {
		if m.share(i) == 0 || got[i] > 0 {
			continue
		}
		got[i]++
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Or(cmp.Compare(min(2, got[b]), min(2, got[a])), cmp.Compare(float64(got[b])-due(b), float64(got[a])-due(a)), cmp.Compare(a, b))
		})
		if got[order[0]] > 1 {
			got[order[0]]--
		}
	}
	return got
}

// wish is a lane that asks for the next seat.
type wish struct {
	name        string
	need        int64
	group, leaf urgency
}

// rate is how urgently a part that holds so much wants another seat.
func (m *model) rate(held policy.Seats, weight float64, short bool, name string, need int64) urgency {
	u := m.usable()
	level := (float64(held.Requests) + 0.5) / float64(u.Requests)
	if u.Tokens > 0 {
		level = max(level, (float64(held.Tokens)+float64(need)/2)/float64(u.Tokens))
	}
	served := uint64(m.served[name])
	switch {
	case weight == 0:
		return urgency{2, level, served}
	case held.Requests == 0:
		return urgency{0, 0, served}
	case short:
		return urgency{0, level / weight, served}
	}
	return urgency{1, level / weight, served}
}

func (m *model) wishes() (ws []wish) {
	whole := m.guarantees()
	for g := range m.groups() {
		held := m.held(func(e *entry) bool { return !e.favoured && e.group == g })
		var mine []wish
		for i, weight := range []float64{float64(m.cfg.Shares.Streaming), float64(1 - m.cfg.Shares.Streaming)} {
			name := leafName(g, i == 0)
			if e := m.first(name); e != nil {
				in := m.held(func(e *entry) bool { return !e.favoured && e.group == g && e.w.Stream == (i == 0) })
				mine = append(mine, wish{name: name, need: m.need(e.w), leaf: m.rate(in, weight, false, name, m.need(e.w))})
			}
		}
		slices.SortStableFunc(mine, func(a, b wish) int { return a.leaf.compare(b.leaf) })
		for i := range mine {
			short := m.short(held, policy.Seats{Requests: whole[g], Tokens: m.tokens(g)})
			mine[i].group = m.rate(held, m.share(g), short, fmt.Sprint(g), mine[0].need)
		}
		ws = append(ws, mine...)
	}
	slices.SortStableFunc(ws, func(a, b wish) int { return a.group.compare(b.group) })
	if e := m.first("priority"); e != nil && m.laneShort() {
		ws = slices.Insert(ws, 0, wish{name: "priority", need: m.need(e.w)})
	}
	return ws
}

// turn is the lane whose first is to have a free seat; "" when there is none.
func (m *model) turn() string {
	if e := m.first("red"); e != nil {
		if m.fits(e.w) {
			return "red"
		}
		return ""
	}
	ws := m.wishes()
	for i, w := range ws {
		if i > 0 && w.group.rank > 0 && m.groups() > 1 {
			return ""
		}
		if m.fits(m.first(w.name).w) {
			for _, p := range ws[:i] {
				m.lanes[p.name].passed += w.need
			}
			return w.name
		}
		if m.lanes[w.name].passed >= w.need {
			return ""
		}
	}
	return ""
}

// reshape changes the shares. When the lanes change all queue anew.
func (m *model) reshape(c Config) {
	old := &model{cfg: m.cfg}
	m.cfg = c
	n := m.groups()
	for _, e := range m.running {
		e.group = min(e.group, n-1)
	}
	if m.lanes != nil && old.groups() == n && old.splits() == m.splits() && (old.cfg.Shares.Priority > 0) == (c.Shares.Priority > 0) {
		return
	}
	fresh := func(name string) *modelLane {
		if old := m.lanes[name]; old != nil {
			*old = modelLane{passed: old.passed}
			return old
		}
		return &modelLane{}
	}
	lanes, served := map[string]*modelLane{"red": fresh("red"), "priority": fresh("priority")}, map[string]int{}
	for g := range n {
		served[fmt.Sprint(g)] = m.served[fmt.Sprint(g)]
		for _, stream := range []bool{true, false} {
			name := leafName(g, stream)
			lanes[name], served[name] = fresh(name), m.served[name]
		}
	}
	m.lanes, m.served = lanes, served
	for _, e := range m.waiting {
		m.join(e)
	}
}
