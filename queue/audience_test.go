package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirproxy/weir/policy"
)

// audience is a world of callers who come back when they are told to, in front of
// one line: in a burst more come than its seats can serve.
type audience struct {
	seats    int64
	hold     time.Duration // of a seat, +-30 %
	slow     time.Duration // from then on a seat is held twice as long; 0 = never
	mix      [policy.NumClasses]float64
	tenants  int
	base     float64 // newcomers a second
	burst    float64 // the same, from 5 s on
	lasts    time.Duration
	length   int
	share    policy.Ratio
	unmarked bool          // callers do not say that they come back
	absent   float64       // part of the callers that do not
	early    float64       // callers of tenants with an odd number come at this part of their hint; 0 = they obey
	every    time.Duration // or so often, whatever they are told; 0 = not
	whole    bool          // callers know whole seconds only, rounded up
	flood    float64       // requests a second of one more tenant in the burst, none of which comes back
	seed     uint64
}

// pulseOf is a pulse of 10 s on a pool of 1,263 seats a second.
func pulseOf(burst float64, length int) audience {
	return audience{
		seats: 120, hold: 95 * ms, mix: [3]float64{0.2, 0.5, 0.3}, tenants: 30,
		base: 300, burst: burst, lasts: 10 * time.Second, length: length, share: 0.7,
	}
}

const burstFrom = 5 * time.Second

// call is one request of a caller, through all its tries.
type call struct {
	w      *Waiter
	tenant int
	first  time.Duration // of the first try
	try    int           // 0 = the first
	hinted time.Duration // when it was told to come back
	hint   time.Duration
}

// outcome is what became of an audience. Calls are those first made in the burst.
type outcome struct {
	calls, first [policy.NumClasses]int // and those admitted at the first try
	soon         int                    // admitted at first or at a hint within 5 s
	back, let    int                    // first returns, and those of them that got a seat
	hasty, calm  []time.Duration        // seats of tenants with an odd number, and of the others
	off          []float64              // |seat - hinted| / hint of these
	hints        []float64              // of first tries, in seconds
	peak         int                    // most returns in a second
	served       int                    // seats given in the burst
	flooded      int                    // of these to the flood
	perSecond    map[time.Duration]int
}

type happening struct {
	kind func(now time.Duration)
}

func (happening) place(int) {}

// world is an audience at work.
type world struct {
	audience
	l      *Line
	r      *rand.Rand
	events heap[time.Duration, happening]
	seq    uint64
	open   int // calls of the burst that may still get a seat
	names  []string
	turns  [policy.NumClasses]int // of tenants, where hasty ones are compared
	out    outcome
}

func (c audience) run() *outcome {
	cfg := standardConfig(c.seats, 0)
	cfg.Booking = Booking{Share: c.share, Grace: 5 * time.Second, Max: time.Minute}
	w := &world{audience: c, l: New(cfg, dice(c.seed+1)), r: dice(c.seed + 2)}
	w.out.perSecond = map[time.Duration]int{}
	for n := range w.tenants {
		w.names = append(w.names, fmt.Sprint("t", n))
	}
	w.at(0, w.newcomer)
	if c.flood > 0 {
		w.at(burstFrom, w.flooder)
	}
	for over := burstFrom + w.lasts; w.events.min().key < over || w.open > 0 && w.events.min().key < over+time.Minute+time.Second; {
		now, next := w.events.min().key, w.events.min().item
		if due, ok := w.l.Next(); ok && due.Before(at(now)) {
			w.exits(due.Sub(epoch), w.l.Advance(due))
			continue
		}
		w.events.remove(0)
		next.kind(now)
	}
	slices.Sort(w.out.off)
	slices.Sort(w.out.hints)
	return &w.out
}

func (w *world) at(t time.Duration, f func(time.Duration)) {
	w.seq++
	w.events.push(t, w.seq, happening{f})
}

func (w *world) bursting(t time.Duration) bool { return t >= burstFrom && t < burstFrom+w.lasts }

// after is when the next of a Poisson stream comes.
func (w *world) after(now time.Duration, rate float64) time.Duration {
	return now + time.Duration(w.r.ExpFloat64()/rate*float64(time.Second))
}

// haste says that those of odd tenants do not obey; then tenants take turns in
// sending, so that none sends more by chance.
func (c *audience) haste() bool { return c.early > 0 || c.every > 0 }

func (w *world) newcomer(now time.Duration) {
	rate := w.base
	if w.bursting(now) {
		rate = w.burst
	}
	w.at(w.after(now, rate), w.newcomer)
	class := policy.Critical
	for x := w.r.Float64(); int(class) < 2 && x >= w.mix[class]; class++ {
		x -= w.mix[class]
	}
	n := w.r.IntN(w.tenants)
	if w.haste() {
		n = w.turns[class] % w.tenants
		w.turns[class]++
	}
	k := &call{w: waiter(class, w.names[n]), tenant: n, first: now}
	if w.bursting(now) {
		w.out.calls[class]++
		w.open++
	}
	w.offer(now, k)
}

