package gpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weirproxy/weir/gpu"
)

// A MIG instance weighs as much in its GPU, and its GPU among others, as it has
// compute slices.
func TestTotal(t *testing.T) {
	some, none := gpu.Some, gpu.Value{}
	part := func(id, instance string, slices int, active float64) gpu.Card {
		return gpu.Card{ID: id, Instance: instance, Slices: slices, Util: some(active), Active: some(active)}
	}
	silent := func(id, instance string, slices int) gpu.Card {
		return gpu.Card{ID: id, Instance: instance, Slices: slices}
	}
	for name, tt := range map[string]struct {
		cards        []gpu.Card
		gpus         int
		util, active gpu.Value
	}{
		"nothing":                     {nil, 0, none, none},
		"two GPUs":                    {[]gpu.Card{{ID: "b", Util: some(0.2)}, {ID: "a", Util: some(0.6), Active: some(0.5), SM: some(0.1)}}, 2, some(0.4), some(0.1)},
		"a 0 beside an activity":      {[]gpu.Card{{ID: "a", Util: some(0), Active: some(0.5)}}, 1, some(0.5), some(0.5)},
		"3g and 1g":                   {[]gpu.Card{part("a", "1", 3, 0.9), part("a", "2", 1, 0.1)}, 1, some(0.7), some(0.7)},
		"apart from each other":       {[]gpu.Card{part("b", "1", 3, 0.9), part("a", "1", 7, 0.5), part("b", "2", 4, 0.2)}, 2, some(0.5), some(0.5)}, // b: (2.7+0.8)/7
		"sizes not known":             {[]gpu.Card{part("a", "1", 0, 0.9), part("a", "2", 0, 0.1)}, 1, some(0.5), some(0.5)},
		"one size not known":          {[]gpu.Card{{ID: "b", Util: some(0)}, part("a", "1", 3, 0.8), part("a", "2", 0, 0.8)}, 2, some(0.4), some(0.8)},
		"the whole stays 0":           {[]gpu.Card{{ID: "a", Util: some(0), Active: some(0)}, part("a", "1", 2, 0.6)}, 1, some(0.6), some(0.6)},
		"silent instances":            {[]gpu.Card{{ID: "a", Util: some(0), Active: some(0.3)}, silent("a", "1", 3)}, 1, some(0.3), some(0.3)},
		"silent instances, no ratio":  {[]gpu.Card{{ID: "a", Util: some(0)}, silent("a", "1", 3)}, 1, none, none},
		"one of two is silent":        {[]gpu.Card{part("a", "1", 3, 0.9), silent("a", "2", 4)}, 1, some(0.9), some(0.9)},
		"1g beside a whole one":       {[]gpu.Card{{ID: "b", Util: some(0.8)}, part("a", "1", 1, 0)}, 2, some(0.7), some(0)}, // 0.8*7/8
		"more slices than there are":  {[]gpu.Card{{ID: "b", Util: some(1)}, part("a", "1", 8, 0.5), part("a", "2", 8, 0.5)}, 2, some(0.75), some(0.5)},
		"SMs of one instance of two":  {[]gpu.Card{{ID: "a", Instance: "1", Slices: 1, Active: some(0.9), SM: some(0.4)}, part("a", "2", 1, 0.5)}, 1, some(0.7), some(0.4)},
		"instances without the whole": {[]gpu.Card{silent("a", "1", 1)}, 1, none, none},
	} {
		gpus, util, active := gpu.Total(tt.cards)
		if gpus != tt.gpus || !alike(util, tt.util) || !alike(active, tt.active) {
			t.Errorf("%s: %d GPUs, %v and %v; want %d, %v and %v", name, gpus, util, active, tt.gpus, tt.util, tt.active)
		}
	}
}

func alike(a, b gpu.Value) bool { return a.OK == b.OK && math.Abs(a.V-b.V) < 1e-9 }

// The order of cards does not matter, and a mean is between its values.
func TestTotalInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		var cards []gpu.Card
		least, most := 1.0, 0.0
		for range 1 + rng.IntN(12) {
			v := rng.Float64()
			least, most = min(least, v), max(most, v)
			cards = append(cards, gpu.Card{ID: string(rune('a' + rng.IntN(4))), Instance: string(rune('1' + rng.IntN(3))), Slices: rng.IntN(8), Util: gpu.Some(v), Active: gpu.Some(v)})
		}
		gpus, util, active := gpu.Total(cards)
		if !util.OK || util.V < least-1e-9 || util.V > most+1e-9 || util != active {
			t.Fatalf("%v and %v of %+v", util, active, cards)
		}
		rng.Shuffle(len(cards), func(i, j int) { cards[i], cards[j] = cards[j], cards[i] })
		if n, u, a := gpu.Total(cards); n != gpus || !alike(u, util) || !alike(a, active) {
			t.Fatalf("in another order %v and %v, was %v and %v: %+v", u, a, util, active, cards)
		}
	}
}

func TestProfileSlices(t *testing.T) {
	for profile, want := range map[string]int{
		"1g.10gb": 1, "3g.71gb": 3, "7g.80gb": 7, "1g.10gb+me": 1, "1g": 1, "12g.1gb": 12, "": 0, "g": 0, "3": 0, "3c.3g": 0, "0g.1gb": 0, "17g.1gb": 0, "99999999999999999999g": 0, "-1g": 0,
	} {
		if got := gpu.ProfileSlices(profile); got != want {
			t.Errorf("%q has %d slices, want %d", profile, got, want)
		}
	}
}
