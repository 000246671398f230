package watch

import (
	"strings"
	"testing"
	"time"
)

// periods are those of the sources: the poller's default, a second as
// recommended for the sink, and Envoy's own default.
var periods = []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second}

// TestRollingRestart (B7): every host tells each of its connections once and
// they are made again: no storm, however fast hosts follow each other, and
// though all connections are told within the window.
func TestRollingRestart(t *testing.T) {
	for _, every := range periods {
		for _, apart := range []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second} {
			s := newStreet(t, defaults(), 3, every)
			for _, e := range s.envoys {
				e.open(24) // 8 of each host
			}
			s.run(time.Minute, nil)
			s.each = func(r Reading) {
				if r.Storm {
					t.Fatalf("every %v, %v apart: %s", every, apart, r.Because)
				}
			}
			begin := s.at
			var most float64
			s.run(70*time.Second, func(at time.Duration) {
				for host := range 3 {
					down := begin + time.Duration(host)*apart
					for _, e := range s.envoys {
						switch at {
						case down:
							e.goaway(8)
						case down + 500*time.Millisecond:
							e.open(8)
						}
					}
				}
				if s.last != nil {
					most = max(most, s.reading().GoAwaysPerSecond)
				}
			})
			if told := s.envoys[0].CloseNotify; told != 24 {
				t.Fatalf("%d told, want 24", told)
			}
			if every < 5*time.Second && most < 18 {
				t.Errorf("every %v, %v apart: busiest second %.1f, want about 24: the rate alone must not have been low", every, apart, most)
			}
			if s.count(ProtectBegan) > 0 {
				t.Errorf("every %v, %v apart: %v", every, apart, s.events)
			}
		}
	}
}

// TestRollingRestartLiteral: the rate alone trips at once, as B7 says it does.
func TestRollingRestartLiteral(t *testing.T) {
	p := defaults()
	p.GoAway.Literal = true
	s := newStreet(t, p, 1, 500*time.Millisecond)
	s.envoys[0].open(24)
	s.run(10*time.Second, nil)
	s.envoys[0].goaway(8)
	s.envoys[0].open(8)
	s.run(time.Second, nil)
	if r := s.reading(); !r.Storm || r.GoAwaysPerSecond < 7.9 || r.GoAwaysPerSecond > 8.1 || strings.Contains(r.Because, "limit 50%") {
		t.Errorf("%+v", r)
	}
	s.run(5*time.Second, nil)
	if r := s.reading(); r.Storm || s.count(StormBegan) != 1 || s.count(StormEnded) != 1 {
		t.Errorf("%+v %v", r, s.events)
	}
}

// TestMaxConnectionAgeStorm (B7): servers that end every connection after two
// seconds, with a call under way, are a storm, seen by the third round at the
// latest and over a few seconds after it.
func TestMaxConnectionAgeStorm(t *testing.T) {
	for _, every := range periods {
		s := newStreet(t, defaults(), 2, every)
		for _, e := range s.envoys {
			e.open(20)
			e.ActiveRequests = 10
		}
		s.run(time.Minute, nil)
		begin := s.at
		s.run(15*time.Second, func(at time.Duration) {
			if (at-begin)%(100*time.Millisecond) == 0 { // 10 a second each
				for _, e := range s.envoys {
					e.breaks(1)
					e.open(1)
				}
			}
			for _, e := range s.envoys {
				e.Requests += 20
			}
		})
		r := s.reading()
		if !r.Storm || r.Calm || r.Protect {
			t.Errorf("every %v: %+v", every, r)
		}
		if r.GoAwaysPerSecond < 19 || r.GoAwaysPerSecond > 21 {
			t.Errorf("every %v: %.1f in the busiest second, want 20", every, r.GoAwaysPerSecond)
		}
		if r.GoAwayShare < 0.75 && every < 5*time.Second { // 200 of 40 + 200
			t.Errorf("every %v: share %.2f, want 0.83", every, r.GoAwayShare)
		}
		var seen time.Duration
		for _, e := range s.events {
			if e.What == StormBegan {
				seen = e.At.Sub(instant) - begin
				break
			}
		}
		if limit := 6*time.Second + every; seen == 0 || seen > limit {
			t.Errorf("every %v: seen after %v, want within %v", every, seen, limit)
		}
		end := s.at
		s.run(20*time.Second, nil)
		var over time.Duration
		for _, e := range s.events {
			if e.What == StormEnded {
				over = e.At.Sub(instant) - end
			}
		}
		if limit := 3500*time.Millisecond + 2*every; s.reading().Storm || over > limit || s.count(StormBegan) != 1 {
			t.Errorf("every %v: over after %v, want within %v, once: %v", every, over, limit, s.events)
		}
		t.Logf("every %v: seen after %v, over after %v", every, seen, over)
	}
}

