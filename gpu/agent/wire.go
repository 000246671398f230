package agent

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/gpu"
	gpuv1 "github.com/weirproxy/weir/proto/gpu/v1"
)

// Field is one figure of a card: its place in gpu.Card and on the wire, its
// bound, and its name and unit in Prometheus text as dcgm-exporter has them.
type Field struct {
	Name, Help string
	Scale      float64 // from gpu.Card's unit to the text's
	Top        float64 // the largest value that is believed, in gpu.Card's unit
	Of         func(*gpu.Card) *gpu.Value
	wire       func(*gpuv1.Card) **float64
}

// What no GPU of the next years exceeds.
const (
	maxMemory      = 1e14 // bytes
	maxRate        = 1e12 // bytes a second
	maxPower       = 1e5  // watts
	maxTemperature = 200  // degrees Celsius
	maxXID         = 1e5
	maxClocks      = 1 << 30
	mebi           = 1 << 20
)

// Fields are all figures of a card.
func Fields() []Field {
	return []Field{
		{"DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", 100, 1,
			func(c *gpu.Card) *gpu.Value { return &c.Util }, func(w *gpuv1.Card) **float64 { return &w.Util }},
		{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", 1, 1,
			func(c *gpu.Card) *gpu.Value { return &c.Active }, func(w *gpuv1.Card) **float64 { return &w.Active }},
		{"DCGM_FI_PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.", 1, 1,
			func(c *gpu.Card) *gpu.Value { return &c.SM }, func(w *gpuv1.Card) **float64 { return &w.Sm }},
		{"DCGM_FI_PROF_SM_OCCUPANCY", "The ratio of number of warps resident on an SM.", 1, 1,
			func(c *gpu.Card) *gpu.Value { return &c.Occupancy }, func(w *gpuv1.Card) **float64 { return &w.Occupancy }},
		{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", 1, 1,
			func(c *gpu.Card) *gpu.Value { return &c.Tensor }, func(w *gpuv1.Card) **float64 { return &w.Tensor }},
		{"DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.", 1, 1,
			func(c *gpu.Card) *gpu.Value { return &c.DRAM }, func(w *gpuv1.Card) **float64 { return &w.Dram }},
		{"DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", 1.0 / mebi, maxMemory,
			func(c *gpu.Card) *gpu.Value { return &c.MemoryUsed }, func(w *gpuv1.Card) **float64 { return &w.MemoryUsed }},
		{"DCGM_FI_DEV_FB_TOTAL", "Framebuffer memory (in MiB).", 1.0 / mebi, maxMemory,
			func(c *gpu.Card) *gpu.Value { return &c.MemoryTotal }, func(w *gpuv1.Card) **float64 { return &w.MemoryTotal }},
		{"DCGM_FI_PROF_PCIE_RX_BYTES", "The rate of data received over the PCIe bus, in bytes per second.", 1, maxRate,
			func(c *gpu.Card) *gpu.Value { return &c.PCIeReceived }, func(w *gpuv1.Card) **float64 { return &w.PcieReceived }},
		{"DCGM_FI_PROF_PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus, in bytes per second.", 1, maxRate,
			func(c *gpu.Card) *gpu.Value { return &c.PCIeSent }, func(w *gpuv1.Card) **float64 { return &w.PcieSent }},
		{"DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", 1, maxPower,
			func(c *gpu.Card) *gpu.Value { return &c.Power }, func(w *gpuv1.Card) **float64 { return &w.Power }},
		{"DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", 1, maxTemperature,
			func(c *gpu.Card) *gpu.Value { return &c.Temperature }, func(w *gpuv1.Card) **float64 { return &w.Temperature }},
		{"DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", 1, maxXID,
			func(c *gpu.Card) *gpu.Value { return &c.XID }, func(w *gpuv1.Card) **float64 { return &w.Xid }},
		{"DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Bit mask of clock event reasons.", 1, maxClocks,
			func(c *gpu.Card) *gpu.Value { return &c.Clocks }, func(w *gpuv1.Card) **float64 { return &w.Clocks }},
	}
}

// Judge makes figures absent that are no numbers or out of their range, and
// counts them by kind.
func Judge(c *gpu.Card, fields []Field) (left gpu.Faults) {
	for i := range fields {
		v := fields[i].Of(c)
		switch {
		case !v.OK:
			continue
		case math.IsNaN(v.V) || math.IsInf(v.V, 0):
			left[gpu.FaultNumber]++
		case v.V < 0 || v.V > fields[i].Top:
			left[gpu.FaultRange]++
		default:
			continue
		}
		*v = gpu.Value{}
	}
	return left
}

