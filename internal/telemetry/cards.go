package telemetry

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/gpu"
)

// The bounds of series that follow GPUs: sources name them, not the policy.
const (
	maxCards    = 256  // of a pool; the rest are counted, by health and as hidden
	maxAllCards = 1024 // of all pools
	maxLabel    = 128  // bytes of a name
)

// share is how many cards of one pool may have series, where pools have so
// many: at most maxCards, and all together at most maxAllCards. A pool that has
// fewer leaves its part to the others. It sorts pools.
func share(pools []int) int {
	slices.Sort(pools)
	left := maxAllCards
	for i, n := range pools {
		if each := left / (len(pools) - i); min(n, maxCards) > each {
			return each
		}
		left -= min(n, maxCards)
	}
	return maxCards
}

// cardDesc makes a description of a series of a GPU or MIG instance.
func cardDesc(name, help string) *prometheus.Desc {
	return desc("gpu_"+name, help, "host", "gpu", "index", "mig")
}

// figure is one of a card's series.
type figure struct {
	desc *prometheus.Desc
	of   func(c *gpu.CardState) gpu.Value
}

// The series of a card, in the order of docs/metrics.md: its state as long as
// it counts, its figures while they are fresh (gpu.Reading.Fresh).
var (
	cardHealth  = cardDesc("health", "0 healthy, 1 degraded, 2 faulty, 3 lost.")
	cardSuspect = cardDesc("suspect", "1 while utilisation and profiling contradict each other.")
	cardClocks  = desc("gpu_clock_reason", "1 for each reason why it does not run at full clocks; none where there is none.", "host", "gpu", "index", "mig", "reason")
	cardXID     = cardDesc("xid", "Code of the last XID error; 0 = none.")

	cardFigures = [...]figure{
		{cardDesc("memory_used_bytes", "Memory in use."), func(c *gpu.CardState) gpu.Value { return c.MemoryUsed }},
		{cardDesc("memory_total_bytes", "Memory."), func(c *gpu.CardState) gpu.Value { return c.MemoryTotal }},
		{cardDesc("util_ratio", "Utilisation, 0..1."), func(c *gpu.CardState) gpu.Value { return c.Util }},
		{cardDesc("active_ratio", "Time that its engines were active, 0..1."), func(c *gpu.CardState) gpu.Value { return c.Active }},
		{cardDesc("sm_active_ratio", "SMs active, 0..1."), func(c *gpu.CardState) gpu.Value { return c.SM }},
		{cardDesc("sm_occupancy_ratio", "Warps resident on the SMs, of the most that fit, 0..1."), func(c *gpu.CardState) gpu.Value { return c.Occupancy }},
		{cardDesc("tensor_active_ratio", "Tensor pipe active, 0..1."), func(c *gpu.CardState) gpu.Value { return c.Tensor }},
		{cardDesc("dram_active_ratio", "Memory interface active, 0..1."), func(c *gpu.CardState) gpu.Value { return c.DRAM }},
		{cardDesc("pcie_received_bytes_per_second", "Received over PCIe."), func(c *gpu.CardState) gpu.Value { return c.PCIeReceived }},
		{cardDesc("pcie_sent_bytes_per_second", "Sent over PCIe."), func(c *gpu.CardState) gpu.Value { return c.PCIeSent }},
		{cardDesc("power_watts", "Power of the board."), func(c *gpu.CardState) gpu.Value { return c.Power }},
		{cardDesc("temperature_celsius", "Temperature."), func(c *gpu.CardState) gpu.Value { return c.Temperature }},
	}
)

// cards sends the series of the first cards, and counts them all.
func (s *scrape) cards(r *gpu.Reading, all []gpu.CardState, most int, now time.Time) {
	var healths [gpu.Lost + 1]int
	hidden, shown := 0, map[[4]string]bool{}
	for i := range all {
		c := &all[i]
		health, figures := r.Fresh(c, now)
		if health {
			healths[min(c.Health, gpu.Lost)]++
		}
		labels := [4]string{label(c.Host), label(c.ID), label(c.Index), label(c.Instance)}
		if len(shown) == most || shown[labels] {
			hidden++
			continue
		}
		shown[labels] = true
		if health {
			s.gauge(cardHealth, float64(c.Health), labels[:]...)
			s.flag(cardSuspect, c.Suspect != "", labels[:]...)
			s.value(cardXID, c.XID, labels[:]...)
		}
		if figures {
			s.figures(c, labels[:])
		}
	}
	if len(all) == 0 {
		return
	}
	for h, n := range healths {
		s.gauge(gaugeCards, float64(n), gpu.Health(h).String())
	}
	s.gauge(gaugeHidden, float64(hidden))
}

func (s *scrape) figures(c *gpu.CardState, labels []string) {
	for _, f := range cardFigures {
		s.value(f.desc, f.of(c), labels...)
	}
	for _, reason := range gpu.ClockReasons(c.Clocks) {
		s.gauge(cardClocks, 1, append(slices.Clip(labels), reason)...)
	}
}

// label makes a stranger's name fit for a label: valid UTF-8 of at most
// maxLabel bytes.
func label(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	if len(name) <= maxLabel {
		return name
	}
	cut := maxLabel
	for !utf8.RuneStart(name[cut]) {
		cut--
	}
	return name[:cut]
}
