package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/policy"
)

// pair drives a line and its model with the same calls.
type pair struct {
	t      *rapid.T
	l      *Line
	m      *model
	now    time.Duration
	here   []*Waiter // offered and not left
	seated []*Waiter
	left   map[*Waiter]int
	shrunk bool
}

func newPair(t *rapid.T) *pair {
	cfg := standardConfig(rapid.Int64Range(0, 7).Draw(t, "requests"), rapid.SampledFrom([]int64{0, 10, 30}).Draw(t, "tokens"))
	cfg.Price = policy.Price(rapid.IntRange(0, 1).Draw(t, "price"))
	cfg.Shares = shapes(t)
	p := &pair{t: t, l: New(cfg, nil), m: &model{}, left: map[*Waiter]int{}}
	p.m.reshape(cfg)
	p.same(p.l.Advance(at(0)), nil)
	return p
}

// shapes draws shares: half the time none.
func shapes(t *rapid.T) (s Shares) {
	if rapid.Bool().Draw(t, "plain") {
		return s
	}
	s.Headroom = policy.Ratio(rapid.SampledFrom([]float64{0, 0, 0.3}).Draw(t, "headroom"))
	s.Priority = policy.Ratio(rapid.SampledFrom([]float64{0, 0.1, 0.5}).Draw(t, "priority"))
	s.Streaming = policy.Ratio(rapid.SampledFrom([]float64{0, 1, 0.5, 0.75}).Draw(t, "streaming"))
	for _, share := range rapid.SampledFrom([][]float64{nil, {0.5, 0.5}, {0.2, 0.6, 0.2}, {0.75, 0.1, 0}}).Draw(t, "groups") {
		s.Groups = append(s.Groups, Group{Share: policy.Ratio(share)})
	}
	return s
}

func (p *pair) draw() *Waiter {
	w := &Waiter{
		Class:    policy.Class(rapid.IntRange(0, 2).Draw(p.t, "class")),
		Tenant:   fmt.Sprint("t", rapid.IntRange(0, 4).Draw(p.t, "tenant")),
		Weight:   float64(int(1) << rapid.IntRange(0, 2).Draw(p.t, "weight")),
		Cost:     rapid.Int64Range(1, 20).Draw(p.t, "cost"),
		Tokens:   rapid.Int64Range(0, 12).Draw(p.t, "size"),
		Bytes:    rapid.Int64Range(0, 100).Draw(p.t, "bytes"),
		MaxWait:  time.Duration(rapid.IntRange(0, 20).Draw(p.t, "wait")) * 10 * ms,
		OnExpiry: policy.Expiry(rapid.IntRange(0, 2).Draw(p.t, "expiry")),
		Group:    rapid.IntRange(-1, 3).Draw(p.t, "group"),
		Stream:   rapid.Bool().Draw(p.t, "stream"),
		Priority: rapid.IntRange(0, 3).Draw(p.t, "priority") == 0,
		Handicap: time.Duration(rapid.IntRange(0, 4).Draw(p.t, "handicap")) * 25 * ms,
	}
	if rapid.IntRange(0, 5).Draw(p.t, "red") == 0 {
		w.Colour = policy.Red
	}
	if rapid.IntRange(0, 5).Draw(p.t, "own") == 0 {
		w.Deadline = at(p.now + time.Duration(rapid.IntRange(0, 300).Draw(p.t, "deadline"))*ms)
	}
	return w
}

func (p *pair) bounds() Bounds {
	return Bounds{
		Length:     rapid.IntRange(0, 12).Draw(p.t, "length"),
		Soft:       rapid.IntRange(0, 12).Draw(p.t, "soft"),
		Exempt:     rapid.Bool().Draw(p.t, "exempt"),
		PerTenant:  policy.Ratio(rapid.SampledFrom([]float64{0, 0.25, 0.5, 1}).Draw(p.t, "share")),
		RetryLimit: time.Duration(rapid.IntRange(0, 5).Draw(p.t, "retry")) * 50 * ms,
		RetryLen:   rapid.IntRange(0, 3).Draw(p.t, "retries"),
	}
}

// same asserts that line and model say the same of who left.
func (p *pair) same(got, want []Exit) {
	p.t.Helper()
	for i := range got {
		if !got[i].Granted && (got[i].Hint <= 0 || got[i].Hint > maxWait) {
			p.t.Fatalf("hint %v", got[i].Hint)
		}
		got[i].Hint = 0
	}
	if !slices.Equal(got, want) {
		p.t.Fatalf("at %v the line says %+v, the model %+v", p.now, got, want)
	}
	for _, e := range got {
		if e.Granted {
			p.seated = append(p.seated, e.Waiter)
			if g := e.Waiter.granted; g > e.Waiter.expires || g > e.Waiter.deadline {
				p.t.Fatalf("granted after its time: %+v", e)
			}
		}
		p.gone(e.Waiter)
	}
}

