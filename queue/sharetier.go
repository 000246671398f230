package queue

import (
	"slices"

	"github.com/weirproxy/weir/policy"
)

// home is the index of the group of those whose tier has none.
func (s *Shares) home() int {
	for i := range s.Groups {
		if s.Groups[i].Home {
			return i
		}
	}
	return max(0, len(s.Groups)-1)
}

// heir is the index of what has been group i, by its name, or by its place
// where it has none; -1 = it is no more.
func (s *Shares) heir(i int, name string) int {
	if len(s.Groups) == 0 && i == 0 && name == "" {
		return 0
	}
	for j := range s.Groups {
		if s.Groups[j].Name == name && (name != "" || i == j) {
			return j
		}
	}
	return -1
}

// regroup makes the groups that s names. They keep their seats, waiters and
// bookings in whatever order they are; what is no more leaves them to the home.
func (l *Line) regroup(s Shares) {
	next, to, home := make([]*group, max(1, len(s.Groups))), make([]int, len(l.groups)), s.home()
	for i, g := range l.groups {
		if to[i] = s.heir(i, g.name); to[i] >= 0 && next[to[i]] == nil {
			next[to[i]] = g
		} else {
			to[i] = -1
		}
	}
	l.split = s.Streaming > 0 && s.Streaming < 1
	for i := range next {
		if next[i] == nil {
			next[i] = &group{}
		}
		if len(s.Groups) > 0 {
			next[i].name = s.Groups[i].Name
		}
		next[i].divide(s.Streaming, l.split)
	}
	for i, g := range l.groups {
		if to[i] < 0 {
			to[i] = home
			next[home].inherit(g)
		}
	}
	l.groups, l.home = next, home
	l.book.regroup(to)
	for _, s := range l.expiry.entries {
		l.assign(s.item)
	}
}

// divide shapes the leaves.
func (g *group) divide(streaming policy.Ratio, split bool) {
	for i, weight := range []policy.Ratio{streaming, 1 - streaming} {
		g.leaves[i].weight, g.leaves[i].whole = ratio(weight), 1
		g.leaves[i].twin = nil
		if split {
			g.leaves[i].twin = &g.leaves[1-i].lane
		}
	}
}

// inherit takes the seats of a group that is no more.
func (g *group) inherit(o *group) {
	o.heir = g
	g.used.Requests += o.used.Requests
	g.used.Tokens += o.used.Tokens
	for i := range g.leaves {
		g.leaves[i].used.Requests += o.leaves[i].used.Requests
		g.leaves[i].used.Tokens += o.leaves[i].used.Tokens
	}
}

// assign gives w its group by its tier; where groups have no names, w says it
// itself.
func (l *Line) assign(w *Waiter) {
	if l.groups[0].name == "" {
		return
	}
	named := func(g *group) bool { return g.name == w.Tier }
	if w.Group = slices.IndexFunc(l.groups, named); w.Group < 0 {
		w.Group = l.home
	}
}

// moves reports whether s puts some of those who wait into other groups.
func (l *Line) moves(s Shares) bool {
	if max(1, len(s.Groups)) != len(l.groups) || s.heir(l.home, l.groups[l.home].name) != s.home() {
		return true
	}
	for i, g := range l.groups {
		if s.heir(i, g.name) < 0 {
			return true
		}
	}
	return false
}

// regroup moves the pages of groups.
func (b *book) regroup(to []int) {
	const n = policy.NumClasses
	index := func(i int) int { return to[i/n]*n + i%n }
	if len(b.pages) == 0 {
		return
	}
	old := b.pages
	b.pages = make([]page, (slices.Max(to)+1)*n)
	for i := range old {
		o, p := &old[i], &b.pages[index(i)]
		p.flows, p.weight, p.total, p.top = p.flows+o.flows, p.weight+o.weight, p.total+o.total, max(p.top, o.top)
		for c := range o.cells {
			p.cells[c] += o.cells[c]
		}
	}
	for _, flows := range b.flows {
		for _, k := range flows {
			k.page = index(k.page)
		}
	}
}
