package queue

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirproxy/weir/policy"
)

// tiers is a line of so many seats for gold, silver and bronze (P9).
func tiers(seats policy.Seats, s Shares) Config {
	c := standardConfig(seats.Requests, seats.Tokens)
	c.Shares = s
	if s.Groups == nil {
		c.Shares.Groups = []Group{{Share: 0.2}, {Share: 0.6}, {Share: 0.2}}
	}
	return c
}

// of is a waiter of a group that may wait for an hour.
func of(group int) *Waiter {
	w := long(waiter(policy.Standard, fmt.Sprint("g", group)))
	w.Group = group
	return w
}

var endless = Bounds{Length: 1 << 20}

// bring offers n waiters, which get the free seats first.
func bring(t *testing.T, l *Line, n int, w func() *Waiter) (seated []*Waiter) {
	t.Helper()
	for range n {
		w := w()
		o := l.Offer(at(0), w, endless)
		if o.Refusal != Taken {
			t.Fatalf("refused: %+v", o)
		}
		if o.Granted {
			seated = append(seated, w)
		}
	}
	return seated
}

// next frees the seats and says by key who gets them.
func next[K any](t *testing.T, l *Line, seats []*Waiter, key func(*Waiter) K) (got []K, ws []*Waiter) {
	t.Helper()
	for _, w := range seats {
		for _, g := range granted(l.Release(at(0), w)) {
			got, ws = append(got, key(g)), append(ws, g)
		}
	}
	return got, ws
}

func groupNumber(w *Waiter) int { return w.Group }

// P9: an idle share is lent at once and comes back with the next freed seats.
func TestIdleShareIsLentAndComesBack(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 10}, Shares{}), nil)
	bronze := bring(t, l, 40, func() *Waiter { return of(2) })
	if len(bronze) != 10 {
		t.Fatalf("bronze alone has %d of 10 seats", len(bronze))
	}
	bring(t, l, 40, func() *Waiter { return of(1) })
	got, _ := next(t, l, bronze, groupNumber)
	want := []int{1, 1, 1, 1, 1, 1, 1, 1, 2, 2} // gold's two are lent by 60:20
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("the freed seats went to %v, want %v", got, want)
	}
}

// P9: whole seats by largest remainder, one at least for each share.
func TestWholeSeats(t *testing.T) {
	for _, c := range []struct {
		seats  int64
		shares []float64
		want   []int64
	}{
		{10, []float64{0.2, 0.6, 0.2}, []int64{2, 6, 2}},
		{7, []float64{0.2, 0.6, 0.2}, []int64{2, 4, 1}}, // 1.4, 4.2, 1.4
		{8, []float64{0.2, 0.6, 0.2}, []int64{2, 5, 1}}, // 1.6, 4.8, 1.6: of equal remainders the first
		{100, []float64{0.335, 0.335, 0.33}, []int64{34, 33, 33}},
		{10, []float64{0.93, 0.01, 0.06}, []int64{8, 1, 1}},
		{2, []float64{0.2, 0.6, 0.2}, []int64{1, 1, 1}}, // the next free one
		{1, []float64{0.2, 0.6, 0.2}, []int64{1, 1, 1}},
		{10, []float64{0.5, 0.2}, []int64{5, 2}}, // three are nobody's
		{10, []float64{0.5, 0}, []int64{5, 0}},
		{0, []float64{1}, []int64{1}},
		{10, []float64{1, 1}, []int64{5, 5}}, // more than there are
	} {
		if got := wholes(c.seats, c.shares); !slices.Equal(got, c.want) {
			t.Errorf("%d seats by %v are %v, want %v", c.seats, c.shares, got, c.want)
		}
	}
}

