package queue

import (
	"math"
	"testing"
	"time"
)

// held makes holdings of samples of so many requests that hold these shares.
func held(n int64, shares ...float64) (h holdings) {
	for i, kv := range shares {
		h.note(Look{Used: n, Engine: Engine{At: time.Unix(int64(i), 0), KV: Word{kv, true}}})
	}
	return h
}

// sways gives k shares, in turns so much over and under a mean.
func sways(k int, mean, by float64) (list []float64) {
	for i := range k {
		list = append(list, mean+by*float64(1-2*(i%2)))
	}
	return list
}

// TestRoomOfTheCache: n * mean + sure * uneven * sqrt(n) = 0.95, by hand.
func TestRoomOfTheCache(t *testing.T) {
	for _, c := range []struct {
		name   string
		n      int64
		shares []float64
		sure   float64
		want   float64
	}{
		{"nothing known", 10, nil, 1, math.Inf(1)},
		{"too few", 10, sways(4, 0.1, 0), 1, math.Inf(1)},
		{"even", 50, sways(20, 0.5, 0), 1, 95},
		{"uneven, no margin", 50, sways(20, 0.5, 0.05), 0, 95},
		{"uneven", 100, sways(20, 1, 0.1), 1, 85.74}, // uneven is 0.1 / sqrt(100)
		{"twice the margin", 100, sways(20, 1, 0.1), 2, 77.40},
		{"half of the cache lost", 40, append(sways(20, 0.4, 0.01), sways(5, 0.8, 0.01)...), 0, 60.96},  // four of before are kept: 9*40*0.95/5.61
		{"a longer answer or two", 40, append(sways(20, 0.4, 0.04), sways(5, 0.44, 0.04)...), 0, 92.77}, // nothing is dropped: 25*40*0.95/10.24
		{"no share of a cache", 40, []float64{math.NaN(), math.Inf(1), -1, 0, 1e-9, 50}, 0, math.Inf(1)},
	} {
		h := held(c.n, c.shares...)
		if got := h.room(c.sure); got != c.want && !(math.Abs(got-c.want) < 0.01) {
			t.Errorf("%s: room for %.2f, want %.2f", c.name, got, c.want)
		}
	}
}

// TestHoldersOfTheCache: those who wait in the engine hold nothing, by its word
// of who runs, else of who waits.
func TestHoldersOfTheCache(t *testing.T) {
	for _, c := range []struct {
		waiting, running Word
		want             float64
	}{
		{Word{}, Word{}, 40},
		{Word{10, true}, Word{}, 30},
		{Word{10, true}, Word{25, true}, 25},
		{Word{}, Word{90, true}, 40}, // others' too
		{Word{40, true}, Word{}, 0},  // nobody
		{Word{math.Inf(1), true}, Word{}, 0},
		{Word{}, Word{math.NaN(), true}, 0},
	} {
		var h holdings
		h.note(Look{Used: 40, Engine: Engine{Waiting: c.waiting, Running: c.running, KV: Word{0.5, true}}})
		got := 0.0
		if len(h.list) > 0 {
			got = h.list[0].n
		}
		if got != c.want {
			t.Errorf("waiting %v, running %v: %v hold the cache, want %v", c.waiting, c.running, got, c.want)
		}
	}
}
