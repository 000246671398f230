package watch

import (
	"strings"
	"testing"
	"time"
)

// pool is a street whose cluster has had 20 connections to two hosts and 40
// requests under way for five minutes.
func pool(t *testing.T) (*street, *envoy) {
	s := newStreet(t, defaults(), 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.open(20)
	e.ActiveRequests = 40
	s.run(5*time.Minute, nil)
	if r := s.reading(); r.Normal < 19.5 || r.Normal > 20.5 || r.Protect {
		t.Fatalf("%+v", r)
	}
	return s, e
}

// TestProtect (B8): what is sick and what is only quiet.
func TestProtect(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(e *envoy)
		each func(e *envoy) // ten times a second
		want bool
		sign string
	}{
		{"hosts died, connects fail", func(e *envoy) { e.close(12); e.ActiveRequests = 16 }, func(e *envoy) { e.fail(1) }, true, "connects failed"},
		{"hosts died, requests wait", func(e *envoy) { e.close(20); e.ActiveRequests = 0; e.Pending = 40 }, nil, true, "requests wait for a connection"},
		{"health checks fail", func(e *envoy) { e.close(12); e.ActiveRequests = 0; e.Healthy = 1 }, nil, true, "1 of 3 hosts are healthy"},
		{"health is left out of the statistics", func(e *envoy) { e.close(12); e.ActiveRequests = 0; e.Members = 0 }, nil, false, ""},
		{"all requests on few connections", func(e *envoy) { e.close(14) }, nil, true, "requests under way on them where 40.0 are usual"},
		{"traffic fell, idle connections closed", func(e *envoy) { e.close(16); e.ActiveRequests = 4 }, nil, false, ""},
		{"traffic stopped", func(e *envoy) { e.close(20); e.ActiveRequests = 0 }, nil, false, ""},
		{"traffic fell by half, connections more", func(e *envoy) { e.close(12); e.ActiveRequests = 20 }, nil, false, ""},
		{"one connect in twenty fails", func(e *envoy) { e.close(12); e.ActiveRequests = 10 }, func(e *envoy) { e.open(19); e.close(19); e.fail(1) }, false, ""},
		{"a few connections fewer, connects fail", func(e *envoy) { e.close(9) }, func(e *envoy) { e.fail(1) }, false, ""},
		{"connects fail, nothing fell", nil, func(e *envoy) { e.fail(3) }, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, e := pool(t)
			if c.do != nil {
				c.do(e)
			}
			s.run(10*time.Second, func(time.Duration) {
				if c.each != nil {
					c.each(e)
				}
			})
			r := s.reading()
			if r.Protect != c.want || !strings.Contains(r.Because, c.sign) {
				t.Errorf("protect %v because %q, want %v and %q; %+v", r.Protect, r.Because, c.want, c.sign, r)
			}
			if c.want && s.events[0].At.Sub(instant) > 5*time.Minute+2*time.Second {
				t.Errorf("seen late: %v", s.events[0])
			}
		})
	}
}

// TestProtectEnds: at 80 % for 5 s and not before; what lies between 50 and
// 80 % changes nothing; and normal was not learnt meanwhile.
func TestProtectEnds(t *testing.T) {
	s, e := pool(t)
	e.close(15)
	failing := func(time.Duration) { e.fail(1) }
	s.run(2*time.Minute, failing)
	if r := s.reading(); !r.Protect || r.Normal < 19.5 {
		t.Fatalf("normal must not be learnt in trouble: %+v", r)
	}
	e.open(10) // 15 of 20
	s.run(time.Minute, failing)
	if r := s.reading(); !r.Protect || s.count(ProtectEnded) > 0 {
		t.Errorf("at 75%%: %+v", r)
	}
	e.open(2) // 17
	s.run(4*time.Second, failing)
	e.close(3) // 14
	s.run(2*time.Second, failing)
	e.open(3)
	s.run(4*time.Second, failing)
	if !s.reading().Protect {
		t.Error("ended before it was calm for 5 s")
	}
	s.run(2*time.Second, failing)
	if r := s.reading(); r.Protect || s.count(ProtectBegan) != 1 || s.count(ProtectEnded) != 1 {
		t.Errorf("%+v %v", r, s.events)
	}
	if e := s.events[len(s.events)-1]; e.Lasted < 3*time.Minute || !strings.Contains(e.Because, "85%") {
		t.Errorf("%+v", e)
	}
}

// TestProtectEndsQuiet: nobody comes back, so no connection does; protect mode
// must not last for ever.
func TestProtectEndsQuiet(t *testing.T) {
	s, e := pool(t)
	e.close(18)
	s.run(5*time.Second, func(time.Duration) { e.fail(1) })
	if !s.reading().Protect {
		t.Fatal("no protect mode")
	}
	e.ActiveRequests = 0
	s.run(25*time.Second, nil)
	if !s.reading().Protect {
		t.Error("ended within half a minute")
	}
	s.run(15*time.Second, nil)
	if r := s.reading(); r.Protect || !strings.Contains(s.events[len(s.events)-1].Because, "quiet, not sick") {
		t.Errorf("%+v %v", r, s.events)
	}
}

