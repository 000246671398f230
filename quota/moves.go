package quota

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Moves says where the usage of limits comes from whose period a new policy
// changed, or added: the periods, in ticks, under which the same rule counted
// the same unit. A store lets a counter that is one of these, and has none of
// its own yet, take over what the best of them counts. The zero value moves
// nothing.
type Moves struct {
	from map[MoveKey][]int64
	to   map[MoveKey][]int64 // the reverse, of periods that the policy has no more
	live map[MoveKey]bool    // the policy has it
}

// MoveKey is a unit of a rule over a period, in ticks.
type MoveKey struct {
	Rule   string // its id, encoded as in a claim's key
	Unit   policy.Unit
	Period int64
}

// Mover is a Store that takes usage along. Both do.
type Mover interface {
	// Move is to be called before the first claim of a new policy.
	Move(m Moves)
}

// MovesOf is what a new policy moves, with what m, which led to the old one, has
// moved and may not have been needed yet.
func (m Moves) MovesOf(old, next *policy.Policy) Moves {
	was, is := periodsOf(old), periodsOf(next)
	out := Moves{from: make(map[MoveKey][]int64), to: make(map[MoveKey][]int64), live: make(map[MoveKey]bool)}
	for rule, periods := range is {
		for _, period := range periods {
			key := MoveKey{rule.Rule, rule.Unit, period}
			out.live[key] = true
			if slices.Contains(was[rule], period) {
				if from := m.from[key]; from != nil {
					out.from[key] = from
				}
				continue
			}
			var from []int64
			for _, p := range was[rule] {
				from = append(append(from, p), m.from[MoveKey{rule.Rule, rule.Unit, p}]...)
			}
			slices.Sort(from)
			from = slices.DeleteFunc(slices.Compact(from), func(p int64) bool { return p == period })
			if from != nil {
				out.from[key] = from[:min(len(from), maxSources)]
			}
		}
	}
	for key, from := range out.from {
		for _, p := range from {
			if old := (MoveKey{key.Rule, key.Unit, p}); !out.live[old] {
				out.to[old] = append(out.to[old], key.Period)
			}
		}
	}
	return out
}

// maxSources bounds how many periods of many reloads are remembered.
const maxSources = 64

// periodsOf lists the periods of each rule and unit, over the base and all
// profiles. The key's Period is 0.
func periodsOf(p *policy.Policy) map[MoveKey][]int64 {
	out := make(map[MoveKey][]int64)
	sets := p.QuotaRuleSets()
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		for i := range sets[set] {
			q := &sets[set][i]
			for _, l := range q.Limits {
				key := MoveKey{Rule: Encode(q.CountedAs()), Unit: l.Unit}
				if period := Period(l.Per); l.Unit != policy.Concurrency && !slices.Contains(out[key], period) {
					out[key] = append(out[key], period)
				}
			}
		}
	}
	return out
}

// Empty reports that nothing moves.
func (m Moves) Empty() bool { return len(m.from) == 0 }

// Until is when nothing is left to move, of what was counted until now.
func (m Moves) Until(now time.Time) time.Time {
	longest := int64(0)
	for _, from := range m.from {
		longest = max(longest, slices.Max(from))
	}
	return now.Add(time.Duration(longest+longest/Cells+1) * time.Millisecond)
}

// From lists the periods from which a claim's limit takes over; nil = none.
func (m Moves) From(c *Claim, l policy.Limit) []int64 {
	if len(m.from) == 0 || l.Unit == policy.Concurrency {
		return nil
	}
	return m.from[keyOf(c, l.Unit, Period(l.Per))]
}

// To lists the periods that take over from a claim's limit which the policy has
// no more; nil = none.
func (m Moves) To(c *Claim, l policy.Limit) []int64 {
	if len(m.to) == 0 || l.Unit == policy.Concurrency {
		return nil
	}
	return m.to[keyOf(c, l.Unit, Period(l.Per))]
}

// Live reports whether the policy has a limit of the claim's rule over a
// period: then the counter is not to end when another takes over from it.
func (m Moves) Live(c *Claim, u policy.Unit, period int64) bool { return m.live[keyOf(c, u, period)] }

func keyOf(c *Claim, u policy.Unit, period int64) MoveKey {
	rule, _, _ := strings.Cut(c.Key, "/")
	return MoveKey{rule, u, period}
}

// Best is which of several periods a counter over period takes over: the
// shortest that holds all of it, else the longest; 0 of none.
func Best(period int64, of []int64) (best int64) {
	for _, p := range of {
		switch {
		case best == 0, p >= period && (p < best || best < period), p < period && best < p:
			best = p
		}
	}
	return best
}

// Carry counts in w, which is empty, what another window of another period
// counts: each cell at its last instant, so that nothing leaves w sooner.
func (w *Window) Carry(period int64, from *Window, fromPeriod, now int64) {
	if _, _, future := from.place(fromPeriod, now); future {
		return
	}
	for cell := max(from.head-Cells, 0); cell <= from.head; cell++ {
		if n := from.at(cell); n > 0 {
			w.Add(period, lastOf(cell, fromPeriod, now), n)
		}
	}
}

// Carried is the cell of a window of a period in which Carry at an instant
// counted another's cell.
func Carried(period, cell, fromPeriod, at int64) int64 {
	return lastOf(cell, fromPeriod, at) * Cells / period
}

// lastOf is the last tick of a cell, at most now.
func lastOf(cell, period, now int64) int64 {
	return max(min(divUp((cell+1)*period, Cells)-1, now), 0)
}
