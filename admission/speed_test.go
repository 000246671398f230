package admission

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

const ms = time.Millisecond

// feed lets a pool learn n answers of an engine that needs base + prompt a
// prompt token to the first token, and token for each one of output.
func feed(s *speeds, now time.Time, n int, stream bool, base, prompt, token time.Duration) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range n {
		u := Usage{Known: true, Input: 100 + rng.Int64N(1900), Output: 1 + rng.Int64N(300)}
		first := base + time.Duration(u.Input)*prompt
		total := first + time.Duration(u.Output)*token
		if !stream {
			first = total // the headers come with the answer
		}
		s.learn(now, "m", stream, first, total, &u)
	}
}

func within(t *testing.T, what string, got, want time.Duration, share float64) {
	t.Helper()
	if math.Abs(float64(got-want)) > share*float64(want) {
		t.Errorf("%s: %s, want %s within %g %%", what, got, want, 100*share)
	}
}

// P4: run time = time to first token, by the prompt, + output * time per
// token; cold at first; follows the engine.
func TestSpeed(t *testing.T) {
	s := newSpeeds()
	feed(s, start, warm-1, true, 50*ms, 100*time.Microsecond, 20*ms)
	if _, known := s.predict("m", 1000, 100); known || s.list() != nil {
		t.Error("predicts before it is warm")
	}
	feed(s, start, 200, true, 50*ms, 100*time.Microsecond, 20*ms)
	run, known := s.predict("m", 1000, 100)
	if !known {
		t.Fatal("still cold after 219 answers")
	}
	within(t, "1000 tokens in, 100 out", run, 2150*ms, 0.01)
	run, _ = s.predict("m", 0, 0)
	within(t, "nothing in, nothing out", run, 50*ms, 0.01)
	if _, known := s.predict("other", 1, 1); known {
		t.Error("another model is known")
	}
	feed(s, start, 200, true, 200*ms, 0, 5*ms)
	run, _ = s.predict("m", 1000, 100)
	within(t, "the engine has changed", run, 700*ms, 0.01)
	if l := s.list(); len(l) != 1 || l[0].Model != "m" {
		t.Fatalf("%+v", l)
	} else {
		within(t, "per output token", l[0].OutputToken, 5*ms, 0.01)
	}
}

// Answers that do not stream tell the total alone: the begin is what streams
// have taught, and else all is the output's; without output all is the begin.
func TestSpeedWithoutStreams(t *testing.T) {
	s := newSpeeds()
	feed(s, start, 100, true, 500*ms, 0, 10*ms)
	feed(s, start, 100, false, 500*ms, 0, 10*ms)
	run, _ := s.predict("m", 1000, 100)
	within(t, "streams and others", run, 1500*ms, 0.01)
	within(t, "latency is that of streams", s.recent(start), 500*ms, 0.01)

	s = newSpeeds()
	for range warm {
		s.learn(start, "m", false, 0, time.Second, &Usage{Known: true, Input: 100, Output: 50})
	}
	run, _ = s.predict("m", 100, 25)
	within(t, "none streams", run, 500*ms, 0.001)
	if got := s.recent(start); got != 0 {
		t.Errorf("latency %s without a stream", got)
	}

	s = newSpeeds()
	for range warm {
		s.learn(start, "m", false, 30*ms, 30*ms, &Usage{Known: true, Input: 100})
	}
	run, known := s.predict("m", 100, 0)
	if !known {
		t.Error("embeddings are not learnt")
	}
	within(t, "embeddings", run, 30*ms, 0.001)
}

// V3: a latency that nobody confirms is forgotten, so that a pool avoided for
// it is tried again.
func TestLatencyIsForgotten(t *testing.T) {
	p := house(1)
	l := newTestCore(p).floor.Load().order[0]
	if got := l.speeds.recent(start); got != 0 {
		t.Errorf("at first: %s", got)
	}
	feed(l.speeds, start, 10, true, 80*ms, 0, ms)
	within(t, "just learnt", l.speeds.recent(start.Add(latencyFor)), 80*ms, 0.001)
	if got := l.speeds.recent(start.Add(latencyFor + 1)); got != 0 {
		t.Errorf("after %s: %s", latencyFor, got)
	}
	within(t, "the clock went back", l.speeds.recent(start.Add(-time.Hour)), 80*ms, 0.001)
	feed(l.speeds, start, 1, true, 1, 0, ms) // a first token at once is a value like any other
	within(t, "a mean that sinks", l.speeds.recent(start), 80*ms*10/11, 0.001)
}

// Whatever ends report, predictions are within bounds and never negative, and
// the number of models is bounded.
func TestSpeedBounds(t *testing.T) {
	s := newSpeeds()
	rng := rand.New(rand.NewPCG(7, 8))
	wild := func() int64 { return (rng.Int64() >> rng.IntN(64)) * int64(1-2*rng.IntN(2)) }
	for range 20000 {
		s.learn(start, "m", rng.IntN(2) == 0, time.Duration(wild()), time.Duration(wild()), &Usage{Known: true, Input: wild(), Output: wild()})
		if run, _ := s.predict("m", max(wild(), 0), max(wild(), 0)); run < 0 || run > maxRun {
			t.Fatalf("predicts %s", run)
		}
		if l := s.recent(start); l < 0 || l > maxRun {
			t.Fatalf("latency %s", l)
		}
	}
	for i := range 2 * maxSpeeds {
		feedOne := Usage{Known: true, Output: 1}
		s.learn(start, name("m", i), true, ms, 2*ms, &feedOne)
	}
	if n := len(*s.models.Load()); n != maxSpeeds {
		t.Errorf("%d models kept, want %d", n, maxSpeeds)
	}
}

// Learning and predicting at the same time (for the race detector).
func TestSpeedConcurrent(t *testing.T) {
	s := newSpeeds()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { feed(s, start, 500, true, 50*ms, 0, ms) })
		wg.Go(func() {
			for range 500 {
				s.predict("m", 100, 100)
				s.recent(start)
				s.list()
			}
		})
	}
	wg.Wait()
	run, _ := s.predict("m", 100, 100)
	within(t, "in the end", run, 150*ms, 0.001)
}

func TestSpeedPredictDoesNotAllocate(t *testing.T) {
	s := newSpeeds()
	feed(s, start, 100, true, 50*ms, 0, ms)
	if n := testing.AllocsPerRun(100, func() { s.predict("m", 100, 100) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
