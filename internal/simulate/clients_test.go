package simulate

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/admission"
	"github.com/weirproxy/weir/policy"
)

// How long a caller stays away after a refusal, by its habit.
func TestPauses(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name        string
		client      Client
		tries       uint64
		hint        time.Duration
		least, most time.Duration
		gone        bool
	}{
		{"obedient", Client{Kind: Obedient, Early: 1}, 1, 3 * s, 3 * s, 3 * s, false},
		{"obedient, again", Client{Kind: Obedient}, 4, 3 * s, 3 * s, 3 * s, false},
		{"obedient, without a hint", Client{Kind: Obedient, Early: 1}, 1, 0, 0, 0, true},
		{"early", Client{Kind: Obedient, Early: 0.25}, 1, 4 * s, s, s, false},
		{"early, an instant before", Client{Kind: Obedient, Early: 0.25}, 9, 1, time.Millisecond, time.Millisecond, false},
		{"backoff, first", Client{Kind: Backoff, Every: s}, 1, 0, s / 2, s, false},
		{"backoff, third", Client{Kind: Backoff, Every: s}, 3, 0, 2 * s, 4 * s, false},
		{"backoff, not before the hint", Client{Kind: Backoff, Every: s}, 1, 5 * s, 5 * s, 5 * s, false},
		{"backoff, for ever", Client{Kind: Backoff, Every: s}, 90, 0, s << 19, s << 20, false},
		{"stubborn", Client{Kind: Stubborn, Every: 100 * time.Millisecond}, 7, 9 * s, 100 * time.Millisecond, 100 * time.Millisecond, false},
		{"impatient", Client{Kind: Impatient, Every: s}, 1, s, 0, 0, true},
	} {
		w := &world{rng: rand.New(rand.NewPCG(1, 1))}
		least, most := c.most, c.least
		for range 200 {
			got, comes := w.pause(&caller{client: &c.client, tries: c.tries}, c.hint)
			if comes == c.gone {
				t.Fatalf("%s: comes back: %v", c.name, comes)
			}
			least, most = min(least, got), max(most, got)
		}
		slack := (c.most - c.least) / 20
		if least < c.least || least > c.least+slack || most > c.most || most < c.most-slack {
			t.Errorf("%s: pauses of %v..%v, want %v..%v", c.name, least, most, c.least, c.most)
		}
	}
}

// busy is a world of one place that is always taken: of requests that take
// 10 s and come each 100 ms only one is served at a time.
func busy(c Client) *Scenario {
	return places(10, time.Second, client(c), func(s *Scenario) {
		s.Arrivals[0].Even = true
		s.Engines["chat-fp16"].Service.Places, s.Engines["chat-fp16"].Service.Time = 1, 10*time.Second
	})
}

// closed lets nobody wait.
func closed(p *policy.Policy) {
	p.Queue.Length.Min, p.Queue.Length.Max = 0, 0
	p.RetryAfter.Jitter = 0
}

func tries(r *Result) (n int) {
	for _, k := range r.Reasons {
		n += k
	}
	return n
}

// Tries and patience bound how often a caller asks.
func TestGivingUp(t *testing.T) {
	for _, c := range []struct {
		name   string
		client Client
		tries  int // of ten callers, the first of which is served at once
		served int
	}{
		{"three tries", Client{Kind: Stubborn, Every: 50 * time.Millisecond, Tries: 3}, 1 + 9*3, 1},
		{"patience of half a second", Client{Kind: Stubborn, Every: 200 * time.Millisecond, Patience: 500 * time.Millisecond}, 1 + 9*3, 1},
		{"impatient", Client{Kind: Impatient, Patience: time.Minute}, 1 + 9, 1},
		{"impatient, hangs up on its seat", Client{Kind: Impatient, Patience: 350 * time.Millisecond}, 10, 0},
	} {
		r := play(t, busy(c.client), one(1, closed))
		if served := r.Requests - r.Failed; r.Requests != 10 || tries(r) != c.tries || served != c.served {
			t.Errorf("%s: %d requests, %d tries, %d served, want 10, %d, %d", c.name, r.Requests, tries(r), served, c.tries, c.served)
		}
	}
}

// Who hangs up in the line leaves it, and is decided as gone.
func TestHangingUpInTheLine(t *testing.T) {
	s := busy(Client{Kind: Impatient, Patience: 300 * time.Millisecond})
	first := s.Arrivals[0]
	first.To, s.Arrivals[0].From = 100*time.Millisecond, 100*time.Millisecond
	first.Clients = []Client{{Share: 1, Kind: Obedient, Tries: 1}} // stays
	s.Arrivals = append(s.Arrivals, first)
	r := play(t, s, one(1, endless))
	if r.Reasons[admission.ClientGone.String()] != 9 || r.Reasons[admission.Admitted.String()] != 1 || r.Failed != 9 {
		t.Errorf("reasons %v, failed %d: want one admitted and nine who leave", r.Reasons, r.Failed)
	}
}