// P9: a guarantee below one seat is the next free one, in a pool of few seats
// too: no group that has a share waits for more freed seats than there are groups.
func TestShareBelowOneSeat(t *testing.T) {
	for _, seats := range []int64{1, 2, 3, 10} {
		l := New(tiers(policy.Seats{Requests: seats}, Shares{Groups: []Group{{Share: 0.02}, {Share: 0.96}, {Share: 0.02}}}), nil)
		running := bring(t, l, 200, func() *Waiter { return of(1) })
		bring(t, l, 200, func() *Waiter { return of(0) })
		bring(t, l, 200, func() *Waiter { return of(2) })
		since := [3]int{}
		for turn := range 100 {
			held := [3]int{}
			got, ws := next(t, l, running[:1], groupNumber)
			running = append(running[1:], ws...)
			for _, w := range running {
				held[w.Group]++
			}
			for g := range since {
				since[g]++
				if got[0] == g {
					since[g] = 0
				}
				if held[g] == 0 && since[g] >= 3 {
					t.Fatalf("%d seats, turn %d: group %d waits for its seat for %d turns", seats, turn, g, since[g])
				}
			}
		}
	}
}

// P9: who has no share has what the others leave.
func TestNoShare(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 2}, Shares{Groups: []Group{{Share: 1}, {Share: 0}}}), nil)
	running := bring(t, l, 6, func() *Waiter { return of(1) })
	bring(t, l, 3, func() *Waiter { return of(0) })
	got, ws := next(t, l, append(running, of(0)), groupNumber)
	more, _ := next(t, l, ws, groupNumber)
	if got = append(got, more...); !slices.Equal(got, []int{0, 0, 0, 1}) {
		t.Fatalf("the seats went to groups %v", got)
	}
}

// P8: the priority lane has a tenth of the seats, of the next freed ones, and
// they count to nobody's group; it is lent while nobody uses it.
func TestPriorityLane(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 20}, Shares{Priority: 0.1}), nil)
	silver := bring(t, l, 60, func() *Waiter { return of(1) })
	if len(silver) != 20 {
		t.Fatalf("%d of 20 seats lent", len(silver))
	}
	header := func() *Waiter {
		w := of(2)
		w.Priority, w.Tenant = true, "header"
		return w
	}
	bring(t, l, 60, header)
	bring(t, l, 60, func() *Waiter { return of(2) })
	got, ws := next(t, l, silver[:2], tenantOf)
	if !slices.Equal(got, []string{"header", "header"}) {
		t.Fatalf("the first freed seats went to %v", got)
	}
	// The lane is full: the rest is shared as if it were not there, 60:20.
	got, _ = next(t, l, silver[2:], tenantOf)
	count := map[string]int{}
	for _, name := range got {
		count[name]++
	}
	silvers, bronzes, odd := count["g1"], count["header"]+count["g2"], count["header"]-count["g2"]
	if silvers < 13 || silvers > 14 || bronzes != 18-silvers || odd < -1 || odd > 1 {
		t.Fatalf("18 seats went to %v, want 13.5 to silver and 4.5 to bronze, half of them by each tenant", count)
	}
	// The lane's own seats go to the lane again.
	if got, _ := next(t, l, ws, tenantOf); !slices.Equal(got, []string{"header", "header"}) {
		t.Fatalf("the lane's seats went to %v", got)
	}
}

func tenantOf(w *Waiter) string { return w.Tenant }

// P8: also one that finds a free seat uses the lane; a pool of one seat has none.
func TestPriorityLaneAtOnce(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 10}, Shares{Priority: 0.1}), nil)
	w := of(0)
	w.Priority = true
	running := bring(t, l, 1, func() *Waiter { return w })
	if g := l.groups[0].used.Requests; g != 0 || l.priority.used.Requests != 1 {
		t.Fatalf("gold holds %d, the lane %d", g, l.priority.used.Requests)
	}
	next(t, l, running, groupNumber)
	if l.priority.used.Requests != 0 {
		t.Fatal("the lane's seat leaked")
	}
	l = New(tiers(policy.Seats{Requests: 1}, Shares{Priority: 0.1}), nil)
	running = bring(t, l, 1, func() *Waiter { return of(0) })
	bring(t, l, 5, func() *Waiter { return of(0) })
	bring(t, l, 5, func() *Waiter { w := of(0); w.Priority, w.Tenant = true, "header"; return w })
	seen := map[string]bool{}
	for range 2 {
		var got []string
		got, running = next(t, l, running, tenantOf)
		seen[got[0]] = true
	}
	if !seen["g0"] {
		t.Fatal("the only seat belongs to the lane")
	}
}

