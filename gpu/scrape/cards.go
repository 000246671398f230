package scrape

import (
	"github.com/weirproxy/weir/gpu"
)

// maxCards bounds the GPUs remembered from one text to the next.
const maxCards = 4096

// cards reads the text of dcgm-exporter. The utilisation of each GPU is found
// first, then the mean over the GPUs that have one.
//
// A GPU with MIG instances has no utilisation of its own: the field is absent
// or stays 0. Then the instances' engine-active ratios count, weighted by
// their slices; without them the GPU is unknown. The ratio also stands in
// where a whole GPU's utilisation is absent or 0. Sharing one GPU between
// containers repeats its series: they are one.
type cards struct {
	table  table
	match  filter
	known  bool
	missed int
	round  uint64
	seen   map[string]*card // by UUID, else host and index
	list   []*card          // of this round
	key    []byte
}

// card is one GPU in one text.
type card struct {
	round     uint64
	util      tally
	ratio, sm [2]mean // by rank of the name
	mig       bool
}

// mean gathers ratios, one for each instance.
type mean struct{ sum, weight float64 }

func (m *mean) add(v, weight float64) { m.sum += v * weight; m.weight += weight }

func newCards(match map[string]string) *cards {
	return &cards{table: dcgm(), match: newFilter(match), seen: make(map[string]*card)}
}

func (c *cards) begin() {
	if len(c.seen) > maxCards {
		clear(c.seen)
	}
	c.round++
	c.list = c.list[:0]
	c.known, c.missed = false, 0
}

func (c *cards) want(name []byte) bool {
	_, ok := c.table[string(name)]
	return ok
}

func (c *cards) take(s *series) {
	if !c.match.pass(s) {
		return
	}
	c.known = true
	d := c.card(s)
	instance := len(s.label("GPU_I_ID")) > 0
	d.mig = d.mig || instance
	what := c.table[string(s.name)]
	top := 1.0
	if what.role == roleUtil {
		top = 100
	}
	switch {
	case what.role == rolePresence:
	case !(s.value >= 0 && s.value <= top): // also NaN, and every sentinel
		c.missed++
	case what.role == roleUtil:
		if t := &d.util; !t.any || what.rank < t.rank {
			*t = tally{rank: what.rank, any: true, value: s.value / 100}
		}
	default:
		m := &d.ratio[what.rank]
		if what.role == roleSM {
			m = &d.sm[what.rank]
		}
		if instance || m.weight == 0 {
			m.add(s.value, computeSlices(s.label("GPU_I_PROFILE")))
		}
	}
}

// card is the GPU that a series speaks of.
func (c *cards) card(s *series) *card {
	c.key = append(c.key[:0], s.label("UUID")...)
	if len(c.key) == 0 {
		host := s.label("Hostname")
		if host == nil {
			host = s.label("hostname")
		}
		c.key = append(append(append(c.key, host...), 0), s.label("gpu")...)
	}
	d := c.seen[string(c.key)]
	if d == nil {
		d = new(card)
		c.seen[string(c.key)] = d
	}
	if d.round != c.round {
		*d = card{round: c.round}
		c.list = append(c.list, d)
	}
	return d
}

// computeSlices is the number of compute slices of a MIG profile ("3g.71gb" has 3);
// 1 where there is none.
func computeSlices(profile []byte) float64 {
	if len(profile) > 1 && profile[0] >= '1' && profile[0] <= '9' && profile[1] == 'g' {
		return float64(profile[0] - '0')
	}
	return 1
}

// value is the mean of the lowest rank that has any.
func value(m [2]mean) gpu.Value {
	for _, m := range m {
		if m.weight > 0 {
			return gpu.Some(m.sum / m.weight)
		}
	}
	return gpu.Value{}
}

// utilisation of one GPU.
func (d *card) utilisation() gpu.Value {
	ratio := value(d.ratio)
	switch {
	case d.mig && ratio.OK:
		return ratio
	case d.util.any && d.util.value > 0:
		return gpu.Some(d.util.value)
	case ratio.OK:
		return ratio
	case d.util.any && !d.mig:
		return gpu.Some(0)
	}
	return gpu.Value{}
}

func (c *cards) end() (gpu.Sample, error) {
	if !c.known {
		return gpu.Sample{}, ErrNoSignal
	}
	var util, active mean
	for _, d := range c.list {
		if u := d.utilisation(); u.OK {
			util.add(u.V, 1)
		}
		a := value(d.sm)
		if !a.OK {
			a = value(d.ratio)
		}
		if a.OK {
			active.add(a.V, 1)
		}
	}
	return gpu.Sample{
		Util:    value([2]mean{util}),
		Active:  value([2]mean{active}),
		GPUs:    len(c.list),
		Dropped: c.missed,
	}, nil
}