func (p *pair) gone(w *Waiter) {
	p.left[w]++
	if p.left[w] != 1 {
		p.t.Fatalf("%+v left twice", w)
	}
	p.here = slices.DeleteFunc(p.here, func(o *Waiter) bool { return o == w })
}

func (p *pair) offer(*rapid.T) {
	w, b := p.draw(), p.bounds()
	o := p.l.Offer(at(p.now), w, b)
	if o.Refusal == CannotMeet && w.Deadline.After(at(p.now)) {
		if o.Hint <= w.Deadline.Sub(at(p.now)) {
			p.t.Fatalf("refused although %v fits", o.Hint)
		}
		p.m.begin(at(p.now)) // the model does not predict
		p.m.asked = append(p.m.asked, ask{p.m.now, w.Class, w.Tenant})
		return
	}
	r, seated := p.m.offer(at(p.now), w, b)
	if o.Refusal != r || o.Granted != seated {
		p.t.Fatalf("the line says %+v, the model %d %v", o, r, seated)
	}
	if r != Taken {
		if o.Hint < 0 || o.Hint > maxWait || o.Hint == 0 && r != TooLarge {
			p.t.Fatalf("hint %v", o.Hint)
		}
		return
	}
	if seated {
		p.seated = append(p.seated, w)
		p.left[w]++
		return
	}
	p.here = append(p.here, w)
	if o.Position < 1 || o.Position > len(p.m.waiting) {
		p.t.Fatalf("position %d of %d", o.Position, len(p.m.waiting))
	}
}

func (p *pair) take(*rapid.T) {
	w := p.draw()
	got := p.l.TryTake(at(p.now), w)
	p.m.begin(at(p.now))
	want := !p.m.draining && len(p.m.waiting)+len(p.m.retrying) == 0 && p.m.fits(w) &&
		(p.m.cfg.Seats.Tokens == 0 || w.Tokens <= p.m.cfg.Seats.Tokens) && (w.Deadline.IsZero() || w.Deadline.After(at(p.now)))
	if got != want {
		p.t.Fatalf("took %v, want %v", got, want)
	}
	if got {
		p.m.seat(&entry{w: w}, p.m.favours(w))
		p.seated = append(p.seated, w)
		p.left[w]++
	}
}

func (p *pair) cancel(t *rapid.T) {
	if len(p.here) == 0 {
		t.Skip("nobody waits")
	}
	w := rapid.SampledFrom(p.here).Draw(t, "waiter")
	is := func(e *entry) bool { return e.w == w }
	_, got := p.l.Cancel(at(p.now), w)
	want, before := true, p.m.now
	p.m.now = p.now
	if i := slices.IndexFunc(p.m.waiting, is); i >= 0 {
		p.m.drop(p.m.waiting[i])
	} else if i := slices.IndexFunc(p.m.retrying, is); i >= 0 {
		p.m.retrying = slices.Delete(p.m.retrying, i, i+1)
	} else {
		want, p.m.now = false, before // its exit is pending
	}
	if got != want {
		p.t.Fatalf("cancelled %v, want %v", got, want)
	}
	if want {
		p.m.begin(at(p.now))
		p.gone(w)
	}
}

func (p *pair) release(t *rapid.T) {
	if len(p.seated) == 0 {
		t.Skip("nobody runs")
	}
	i := rapid.IntRange(0, len(p.seated)-1).Draw(t, "seat")
	w := p.seated[i]
	p.seated = slices.Delete(p.seated, i, i+1)
	p.m.running = slices.DeleteFunc(p.m.running, func(e *entry) bool { return e.w == w })
	got := p.l.Release(at(p.now), w)
	p.m.begin(at(p.now))
	p.same(got, p.m.flush())
	if again := p.l.Release(at(p.now), w); again != nil {
		p.t.Fatalf("released twice: %+v", again)
	}
}

func (p *pair) settle(t *rapid.T) {
	if len(p.m.running) == 0 {
		t.Skip("nobody runs")
	}
	e, cost := rapid.SampledFrom(p.m.running).Draw(t, "seat"), rapid.Int64Range(0, 64).Draw(t, "real")
	p.l.Settle(e.w, cost)
	p.m.settle(e, cost)
	p.m.grant(nil)
}

