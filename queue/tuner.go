package queue

import (
	"math"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Numbers of the tuner.
const (
	firstMost = 0.9  // of the target: above, too many are inside
	firstAim  = 0.6  // of the target: what a cut aims at
	firstCalm = 0.5  // of the target: room for more below it,
	firstFar  = 0.25 // and far from full below this

	fewShare  = 0.1  // of the seats: so many may wait in the engine,
	fewLeast  = 3.0  // or so many,
	fewSoon   = 0.1  // or those that wait shorter than this part of the target,
	fewTarget = 0.25 // but none longer than this part,
	fewSure   = 4    // and one at least, where so many answers begin within the target
	fewNone   = 0.5  // else: nobody all the time
	kvFull    = 0.95 // of the cache that may be in use
	kvGrow    = 1.25 // deviations of its use that growth leaves room for,
	kvCut     = 0.75 // and a cut
	kvOver    = 1.05 // of what there is room for: above, too many are inside

	growMost = 3 * time.Second // since the last change: one seat at least, and more time does not count
	growSeen = 16              // answers begun, before one seat more is tried where few begin within the target
	paceFast = 0.12            // of the seats, added per second
	paceMost = 0.02            // that, once a cut was needed
	paceSlow = 0.0025          // that, to begin again with; and by how much it rises
	paceBack = 0.01            // by how much it rises before the first cut
	shallow  = 0.1             // of the seats: a cut of less may be chance, and growth
	paceMild = 0.03            // begins again with up to this
	cutMost  = 0.5             // of the seats, taken in one step
	cutLeast = 0.05            // on a time to first token over its target
	damping  = 0.3             // of what is too many, taken in one step,
	collapse = 0.2             // but all above this part of the seats
)

// Tuner finds how many seats a pool should have (Q9): as many as give the most
// tokens per second with the 95th percentile of time to first token under its
// target. It goes by that time, by what the engine says of its own line and
// its KV cache, and by nothing else: the length of an answer is the caller's
// wish, so total time says nothing about load.
//
// A continuous batch has a knee: below it each further request adds tokens
// per second, above it a request only waits inside the engine, where weir can
// no longer order it. The tuner seeks the least number of seats that keeps a
// few requests waiting in the engine:
//
//   - Too many. The engine's waiting count is the part of the seats that does
//     nothing, as in TCP Vegas (Brakmo and Peterson, SIGCOMM 1994: keep a few
//     packets queued, no more). What counts is the least of the last few
//     samples, a standing queue (CoDel: Nichols and Jacobson, ACM Queue 2012):
//     a long prompt that blocks the head for a moment makes none. Where one
//     that always waits would wait for most of the target, nobody may. Where
//     somebody always waits, those for whom the KV cache has no room are too
//     many. Where first tokens come late by t, by Little's law (1961) rate * t
//     requests too many are inside. What is known to be too much is taken
//     away, not a fixed share as in AIMD: most of a collapse at once, the rest
//     damped.
//   - Room. Seats are added while all are in use and wanted, hardly anybody
//     waits in the engine, KV use leaves room for more of the same kind, and
//     first tokens come well in time: 12 % a second until the first cut (half
//     of that once it was tight for a moment, and then more again), and after
//     one up to half of what there was before it (slow start: Jacobson,
//     SIGCOMM 1988), then slowly, and faster the longer it does no harm. After
//     a cut of a few it goes on a little faster than after a deep one.
//
// What the cache has room for goes by the fullest that it was of late, and by
// what requests hold in the mean and how much that sways: with few long
// prompts among many short ones the cache is now half full and then full with
// the same number inside, and the number that fits most of the time is less
// than what the mean allows. A pool whose seats are also tokens (prompt and
// expected output) needs this least: its line holds back the long ones itself.
//
// Else the number stays; also when nothing fresh is known.
//
// A decision goes only by evidence younger than the last change: samples taken
// and requests seated after it; only what a request holds of the cache, which
// no change of seats moves, is older. The number is always within Min..Max.
//
// It is a core: not safe for concurrent use, no clock. The zero value gives
// one seat; see Configure.
type Tuner struct {
	bounds policy.Adaptive
	seats  int64

	pace  float64   // of the next growth
	grown time.Time // the last growth
	cut   time.Time // the last cut
	easy  int64     // below so many, growth is fast after a cut too
	late  bool      // first tokens, at the last look

	looks   []Engine     // the last few samples, oldest first
	held    holdings     // of the KV cache
	first   []firstToken // oldest first
	glances []glance     // the last few looks, oldest first
	scratch []time.Duration
}

// Bounds are the least and the most seats that there may be.
func (t *Tuner) Bounds() (least, most int64) { return t.bounds.Min, t.bounds.Max }

// Configure takes bounds, at the start and when they change: the number moves
// only as far as it must to be within them. Min below one counts as one, Max
// below Min as Min, no target as none.
func (t *Tuner) Configure(a policy.Adaptive) {
	a.Min = max(a.Min, 1)
	a.Max = max(a.Max, a.Min)
	if t.pace == 0 {
		t.pace = paceFast
	}
	t.bounds = a
	t.seats = t.within(t.seats)
}

func (t *Tuner) within(n int64) int64 { return min(max(n, t.bounds.Min), t.bounds.Max) }

// Seats is the number of seats that there should be.
func (t *Tuner) Seats() int64 { return max(t.seats, 1) }

// Tune looks at the pool, about once a second, and gives the number of seats
// that there should be from now on.
func (t *Tuner) Tune(now time.Time, l Look) int64 {
	t.note(now, l)
	f := t.firstTokens(now)
	t.late = t.hurried(f)
	over := max(t.overEngine(f), t.overCache())
	if l.Used >= t.seats/2 { // else the seats are not what makes first tokens late
		over = max(over, t.overTarget(f))
	}
	switch {
	case over > 0:
		t.shrink(now, l, over)
	case !l.Full:
	case t.tight(l, f):
		t.slow()
	case t.sure(l):
		t.grow(now, l, f)
	}
	return t.seats
}

// few is how many requests may wait in the engine: enough to fill each place
// that comes free, not so many that they wait long.
func (t *Tuner) few(f firsts) float64 {
	n := max(fewLeast, fewShare*float64(t.seats))
	if inTime := f.rate * t.bounds.TTFT.Seconds(); inTime > 0 {
		least := fewNone
		if inTime >= fewSure {
			least = 1
		}
		n = min(max(n, fewSoon*inTime), max(fewTarget*inTime, least))
	}
	return n
}

// overEngine is how many requests too many are inside, by the engine's word.
func (t *Tuner) overEngine(f firsts) float64 {
	few := t.few(f)
	if n, _, ok := t.standing(); ok && n > few {
		return n - few/2
	}
	return 0
}

// overCache is how many requests too many are inside for the KV cache, while
// somebody waits in the engine all the time.
func (t *Tuner) overCache() float64 {
	if n, _, ok := t.standing(); !ok || n <= 0 {
		return 0
	}
	if room := t.held.room(kvCut); float64(t.seats) > kvOver*room {
		return float64(t.seats) - room
	}
	return 0
}

// overTarget is how many requests too many are inside, by their first tokens.
func (t *Tuner) overTarget(f firsts) float64 {
	target := t.bounds.TTFT
	if target <= 0 {
		return 0
	}
	over := 0.0
	if float64(f.late) > (1-firstShare)*float64(f.late+int64(f.n)) {
		over = float64(f.late)
	}
	if f.took.Seconds() > firstMost*target.Seconds() {
		over = max(over, f.rate*(f.took.Seconds()-firstAim*target.Seconds()), cutLeast*float64(t.seats))
	}
	return over
}

// shrink takes the seats down to what is used well: those in use less what is
// too many of them. More in use than there are seats is a cut under way.
func (t *Tuner) shrink(now time.Time, l Look, over float64) {
	if !l.Full || l.Used > t.seats { // full with fewer is headroom
		over += float64(t.seats - l.Used)
	}
	if t.pace < paceFast {
		over = damping*over + (1-damping)*max(over-collapse*float64(t.seats), 0)
	}
	t.pace = min(t.pace, max(paceMild*(1-over/(shallow*float64(t.seats))), paceSlow))
	n := t.seats - int64(math.Ceil(min(over, cutMost*float64(t.seats))))
	if n = t.within(n); n < t.seats {
		if !t.cut.After(t.grown) { // the first cut of a row
			t.easy = t.seats / 2
		}
		t.seats, t.cut = n, now
		t.looks = t.looks[:0]
	}
}

// tight says that the pool is as full as it should be.
func (t *Tuner) tight(l Look, f firsts) bool {
	n, mean, ok := t.standing()
	return t.late || ok && max(n, mean) > t.few(f)/2 || t.cap(l) <= t.seats
}

// slow lets growth begin again slowly; before the first cut, with half the pace
// at least: a few who wait for a moment do not tell that the end is near.
func (t *Tuner) slow() {
	least := paceSlow
	if t.cut.IsZero() {
		least = paceFast / 2
	}
	t.pace = max(t.pace/2, min(t.pace, least))
}

// hurried says that first tokens come so late that more seats would do harm.
func (t *Tuner) hurried(f firsts) bool {
	target := t.bounds.TTFT.Seconds()
	return target > 0 && f.calm.Seconds() > firstCalm*target
}

// Late says that, at the last look, first tokens came too late for more seats.
func (t *Tuner) Late() bool { return t.late }

// cap is how many seats the KV cache has room for: by those in use and the
// fullest it was of late, and by what requests hold of it.
func (t *Tuner) cap(l Look) int64 {
	most, n := 0.0, float64(t.bounds.Max)
	for _, e := range t.looks {
		most = max(most, e.KV.V)
	}
	if most > 0 {
		n = min(n, float64(l.Used)*kvFull/most)
	}
	return int64(min(n, t.held.room(kvGrow)))
}

// sure says that there is evidence younger than the last change.
func (t *Tuner) sure(l Look) bool {
	changed := t.changed()
	if l.Engine.At.After(changed) {
		return len(t.looks) >= looksFew
	}
	return slices.ContainsFunc(t.first, func(b firstToken) bool { return !b.at.Add(-b.took).Before(changed) })
}

func (t *Tuner) changed() time.Time {
	if t.cut.After(t.grown) {
		return t.cut
	}
	return t.grown
}

// early says that it is too early to try one seat more after a cut: where few
// answers begin within the target, who waits for that seat waits long.
func (t *Tuner) early(now time.Time, f firsts) bool {
	inTime := f.rate * t.bounds.TTFT.Seconds()
	return !t.cut.IsZero() && inTime > 0 && inTime < fewSure && now.Sub(t.changed()).Seconds()*f.rate < growSeen
}

// grow adds seats for the time since the last change.
func (t *Tuner) grow(now time.Time, l Look, f firsts) {
	since := min(now.Sub(t.changed()), growMost)
	step := t.pace * float64(t.seats) * since.Seconds()
	if t.seats < t.easy {
		step = min(paceFast*float64(t.seats)*since.Seconds(), float64(t.easy-t.seats))
	}
	if target := t.bounds.TTFT.Seconds(); target > 0 && f.calm.Seconds() > firstFar*target {
		step = min(step, f.rate*(firstAim*target-f.calm.Seconds()))
	}
	if step < 1 && (since < growMost || t.early(now, f)) {
		return
	}
	n := t.within(min(t.seats+max(int64(step), 1), t.cap(l)))
	if t.cut.IsZero() {
		t.pace = min(t.pace+paceBack, paceFast)
	}
	t.pace = max(t.pace, min(t.pace+paceSlow, paceMost))
	if n > t.seats {
		t.seats, t.grown = n, now
	}
}