// A caller's own deadline ends its try on the seat as well.
func TestDeadline(t *testing.T) {
	s := busy(Client{Kind: Obedient, Tries: 1})
	s.Requests[0].Deadline = 250 * time.Millisecond
	r := play(t, s, one(1, endless))
	if r.Failed != 10 || r.Reasons[admission.Admitted.String()] < 3 {
		t.Errorf("failed %d, reasons %v: want all ten cut short, three or more of them on the seat", r.Failed, r.Reasons)
	}
}

// An obedient caller that comes at its hint counts as admitted in the burst
// when it is let in within 5 s of its first send.
func TestReturnAtTheHintCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		client Client
		takes  time.Duration
		want   float64 // of two callers, the first of which is served at once
	}{
		{"in time", Client{Kind: Obedient}, 900 * time.Millisecond, 1},
		{"too late", Client{Kind: Obedient, Tries: 100}, 8 * time.Second, 0.5},
		{"not at a hint", Client{Kind: Stubborn, Every: 100 * time.Millisecond}, 900 * time.Millisecond, 0.5},
		{"waits for the hint by itself", Client{Kind: Backoff, Every: time.Second}, 900 * time.Millisecond, 1},
	} {
		s := places(10, 200*time.Millisecond, client(c.client), func(s *Scenario) {
			s.Arrivals[0].Even, s.Arrivals[0].Burst = true, true
			s.Engines["chat-fp16"].Service.Places, s.Engines["chat-fp16"].Service.Time = 1, c.takes
		})
		r := play(t, s, one(1, closed))
		if *r.BurstAdmitted != c.want || *r.BurstAdmittedFirst != 0.5 || r.Requests != 2 || r.Failed != 0 {
			t.Errorf("%s: admitted %v, first %v, of %d, failed %d: want %v, 0.5, 2, 0", c.name, *r.BurstAdmitted, *r.BurstAdmittedFirst, r.Requests, r.Failed, c.want)
		}
	}
}

// How true hints were is judged by those who obey, and once for each of them;
// a wave is the most that come back in any second.
func TestHintsAreJudged(t *testing.T) {
	w := &world{}
	for _, second := range []struct {
		at   time.Duration
		wave int
	}{{0, 1}, {900, 2}, {999, 3}, {1000, 3}, {1950, 3}, {5000, 3}, {5001, 3}, {5002, 3}, {5003, 4}} {
		w.tally.cameBack(second.at * time.Millisecond)
		if w.tally.wave != second.wave {
			t.Errorf("after a return at %d ms the wave is %d, want %d", second.at, w.tally.wave, second.wave)
		}
	}
	obeys := &Client{Kind: Obedient, Early: 1}
	for _, c := range []struct {
		client *Client
		in     time.Duration // when it is let in; it was told 4 s at 1 s
	}{{obeys, 5 * time.Second}, {obeys, 6 * time.Second}, {obeys, 3 * time.Second}, {&Client{Kind: Obedient, Early: 0.5}, 99 * time.Second}, {&Client{Kind: Stubborn}, 99 * time.Second}} {
		w.now = c.in
		k := &caller{client: c.client, told: time.Second, hint: 4 * time.Second}
		w.tally.judgeHint(w, k)
		w.tally.judgeHint(w, k) // counts once
	}
	if want := []float64{0, 0.25, 0.5}; !slices.Equal(w.tally.errors, want) {
		t.Errorf("errors %v, want %v", w.tally.errors, want)
	}
}

// Who is told a hint and never comes back says nothing of it.
func TestHintsOfTheAbsentAreNotJudged(t *testing.T) {
	s := places(10, 200*time.Millisecond, client(Client{Kind: Obedient, Tries: 1}), func(s *Scenario) {
		s.Arrivals[0].Even = true
		s.Engines["chat-fp16"].Service.Places, s.Engines["chat-fp16"].Service.Time = 1, 900*time.Millisecond
	})
	r := play(t, s, one(1, closed))
	if want := (HintResult{Given: 1}); r.Hints != want {
		t.Errorf("%+v, want %+v", r.Hints, want)
	}
	var b bytes.Buffer
	if err := WriteTable(&b, []*Result{r}); err != nil {
		t.Fatal(err)
	}
	if row := strings.Fields(b.String()[strings.LastIndex(b.String(), "test "):]); !slices.Equal(row[:5], []string{"test", "1", "-", "-", "-"}) {
		t.Errorf("row %q", row)
	}
}
