package scrape

import (
	"time"

	"github.com/weirproxy/weir/gpu"
)

// triton reads a text that tells of its engine and of the GPUs under it. The
// GPUs alone are no word of the engine.
type triton struct {
	engines *engines
	cards   *cards
}

func (t *triton) begin(now time.Time) {
	t.engines.begin(now)
	t.cards.begin(now)
}

func (t *triton) want(name []byte) bool { return t.engines.want(name) || t.cards.want(name) }

func (t *triton) typed(name, kind []byte) { t.engines.typed(name, kind) }

func (t *triton) take(s *series) {
	if t.engines.want(s.name) {
		t.engines.take(s)
	} else {
		t.cards.take(s)
	}
}

func (t *triton) end() (gpu.Sample, error) {
	s, err := t.engines.end()
	if err != nil {
		return gpu.Sample{}, err
	}
	d, err := t.cards.end()
	if err != nil {
		return s, nil // it was told not to name its GPUs
	}
	s.Util, s.GPUs, s.Cards = d.Util, d.GPUs, d.Cards
	s.Dropped += d.Dropped
	for f, n := range d.Faults {
		s.Faults[f] += n
	}
	return s, nil
}
