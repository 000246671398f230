package dcgm

import (
	"time"

	"github.com/weirproxy/weir/gpu"
)

// field is one row of the table: a number of DCGM and what it is to a card.
// Of the fields with one target, the first that is present counts.
type field struct {
	id        uint16
	name      string // for the log
	to        func(*gpu.Card) *gpu.Value
	scale     float64 // to the card's unit
	max       float64 // in the field's own unit, inclusive; the least is 0
	slack     float64 // above max by so much is max: ratios of two counters
	profiling bool    // of the profiling module, watched apart from the rest
	instance  bool    // known of a MIG instance too
	steady    bool    // its time stamp is that of an event, and may stand still

	when func(*gpu.Card) *time.Time // where that time stamp goes; nil = nowhere
}

// uuidField is the number of the only text that is read.
const uuidField = 54

const (
	mebibyte = 1 << 20
	maxMiB   = 1 << 24 // 16 TiB
	maxBytes = 1e13    // a second
)

// fields is the table. 112 is a bit mask (dcgm_fields.h,
// DCGM_CLOCKS_EVENT_REASON_*), 230 the code of the last XID error.
func fields() []field {
	util := func(c *gpu.Card) *gpu.Value { return &c.Util }
	active := func(c *gpu.Card) *gpu.Value { return &c.Active }
	sm := func(c *gpu.Card) *gpu.Value { return &c.SM }
	occupancy := func(c *gpu.Card) *gpu.Value { return &c.Occupancy }
	tensor := func(c *gpu.Card) *gpu.Value { return &c.Tensor }
	dram := func(c *gpu.Card) *gpu.Value { return &c.DRAM }
	used := func(c *gpu.Card) *gpu.Value { return &c.MemoryUsed }
	total := func(c *gpu.Card) *gpu.Value { return &c.MemoryTotal }
	sent := func(c *gpu.Card) *gpu.Value { return &c.PCIeSent }
	received := func(c *gpu.Card) *gpu.Value { return &c.PCIeReceived }
	power := func(c *gpu.Card) *gpu.Value { return &c.Power }
	temperature := func(c *gpu.Card) *gpu.Value { return &c.Temperature }
	xid := func(c *gpu.Card) *gpu.Value { return &c.XID }
	xidAt := func(c *gpu.Card) *time.Time { return &c.XIDAt }
	clocks := func(c *gpu.Card) *gpu.Value { return &c.Clocks }
	return []field{
		{id: 203, name: "GPU utilisation", to: util, scale: 0.01, max: 100},
		{id: 252, name: "memory used", to: used, scale: mebibyte, max: maxMiB, instance: true},
		{id: 250, name: "memory total", to: total, scale: mebibyte, max: maxMiB, instance: true},
		{id: 155, name: "power", to: power, scale: 1, max: 100_000},
		{id: 150, name: "temperature", to: temperature, scale: 1, max: 200},
		{id: 112, name: "clock event reasons", to: clocks, scale: 1, max: 1 << 48},
		{id: 230, name: "last XID error", to: xid, scale: 1, max: 1 << 16, steady: true, when: xidAt},

		{id: 1001, name: "engine active", to: active, scale: 1, max: 1, slack: 0.05, profiling: true, instance: true},
		{id: 1002, name: "SM active", to: sm, scale: 1, max: 1, slack: 0.05, profiling: true, instance: true},
		{id: 1003, name: "SM occupancy", to: occupancy, scale: 1, max: 1, slack: 0.05, profiling: true, instance: true},
		{id: 1004, name: "tensor active", to: tensor, scale: 1, max: 1, slack: 0.05, profiling: true, instance: true},
		{id: 1005, name: "DRAM active", to: dram, scale: 1, max: 1, slack: 0.05, profiling: true, instance: true},
		{id: 1009, name: "PCIe sent", to: sent, scale: 1, max: maxBytes, profiling: true},
		{id: 1010, name: "PCIe received", to: received, scale: 1, max: maxBytes, profiling: true},

		{id: 200, name: "PCIe sent (deprecated)", to: sent, scale: 1000, max: maxBytes / 1000},
		{id: 201, name: "PCIe received (deprecated)", to: received, scale: 1000, max: maxBytes / 1000},
	}
}

// instanceFields is the part of the table that MIG instances have.
func instanceFields() []field {
	var list []field
	for _, f := range fields() {
		if f.instance {
			list = append(list, f)
		}
	}
	return list
}
