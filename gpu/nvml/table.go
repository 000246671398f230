//go:build cgo && linux

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/weirproxy/weir/gpu"
)

// row is a value of a card and the call that reads it.
type row struct {
	name   string
	symbol string // of the library, behind the call
	read   func(nvml.Device) (float64, nvml.Return)
	to     func(*gpu.Card) *gpu.Value
	scale  float64 // to the card's unit
	max    float64 // in the call's unit, inclusive; the least is 0
	part   bool    // known of a MIG instance too
}

// table of what is read. Of the rows with one target the first that is
// present counts: the reasons of clock events had another name before driver
// 535.
func table() []row {
	clocks := func(c *gpu.Card) *gpu.Value { return &c.Clocks }
	used := func(m nvml.Memory) uint64 { return m.Used }
	total := func(m nvml.Memory) uint64 { return m.Total }
	memory := func(part func(nvml.Memory) uint64) func(nvml.Device) (float64, nvml.Return) {
		return func(d nvml.Device) (float64, nvml.Return) { m, r := d.GetMemoryInfo(); return float64(part(m)), r }
	}
	pcie := func(way nvml.PcieUtilCounter) func(nvml.Device) (float64, nvml.Return) {
		return func(d nvml.Device) (float64, nvml.Return) { v, r := d.GetPcieThroughput(way); return float64(v), r }
	}
	return []row{
		{"GPU utilisation", "nvmlDeviceGetUtilizationRates",
			func(d nvml.Device) (float64, nvml.Return) { u, r := d.GetUtilizationRates(); return float64(u.Gpu), r },
			func(c *gpu.Card) *gpu.Value { return &c.Util }, 0.01, 100, false},
		{"memory used", "nvmlDeviceGetMemoryInfo", memory(used), func(c *gpu.Card) *gpu.Value { return &c.MemoryUsed }, 1, 1 << 44, true},
		{"memory total", "nvmlDeviceGetMemoryInfo", memory(total), func(c *gpu.Card) *gpu.Value { return &c.MemoryTotal }, 1, 1 << 44, true},
		{"power", "nvmlDeviceGetPowerUsage",
			func(d nvml.Device) (float64, nvml.Return) { v, r := d.GetPowerUsage(); return float64(v), r },
			func(c *gpu.Card) *gpu.Value { return &c.Power }, 0.001, 1e8, false},
		{"temperature", "nvmlDeviceGetTemperature",
			func(d nvml.Device) (float64, nvml.Return) {
				v, r := d.GetTemperature(nvml.TEMPERATURE_GPU)
				return float64(v), r
			},
			func(c *gpu.Card) *gpu.Value { return &c.Temperature }, 1, 200, false},
		{"clock event reasons", "nvmlDeviceGetCurrentClocksEventReasons",
			func(d nvml.Device) (float64, nvml.Return) {
				v, r := d.GetCurrentClocksEventReasons()
				return float64(v), r
			},
			clocks, 1, 1 << 48, false},
		{"clock throttle reasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
			func(d nvml.Device) (float64, nvml.Return) {
				v, r := d.GetCurrentClocksThrottleReasons()
				return float64(v), r
			},
			clocks, 1, 1 << 48, false},
		{"PCIe sent", "nvmlDeviceGetPcieThroughput", pcie(nvml.PCIE_UTIL_TX_BYTES), func(c *gpu.Card) *gpu.Value { return &c.PCIeSent }, 1000, 4e9, false},
		{"PCIe received", "nvmlDeviceGetPcieThroughput", pcie(nvml.PCIE_UTIL_RX_BYTES), func(c *gpu.Card) *gpu.Value { return &c.PCIeReceived }, 1000, 4e9, false},
	}
}

// needed are the symbols without which nothing can be read.
func needed() []string {
	return []string{"nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
}

// migSymbols and eventSymbols are called where they are all there.
func migSymbols() []string {
	return []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"}
}

func eventSymbols() []string {
	return []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree"}
}
