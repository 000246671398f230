package breaker

import (
	"testing"
	"time"
)

// B3: who is shed is told when the longest open time that peers speak of is
// over, counted from when each word was heard.
func TestBallotOpenUntil(t *testing.T) {
	p := defaults()
	co := NewCouncil("me", p)
	b := co.Ballot(at(0), "p", HTTP)
	for _, step := range []struct {
		at      time.Duration
		replica string
		state   State
		left    time.Duration
		want    time.Duration // 0 = nobody says so
	}{
		{0, "a", Closed, 0, 0},
		{1 * sec, "b", Hard, 5 * sec, 6 * sec},
		{2 * sec, "c", Soft, 2 * sec, 6 * sec},
		{3 * sec, "a", Hard, 9 * sec, 12 * sec},
		{4 * sec, "a", Closed, 0, 6 * sec},
		{4 * sec, "b", HalfOpen, 0, 4 * sec},
		{17*sec - 1, "", 0, 0, 4 * sec},
		{17 * sec, "", 0, 0, 0}, // c's word is over
	} {
		if step.replica != "" {
			o := says(step.replica, uint64(step.at)+1, step.state, 20)
			o.Left = step.left
			co.Hear(at(step.at), o)
		}
		if got, want := b.OpenUntil(at(step.at)), at(step.want); step.want != 0 && !got.Equal(want) || step.want == 0 && !got.IsZero() {
			t.Errorf("at %v: %v, want %v", step.at, got, step.want)
		}
	}
	p.Cascade.Literal = true
	co.Configure(at(20*sec), p)
	o := says("a", uint64(30*sec), Hard, 0)
	o.Breaker, o.Left = "another", 7*sec
	co.Hear(at(20*sec), o)
	if got := b.OpenUntil(at(21 * sec)); !got.Equal(at(27 * sec)) {
		t.Errorf("literal, of another pool: %v", got)
	}
}