// P6: streaming requests hold no more than their part of the group's seats
// while others of it wait, and the other way round; alone they have all.
func TestStreamingCeiling(t *testing.T) {
	for _, first := range []bool{true, false} {
		l := New(tiers(policy.Seats{Requests: 20}, Shares{Streaming: 0.75, Groups: []Group{{Share: 0.5}, {Share: 0.5}}}), nil)
		kind := func(stream bool) func() *Waiter {
			return func() *Waiter { w := of(0); w.Stream = stream; return w }
		}
		running := bring(t, l, 100, kind(first))
		if len(running) != 20 {
			t.Fatalf("alone %d of 20", len(running))
		}
		bring(t, l, 100, kind(!first))
		bring(t, l, 100, func() *Waiter { return of(1) })
		got, _ := next(t, l, running, func(w *Waiter) [2]any { return [2]any{w.Group, w.Stream} })
		count := map[[2]any]int{}
		for _, k := range got {
			count[k]++
		}
		streams, others := count[[2]any{0, true}], count[[2]any{0, false}]
		if count[[2]any{1, false}] != 10 || streams+others != 10 || streams < 7 || streams > 8 {
			t.Fatalf("20 seats went to %v, want half to each group and 3:1 inside", count)
		}
	}
}

// T13: headroom stays free, for whoever asks. A request larger than what is
// usable, but not than the pool, takes all that is.
func TestHeadroom(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 10, Tokens: 1000}, Shares{Headroom: 0.2}), nil)
	if n := len(bring(t, l, 30, func() *Waiter { return of(1) })); n != 8 {
		t.Fatalf("%d seats of 10 given, 20 %% are headroom", n)
	}
	l = New(tiers(policy.Seats{Requests: 10, Tokens: 1000}, Shares{Headroom: 0.2}), nil)
	large := of(1)
	large.Tokens = 900
	if n := len(bring(t, l, 1, func() *Waiter { return large })); n != 1 || l.used.Tokens != 800 {
		t.Fatalf("seated %d, %d tokens used", n, l.used.Tokens)
	}
	large = of(1)
	large.Tokens = 1001
	mustRefuse(t, l, at(0), large, endless, TooLarge)
}

// Red goes before the priority lane and all shares, and counts to its group.
func TestRedBeforeShares(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 10}, Shares{Priority: 0.5}), nil)
	running := bring(t, l, 10, func() *Waiter { return of(1) })
	bring(t, l, 10, func() *Waiter { w := of(0); w.Priority = true; return w })
	bring(t, l, 3, func() *Waiter { w := of(2); w.Colour, w.Priority = policy.Red, true; return w })
	got, _ := next(t, l, running[:4], groupNumber)
	if !slices.Equal(got, []int{2, 2, 2, 0}) {
		t.Fatalf("seats went to groups %v", got)
	}
	if l.groups[2].used.Requests != 3 || l.priority.used.Requests != 1 {
		t.Fatalf("bronze holds %d, the lane %d", l.groups[2].used.Requests, l.priority.used.Requests)
	}
}

// A request that does not fit holds up nobody of another group who stays
// within its guarantee, until so much went past it as it needs; within its own
// leaf those behind it wait.
func TestLargeRequestHoldsUpItsOwn(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 100, Tokens: 1000}, Shares{Groups: []Group{{Share: 0.5}, {Share: 0.5}}}), nil)
	sized := func(group int, tokens int64) *Waiter { w := of(group); w.Tokens = tokens; return w }
	running := []*Waiter{sized(0, 200), sized(1, 450)}
	for _, w := range running {
		if o := l.Offer(at(0), w, endless); !o.Granted {
			t.Fatalf("%+v", o)
		}
	}
	large := sized(0, 400)
	mustWait(t, l, at(0), large, endless) // 350 are free
	mustWait(t, l, at(0), sized(0, 10), endless)
	small := func(tokens int64) bool {
		w := sized(1, tokens)
		granted := l.Offer(at(0), w, endless).Granted
		if !granted {
			l.Cancel(at(0), w)
		}
		return granted
	}
	if !small(40) || !small(10) {
		t.Fatal("held up within its guarantee by another group's large request")
	}
	if small(10) { // the other group holds 500
		t.Fatal("went beyond its guarantee past one who waits for his")
	}
	if got := l.leafOf(large).passed; got != 50 {
		t.Fatalf("%d tokens went past", got)
	}
	if ws := granted(l.Release(at(0), running[1])); len(ws) == 0 || ws[0] != large || l.leafOf(large).passed != 0 {
		t.Fatalf("granted %v, %d passed the next one", ws, l.leafOf(large).passed)
	}
}

