package queue

import (
	"cmp"
	"math"

	"github.com/weirproxy/weir/policy"
)

// part is one of several that share seats: the priority lane, a group, or the
// streaming or the other requests of a group.
type part struct {
	weight float64      // its share among those beside it; 0 = only what they leave
	whole  int64        // seats guaranteed; at least 1 if it weighs anything
	tokens int64        // tokens guaranteed; 0 = tokens have no bound
	used   policy.Seats // held now
	served uint64       // when it last got a seat, counted in seats given
}

// short reports whether it holds less than it is guaranteed, in both currencies.
func (p *part) short() bool {
	return p.used.Requests < p.whole && (p.tokens == 0 || p.used.Tokens < p.tokens)
}

func (p *part) hold(tokens int64)   { p.used.Requests++; p.used.Tokens += tokens }
func (p *part) giveUp(tokens int64) { p.used.Requests--; p.used.Tokens -= tokens }

// urgency orders parts: the least goes first.
type urgency struct {
	rank   int     // -1 the priority lane, 0 short of its guarantee, 1 beyond it, 2 has none
	level  float64 // dominant share / weight, with half of what it asks for; 0 = holds nothing
	served uint64  // then: whoever has gone without the longest
}

// urge is the urgency with which p asks for a seat with so many tokens. Half
// of the request counts as held: so shares are rounded to the nearest seat.
func (p *part) urge(usable policy.Seats, tokens int64) urgency {
	u := urgency{rank: 1, served: p.served}
	switch {
	case p.weight == 0:
		u.rank = 2
	case p.used.Requests == 0: // the next free one
		return urgency{served: p.served}
	case p.short():
		u.rank = 0
	}
	u.level = (float64(p.used.Requests) + 0.5) / float64(usable.Requests)
	if usable.Tokens > 0 {
		u.level = max(u.level, (float64(p.used.Tokens)+float64(tokens)/2)/float64(usable.Tokens))
	}
	if p.weight > 0 {
		u.level /= p.weight
	}
	return u
}

func (u urgency) compare(o urgency) int {
	return cmp.Or(cmp.Compare(u.rank, o.rank), cmp.Compare(u.level, o.level), cmp.Compare(u.served, o.served))
}

// Part is a picture of the priority lane or of a group.
type Part struct {
	Seats     policy.Seats // guaranteed; no tokens = they have no bound
	Used      policy.Seats // held now
	Streaming int64        // of these, by streaming requests; not told of the lane
	Waiting   int          // those with priority stand in the lane and in their group
}

func (p *part) picture(waiting int) Part {
	return Part{Seats: policy.Seats{Requests: p.whole, Tokens: p.tokens}, Used: p.used, Waiting: waiting}
}

// Parts are pictures of the priority lane and of the groups, in the order of
// Config.Shares.Groups, one at least.
func (l *Line) Parts() (priority Part, groups []Part) {
	groups = make([]Part, len(l.groups))
	for i, g := range l.groups {
		groups[i] = g.picture(g.len())
		groups[i].Streaming = g.leaves[0].used.Requests
	}
	return l.priority.picture(l.priority.len()), groups
}

// leaf is a part with a line of its own.
type leaf struct {
	part
	lane
	passed int64 // tokens that went past its next in order, which did not fit
}

// group is a tier's part, with one leaf, or two while streaming is bounded.
type group struct {
	part
	name   string
	leaves [2]leaf // streaming (or all), others
	heir   *group  // after a change of shape: who holds its seats
}

// len is how many wait.
func (g *group) len() int { return g.leaves[0].len() + g.leaves[1].len() }

// live is the group that holds g's seats now.
func (g *group) live() *group {
	for g.heir != nil {
		g = g.heir
	}
	return g
}

// side is the index of the leaf whose seats w's seat counts to.
func side(w *Waiter) int {
	if w.Stream {
		return 0
	}
	return 1
}

// groupOf is the group that w belongs to.
func (l *Line) groupOf(w *Waiter) *group {
	if w.Group < 0 || w.Group >= len(l.groups) {
		return l.groups[len(l.groups)-1]
	}
	return l.groups[w.Group]
}

// leafOf is where w waits.
func (l *Line) leafOf(w *Waiter) *leaf {
	switch {
	case w.Colour == policy.Red:
		return &l.red
	case l.split:
		return &l.groupOf(w).leaves[side(w)]
	}
	return &l.groupOf(w).leaves[0]
}

// favoured reports whether w stands in the priority lane too.
func (l *Line) favoured(w *Waiter) bool {
	return w.Priority && l.priority.weight > 0 && w.Colour != policy.Red
}

// Lane is how many seats the priority lane is guaranteed.
func (l *Line) Lane() int64 { return l.priority.whole }

