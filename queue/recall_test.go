package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// Who moves from one line to another has its place among those of its flow by
// when it came, whether or not the line has room, and its time goes on.
func TestResumeKeepsTheOrder(t *testing.T) {
	from, _ := full(t, standardConfig(1, 0))
	to, held := full(t, standardConfig(1, 0))
	b := Bounds{Length: 2}
	var ws []*Waiter
	for i := range 4 { // by turns: here 0 and 2, there 1 and 3
		w := waiter(policy.Standard, "a")
		w.MaxWait = time.Second
		l := from
		if i%2 == 1 {
			l = to
		}
		mustWait(t, l, at(time.Duration(i)*ms), w, b)
		ws = append(ws, w)
	}
	for _, i := range []int{0, 2} {
		was, ok := from.Recall(at(10*ms), ws[i])
		if !ok || was.Waited != time.Duration(10-i)*ms {
			t.Fatalf("%+v %v", was, ok)
		}
		if o := to.Resume(at(10*ms), ws[i], b, was); o.Refusal != Taken || o.Granted {
			t.Fatalf("%+v: it had a place", o)
		}
	}
	if _, again := from.Recall(at(10*ms), ws[0]); again {
		t.Error("taken out twice")
	}
	for i := range 3 {
		exits := to.Release(at(time.Duration(20+i)*ms), held[0])
		if len(exits) != 1 || exits[0].Waiter != ws[i] || exits[0].Waited != time.Duration(20)*ms {
			t.Fatalf("release %d: %+v, want %d after 20 ms", i, exits, i)
		}
		held[0] = ws[i]
	}
	if exits := to.Advance(at(3*ms + time.Second)); len(exits) != 1 || exits[0].Waiter != ws[3] || exits[0].Granted {
		t.Errorf("%+v", exits)
	}
	if s := from.Stats(at(time.Second)); s.Waiting != [policy.NumClasses]int{} || s.HeldBytes != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

// One whose time is over when it moves goes to the retry queue where its class
// does, gets a free seat where there is one, or leaves with the next Advance.
func TestResumeAfterTheTime(t *testing.T) {
	for _, c := range []struct {
		expiry policy.Expiry
		free   bool
		want   string
	}{
		{policy.ExpireDrop, true, "granted"},
		{policy.ExpireRetry, true, "granted"},
		{policy.ExpireDrop, false, "left"},
		{policy.ExpireRetry, false, "retries"},
	} {
		l, held := full(t, standardConfig(1, 0))
		if c.free {
			l.Release(at(0), held[0])
		}
		w := waiter(policy.Batch, "a")
		w.MaxWait, w.OnExpiry = 100*ms, c.expiry
		b := Bounds{Length: 10, RetryLimit: time.Second, RetryLen: 0} // full, but it was in one
		o := l.Resume(at(200*ms), w, b, Recalled{Waiter: w, Waited: 300 * ms, Retried: true})
		exits := l.Advance(at(200 * ms))
		got := fmt.Sprint(o, exits)
		switch {
		case o.Granted && len(exits) == 0:
			got = "granted"
		case len(exits) == 1 && !exits[0].Granted && exits[0].Waited == 300*ms:
			got = "left"
		case l.Stats(at(200*ms)).Retrying == 1:
			got = "retries"
			if next, ok := l.Next(); !ok || !next.Equal(at(1000*ms)) {
				t.Errorf("it retries until %v, want 1.1 s after it came", next)
			}
		}
		if got != c.want {
			t.Errorf("%v, a free seat %v: %s, want %s", c.expiry, c.free, got, c.want)
		}
	}
}
