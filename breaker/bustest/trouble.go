package bustest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/breaker"
)

// What no replica would say is refused where it is said.
func refusesNonsense(t *testing.T, f *Fixture) {
	a := f.join(t)
	good := word("a", "good", 1)
	for name, spoil := range map[string]func(*breaker.Opinion){
		"zero":          func(o *breaker.Opinion) { *o = breaker.Opinion{} },
		"no replica":    func(o *breaker.Opinion) { o.Replica = "" },
		"long name":     func(o *breaker.Opinion) { o.Breaker = strings.Repeat("x", breaker.MaxName+1) },
		"state":         func(o *breaker.Opinion) { o.State = 9 },
		"more failures": func(o *breaker.Opinion) { o.Failures = o.Requests + 1 },
		"seq":           func(o *breaker.Opinion) { o.Seq = breaker.MaxSeq + 1 },
		"no ttl":        func(o *breaker.Opinion) { o.TTL = 0 },
	} {
		o := good
		spoil(&o)
		if err := a.Publish(context.Background(), o); err == nil {
			t.Errorf("%s: published", name)
		}
	}
	if stands := f.standing(t, 1); len(stands) != 0 {
		t.Errorf("stands: %+v", stands)
	}
}

// Garbage on the wire is skipped, whoever listens already or comes later.
func garbage(t *testing.T, f *Fixture) {
	if f.Garbage == nil {
		t.Skip("no way to put garbage there")
	}
	a, b := f.join(t), f.join(t)
	e := listen(t, b, nil)
	publish(t, a, word("a", "p", 1))
	e.hears(t, word("a", "p", 1))
	for n := 2; n < 5; n++ {
		f.Garbage()
		publish(t, a, word("a", "p", n))
		e.hears(t, word("a", "p", n))
	}
	stands := f.standing(t, 1)
	if _, ok := stands[word("a", "p", 1).Key()]; !ok || len(stands) != 1 {
		t.Errorf("stands: %+v, want one word", stands)
	}
}

// A replica that was cut off is told, comes back by itself and hears what was
// said meanwhile; the others notice nothing.
func gap(t *testing.T, f *Fixture) {
	if f.Cut == nil {
		t.Skip("no way to cut a bus off")
	}
	a, b := f.join(t), f.join(t)
	near, far := listen(t, a, nil), listen(t, b, nil)
	publish(t, a, word("a", "p", 1), word("a", "q", 1))
	far.hears(t, word("a", "p", 1))
	far.hears(t, word("a", "q", 1))
	mend := f.Cut(b)
	far.until(t, "down with an error", func() bool { return len(far.downs) > 0 && far.downs[0] != nil })
	short, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	asked := time.Now()
	_ = b.Publish(short, word("b", "p", 1)) // undelivered or delayed; but it returns
	if took := time.Since(asked); took > 2*time.Second {
		t.Errorf("Publish of a bus that is cut off took %v, its context ended after 200ms", took)
	}
	for n := 2; n <= 4; n++ {
		publish(t, a, word("a", "p", n), word("a", fmt.Sprint("new", n), n))
		near.hears(t, word("a", "p", n))
	}
	mend()
	for n := 2; n <= 4; n++ {
		far.hears(t, word("a", fmt.Sprint("new", n), n))
	}
	far.hears(t, word("a", "p", 4))
	far.until(t, "down with nil", func() bool { return far.downs[len(far.downs)-1] == nil })
	publish(t, b, word("b", "p", 2))
	near.hears(t, word("b", "p", 2))
	publish(t, a, word("a", "p", 5))
	far.hears(t, word("a", "p", 5))
	near.mu.Lock()
	defer near.mu.Unlock()
	if len(near.downs) > 0 {
		t.Errorf("the other replica was told: %v", near.downs)
	}
}

// A listener that is slow holds up nobody, and hears the latest in the end.
func slowListener(t *testing.T, f *Fixture) {
	a, b, c := f.join(t), f.join(t), f.join(t)
	gate := make(chan struct{})
	slow, quick := listen(t, b, gate), listen(t, c, nil)
	publish(t, a, word("a", "p", 1))
	quick.hears(t, word("a", "p", 1))
	for n := 2; n <= 500; n++ {
		publish(t, a, word("a", "p", n))
	}
	quick.hears(t, word("a", "p", 500))
	close(gate)
	slow.hears(t, word("a", "p", 500))
}

// An ended context ends Listen and Publish.
func contextEnds(t *testing.T, f *Fixture) {
	a := f.join(t)
	e := listen(t, a, nil)
	publish(t, a, word("a", "p", 1))
	e.hears(t, word("a", "p", 1))
	e.end(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Publish(ctx, word("a", "p", 2)); err == nil {
		t.Error("published with a context that had ended")
	}
	again := listen(t, a, nil) // the bus goes on
	publish(t, a, word("a", "p", 3))
	again.hears(t, word("a", "p", 3))
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.log); n != 1 {
		t.Errorf("%d words heard after the end, want none", n-1)
	}
}

// A closed bus says and hears nothing more; the others go on, and its words
// stand for their TTL.
func closes(t *testing.T, f *Fixture) {
	a, b := f.join(t), f.join(t)
	mine, other := listen(t, a, nil), listen(t, b, nil)
	publish(t, a, word("a", "p", 1))
	mine.hears(t, word("a", "p", 1))
	shut(t, a)
	mine.wasEnded(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := a.Publish(ctx, word("a", "p", 2)); err == nil || ctx.Err() != nil {
		t.Errorf("publish on a closed bus: %v, want an error at once", err)
	}
	shut(t, a) // a second time does nothing
	listen(t, a, nil).wasEnded(t)
	publish(t, b, word("b", "p", 1))
	other.hears(t, word("b", "p", 1))
	if got := f.standing(t, 1)[word("a", "p", 1).Key()]; got.Seq != first+1 {
		t.Errorf("stands: %+v, want its first word", got)
	}
}