// TestNormal: learnt in half a minute, then slow, down too where it is quiet.
func TestNormal(t *testing.T) {
	s := newStreet(t, defaults(), 1, 500*time.Millisecond)
	e := s.envoys[0]
	e.open(20)
	s.run(20*time.Second, nil)
	e.close(20)
	s.run(5*time.Second, func(time.Duration) { e.fail(2) })
	if r := s.reading(); r.Normal != 0 || r.Protect || r.Share != 1 {
		t.Errorf("judged by 20 s: %+v", r)
	}
	s, e = pool(t)
	e.close(10)
	s.run(10*time.Second, nil)
	if r := s.reading(); r.Normal < 19 {
		t.Errorf("forgotten within 10 s: %+v", r)
	}
	s.run(30*time.Minute, nil)
	if r := s.reading(); r.Normal > 10.5 {
		t.Errorf("not learnt down in half an hour: %+v", r)
	}
}

// TestCalm: connections that grpc-go throws out for pings. The counters are
// those that Envoy 1.36.4 and 1.40.0 had with connection_keepalive.interval
// 1s: an idle connection is told and closed after 5.3 s; one with a silent
// stream is told and cut.
func TestCalm(t *testing.T) {
	const life = 5300 * time.Millisecond
	for _, c := range []struct {
		name string
		each func(e *envoy) // connection that is thrown out
		busy int64          // requests each 100 ms
		want bool
		word string
	}{
		{"idle", func(e *envoy) { e.goaway(1); e.open(1); e.Requests++ }, 0, true, "carried 1.0 requests each"},
		{"silent streams", func(e *envoy) { e.goaway(1); e.open(1); e.DestroyActive++ }, 1, true, "were cut with requests under way"},
		{"MaxConnectionAge of a busy pool", func(e *envoy) { e.goaway(1); e.open(1) }, 50, false, ""},
		{"closed by idle timeouts", func(e *envoy) { e.close(1); e.open(1); e.Requests++ }, 0, false, ""},
	} {
		s := newStreet(t, defaults(), 1, time.Second)
		e := s.envoys[0]
		e.open(4)
		next := []time.Duration{life, life + time.Second, life + 2*time.Second, life + 3*time.Second}
		s.run(time.Minute, func(at time.Duration) {
			for i := range next {
				if at >= next[i] {
					next[i] += life
					c.each(e)
				}
			}
			e.Requests += c.busy
		})
		r := s.reading()
		if r.Calm != c.want || !strings.Contains(r.Because, c.word) {
			t.Errorf("%s: %+v", c.name, r)
		}
		if !c.want {
			continue
		}
		for _, word := range []string{"after about 5", "pings each 1", "likely ENHANCE_YOUR_CALM", "connection_keepalive.interval"} {
			if !strings.Contains(r.Because, word) {
				t.Errorf("%s: %q lacks %q", c.name, r.Because, word)
			}
		}
		if r.Storm {
			t.Errorf("%s: less than one a second is no storm", c.name)
		}
		s.run(3*time.Minute, nil)
		if r := s.reading(); r.Calm || s.count(CalmBegan) != 1 || s.count(CalmEnded) != 1 {
			t.Errorf("%s: not over: %+v %v", c.name, r, s.events)
		}
	}
	// One restart of many hosts is none.
	s := newStreet(t, defaults(), 1, time.Second)
	e := s.envoys[0]
	e.open(30)
	s.run(10*time.Second, nil)
	for range 10 {
		e.goaway(3)
		e.open(3)
		s.run(4*time.Second, nil)
	}
	if r := s.reading(); r.Calm || r.Storm {
		t.Errorf("a rolling restart: %+v", r)
	}
}

// TestHealthUnknown: an Envoy whose statistics have no healthy hosts, by its
// stats_matcher, has not lost them.
func TestHealthUnknown(t *testing.T) {
	s := newStreet(t, defaults(), 2, 500*time.Millisecond)
	for i, e := range s.envoys {
		e.open(10)
		e.Healthy *= int64(i)
	}
	s.run(5*time.Minute, nil)
	for _, e := range s.envoys {
		e.close(8)
	}
	s.run(5*time.Second, nil)
	if r := s.reading(); r.Protect || r.Members != 3 || r.Healthy != 3 {
		t.Errorf("%+v", r)
	}
	s.envoys[1].Healthy = 0
	s.run(5*time.Second, nil)
	if r := s.reading(); !r.Protect || r.Healthy != 0 {
		t.Errorf("%+v", r)
	}
}