// Labels are a card's labels in Prometheus text, by dcgm-exporter's names. Of a
// MIG instance's profile only the number of slices is known ("3g").
func Labels(c *gpu.Card) map[string]string {
	l := map[string]string{"gpu": c.Index, "UUID": c.ID, "device": "nvidia" + c.Index, "Hostname": c.Host}
	if c.Instance != "" {
		l["GPU_I_ID"] = c.Instance
		if c.Slices > 0 {
			l["GPU_I_PROFILE"] = fmt.Sprintf("%dg", c.Slices)
		}
	}
	return l
}

// Encode puts a card on the wire. Its endpoint is not the agent's to know.
func Encode(c *gpu.Card, fields []Field) *gpuv1.Card {
	w := &gpuv1.Card{Id: c.ID, Host: c.Host, Index: c.Index, Instance: c.Instance, Slices: uint32(max(c.Slices, 0))}
	for i := range fields {
		if v := fields[i].Of(c); v.OK {
			*fields[i].wire(w) = &v.V
		}
	}
	if !c.XIDAt.IsZero() {
		w.XidTime = timestamppb.New(c.XIDAt)
	}
	return w
}

// The bounds of what is believed of an agent.
const (
	maxCards   = 4096 // of one node, MIG instances among them
	maxName    = 256  // bytes of an id
	maxMessage = 4 << 20
)

// decode reads a card from the wire; its XIDAt is by the agent's clock.
func decode(w *gpuv1.Card, fields []Field) gpu.Card {
	c := gpu.Card{ID: cut(w.GetId()), Host: cut(w.GetHost()), Index: cut(w.GetIndex()), Instance: cut(w.GetInstance())}
	if n := w.GetSlices(); c.Instance != "" && n <= gpu.MaxSlices {
		c.Slices = int(n)
	}
	for i := range fields {
		if v := *fields[i].wire(w); v != nil {
			*fields[i].Of(&c) = gpu.Some(*v)
		}
	}
	if c.XID.V > 0 && w.GetXidTime().IsValid() {
		c.XIDAt = w.GetXidTime().AsTime()
	}
	return c
}

// cut bounds a name that somebody else chose.
func cut(s string) string {
	if len(s) > maxName {
		s = strings.ToValidUTF8(s[:maxName], "")
	}
	return s
}

// view is how a source sees what an agent sends.
type view struct {
	fields    []Field
	match     map[string]string
	endpoints Endpoints // nil = not known
}

// sample turns a snapshot that saw something into a sample without name and
// instant. Cards that match leaves out are not there; one without a name, or
// the second of a name, is dropped.
func (v view) sample(w *gpuv1.Snapshot) (gpu.Sample, error) {
	if n := len(w.GetCards()); n > maxCards {
		return gpu.Sample{}, fmt.Errorf("%d cards in one snapshot, want at most %d", n, maxCards)
	}
	var s gpu.Sample
	if v.endpoints != nil && v.endpoints.Refresh() != nil {
		s.Faults[gpu.FaultEndpoints]++
	}
	s.Faults[gpu.FaultOther] = uint64(w.GetDropped()) // the agent says how many, not why
	seen := make(map[[2]string]bool, len(w.GetCards()))
	for _, card := range w.GetCards() {
		c := decode(card, v.fields)
		if !matches(&c, v.match) {
			continue
		}
		key := [2]string{c.ID, c.Instance}
		if c.ID == "" || seen[key] {
			s.Faults[gpu.FaultDuplicate]++
			continue
		}
		seen[key] = true
		for kind, n := range Judge(&c, v.fields) {
			s.Faults[kind] += n
		}
		if c.Instance != "" || !c.Util.OK {
			c.Util = c.Active // a MIG instance has no utilisation of its own
		}
		if v.endpoints != nil {
			c.Endpoints = v.endpoints.Of(&c)
		}
		s.Cards = append(s.Cards, c)
	}
	for _, n := range s.Faults {
		s.Dropped += int(n)
	}
	s.GPUs, s.Util, s.Active = gpu.Total(s.Cards)
	return s, nil
}

// settle tells by the clock of this machine when the XID errors of a look
// occurred that was done at at, and at looked by the agent's clock: as long
// before the look as the agent says, whatever its clock shows.
func settle(cards []gpu.Card, at time.Time, looked *timestamppb.Timestamp) {
	for i := range cards {
		switch when := &cards[i].XIDAt; {
		case when.IsZero():
		case looked.IsValid():
			*when = at.Add(-max(looked.AsTime().Sub(*when), 0))
		default:
			*when = time.Time{}
		}
	}
}

func matches(c *gpu.Card, match map[string]string) bool {
	if len(match) == 0 {
		return true
	}
	labels := Labels(c)
	for name, want := range match {
		if labels[name] != want {
			return false
		}
	}
	return true
}
