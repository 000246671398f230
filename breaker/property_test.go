package breaker

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/policy"
)

// model is the machine written for clarity: every end is kept, and it is told
// what the dice said.
type model struct {
	c        policy.Breaker
	state    State
	level    State
	until    time.Duration
	base     time.Duration // of the window's cells
	ends     []end
	step     int
	stepped  time.Duration
	stepGood int
	good     int
	out      int
}

type end struct {
	at     time.Duration
	failed bool
}

func (m *model) bucket(t time.Duration) int { return int((t - m.base) / (m.c.Window / cells)) }

// asks is the level that the window asks for.
func (m *model) asks(now time.Duration) State {
	total, fails := 0, 0
	for _, e := range m.ends {
		if m.bucket(now)-m.bucket(e.at) < cells {
			total++
			if e.failed {
				fails++
			}
		}
	}
	percent := func(r policy.Ratio) int { return int(float64(r)*100 + 0.5) }
	switch {
	case total < m.c.MinRequests || fails == 0:
		return Closed
	case fails*100 >= percent(m.c.Hard)*total:
		return Hard
	case fails*100 >= percent(m.c.Soft)*total:
		return Soft
	}
	return Closed
}

func (m *model) record(now time.Duration, failed bool) {
	if m.state != Closed && (m.state != Soft || now >= m.until) {
		return
	}
	if len(m.ends) == 0 {
		m.base = now
	}
	m.ends = append(m.ends, end{now, failed})
}

func (m *model) move(now time.Duration) {
	if m.state == HalfOpen {
		over := now-m.stepped >= m.c.ReleaseStep
		judged := m.stepGood > 0 || m.out == 0 || now-m.stepped >= patience*m.c.ReleaseStep
		top := m.step == len(m.c.Release)-1
		switch {
		case over && judged && top && m.good >= goodProbes:
			m.state, m.ends = Closed, nil
		case over && judged && !top:
			m.step, m.stepped, m.stepGood = m.step+1, now, 0
		}
	} else if m.state != Closed && now >= m.until {
		m.state, m.step, m.stepped, m.stepGood, m.good = HalfOpen, 0, now, 0, 0
	}
}

// legal are the transitions of the package comment.
var legal = map[[2]State]bool{
	{Closed, Soft}: true, {Closed, Hard}: true, {Soft, Hard}: true,
	{Soft, HalfOpen}: true, {Hard, HalfOpen}: true,
	{HalfOpen, Soft}: true, {HalfOpen, Hard}: true, {HalfOpen, Closed}: true,
}

func breakerIsItsModel(t *rapid.T) {
	c := defaults()
	c.MinRequests = rapid.IntRange(1, 6).Draw(t, "min")
	c.Release = c.Release[:rapid.IntRange(1, 4).Draw(t, "ladder")]
	b, m := newHTTP(c, dice(rapid.Uint64().Draw(t, "seed"))), &model{c: c}
	var now time.Duration
	last := Closed
	opened := func() { // the open time is within its bounds
		until := b.phase.Load().until.Sub(epoch)
		if until < now+c.Open || until > now+c.Open*12/10 {
			t.Fatalf("opened at %v until %v", now, until)
		}
		m.until = until
	}
	record := func(t *rapid.T) {
		failed := rapid.Bool().Draw(t, "failed")
		b.Record(at(now), failed, false)
		before := m.state
		m.record(now, failed)
		if level := m.asks(now); (before == Closed || before == Soft && now < m.until) && level > before {
			m.state, m.level = level, level
			opened()
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"record": record, "record2": record, "record3": record,
		"pass": func(t *rapid.T) { now += time.Duration(rapid.IntRange(0, 30).Draw(t, "tenths")) * 100 * ms },
		"allow": func(t *rapid.T) {
			class := policy.Class(rapid.IntRange(0, 2).Draw(t, "class"))
			v := b.Allow(at(now), class)
			m.move(now)
			if v.State != m.state || v.Probe && m.state != HalfOpen {
				t.Fatalf("%+v, the model is %v", v, m.state)
			}
			want := Admit
			switch {
			case v.Probe:
				m.out++
			case m.state == Closed:
			case m.level == Hard || class == policy.Batch:
				want = Shed
			case class == policy.Standard:
				want = Degrade
			}
			if v.Action != want || (want == Shed) != (v.RetryAfter > 0) {
				t.Fatalf("%v at level %v: %+v", class, m.level, v)
			}
		},
		"probe": func(t *rapid.T) {
			if m.out == 0 {
				return // no probe is under way; to skip ends a fuzzer's run as a failure
			}
			m.out--
			failed := rapid.IntRange(0, 5).Draw(t, "bad") == 0
			b.Record(at(now), failed, true)
			switch {
			case m.state == Closed:
				m.record(now, failed)
				if level := m.asks(now); level > Closed {
					m.state, m.level = level, level
					opened()
				}
			case m.state == HalfOpen && failed:
				m.state = m.level
				opened()
			case m.state == HalfOpen:
				m.good++
				m.stepGood++
				m.move(now)
			}
		},
		"forget": func(t *rapid.T) {
			if m.out == 0 {
				return // no probe is under way
			}
			m.out--
			b.Forget(at(now))
			m.move(now)
		},
		"": func(t *rapid.T) {
			got := b.phase.Load()
			if got.state != m.state || m.state != Closed && got.level != m.level {
				t.Fatalf("%+v, the model is %v at level %v", got, m.state, m.level)
			}
			if m.state == HalfOpen && got.share != float64(c.Release[m.step]) {
				t.Fatalf("share %v at step %d", got.share, m.step)
			}
			if m.state != last && !legal[[2]State{last, m.state}] {
				t.Fatalf("%v to %v", last, m.state)
			}
			last = m.state
			if v := b.View(at(now)); v.Ratio < 0 || v.Ratio > 1 || v.Failures > v.Requests || v.Release < 0 || v.Release > 1 {
				t.Fatalf("%+v", v)
			}
		},
	})
}

// B1, B2: the breaker is its model, call by call, and goes only legal ways.
func TestBreakerIsItsModel(t *testing.T) { rapid.Check(t, breakerIsItsModel) }

func FuzzBreaker(f *testing.F) { f.Fuzz(rapid.MakeFuzz(breakerIsItsModel)) }