func (w *world) flooder(now time.Duration) {
	if w.bursting(now) {
		w.at(w.after(now, w.flood), w.flooder)
		w.offer(now, &call{w: waiter(policy.Standard, "flood"), tenant: -1, first: now})
	}
}

func (w *world) offer(now time.Duration, k *call) {
	k.w.Owner = k
	o := w.l.Offer(at(now), k.w, Bounds{
		Length: w.length, Soft: w.length * 4 / 5, Exempt: k.w.Class == policy.Critical,
		PerTenant: 0.5, RetryLimit: 5 * time.Second, RetryLen: 200,
	})
	switch {
	case o.Granted:
		w.seated(now, k)
	case o.Refusal != Taken:
		w.refused(now, k, o.Hint)
	}
}

func (w *world) exits(now time.Duration, xs []Exit) {
	for _, x := range xs {
		k := x.Waiter.Owner.(*call)
		if x.Granted {
			w.seated(now, k)
		} else {
			w.refused(now, k, x.Hint)
		}
	}
}

func (w *world) seated(now time.Duration, k *call) {
	hold := w.hold
	if w.slow > 0 && now >= w.slow {
		hold *= 2
	}
	w.at(now+time.Duration((0.7+0.6*w.r.Float64())*float64(hold)), func(now time.Duration) {
		w.exits(now, w.l.Release(at(now), k.w))
	})
	o := &w.out
	if w.bursting(now) {
		o.served++
		if k.tenant < 0 {
			o.flooded++
		}
	}
	if k.tenant%2 == 1 {
		o.hasty = append(o.hasty, now)
	} else {
		o.calm = append(o.calm, now)
	}
	if !w.bursting(k.first) || k.tenant < 0 {
		return
	}
	w.open--
	if k.try == 0 {
		o.first[k.w.Class]++
	}
	if k.try == 0 || k.hinted-k.first <= 5*time.Second {
		o.soon++
	}
	if k.try == 1 {
		o.let++
		late := now - k.hinted
		o.off = append(o.off, max(late, -late).Seconds()/k.hint.Seconds())
	}
}

func (w *world) refused(now time.Duration, k *call, hint time.Duration) {
	if k.tenant < 0 {
		return
	}
	if k.try == 0 {
		w.out.hints = append(w.out.hints, hint.Seconds())
	}
	if w.r.Float64() < w.absent || k.try == 5 && !w.haste() {
		if w.bursting(k.first) {
			w.open--
		}
		return
	}
	k.try++
	k.hint, k.hinted = hint, now+hint
	k.w = &Waiter{
		Class: k.w.Class, Tenant: k.w.Tenant, Cost: k.w.Cost, Tokens: k.w.Tokens,
		MaxWait: k.w.MaxWait, OnExpiry: k.w.OnExpiry, Returns: !w.unmarked,
	}
	network := time.Duration(w.r.IntN(10)) * ms
	back := k.hinted + network
	switch {
	case w.every > 0 && k.tenant%2 == 1:
		back = now + w.every + network
	case w.early > 0 && k.tenant%2 == 1:
		back = now + time.Duration(w.early*float64(hint)) + network
	case w.whole:
		back = now + (hint + time.Second - 1).Truncate(time.Second)
	}
	w.at(back, func(now time.Duration) {
		if w.bursting(k.first) && k.try == 1 {
			w.out.back++
		}
		s := now.Truncate(time.Second)
		w.out.perSecond[s]++
		w.out.peak = max(w.out.peak, w.out.perSecond[s])
		w.offer(now, k)
	})
}

func (o *outcome) String() string {
	return fmt.Sprintf("first try %.3f %.3f %.3f, within 5 s %.3f, %d returns, %.3f let in, %d a second at most, hints %.2f s, off by %.3f, served %d, flood %d",
		o.firstOf(0), o.firstOf(1), o.firstOf(2), o.within5(), o.back, o.letIn(), o.peak, median(o.hints), median(o.off), o.served, o.flooded)
}

func portionOf(n, of int) float64 { return float64(n) / float64(max(1, of)) }

func (o *outcome) firstOf(c policy.Class) float64 { return portionOf(o.first[c], o.calls[c]) }
func (o *outcome) letIn() float64                 { return portionOf(o.let, o.back) }
func (o *outcome) within5() float64               { return portionOf(o.soon, o.calls[0]+o.calls[1]+o.calls[2]) }

func median(sorted []float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}