// The same, to its end: nobody is overtaken for ever.
func TestLargeRequestIsServed(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 100, Tokens: 1000}, Shares{Groups: []Group{{Share: 0.5}, {Share: 0.5}}}), nil)
	sized := func(group int, tokens int64) func() *Waiter {
		return func() *Waiter { w := of(group); w.Tokens = tokens; return w }
	}
	running := bring(t, l, 10, sized(1, 100))
	large := sized(0, 900)()
	mustWait(t, l, at(0), large, endless)
	bring(t, l, 500, sized(1, 100))
	passed := 0
	for range 100 {
		got, ws := next(t, l, running[:1], groupNumber)
		running = append(running[1:], ws...)
		for _, g := range got {
			if g == 0 {
				if passed > 9 {
					t.Fatalf("%d requests of 100 went past one of 900", passed)
				}
				return
			}
			passed++
		}
	}
	t.Fatal("never served")
}

// P8, P9: those who borrowed all seats and filled the line do not keep out who
// is entitled to the next freed seats.
func TestEntitledFindRoom(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 20}, Shares{Priority: 0.1, Groups: []Group{{Share: 0.2}, {Share: 0.8}}}), nil)
	b := Bounds{Length: 10, Soft: 8}
	running := bring(t, l, 20, func() *Waiter { return of(1) })
	for range 8 {
		mustWait(t, l, at(0), of(1), b)
	}
	mustRefuse(t, l, at(0), of(1), b, SoftFull)
	for range 4 { // of the 18 beside the lane, a fifth
		mustWait(t, l, at(0), of(0), b)
	}
	mustRefuse(t, l, at(0), of(0), b, Full)
	header := func() *Waiter { w := of(0); w.Priority = true; return w }
	mustWait(t, l, at(0), header(), b)
	mustWait(t, l, at(0), header(), b)
	mustRefuse(t, l, at(0), header(), b, Full)
	got, _ := next(t, l, running[:6], groupNumber)
	if !slices.Equal(got, []int{0, 0, 0, 0, 0, 0}) {
		t.Fatalf("the next freed seats went to %v", got)
	}
	mustRefuse(t, l, at(0), header(), Bounds{}, Full) // where nobody may wait
}

// A change of shares keeps who runs and who waits, and what runs counts on.
func TestSharesChange(t *testing.T) {
	l := New(tiers(policy.Seats{Requests: 10}, Shares{}), nil)
	running := bring(t, l, 30, func() *Waiter { return of(2) })
	bring(t, l, 30, func() *Waiter { return of(1) })
	l.Configure(at(0), tiers(policy.Seats{Requests: 10}, Shares{Groups: []Group{{Share: 0.5}, {Share: 0.5}}, Streaming: 0.5, Priority: 0.1}))
	if got := l.groups[1].used.Requests; got != 10 {
		t.Fatalf("the last group inherits %d of 10 seats", got)
	}
	l.Configure(at(0), tiers(policy.Seats{Requests: 10}, Shares{}))
	next(t, l, running, groupNumber)
	var held int64
	for _, g := range l.groups {
		held += g.used.Requests
	}
	if s := l.Stats(at(0)); held != 10 || s.SeatsUsed.Requests != 10 || s.Waiting[policy.Standard] != 40 {
		t.Fatalf("groups hold %d, line %+v", held, s)
	}
}
