package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// wholeSlices is how many compute slices a whole GPU has under MIG (A100, H100,
// H200, B200: 7; an A30, which has 4, counts as less beside GPUs of another
// kind).
const wholeSlices = 7

// MaxSlices is the largest number of compute slices that is believed.
const MaxSlices = 16

// ProfileSlices is the number of compute slices of a MIG profile by its name
// ("3g.71gb", "1g.10gb+me": 3, 1); 0 = not known.
func ProfileSlices(profile string) int {
	digits := 0
	for digits < len(profile) && profile[digits] >= '0' && profile[digits] <= '9' {
		digits++
	}
	n, err := strconv.Atoi(profile[:digits])
	if err != nil || n > MaxSlices || digits == len(profile) || profile[digits] != 'g' {
		return 0
	}
	return n
}

// weight is the part that an instance is of its GPU's instances: its slices,
// or one where they are not known.
func (c *Card) weight() float64 { return float64(max(c.Slices, 1)) }

// weigh is how much a GPU counts beside others, of which its instances have so
// many slices; 0 slices = not known, or it has no instances: it is a whole one.
func weigh(slices int) float64 {
	if slices <= 0 {
		return 1
	}
	return min(float64(slices)/wholeSlices, 1)
}

// Total is what cards come to: how many GPUs they are, and the means of
// utilisation and activity over those that have one. Activity is that of the
// SMs, else of the engines.
//
// A GPU with MIG instances has no utilisation of its own (it is absent or stays
// 0): it is the mean of its instances, each weighed by its compute slices; where
// they tell nothing, its own engines' activity. Beside other GPUs it weighs as
// much as the slices that are told of. Of any other card a utilisation of 0
// beside an activity is no word: it may mean that the figure is not supported.
func Total(cards []Card) (gpus int, util, active Value) {
	byID := func(a, b Card) int { return strings.Compare(a.ID, b.ID) }
	if !slices.IsSortedFunc(cards, byID) {
		cards = slices.Clone(cards)
		slices.SortStableFunc(cards, byID)
	}
	var utils, actives mean
	for i := 0; i < len(cards); gpus++ {
		var b board
		for id := cards[i].ID; i < len(cards) && cards[i].ID == id; i++ {
			b.take(&cards[i])
		}
		utils.take(b.utilisation(), b.weight())
		actives.take(b.activity(), b.weight())
	}
	return gpus, utils.value(), actives.value()
}

// board is one GPU of some cards: itself and its instances.
type board struct {
	whole            *Card
	mig              bool
	slices           int  // of the instances
	blind            bool // slices are not known of each
	util, active, sm mean // of the instances
}

func (b *board) take(c *Card) {
	if c.Instance == "" {
		b.whole = c
		return
	}
	b.mig = true
	b.slices += c.Slices
	b.blind = b.blind || c.Slices <= 0
	b.util.take(word(c), c.weight())
	b.active.take(c.Active, c.weight())
	b.sm.take(c.SM, c.weight())
}

// word is a card's utilisation.
func word(c *Card) Value {
	if (!c.Util.OK || c.Util.V == 0) && c.Active.OK {
		return c.Active
	}
	return c.Util
}

func (b *board) weight() float64 {
	if b.blind {
		return 1
	}
	return weigh(b.slices)
}

func (b *board) utilisation() Value {
	if v := b.util.value(); v.OK {
		return v
	}
	switch {
	case b.whole == nil:
		return Value{}
	case b.mig:
		return b.whole.Active
	}
	return word(b.whole)
}

func (b *board) activity() Value {
	switch {
	case b.sm.weight > 0:
		return b.sm.value()
	case b.active.weight > 0:
		return b.active.value()
	case b.whole == nil:
		return Value{}
	}
	return activity(b.whole)
}

// mean gathers ratios.
type mean struct{ sum, weight float64 }

func (m *mean) take(v Value, weight float64) {
	if v.OK {
		m.sum += v.V * weight
		m.weight += weight
	}
}

func (m *mean) value() Value {
	if m.weight == 0 {
		return Value{}
	}
	return Some(m.sum / m.weight)
}
