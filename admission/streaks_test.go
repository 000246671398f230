package admission

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Failures in a row of each tenant: a success ends them, silence too.
func TestStreaks(t *testing.T) {
	s := &streaks{base: start}
	at := func(d time.Duration) time.Time { return start.Add(d) }
	for i := 1; i <= 3; i++ {
		if n := s.strike(at(time.Duration(i)*time.Second), "a", time.Minute); n != i {
			t.Errorf("failure %d: %d in a row", i, n)
		}
	}
	if n := s.strike(at(3*time.Second), "b", time.Minute); n != 1 {
		t.Errorf("another tenant's first failure: %d in a row", n)
	}
	if n := s.find(at(63*time.Second), "a", time.Minute); n != 3 {
		t.Errorf("after a minute of silence: %d", n)
	}
	if n := s.find(at(63*time.Second+1), "a", time.Minute); n != 0 {
		t.Errorf("after more: %d", n)
	}
	s.end("a")
	if a, b := s.find(at(3*time.Second), "a", time.Minute), s.find(at(3*time.Second), "b", time.Minute); a != 0 || b != 1 {
		t.Errorf("after a success of a: %d of a, %d of b", a, b)
	}
	if n := s.strike(at(70*time.Second), "b", time.Minute); n != 1 {
		t.Errorf("after silence: %d in a row", n)
	}
	s.end("b")
	s.end("b")
	if n := s.strike(at(0), "", time.Minute); n != 1 || s.known.Load() != 0 {
		t.Errorf("of nobody: %d, %d known", n, s.known.Load())
	}
}

// Whatever comes, memory is bounded, who failed last is known, and who has
// many failures is not driven out by those who were silent longer.
func TestStreaksAreBounded(t *testing.T) {
	s := &streaks{base: start}
	for i := range 100_000 {
		now := start.Add(time.Duration(i) * time.Microsecond)
		if n := s.strike(now, name("tenant", i), time.Hour); n != 1 {
			t.Fatalf("%d: %d in a row", i, n)
		}
		if s.find(now, name("tenant", i), time.Hour) != 1 {
			t.Fatalf("%d was not kept", i)
		}
		if i%10 == 0 {
			s.strike(now, "steady", time.Hour)
		}
	}
	if n := s.find(start.Add(time.Second), "steady", time.Hour); n != 10_000 {
		t.Errorf("the steady one has %d in a row, want 10000", n)
	}
	if n := s.known.Load(); n != streakSets*streakWays {
		t.Errorf("%d known, want %d: all places", n, streakSets*streakWays)
	}
}

func TestStreaksFromManySides(t *testing.T) {
	s := &streaks{base: start}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 2000 {
				tenant := name("t", rng.IntN(4000))
				if rng.IntN(3) == 0 {
					s.end(tenant)
				} else if n := s.strike(start, tenant, time.Hour); n < 1 {
					t.Error("less than one")
				}
				s.find(start, tenant, time.Hour)
			}
		})
	}
	all.Wait()
	kept := int64(0)
	for i := range s.sets.Load() {
		for _, w := range s.sets.Load()[i].ways {
			if w.tenant != "" {
				kept++
			}
		}
	}
	if n := s.known.Load(); n != kept {
		t.Errorf("%d known, %d kept", n, kept)
	}
}

func BenchmarkStreakOfNobody(b *testing.B) {
	s := &streaks{base: start}
	for b.Loop() {
		s.end("acme")
	}
}
