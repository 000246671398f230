package watch

import (
	"strings"
	"testing"
	"time"
)

// stormed lets time pass and tells whether there was a storm in it.
func (s *street) stormed(d time.Duration, do func(at time.Duration)) bool {
	s.t.Helper()
	on := false
	s.each = func(r Reading) { on = on || r.Storm }
	s.run(d, do)
	s.each = nil
	return on
}

// TestSixConnections (B7): all connections of a cluster end within a second,
// each by one GOAWAY. With calls reset, or cut by their connection's end, that
// is a storm; without it is none, however many there are and whatever traffic
// there was.
func TestSixConnections(t *testing.T) {
	for _, n := range []int64{6, 8, 24, 50} {
		for _, calls := range []int64{0, 1, 10, 30} { // each 100 ms
			for _, c := range []struct {
				name string
				cost func(e *envoy)
				want bool
			}{
				{"politely", func(*envoy) {}, false},
				{"callers left", func(*envoy) {}, false}, // upstream_rq_tx_reset is not read
				{"calls reset", func(e *envoy) { e.Resets += n }, true},
				{"calls cut by their connection's end", func(e *envoy) { e.DestroyActive += n; e.Ejected += n }, true},
				{"calls cut, HTTP/1.1", func(e *envoy) { e.DestroyActive += n }, true},
				{"answered by 503", func(e *envoy) { e.Errors += n }, true},
				{"tried again elsewhere", func(e *envoy) { e.Ejected += n; e.Retries += n }, false},
				{"one of many calls broke", func(e *envoy) { e.Resets++ }, false},
			} {
				for _, after := range []int64{n, 2 * n} {
					s := newStreet(t, defaults(), 1, 500*time.Millisecond)
					e := s.envoys[0]
					e.open(n)
					traffic := func(time.Duration) { e.Requests += calls }
					s.run(20*time.Second, traffic)
					begin := s.at
					got := s.stormed(5*time.Second, func(at time.Duration) {
						traffic(at)
						if at == begin+200*time.Millisecond {
							e.goaway(n)
							e.open(after)
							e.Requests += n
							c.cost(e)
						}
					})
					if got != c.want {
						t.Errorf("%d connections, %d after, %d calls/s, %s: storm %v", n, after, 10*calls, c.name, got)
					}
				}
			}
		}
	}
}

// TestPolite (B7): hosts that end each connection after so many calls are no
// storm while next to no call fails, for any number of connections, Envoys and
// period, also where traffic starts from zero and ends; with half of the calls
// reset they are, and when the resets are over it is, though GOAWAYs go on.
func TestPolite(t *testing.T) {
	for _, every := range periods {
		for _, envoys := range []int{1, 3} {
			for _, connections := range []int64{1, 6, 50} {
				for _, per := range []int64{1, 5, 20, 100} { // calls a connection
					s := newStreet(t, defaults(), envoys, every)
					calls, resets := int64(0), int64(0)
					traffic := func(time.Duration) { // 400 a second at each Envoy
						for _, e := range s.envoys {
							for range 40 {
								e.Requests++
								if e.ActiveConnections < connections {
									e.open(1)
								}
								if calls++; calls%per == 0 {
									e.goaway(1)
								}
								if resets > 0 && calls%resets == 0 {
									e.Resets++
								}
							}
						}
					}
					name := func() string {
						return strings.Join([]string{every.String(), time.Duration(envoys).String(), time.Duration(connections).String(), time.Duration(per).String()}, " ")
					}
					s.run(10*time.Second, nil)
					if s.stormed(40*time.Second, traffic) {
						t.Errorf("%s: a storm, though no call failed: %v", name(), s.events)
					}
					if resets = 1000; s.stormed(20*time.Second, traffic) {
						t.Errorf("%s: a storm, though one call of a thousand failed: %v", name(), s.events)
					}
					if every == 5*time.Second && per == 100 && envoys == 1 {
						continue // four a second
					}
					if resets = 2; per < 100 && !s.stormed(20*time.Second, traffic) {
						t.Errorf("%s: no storm, though half of the calls are reset: %+v", name(), s.reading())
					}
					resets = 0
					s.run(4*time.Second+2*every, traffic)
					if s.reading().Storm {
						t.Errorf("%s: still a storm, though no call fails any more", name())
					}
				}
			}
		}
	}
}

// TestRollingRestartCutsCalls (B7): three hosts are restarted one after the
// other and cut the calls of theirs that run: the first is none, since most
// connections stay; all three within the window are.
func TestRollingRestartCutsCalls(t *testing.T) {
	for _, c := range []struct {
		apart time.Duration
		want  bool
	}{{2 * time.Second, true}, {20 * time.Second, false}} {
		s := newStreet(t, defaults(), 1, 500*time.Millisecond)
		e := s.envoys[0]
		e.open(24)
		s.run(20*time.Second, nil)
		begin := s.at
		got := s.stormed(60*time.Second, func(at time.Duration) {
			e.Requests += 10
			for host := range time.Duration(3) {
				if at == begin+host*c.apart {
					e.breaks(8)
					e.open(8)
				}
			}
		})
		if got != c.want {
			t.Errorf("%v apart: storm %v: %v", c.apart, got, s.events)
		}
	}
}

// TestLost: what the breakers of a cluster's pools hear of: calls that broke, of
// all Envoys, and were not tried again.
func TestLost(t *testing.T) {
	s := newStreet(t, defaults(), 2, 500*time.Millisecond)
	for _, e := range s.envoys {
		e.open(10)
		e.Resets, e.Ejected = 1000, 1000 // before the first look
	}
	s.run(2*time.Second, nil)
	if r := s.reading(); r.Lost != 0 {
		t.Errorf("%d before anything happened", r.Lost)
	}
	s.envoys[0].Resets += 5
	s.envoys[0].Ejected, s.envoys[0].DestroyActive = s.envoys[0].Ejected+7, 2 // two HTTP/2 connections with seven streams
	s.envoys[1].DestroyActive += 3                                            // three of HTTP/1.1
	s.run(time.Second, nil)
	if r := s.reading(); r.Lost != 15 {
		t.Errorf("%d, want 15", r.Lost)
	}
	s.envoys[1].Resets, s.envoys[1].Retries = s.envoys[1].Resets+4, 4
	s.run(time.Second, nil)
	if r := s.reading(); r.Lost != 15 {
		t.Errorf("%d: calls that ran elsewhere are not lost", r.Lost)
	}
}
