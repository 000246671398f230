package scrape

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/policy"
)

// cards reads what an exporter says of GPUs. The figures of each GPU and MIG
// instance are gathered first, then what they come to (gpu.Total).
//
// A GPU with MIG instances has no utilisation of its own: the field is absent
// or stays 0. Its card and those of its instances have the engine-active ratio
// instead, as has any card whose utilisation is absent; a whole GPU's 0 stays,
// so that the two can be compared. Sharing one GPU between containers repeats
// its series with other labels: they are one, which serves all the endpoints
// that they name.
type cards struct {
	page
	fields map[string]field
	addr   string // of the exporter: names GPUs that no label does
	label  string // that names the endpoint
	places *Places
	round  uint64
	parts  map[string]*part // by GPU and instance
	list   []*part          // of this round
	key    []byte
}

// part is a GPU or a MIG instance.
type part struct {
	card     gpu.Card // what is known of it besides its figures
	device   string   // the GPU: UUID, else host and index, else the exporter's address and index
	round    uint64
	figures  [numColumns]figure
	received counter
	sent     counter
	serves   []string // endpoints by label, at most gpu.MaxEndpoints
}

type figure struct {
	rank  int
	value gpu.Value
}

func newCards(t policy.TelemetrySource, fields map[string]field, addr string, p *Places) *cards {
	return &cards{page: newPage(t.Match), fields: fields, addr: addr, label: t.EndpointLabel, places: p, parts: make(map[string]*part)}
}

func (c *cards) begin(now time.Time) {
	c.page.begin(now)
	if len(c.parts) > maxSeries {
		clear(c.parts)
	}
	c.round++
	c.list = c.list[:0]
}

func (c *cards) want(name []byte) bool {
	_, ok := c.fields[string(name)]
	return ok
}

func (c *cards) take(s *series) {
	if !c.fresh(s) {
		return
	}
	f := c.fields[string(s.name)]
	p := c.part(s)
	if c.label != "" {
		p.serve(s.label(c.label))
	}
	if !c.plausible(s.value, f.top) {
		return
	}
	if have := &p.figures[f.column]; !have.value.OK || f.rank < have.rank {
		*have = figure{f.rank, gpu.Some(s.value * f.scale)}
	}
}

// serve notes an endpoint that a label names.
func (p *part) serve(name []byte) {
	named := func(have string) bool { return have == string(name) }
	if len(name) > 0 && len(p.serves) < gpu.MaxEndpoints && !slices.ContainsFunc(p.serves, named) {
		p.serves = append(p.serves, string(name))
	}
}

// part is what a series speaks of.
func (c *cards) part(s *series) *part {
	host := s.label("Hostname")
	if host == nil {
		host = s.label("hostname")
	}
	uuid := s.label("UUID")
	if uuid == nil {
		uuid = s.label("gpu_uuid")
	}
	index, instance := s.label("gpu"), s.label("GPU_I_ID")
	c.key = append(c.key[:0], uuid...)
	if len(uuid) == 0 {
		if len(host) == 0 {
			c.key = append(c.key, c.addr...)
		}
		c.key = append(append(append(c.key, host...), '/'), index...)
	}
	device := len(c.key)
	c.key = append(append(c.key, 0), instance...)
	p := c.parts[string(c.key)]
	if p == nil {
		p = &part{device: string(c.key[:device])}
		p.card = gpu.Card{ID: p.device, Instance: string(instance)}
		if p.card.Instance != "" {
			p.card.Slices = gpu.ProfileSlices(string(s.label("GPU_I_PROFILE")))
		}
		c.parts[string(c.key)] = p
	}
	if p.round != c.round {
		p.round, p.figures, p.serves = c.round, [numColumns]figure{}, p.serves[:0]
		c.list = append(c.list, p)
	}
	if string(host) != p.card.Host && len(host) > 0 {
		p.card.Host = string(host)
	}
	if string(index) != p.card.Index && len(index) > 0 {
		p.card.Index = string(index)
	}
	return p
}

func (c *cards) end() (gpu.Sample, error) {
	if !c.known {
		return gpu.Sample{}, errEmpty
	}
	slices.SortFunc(c.list, func(a, b *part) int {
		return cmp.Or(strings.Compare(a.device, b.device), strings.Compare(a.card.Instance, b.card.Instance))
	})
	if c.places.Refresh() != nil {
		c.faults[gpu.FaultEndpoints]++
	}
	s := gpu.Sample{Cards: make([]gpu.Card, 0, len(c.list))}
	for rest := c.list; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].device == rest[0].device {
			n++
		}
		mig := rest[n-1].card.Instance != ""
		for _, p := range rest[:n] {
			s.Cards = append(s.Cards, c.card(p, mig))
		}
		rest = rest[n:]
	}
	s.GPUs, s.Util, s.Active = gpu.Total(s.Cards)
	page := c.sample() // after the counters, whose resets are faults
	s.Faults, s.Dropped = page.Faults, page.Dropped
	return s, nil
}

// card is a part's figures in weir's units.
func (c *cards) card(p *part, mig bool) gpu.Card {
	d := p.card
	value := func(col column) gpu.Value { return p.figures[col].value }
	d.Util, d.Active, d.SM, d.Occupancy = value(colUtil), value(colActive), value(colSM), value(colOccupancy)
	d.Tensor, d.DRAM = value(colTensor), value(colDRAM)
	if mig || !d.Util.OK {
		d.Util = d.Active
	}
	d.MemoryUsed, d.MemoryTotal = value(colUsed), value(colTotal)
	if free := value(colFree); !d.MemoryTotal.OK && d.MemoryUsed.OK && free.OK {
		d.MemoryTotal = gpu.Some(d.MemoryUsed.V + free.V + value(colReserved).V)
	}
	d.PCIeReceived = c.rate(value(colReceived), &p.received, value(colReceivedTotal))
	d.PCIeSent = c.rate(value(colSent), &p.sent, value(colSentTotal))
	d.Power, d.Temperature, d.XID, d.Clocks = value(colPower), value(colTemperature), value(colXID), value(colClocks)
	if when := value(colXIDTime); when.OK && d.XID.V > 0 {
		d.XIDAt = time.UnixMicro(int64(math.Round(when.V * 1e6)))
	}
	d.Endpoints = c.places.Of(&d, p.serves...)
	return d
}

// rate is what is told as a rate, else the growth of the total.
func (c *cards) rate(told gpu.Value, total *counter, now gpu.Value) gpu.Value {
	grown, reset := total.grow(now, c.now)
	if reset {
		c.faults[gpu.FaultReset]++
	}
	if told.OK || !grown.OK || grown.V > maxRate {
		return told
	}
	return grown
}
