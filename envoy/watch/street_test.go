package watch

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// instant is when tests begin.
var instant = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func defaults() policy.Watch { return policy.Default().Envoy.Watch }

// street is a core and the Envoys that a test moves. Each is sampled at its
// own period.
type street struct {
	t      testing.TB
	core   *Core
	at     time.Duration
	clock  time.Duration // what the wall clock is off by
	envoys []*envoy
	last   *Readings
	events []Event
	each   func(r Reading) // with every step
}

type envoy struct {
	Counters
	every, next time.Duration
	mute        bool // it is not heard
}

func newStreet(t testing.TB, p policy.Watch, envoys int, every time.Duration) *street {
	s := &street{t: t, core: NewCore(p, nil, instant)}
	for i := range envoys {
		s.envoys = append(s.envoys, &envoy{Counters: Counters{Node: fmt.Sprint("envoy-", i), Cluster: "chat", Members: 3, Healthy: 3}, every: every, next: time.Duration(i) * every / time.Duration(envoys)})
	}
	return s
}

func (s *street) now() time.Time { return instant.Add(s.at + s.clock) }

// run lets time pass in steps of 100 ms; do, if any, is called before each.
func (s *street) run(d time.Duration, do func(at time.Duration)) {
	s.t.Helper()
	for end := s.at + d; s.at < end; {
		if do != nil {
			do(s.at)
		}
		s.at += tick
		for _, e := range s.envoys {
			if e.next > s.at {
				continue
			}
			e.next += e.every
			if !e.mute {
				row := e.Counters
				row.At = s.now()
				s.core.Observe(s.now(), []Counters{row})
			}
		}
		var events []Event
		s.last, events = s.core.Step(s.now())
		s.events = append(s.events, events...)
		if r, ok := s.last.Of("chat"); ok {
			sane(s.t, r)
			if s.each != nil {
				s.each(r)
			}
		}
	}
}

func (s *street) reading() Reading {
	s.t.Helper()
	r, ok := s.last.Of("chat")
	if !ok {
		s.t.Fatal("no reading of chat")
	}
	return r
}

func (s *street) count(w What) (n int) {
	for _, e := range s.events {
		if e.What == w {
			n++
		}
	}
	return n
}

// sane holds for every reading.
func sane(t testing.TB, r Reading) {
	t.Helper()
	check(t, r)
}

// fataler is a test of any kind.
type fataler interface {
	Fatalf(format string, args ...any)
}

func check(t fataler, r Reading) {
	for name, v := range map[string]float64{
		"Normal": r.Normal, "Share": r.Share, "GoAwaysPerSecond": r.GoAwaysPerSecond, "GoAwayShare": r.GoAwayShare,
		"ResetsPerSecond": r.ResetsPerSecond, "FailuresPerSecond": r.FailuresPerSecond, "RequestsPerSecond": r.RequestsPerSecond, "RetriesPerSecond": r.RetriesPerSecond,
	} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			t.Fatalf("%s = %v in %+v", name, v, r)
		}
	}
	if r.GoAwayShare > 1+slack || r.GoAways < 0 || r.Live > r.Connections {
		t.Fatalf("%+v", r)
	}
	if (r.Because != "") != (r.Storm || r.Protect || r.Calm) {
		t.Fatalf("Because %q of %+v", r.Because, r)
	}
}

// open makes connections.
func (e *envoy) open(n int64) { e.Connections += n; e.ActiveConnections += n }

// close ends connections that nobody told.
func (e *envoy) close(n int64) { e.Destroyed += n; e.ActiveConnections -= n }

// goaway tells connections to go; they close at once.
func (e *envoy) goaway(n int64) { e.CloseNotify += n; e.close(n) }

// breaks tells connections to go and resets a call on each.
func (e *envoy) breaks(n int64) { e.goaway(n); e.Resets += n; e.Requests += n }

// fail makes connects that fail.
func (e *envoy) fail(n int64) { e.Connections += n; e.Destroyed += n; e.ConnectFail += n }
