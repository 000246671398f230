//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"go.uber.org/goleak"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/library"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const total = 40960 << 20 // of an A100 40 GB

// node is go-nvml's mock of 8 A100 with the calls filled in that it lacks.
type node struct {
	*server.Server
	events []nvml.EventData
}

func newNode(t *testing.T, configs ...gpus.Config) *node {
	t.Helper()
	n := &node{Server: dgxa100.New()}
	if configs != nil {
		n.Server = dgxa100.NewWithGPUs(configs...)
	}
	for i := range n.Devices {
		n.fill(n.device(i))
		n.device(i).UUID = fmt.Sprintf("GPU-%d", i)
	}
	n.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				if len(n.events) == 0 {
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
				e := n.events[0]
				n.events = n.events[1:]
				return e, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	return n
}

func (n *node) device(i int) *server.Device { return n.Devices[i].(*server.Device) }

func (n *node) fill(d *server.Device) {
	d.MemoryInfo.Used = 10 << 30
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{Gpu: 37, Memory: 11}, nvml.SUCCESS
	}
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 310500, nvml.SUCCESS }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, nvml.SUCCESS }
	d.GetPcieThroughputFunc = func(c nvml.PcieUtilCounter) (uint32, nvml.Return) { return 1000 * (1 + uint32(c)), nvml.SUCCESS }
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 4, nvml.SUCCESS }
	d.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return 8, nvml.SUCCESS }
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
}

// whole is what the node says of a GPU without faults.
func whole(i int) gpu.Card {
	return gpu.Card{ID: fmt.Sprintf("GPU-%d", i), Host: "node", Index: fmt.Sprint(i),
		Util: gpu.Some(0.37), MemoryUsed: gpu.Some(10 << 30), MemoryTotal: gpu.Some(total), Power: gpu.Some(310.5), Temperature: gpu.Some(61),
		PCIeSent: gpu.Some(1e6), PCIeReceived: gpu.Some(2e6), Clocks: gpu.Some(4), XID: gpu.Some(0)}
}

func cards(t *testing.T, d *driver) []gpu.Card {
	t.Helper()
	list, err := d.Cards(time.Unix(1000, 0))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func opened(t *testing.T, n *node) *driver {
	t.Helper()
	d := &driver{api: n, host: "node"}
	if err := d.Open(time.Time{}); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestCards: all 8 GPUs with all that NVML knows, through the Reader.
func TestCards(t *testing.T) {
	n := newNode(t)
	r, err := open(library.Config{Host: "node"}, n)
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.Cards(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range list {
		if c != whole(i) {
			t.Errorf("card %d\n is %+v\nwant %+v", i, c, whole(i))
		}
	}
	if len(list) != 8 {
		t.Errorf("%d cards, want 8", len(list))
	}
	if err := r.Close(); err != nil || len(n.ShutdownCalls()) != 1 {
		t.Errorf("Close: %v, %d shutdowns", err, len(n.ShutdownCalls()))
	}
}

// TestFaults: what a GPU does not support or gets wrong is missing there and
// nowhere else; a lost GPU is a card without values.
func TestFaults(t *testing.T) {
	unsupported := func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	for _, c := range []struct {
		name  string
		fault func(*server.Device)
		want  func(*gpu.Card)
	}{
		{"power not supported", func(d *server.Device) { d.GetPowerUsageFunc = unsupported }, func(c *gpu.Card) { c.Power = gpu.Value{} }},
		{"utilisation of 2^32-1", func(d *server.Device) {
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
				return nvml.Utilization{Gpu: 1<<32 - 1}, nvml.SUCCESS
			}
		}, func(c *gpu.Card) { c.Util = gpu.Value{} }},
		{"unified memory", func(d *server.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
		}, func(c *gpu.Card) { c.MemoryUsed, c.MemoryTotal = gpu.Value{}, gpu.Value{} }},
		{"an older driver's clock reasons", func(d *server.Device) {
			d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		}, func(c *gpu.Card) { c.Clocks = gpu.Some(8) }},
		{"no events", func(d *server.Device) {
			d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
		}, func(c *gpu.Card) { c.XID = gpu.Value{} }},
		{"lost", func(d *server.Device) {
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
				return nvml.Utilization{}, nvml.ERROR_GPU_IS_LOST
			}
		}, func(c *gpu.Card) { *c = gpu.Card{ID: c.ID, Host: c.Host, Index: c.Index, XID: c.XID} }},
	} {
		n := newNode(t)
		c.fault(n.device(2))
		d := opened(t, n)
		for i, got := range cards(t, d) {
			want := whole(i)
			if i == 2 {
				c.want(&want)
			}
			if got != want {
				t.Errorf("%s: card %d\n is %+v\nwant %+v", c.name, i, got, want)
			}
		}
		d.Close()
	}
}

// TestAllLost: nothing read at all is an error that says why; no GPU too.
func TestAllLost(t *testing.T) {
	n := newNode(t)
	for i := range n.Devices {
		n.device(i).GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
			return nvml.Utilization{}, nvml.ERROR_GPU_IS_LOST
		}
	}
	if _, err := opened(t, n).Cards(time.Time{}); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("all lost: %v", err)
	}
	if _, err := open(library.Config{}, newNode(t, []gpus.Config{}...)); !errors.Is(err, library.ErrNoGPU) {
		t.Errorf("no GPU: %v", err)
	}
	n.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	if _, err := open(library.Config{}, n); !errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED) {
		t.Errorf("no driver: %v", err)
	}
}

