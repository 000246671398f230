package queue

import (
	"math"
	"slices"
	"time"
)

// What the tuner goes by: first tokens, and the last few looks.
const (
	firstWindow = 20 * time.Second // the percentile's, for room
	firstRecent = 10 * time.Second // for too many
	firstKept   = 2048             // most times in it
	firstFew    = 5                // fewer times make no percentile
	firstShare  = 0.95             // the percentile

	looksKept   = 10 // samples of the engine
	looksFew    = 3  // of them: what all of the last few show stands
	glancesKept = 15 // looks
)

// firstToken is one answer that began.
type firstToken struct {
	at   time.Time
	took time.Duration
}

// glance is what is kept of a look.
type glance struct {
	at     time.Time
	silent int64
	ended  uint64
}

// First notes an answer that began, so long after it got its seat. Only for
// requests that stream: others begin when they end.
func (t *Tuner) First(now time.Time, took time.Duration) {
	if len(t.first) == firstKept {
		t.first = slices.Delete(t.first, 0, firstKept/4)
	}
	t.first = append(t.first, firstToken{now, max(took, 0)})
}

// push appends, and forgets the oldest ones over n.
func push[T any](list []T, v T, n int) []T {
	if len(list) >= n {
		list = slices.Delete(list, 0, len(list)-n+1)
	}
	return append(list, v)
}

// note keeps what the look brings.
func (t *Tuner) note(now time.Time, l Look) {
	t.glances = push(t.glances, glance{now, l.Silent, l.Ended}, glancesKept)
	if l.Engine.At.IsZero() {
		t.looks, t.held.list = t.looks[:0], t.held.list[:0]
		return
	}
	if n := len(t.looks); n == 0 || t.looks[n-1].At != l.Engine.At {
		t.looks = push(t.looks, l.Engine, looksKept)
		t.held.note(l)
	}
}

// firsts is what the first tokens say.
type firsts struct {
	took time.Duration // the recent percentile among requests seated since the last cut; 0 = too few
	calm time.Duration // the percentile of a longer time; 0 = too few
	rate float64       // answers that began, or seats that came free, per second; 0 = too few
	late int64         // at least so many wait for theirs longer than the target
	n    int           // in the window
}

func (t *Tuner) firstTokens(now time.Time) (f firsts) {
	gone := slices.IndexFunc(t.first, func(b firstToken) bool { return now.Sub(b.at) <= firstWindow })
	if gone < 0 {
		gone = len(t.first)
	}
	t.first = slices.Delete(t.first, 0, gone)
	f.calm = t.percentile(func(firstToken) bool { return true })
	f.took = t.percentile(func(b firstToken) bool {
		return now.Sub(b.at) <= firstRecent && !b.at.Add(-b.took).Before(t.cut)
	})
	if f.n = len(t.first); f.n >= firstFew {
		f.rate = float64(f.n) / max(now.Sub(t.first[0].at).Seconds(), 1)
	}
	old, newest := t.glances[0], t.glances[len(t.glances)-1]
	if ended := newest.ended - old.ended; ended >= firstFew {
		f.rate = max(f.rate, float64(ended)/newest.at.Sub(old.at).Seconds())
	}
	f.late = t.overdue(now)
	return f
}

// percentile of the times that count; 0 = too few.
func (t *Tuner) percentile(counts func(firstToken) bool) time.Duration {
	t.scratch = t.scratch[:0]
	for _, b := range t.first {
		if counts(b) {
			t.scratch = append(t.scratch, b.took)
		}
	}
	slices.Sort(t.scratch)
	if n := len(t.scratch); n >= firstFew {
		return t.scratch[int(math.Ceil(firstShare*float64(n)))-1]
	}
	return 0
}

// overdue is a lower bound on those late: those that were silent a target ago,
// less the answers that began since, and not more than are silent now.
func (t *Tuner) overdue(now time.Time) int64 {
	if t.bounds.TTFT <= 0 {
		return 0
	}
	for i := len(t.glances) - 1; i >= 0; i-- {
		g := t.glances[i]
		if now.Sub(g.at) < t.bounds.TTFT {
			continue
		}
		for _, b := range t.first {
			if b.at.After(g.at) {
				g.silent--
			}
		}
		return max(min(g.silent, t.glances[len(t.glances)-1].silent), 0)
	}
	return 0
}

// standing is how many requests wait in the engine all the time, and mean how
// many in the mean of a longer time.
func (t *Tuner) standing() (n, mean float64, ok bool) {
	if len(t.looks) < looksFew {
		return 0, 0, false
	}
	n = math.Inf(1)
	for i, e := range t.looks {
		if !e.Waiting.OK {
			return 0, 0, false
		}
		mean += e.Waiting.V / float64(len(t.looks))
		if i >= len(t.looks)-looksFew {
			n = min(n, e.Waiting.V)
		}
	}
	return n, mean, true
}
