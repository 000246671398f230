package breaker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(d time.Duration) time.Time { return epoch.Add(d) }

const (
	ms  = time.Millisecond
	sec = time.Second
)

// defaults are the numbers of B1 and B2.
func defaults() policy.Breaker {
	return policy.Breaker{
		Window: 10 * sec, Soft: 0.3, Hard: 0.5, MinRequests: 20, Open: 5 * sec, Probes: 0.1,
		Release: []policy.Ratio{0.1, 0.25, 0.5, 1}, ReleaseStep: 5 * sec,
	}
}

func dice(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

// newHTTP is the breaker of a pool that speaks HTTP, with no journal.
func newHTTP(c policy.Breaker, rng *rand.Rand) *Breaker { return New("pool", HTTP, c, nil, rng) }

// record counts ends at one instant: failures first.
func record(b *Breaker, now time.Time, failed, good int) {
	for i := range failed + good {
		b.Record(now, i < failed, false)
	}
}

func wantState(t *testing.T, b *Breaker, now time.Time, want State) {
	t.Helper()
	if v := b.View(now); v.State != want {
		t.Fatalf("at %v: %v, want %v (%+v)", now.Sub(epoch), v.State, want, v)
	}
}

// B1: thresholds and the least number of ends.
func TestOpensAtRatio(t *testing.T) {
	for _, c := range []struct {
		name         string
		failed, good int
		want         State
	}{
		{"one failure in an empty window", 1, 0, Closed},
		{"19 of 19 are too few", 19, 0, Closed},
		{"20 of 20", 20, 0, Hard},
		{"5 of 20 is 25 %", 5, 15, Closed},
		{"6 of 20 is 30 %", 6, 14, Soft},
		{"9 of 20 is 45 %", 9, 11, Soft},
		{"10 of 20 is 50 %", 10, 10, Hard},
		{"10 of 2000 is 0.5 %", 10, 1990, Closed},
	} {
		b := newHTTP(defaults(), dice(1))
		// Good ones first: the ratio rises to its end value.
		record(b, at(0), 0, c.good)
		record(b, at(0), c.failed, 0)
		if v := b.View(at(0)); v.State != c.want {
			t.Errorf("%s: %v, want %v", c.name, v.State, c.want)
		}
	}
}

// A ratio that binds is exact: 55 % of 20 is 11, whatever floats say.
func TestThresholdIsExact(t *testing.T) {
	c := defaults()
	for pct := 1; pct <= 99; pct++ {
		c.Hard, c.Soft, c.MinRequests = policy.Ratio(float64(pct)/100), 1, 100
		for _, n := range []int{pct - 1, pct} {
			b := newHTTP(c, dice(1))
			record(b, at(0), 0, 100-n)
			record(b, at(0), n, 0)
			want := Closed
			if n == pct {
				want = Hard
			}
			wantState(t, b, at(0), want)
		}
	}
}

// B1: what each level does to each class.
func TestLevels(t *testing.T) {
	soft, hard := newHTTP(defaults(), dice(1)), newHTTP(defaults(), dice(1))
	record(soft, at(0), 0, 14)
	record(soft, at(0), 6, 0)
	record(hard, at(0), 20, 0)
	for _, c := range []struct {
		b      *Breaker
		class  policy.Class
		action Action
	}{
		{soft, policy.Critical, Admit}, {soft, policy.Standard, Degrade}, {soft, policy.Batch, Shed},
		{hard, policy.Critical, Shed}, {hard, policy.Standard, Shed}, {hard, policy.Batch, Shed},
	} {
		v := c.b.Allow(at(1*sec), c.class)
		if v.Action != c.action || v.Probe || v.State != c.b.View(at(1*sec)).State {
			t.Errorf("%v %v: %+v, want action %d", v.State, c.class, v, c.action)
		}
		if p := c.b.Peek(at(1*sec), c.class); p != v {
			t.Errorf("peek %+v, allow %+v", p, v)
		}
		if shed := v.Action == Shed; shed != (v.RetryAfter > 0) || shed && (v.RetryAfter < 4*sec || v.RetryAfter > 5*sec) {
			t.Errorf("%v %v: retry after %v, want the open time left, 4..5s", v.State, c.class, v.RetryAfter)
		}
	}
}

// B1: the window rolls: one failure a minute for an hour stays closed, and old
// good ends do not hide new failures.
func TestWindowRolls(t *testing.T) {
	b := newHTTP(defaults(), dice(1))
	for m := range 60 {
		b.Record(at(time.Duration(m)*time.Minute), true, false)
	}
	wantState(t, b, at(time.Hour), Closed)
	record(b, at(time.Hour), 0, 1000)
	record(b, at(time.Hour+9*sec), 30, 0) // 3 %
	wantState(t, b, at(time.Hour+9*sec), Closed)
	b.Record(at(time.Hour+10*sec), true, false) // the thousand are out
	wantState(t, b, at(time.Hour+10*sec), Hard)
}

// A soft breaker still counts, and opens harder, once.
func TestSoftBecomesHard(t *testing.T) {
	b := newHTTP(defaults(), dice(1))
	record(b, at(0), 0, 14)
	record(b, at(0), 6, 0)
	wantState(t, b, at(0), Soft)
	record(b, at(3*sec), 8, 0) // 14 of 28
	wantState(t, b, at(3*sec), Hard)
	if v := b.Allow(at(7999*ms), policy.Critical); v.Action != Shed {
		t.Fatalf("hard open time is 5s at least: %+v", v)
	}
}

// B4: twice the usual rate doubles the thresholds, below 100 %.
func TestDynamicThreshold(t *testing.T) {
	run := func(dynamic bool, perSecond int) (highest State) {
		c := defaults()
		c.DynamicThreshold = dynamic
		b := newHTTP(c, dice(1))
		for s := range 600 { // usual: 10 a second
			record(b, at(time.Duration(s)*sec), 0, 10)
		}
		for s := 600; s < 610; s++ { // then this rate, 40 % failing
			record(b, at(time.Duration(s)*sec), 0, perSecond*6/10)
			record(b, at(time.Duration(s)*sec), perSecond*4/10, 0)
			highest = max(highest, b.View(at(time.Duration(s)*sec)).State)
		}
		return highest
	}
	if s := run(false, 30); s == Closed {
		t.Errorf("fixed threshold: %v", s)
	}
	if s := run(true, 30); s != Closed { // 40 % < 60 %
		t.Errorf("loosened threshold: %v", s)
	}
	if s := run(true, 10); s == Closed { // at the usual rate nothing is loosened
		t.Errorf("usual rate: %v", s)
	}
	if f := moved(0.6, 2); f != 0.99 {
		t.Errorf("0.6 doubled = %v, want the cap", f)
	}
	if f := moved(1, 2); f != 1 {
		t.Errorf("a threshold of 1 = %v, want it as set", f)
	}
}

// Whatever rates come, the factor stays within 1..2.
func TestBaselineBounds(t *testing.T) {
	var b baseline
	if f := b.factor(1e300, false); f != 1 {
		t.Fatalf("no baseline: %v", f)
	}
	r := dice(5)
	for i := range 10000 {
		b.observe(at(time.Duration(r.IntN(i+1))*sec), r.Float64()*1e6) // goes back too
		if f := b.factor(r.ExpFloat64()*1e6, false); f < 1 || f > 2 {
			t.Fatalf("factor %v", f)
		}
	}
}

// A clock that goes back neither panics nor keeps the breaker open for longer.
func TestClockGoesBack(t *testing.T) {
	b := newHTTP(defaults(), dice(1))
	record(b, at(time.Hour), 20, 0)
	v := b.Allow(at(0), policy.Critical)
	if v.Action != Shed || v.RetryAfter < 5*sec || v.RetryAfter > 6*sec {
		t.Fatalf("%+v", v)
	}
	if v := b.Allow(at(6*sec), policy.Critical); v.State != HalfOpen {
		t.Fatalf("%+v", v)
	}
}

// The numbers may change while it is open; switching it off closes it.
func TestConfigure(t *testing.T) {
	b := opened(t, defaults(), 1)
	c := defaults()
	c.Open, c.Probes = time.Hour, 0.5
	b.Configure(at(6*sec), HTTP, c)
	wantState(t, b, at(1*sec), Hard)
	if v := b.Allow(at(6*sec), policy.Critical); v.State != HalfOpen {
		t.Fatalf("open time of before: %+v", v)
	}
	if v := b.View(at(6 * sec)); v.Release != 0.5 {
		t.Fatalf("new share: %+v", v)
	}
	c.Off = true
	b.Configure(at(6*sec), HTTP, c)
	record(b, at(7*sec), 100, 0)
	if v := b.Allow(at(7*sec), policy.Batch); v != (Verdict{}) {
		t.Fatalf("off: %+v", v)
	}
	wantState(t, b, at(7*sec), Closed)
}

func TestStateNames(t *testing.T) {
	for s, want := range map[State]string{Closed: "closed", Soft: "soft", Hard: "hard", HalfOpen: "half_open", 9: "unknown"} {
		if s.String() != want {
			t.Errorf("%d = %q", s, s)
		}
	}
}