// TestXID: an XID error is told on its GPU and stays.
func TestXID(t *testing.T) {
	n := newNode(t)
	d := opened(t, n)
	cards(t, d)
	n.events = []nvml.EventData{
		{Device: n.Devices[3], EventType: nvml.EventTypeXidCriticalError, EventData: 31},
		{Device: n.Devices[3], EventType: nvml.EventTypeXidCriticalError, EventData: 79},
		{Device: n.Devices[4], EventType: nvml.EventTypePState, EventData: 5},
	}
	for range 2 {
		for i, c := range cards(t, d) {
			if want := map[bool]float64{true: 79}[i == 3]; c.XID != gpu.Some(want) || want != 0 && !c.XIDAt.Equal(time.Unix(1000, 0)) || want == 0 && !c.XIDAt.IsZero() {
				t.Errorf("card %d: XID %v at %v, want %v", i, c.XID, c.XIDAt, want)
			}
		}
	}
	for _, dev := range n.Devices {
		if calls := len(dev.(*server.Device).RegisterEventsCalls()); calls != 1 {
			t.Errorf("events registered %d times", calls)
		}
	}
}

// TestMIG: instances have their memory, once for each GPU instance, and their
// GPU has no utilisation of its own.
func TestMIG(t *testing.T) {
	n := newNode(t)
	d0 := n.device(0)
	d0.MigMode = nvml.DEVICE_MIG_ENABLE
	d0.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d0.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i > 2 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetGpuInstanceIdFunc: func() (int, nvml.Return) { return 7 + i/2, nvml.SUCCESS }, // 0 and 1 share one
			GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
				return nvml.DeviceAttributes{GpuInstanceSliceCount: uint32(3 - i), ComputeInstanceSliceCount: 1}, nvml.SUCCESS
			},
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
				return nvml.Memory{Total: 5 << 30, Used: uint64(1+i) << 30}, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	list := cards(t, opened(t, n))
	zero := whole(0)
	zero.Util = gpu.Value{}
	part := func(id string, slices int, used float64) gpu.Card {
		return gpu.Card{ID: "GPU-0", Host: "node", Index: "0", Instance: id, Slices: slices, MemoryUsed: gpu.Some(used), MemoryTotal: gpu.Some(5 << 30)}
	}
	want := []gpu.Card{zero, part("7", 3, 1<<30), part("8", 1, 3<<30), whole(1)}
	for i, w := range want {
		if list[i] != w {
			t.Errorf("card %d\n is %+v\nwant %+v", i, list[i], w)
		}
	}
	if len(list) != 10 {
		t.Errorf("%d cards, want 10", len(list))
	}
}

// TestSymbols: a call whose symbol the library lacks is never made; without
// the needed ones, Open fails and says which.
func TestSymbols(t *testing.T) {
	without := func(lacks ...string) *node {
		n := newNode(t)
		n.LookupSymbolFunc = func(s string) error {
			if slices.Contains(lacks, s) {
				return errors.New("not found")
			}
			return nil
		}
		for i := range n.Devices {
			n.device(i).GetPowerUsageFunc = nil // the mock panics if it is called
			n.device(i).GetMigModeFunc = nil
		}
		n.EventSetCreateFunc = nil
		return n
	}
	n := without("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMigMode", "nvmlEventSetWait_v2")
	for i, c := range cards(t, opened(t, n)) {
		want := whole(i)
		want.Power, want.XID = gpu.Value{}, gpu.Value{}
		if c != want {
			t.Errorf("card %d\n is %+v\nwant %+v", i, c, want)
		}
	}
	for _, s := range needed() {
		n := without(s)
		_, err := open(library.Config{}, n)
		if !errors.Is(err, library.ErrSymbol) || !strings.Contains(err.Error(), s) || len(n.ShutdownCalls()) != 1 {
			t.Errorf("without %s: %v, %d shutdowns", s, err, len(n.ShutdownCalls()))
		}
	}
}

// TestHang: NVML that hangs is a reader that says so.
func TestHang(t *testing.T) {
	n := newNode(t)
	hang := make(chan struct{})
	n.DeviceGetCountFunc = func() (int, nvml.Return) { <-hang; return 8, nvml.SUCCESS }
	r, err := open(library.Config{Timeout: 10 * time.Millisecond}, n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Cards(t.Context()); !errors.Is(err, library.ErrHung) {
		t.Errorf("hung: %v", err)
	}
	close(hang)
	r.Close()
}

// TestNoLibrary: a machine without the driver's library gets an error.
func TestNoLibrary(t *testing.T) {
	r, err := Open(library.Config{})
	if err == nil {
		r.Close()
		t.Skip("this machine has an NVIDIA driver")
	}
	if !errors.Is(err, nvml.ERROR_LIBRARY_NOT_FOUND) {
		t.Errorf("Open: %v, want ERROR_LIBRARY_NOT_FOUND", err)
	}
}