// TestStormOfLongStreams: connections that were told stay as long as their
// streams, here 30 s; they are not live and hide no storm.
func TestStormOfLongStreams(t *testing.T) {
	s := newStreet(t, defaults(), 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.open(20)
	s.run(time.Minute, nil)
	begin, stormed := s.at, false
	s.each = func(r Reading) { stormed = stormed || r.Storm }
	s.run(40*time.Second, func(at time.Duration) {
		if (at-begin)%time.Second == 0 { // 10 a second: an age of 2 s
			e.CloseNotify += 10
			e.Resets += 10
			e.open(10)
			if at-begin >= 30*time.Second {
				e.close(10)
			}
		}
	})
	if r := s.reading(); !r.Storm || r.Live != 20 || r.Connections != 320 {
		t.Errorf("%+v", r)
	}
}

// TestGoAwayBounds: the two limits of B7, each met and not passed.
func TestGoAwayBounds(t *testing.T) {
	for _, c := range []struct {
		name               string
		perSecond, seconds int64 // GOAWAYs
		connections        int64
		rate, share        float64
		storm              bool
	}{
		{"five a second are not more than five", 5, 10, 5, 5, 50. / 55, false},
		{"six a second, each connection many times", 6, 10, 6, 6, 60. / 66, true},
		{"six a second of very many", 6, 10, 600, 6, 60. / 660, false},
		{"six a second, a little less than half", 6, 10, 121, 6, 60. / 181, false},
		{"six a second, half of them once", 6, 10, 120, 6, 60. / 180, true},
	} {
		s := newStreet(t, defaults(), 1, 500*time.Millisecond)
		e := s.envoys[0]
		e.open(c.connections)
		s.run(20*time.Second, nil)
		begin := s.at
		s.run(time.Duration(c.seconds)*time.Second, func(at time.Duration) {
			if (at-begin)%time.Second == 500*time.Millisecond {
				for range c.perSecond {
					e.breaks(1)
					e.open(1)
				}
			}
		})
		r := s.reading()
		if math := r.GoAwaysPerSecond - c.rate; math > 0.01 || math < -0.01 {
			t.Errorf("%s: %.2f in the busiest second, want %.0f", c.name, r.GoAwaysPerSecond, c.rate)
		}
		if off := r.GoAwayShare - c.share; off > 0.01 || off < -0.01 {
			t.Errorf("%s: share %.3f, want %.3f", c.name, r.GoAwayShare, c.share)
		}
		if r.Storm != c.storm {
			t.Errorf("%s: storm %v: %s", c.name, r.Storm, r.Because)
		}
	}
}

// TestFailedConnects: Envoy counts a connect that failed as a connection that
// was opened and closed; it is none of those that the share is of.
func TestFailedConnects(t *testing.T) {
	s := newStreet(t, defaults(), 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.open(10)
	s.run(20*time.Second, nil)
	for range 30 { // each told three times in 6 s, beside 100 connects to a host that is gone
		e.goaway(1)
		e.open(1)
		e.fail(3)
		s.run(200*time.Millisecond, nil)
	}
	if r := s.reading(); r.GoAwayShare < 0.74 || r.GoAwayShare > 0.76 { // 30 of 10 + 30
		t.Errorf("%+v", r)
	}
}

// TestShareBelowHalf: a smaller share is a policy that wants restarts seen.
func TestShareBelowHalf(t *testing.T) {
	p := defaults()
	p.GoAway.Share = 0.2
	s := newStreet(t, p, 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.open(24)
	s.run(20*time.Second, nil)
	e.breaks(8) // 8 of 24
	e.open(8)
	s.run(time.Second, nil)
	if r := s.reading(); !r.Storm || r.GoAways != 8 {
		t.Errorf("%+v", r)
	}
}

// TestGap: what fell into an outage of the sidecar is spread over it.
func TestGap(t *testing.T) {
	s := newStreet(t, defaults(), 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.open(10)
	s.run(20*time.Second, nil)
	e.mute = true
	s.run(20*time.Second, nil)
	if r := s.reading(); r.Envoys != 0 || r.Connections != 0 {
		t.Errorf("after 20 s of silence: %+v", r)
	}
	for range 40 {
		e.goaway(1)
		e.open(1)
	}
	e.mute = false
	s.run(time.Second, nil)
	r := s.reading()
	if r.Storm || r.Envoys != 1 || r.GoAways < 17 || r.GoAways > 21 || r.GoAwaysPerSecond < 1.9 || r.GoAwaysPerSecond > 2.1 {
		t.Errorf("40 GOAWAYs in 20 s: %+v", r)
	}
}

// TestRestart: an Envoy that restarts counts from nothing, and its old counts
// do not come again.
func TestRestart(t *testing.T) {
	s := newStreet(t, defaults(), 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.CloseNotify, e.Connections, e.Destroyed, e.Requests, e.ActiveConnections = 100_000, 200_000, 199_990, 5_000_000, 10
	s.run(20*time.Second, nil)
	if r := s.reading(); r.GoAways != 0 || r.RequestsPerSecond != 0 {
		t.Errorf("what was counted before the first look: %+v", r)
	}
	e.Counters = Counters{Node: e.Node, Cluster: "chat", Connections: 8, ActiveConnections: 5, Destroyed: 3, CloseNotify: 3, Requests: 12, Members: 3, Healthy: 3}
	s.run(time.Second, nil)
	r := s.reading()
	if r.GoAways != 3 || r.Live != 5 || s.core.Envoys()[0].Restarts != 1 {
		t.Errorf("%+v, %+v", r, s.core.Envoys())
	}
	if known := 3 / r.GoAwayShare; known < 17.9 || known > 18.1 { // 5 live, 10 of the old process, 3
		t.Errorf("%.1f connections known, want 18", known)
	}
	e.ConnectFail = 7
	s.run(time.Second, nil)
	e.ConnectFail = 2 // forgotten by Envoy for want of use: no restart
	s.run(time.Second, nil)
	if n := s.core.Envoys()[0].Restarts; n != 1 {
		t.Errorf("%d restarts", n)
	}
}

// TestSeveralEnvoys: sums of several, one of which goes.
func TestSeveralEnvoys(t *testing.T) {
	s := newStreet(t, defaults(), 4, time.Second)
	for i, e := range s.envoys {
		e.open(int64(10 * (i + 1)))
		e.ActiveRequests = int64(20 * (i + 1))
	}
	s.run(2*time.Minute, nil)
	if r := s.reading(); r.Envoys != 4 || r.Connections != 100 || r.Normal < 99 || r.Normal > 101 || r.ActiveRequests != 200 {
		t.Fatalf("%+v", r)
	}
	s.envoys[3].mute = true // 40 of 100 connections, and its traffic goes elsewhere
	s.envoys[2].mute = true
	s.run(10*time.Second, nil)
	if r := s.reading(); r.Envoys != 2 || r.Connections != 30 || r.Normal > 31 || r.Share < 0.99 || r.Protect {
		t.Errorf("two Envoys went: %+v", r)
	}
	s.run(memory, nil)
	if n := len(s.core.Envoys()); n != 2 {
		t.Errorf("%d Envoys are remembered", n)
	}
}

// TestClockSteps: a wall clock that is set changes nothing, in either
// direction.
func TestClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, -5 * time.Second, time.Hour, 3 * time.Second} {
		s := newStreet(t, defaults(), 2, 500*time.Millisecond)
		for _, e := range s.envoys {
			e.open(10)
			e.ActiveRequests = 10
		}
		s.run(time.Minute, nil)
		s.clock += step
		for _, e := range s.envoys {
			e.goaway(1)
			e.open(1)
		}
		s.run(5*time.Second, nil)
		if r := s.reading(); r.Storm || r.Protect || r.Envoys != 2 || r.Connections != 20 || len(s.events) > 0 {
			t.Errorf("%v: %+v %v", step, r, s.events)
		}
		for range 40 {
			s.run(200*time.Millisecond, func(time.Duration) {
				for _, e := range s.envoys {
					e.breaks(2)
					e.open(2)
				}
			})
		}
		if r := s.reading(); !r.Storm || r.GoAwaysPerSecond < 36 || r.GoAwaysPerSecond > 44 {
			t.Errorf("%v: a storm of 40 a second afterwards: %+v", step, r)
		}
	}
}

// TestWindow: ten a second are a hundred in ten seconds at every instant,
// however seconds and samples fall.
func TestWindow(t *testing.T) {
	s := newStreet(t, defaults(), 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.open(1000)
	s.run(20*time.Second, nil)
	begin := s.at
	s.each = func(r Reading) {
		if s.at-begin > 11*time.Second && (r.GoAways < 95 || r.GoAways > 101) { // the last half second is not yet known
			t.Fatalf("%d GOAWAYs at %v", r.GoAways, s.at-begin)
		}
	}
	s.run(30*time.Second, func(time.Duration) { e.goaway(1); e.open(1) })
}

// TestEnvoyGone: the connections of an Envoy that vanished stay among those known
// in the window, as its GOAWAYs do.
func TestEnvoyGone(t *testing.T) {
	s := newStreet(t, defaults(), 2, 500*time.Millisecond)
	s.envoys[0].open(20)
	s.envoys[1].open(1)
	s.run(20*time.Second, nil)
	s.envoys[0].goaway(20)
	s.envoys[0].open(20)
	s.run(time.Second, nil)
	s.envoys[0].mute = true
	s.run(4*time.Second, nil)
	if r := s.reading(); r.Envoys != 1 || r.GoAways != 20 || r.GoAwayShare < 0.48 || r.GoAwayShare > 0.5 { // 20 of 20 + 20 + 1
		t.Errorf("%+v", r)
	}
}

// TestOutOfOrder: a sample that overtook another moves nothing the wrong way.
func TestOutOfOrder(t *testing.T) {
	core := NewCore(defaults(), nil, instant)
	for i := range 100 {
		now := instant.Add(time.Duration(i) * time.Second)
		c := Counters{Node: "one", Cluster: "chat", At: now, ActiveConnections: int64(10 * (i % 2))}
		if i%2 == 0 {
			c.At = now.Add(-2500 * time.Millisecond)
		}
		core.Observe(now, []Counters{c})
		readings, _ := core.Step(now)
		if r, _ := readings.Of("chat"); r.Normal < 0 || r.Normal > 10 || i == 99 && r.Normal == 0 {
			t.Fatalf("%+v", r)
		}
	}
}
