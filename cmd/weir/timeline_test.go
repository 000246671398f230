package main

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
	"github.com/weirproxy/weir/internal/admin"
)

// TestTimeline: entries are numbered in order, the latest 4096 are kept, and a
// reader who asks for what came since sees each once.
func TestTimeline(t *testing.T) {
	var l timeline
	if v := l.view(admin.TimelineQuery{}); v.First != 0 || v.Last != 0 || v.Entries == nil || len(v.Entries) != 0 {
		t.Errorf("empty: %+v", v)
	}
	const n = 3*timelineSize + 7
	for i := range n {
		e := entry{Breaker: "even", Cluster: "c"}
		if i%2 == 1 {
			e = entry{Breaker: "odd"}
		}
		l.add(e)
	}
	v := l.view(admin.TimelineQuery{})
	if len(v.Entries) != timelineSize || v.Last != n || v.First != n-timelineSize+1 || v.Entries[0].Seq != v.First || v.Entries[timelineSize-1].Seq != n {
		t.Errorf("%d entries, %d..%d", len(v.Entries), v.First, v.Last)
	}
	for i := 1; i < len(v.Entries); i++ {
		if v.Entries[i].Seq != v.Entries[i-1].Seq+1 {
			t.Fatalf("a gap after %d", v.Entries[i-1].Seq)
		}
	}
	for _, c := range []struct {
		q    admin.TimelineQuery
		want int
	}{
		{admin.TimelineQuery{Since: n}, 0}, {admin.TimelineQuery{Since: n + 100}, 0}, {admin.TimelineQuery{Since: n - 1}, 1},
		{admin.TimelineQuery{Since: n - 10, Breaker: "odd"}, 5}, {admin.TimelineQuery{Since: n - 10, Cluster: "c"}, 5},
		{admin.TimelineQuery{Breaker: "odd", Cluster: "c"}, 0},
	} {
		if got := len(l.view(c.q).Entries); got != c.want {
			t.Errorf("%+v: %d entries, want %d", c.q, got, c.want)
		}
	}
}

// TestBecause: every cause has a sentence with its figures.
func TestBecause(t *testing.T) {
	for _, c := range []struct {
		t    breaker.Transition
		want string
	}{
		{breaker.Transition{Cause: breaker.ByRatio, Requests: 40, Failures: 21, Limit: 0.5}, "21 of 40 ends failed, 50 % and more are too many"},
		{breaker.Transition{Cause: breaker.ByTime}, "its open time is over"},
		{breaker.Transition{Cause: breaker.ByProbes, Requests: 5}, "5 probes went well"},
		{breaker.Transition{Cause: breaker.ByProbe}, "a probe failed"},
		{breaker.Transition{Cause: breaker.ByGoAway, By: "9 a second"}, "a storm of GOAWAYs: 9 a second"},
		{breaker.Transition{Cause: breaker.ByHand, By: "me"}, "by hand: me"},
		{breaker.Transition{Cause: breaker.ByHand, Held: time.Minute, By: "me"}, "held by hand for 1m0s: me"},
		{breaker.Transition{Cause: breaker.ByHand, Held: -1, By: "me"}, "held by hand until it is reset: me"},
		{breaker.Transition{Cause: breaker.ByPolicy}, "the policy switched it off"},
		{breaker.Transition{Cause: breaker.ByOverrun, By: "3 times"}, "far over its quota: 3 times"},
		{breaker.Transition{Cause: breaker.ByRestore, By: "replica b"}, "taken over from replica b"},
	} {
		if got := becauseOf(&c.t); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	for cause := breaker.ByRatio; cause.String() != "unknown"; cause++ {
		if got := becauseOf(&breaker.Transition{Cause: cause}); got == cause.String() || !strings.Contains(got, " ") {
			t.Errorf("%v has no sentence", cause)
		}
	}
}