// entitled reports whether one of the next freed seats is to be w's: fewer
// wait for them than its group, or the priority lane, is short of its
// guarantee. Red does not need it.
func (l *Line) entitled(w *Waiter) bool {
	if w.Colour == policy.Red {
		return false
	}
	g := l.groupOf(w)
	owed := func(p *part, waiting int) bool { return p.short() && int64(waiting) < p.whole-p.used.Requests }
	return len(l.groups) > 1 && owed(&g.part, g.len()) ||
		l.favoured(w) && owed(&l.priority.part, l.priority.len())
}

// lines are all lines of waiters; those with priority stand in two.
func (l *Line) lines(yield func(*lane) bool) {
	if !yield(&l.red.lane) || !yield(&l.priority.lane) {
		return
	}
	l.leaves(func(f *leaf) bool { return yield(&f.lane) })
}

// leaves are those of the groups.
func (l *Line) leaves(yield func(*leaf) bool) {
	for _, g := range l.groups {
		if !yield(&g.leaves[0]) || !yield(&g.leaves[1]) {
			return
		}
	}
}

// apportion says who is guaranteed what (P9): headroom off the top, the
// priority lane, the groups.
func (l *Line) apportion(total policy.Seats, s Shares) {
	l.usable = policy.Seats{Requests: below(total.Requests, s.Headroom), Tokens: below(total.Tokens, s.Headroom)}
	p, rest := &l.priority, l.usable
	p.whole, p.tokens = 0, 0
	if p.weight = ratio(s.Priority); p.weight > 0 {
		p.whole = max(0, min(max(1, nearest(p.weight, rest.Requests)), rest.Requests-1))
		p.tokens = min(rest.Tokens, max(1, nearest(p.weight, rest.Tokens)))
	}
	rest.Requests -= p.whole
	rest.Tokens -= p.tokens
	weights := make([]float64, len(l.groups))
	for i := range weights {
		weights[i] = 1
		if len(s.Groups) > 0 {
			weights[i] = ratio(s.Groups[i].Share)
		}
	}
	for i, whole := range wholes(rest.Requests, weights) {
		g := l.groups[i]
		g.weight, g.whole, g.tokens = weights[i], whole, 0
		if l.usable.Tokens > 0 {
			g.tokens = max(1, nearest(weights[i], rest.Tokens))
		}
	}
}

// wholes are n seats divided by weights that sum up to 1 at most, by largest
// remainder. Who weighs anything gets one at least, from those with the most
// above their due, as long as they have more than one.
func wholes(n int64, weights []float64) []int64 {
	due, got := make([]float64, len(weights)), make([]int64, len(weights))
	var sum, all float64
	for _, w := range weights {
		sum += w
	}
	left := n
	for i, w := range weights {
		due[i] = float64(n) * w / max(1, sum)
		all += due[i]
		got[i] = int64(due[i] + 1e-9)
		left -= got[i]
	}
	left -= n - int64(math.Round(all))
	most := func(may func(i int) bool) (best int) {
		best = -1
		for i := range got {
			if may(i) && (best < 0 || due[i]-float64(got[i]) > due[best]-float64(got[best])+1e-9) {
				best = i
			}
		}
		return best
	}
	for ; left > 0; left-- {
		got[most(func(i int) bool { return weights[i] > 0 })]++
	}
	for i := range got {
		if weights[i] == 0 || got[i] > 0 {
			continue
		}
		got[i] = 1
		rich := -1
		for j := range got {
			if got[j] > 1 && (rich < 0 || float64(got[j])-due[j] > float64(got[rich])-due[rich]) {
				rich = j
			}
		}
		if rich >= 0 {
			got[rich]--
		}
	}
	return got
}

// below is n without that part of it, but not nothing.
func below(n int64, part policy.Ratio) int64 {
	return max(min(n, 1), n-nearest(ratio(part), n))
}

func nearest(part float64, n int64) int64 { return int64(math.Round(part * float64(n))) }

// ratio bounds what enters the arithmetic.
func ratio(r policy.Ratio) float64 {
	if !(r > 0) {
		return 0
	}
	return min(float64(r), 1)
}

// share gives the line the shares of c. When those who wait would stand
// elsewhere, they queue anew.
func (l *Line) share(c Config) {
	s := c.Shares
	change := func() {
		l.regroup(s)
		for ln := range l.lines {
			ln.configure(c.Weights, c.Price)
		}
		l.apportion(c.Seats, s)
	}
	split := s.Streaming > 0 && s.Streaming < 1
	if l.moves(s) || split != l.split || (s.Priority > 0) != (l.priority.weight > 0) {
		l.requeue(change)
		return
	}
	change()
}