func (p *pair) advance(t *rapid.T) {
	p.now += time.Duration(rapid.IntRange(0, 30).Draw(t, "step")) * 5 * ms
	got := p.l.Advance(at(p.now))
	p.m.now = p.now
	p.m.expire(p.now)
	p.m.grant(nil)
	p.same(got, p.m.flush())
	if due, ok := p.l.Next(); ok && !due.After(at(p.now)) {
		p.t.Fatalf("after Advance(%v) due at %v", p.now, due.Sub(epoch))
	}
}

func (p *pair) pass(t *rapid.T) { // without a call: the timer is late
	p.now += time.Duration(rapid.IntRange(1, 10).Draw(t, "pass")) * 5 * ms
}

func (p *pair) reseat(t *rapid.T) {
	c := p.m.cfg
	if rapid.IntRange(0, 3).Draw(t, "shares") == 0 {
		c.Shares = shapes(t)
	}
	c.Seats.Requests = rapid.Int64Range(0, 7).Draw(t, "requests")
	if c.Seats.Tokens > 0 {
		c.Seats.Tokens = rapid.Int64Range(5, 30).Draw(t, "tokens")
	}
	p.m.reshape(c)
	got := p.l.Configure(at(p.now), c)
	p.m.begin(at(p.now))
	p.same(got, p.m.flush())
	p.shrunk = true
}

func (p *pair) pause(t *rapid.T) {
	p.m.paused = rapid.Bool().Draw(t, "pause")
	got := p.l.Pause(at(p.now), p.m.paused)
	p.m.begin(at(p.now))
	p.same(got, p.m.flush())
}

// check asserts what holds after every call.
func (p *pair) check(t *rapid.T) {
	got, want := p.l.Stats(at(p.now)), p.m.stats()
	got.DrainRate, got.Tenants = 0, 0
	if got != want {
		t.Fatalf("line %+v, model %+v", got, want)
	}
	u, s := got.SeatsUsed, got.SeatsTotal
	if u.Requests < 0 || u.Tokens < 0 || !p.shrunk && (u.Requests > s.Requests || s.Tokens > 0 && u.Tokens > s.Tokens) {
		t.Fatalf("seats %+v of %+v", u, s)
	}
	due, ok := p.l.Next()
	if wantDue, wantOK := p.m.next(); !due.Equal(wantDue) || ok != wantOK {
		t.Fatalf("next %v %v, want %v %v", due, ok, wantDue, wantOK)
	}
	if _, ok := p.l.turn(); ok {
		t.Fatal("a seat is free and one waits whose turn it is")
	}
	for c := range policy.Class(3) {
		if d := p.l.Predict(at(p.now), &Waiter{Class: c}); d < 0 || d > maxWait {
			t.Fatalf("predicted %v", d)
		}
	}
}

// finish empties the line and asserts that nothing is left behind.
func (p *pair) finish() {
	got := p.l.Drain(at(p.now))
	p.m.begin(at(p.now))
	known := p.m.flush()
	p.same(got[:len(known)], known)
	for _, e := range got[len(known):] {
		if !e.Drained || e.Granted {
			p.t.Fatalf("drained: %+v", e)
		}
		p.gone(e.Waiter)
	}
	if len(p.here) != 0 {
		p.t.Fatalf("%d never left", len(p.here))
	}
	for _, w := range p.seated {
		p.l.Release(at(p.now), w)
	}
	cfg := p.l.cfg.Seats
	if s := p.l.Stats(at(p.now)); s != (Stats{SeatsTotal: cfg, DrainRate: s.DrainRate}) || p.l.expiry.len() != 0 {
		p.t.Fatalf("left behind: %+v", s)
	}
}

func lineIsItsModel(t *rapid.T) {
	p := newPair(t)
	t.Repeat(map[string]func(*rapid.T){
		"offer": p.offer, "offer2": p.offer, "offer3": p.offer, "take": p.take, "cancel": p.cancel, "release": p.release,
		"advance": p.advance, "pass": p.pass, "settle": p.settle, "reseat": p.reseat, "pause": p.pause, "": p.check,
	})
	p.finish()
}

// The line says what its model says, call by call.
func TestLineIsItsModel(t *testing.T) { rapid.Check(t, lineIsItsModel) }

func FuzzLine(f *testing.F) { f.Fuzz(rapid.MakeFuzz(lineIsItsModel)) }
