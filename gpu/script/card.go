package script

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/gpu"
)

// card is one GPU or MIG instance of a point.
type card struct {
	ID           string `yaml:"id"`
	Host         string `yaml:"host"`
	Index        string `yaml:"index"`
	Instance     string `yaml:"instance"`
	Slices       int    `yaml:"slices"` // of a MIG instance
	Util         ratio  `yaml:"util"`
	Active       ratio  `yaml:"active"`
	SM           ratio  `yaml:"sm"`
	Occupancy    ratio  `yaml:"occupancy"`
	Tensor       ratio  `yaml:"tensor"`
	DRAM         ratio  `yaml:"dram"`
	MemoryUsed   figure `yaml:"memoryUsed"`
	MemoryTotal  figure `yaml:"memoryTotal"`
	PCIeReceived figure `yaml:"pcieReceived"`
	PCIeSent     figure `yaml:"pcieSent"`
	Power        figure `yaml:"power"`
	Temperature  figure `yaml:"temperature"`
	XID          figure `yaml:"xid"`
	Clocks       figure `yaml:"clocks"`
}

// figure is a reading of 0 or more in gpu.Card's unit.
type figure struct{ reading }

// UnmarshalYAML reads "12", "7e10" or "nan".
func (f *figure) UnmarshalYAML(n *yaml.Node) error {
	return f.read(n, n.Value, 1, 1e15, "a number of 0..1e15 or nan")
}

// maxCards bounds the cards of a point.
const maxCards = 4096

func checkCards(p point) error {
	if len(p.Cards) > maxCards {
		return fmt.Errorf("cards must be at most %d, got %d", maxCards, len(p.Cards))
	}
	seen := map[[2]string]bool{}
	for _, c := range p.Cards {
		key := [2]string{c.ID, c.Instance}
		switch {
		case c.ID == "":
			return errors.New("cards: id is missing")
		case c.Slices < 0 || c.Slices > gpu.MaxSlices || c.Slices > 0 && c.Instance == "":
			return fmt.Errorf("cards: id %q: slices must be 0..%d, and of an instance, got %d", c.ID, gpu.MaxSlices, c.Slices)
		case seen[key]:
			return fmt.Errorf("cards: id %q with instance %q is there twice", c.ID, c.Instance)
		}
		seen[key] = true
	}
	return nil
}

// deal puts a point's cards into a sample.
func deal(s *gpu.Sample, cards []card) {
	for _, c := range cards {
		known := func(r reading) gpu.Value { return between(r, reading{}, 0, &s.Dropped) }
		d := gpu.Card{
			ID: c.ID, Host: c.Host, Index: c.Index, Instance: c.Instance, Slices: c.Slices,
			Util: known(c.Util.reading), Active: known(c.Active.reading), SM: known(c.SM.reading),
			Occupancy: known(c.Occupancy.reading), Tensor: known(c.Tensor.reading), DRAM: known(c.DRAM.reading),
			MemoryUsed: known(c.MemoryUsed.reading), MemoryTotal: known(c.MemoryTotal.reading),
			PCIeReceived: known(c.PCIeReceived.reading), PCIeSent: known(c.PCIeSent.reading),
			Power: known(c.Power.reading), Temperature: known(c.Temperature.reading),
			XID: known(c.XID.reading), Clocks: known(c.Clocks.reading),
		}
		s.Cards = append(s.Cards, d)
	}
	var util gpu.Value
	if s.GPUs, util, _ = gpu.Total(s.Cards); !s.Util.OK {
		s.Util = util
	}
}
