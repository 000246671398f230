//go:build cgo && linux

package nvml

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/library"
)

// Open opens NVML and looks once. It fails if the library cannot be loaded or
// used or there is no GPU; from then on the reader opens again what is lost.
func Open(cfg library.Config) (*library.Reader, error) { return open(cfg, nvml.New()) }

func open(cfg library.Config, api nvml.Interface) (*library.Reader, error) {
	cfg, err := cfg.Filled()
	if err != nil {
		return nil, fmt.Errorf("nvml: %w", err)
	}
	return library.Open("nvml", &driver{api: api, host: cfg.Host}, cfg)
}

// maxEvents bounds the XID events taken in one look.
const maxEvents = 64

// driver is NVML as gpu/library drives it.
type driver struct {
	api  nvml.Interface
	host string

	up     bool
	rows   []row // whose symbols are there
	mig    bool
	sized  bool           // the library tells the size of an instance
	events nvml.EventSet  // nil: no XID errors are told
	xids   map[string]xid // by UUID of the GPUs whose events are registered
}

// xid is the last XID error of a GPU; the zero value is none.
type xid struct {
	code uint64
	at   time.Time // of the look that it came before
}

var _ library.Driver = (*driver)(nil)

// Open loads the library and finds out what it can do.
func (d *driver) Open(time.Time) error {
	if r := d.api.Init(); r != nvml.SUCCESS {
		return fmt.Errorf("libnvidia-ml.so.1: %w", r)
	}
	d.up = true
	lacks := func(symbol string) bool { return d.api.Extensions().LookupSymbol(symbol) != nil }
	if i := slices.IndexFunc(needed(), lacks); i >= 0 {
		return fmt.Errorf("%w: symbol %s not found", library.ErrSymbol, needed()[i])
	}
	d.rows = slices.DeleteFunc(table(), func(r row) bool { return lacks(r.symbol) })
	d.mig = !slices.ContainsFunc(migSymbols(), lacks)
	d.sized = !lacks("nvmlDeviceGetAttributes_v2")
	d.xids = map[string]xid{}
	if !slices.ContainsFunc(eventSymbols(), lacks) {
		if set, r := d.api.EventSetCreate(); r == nvml.SUCCESS {
			d.events = set
		}
	}
	return nil
}

// Close unloads the library.
func (d *driver) Close() error {
	if !d.up {
		return nil
	}
	d.up = false
	if d.events != nil {
		_ = d.events.Free() // ends with the library in any case
		d.events = nil
	}
	if r := d.api.Shutdown(); r != nvml.SUCCESS {
		return r
	}
	return nil
}

// Cards reads every GPU and MIG instance. It fails where none can be read.
func (d *driver) Cards(now time.Time) ([]gpu.Card, error) {
	n, r := d.api.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("counting the GPUs: %w", r)
	}
	if n == 0 {
		return nil, library.ErrNoGPU
	}
	var cards []gpu.Card
	var failure error
	for i := range n {
		own, err := d.board(i)
		cards = append(cards, own...)
		if err != nil && failure == nil {
			failure = fmt.Errorf("GPU %d: %w", i, err)
		}
	}
	if !slices.ContainsFunc(cards, func(c gpu.Card) bool { return c.MemoryTotal.OK || c.Util.OK || c.Power.OK }) && failure != nil {
		return nil, failure
	}
	d.takeEvents(now)
	for i := range cards {
		if last, ok := d.xids[cards[i].ID]; ok && cards[i].Instance == "" {
			cards[i].XID, cards[i].XIDAt = gpu.Some(float64(last.code)), last.at
		}
	}
	return cards, nil
}

// board reads one GPU and its instances; the error is why it reads nothing.
func (d *driver) board(i int) ([]gpu.Card, error) {
	card := gpu.Card{Host: d.host, Index: strconv.Itoa(i)}
	card.ID = card.Host + "/" + card.Index
	device, r := d.api.DeviceGetHandleByIndex(i)
	if r != nvml.SUCCESS {
		return []gpu.Card{card}, r
	}
	if id, r := device.GetUUID(); r == nvml.SUCCESS {
		card.ID = id
		d.register(device, id)
	}
	parts := d.instances(device, card)
	err := d.read(device, &card, false)
	if parts != nil {
		card.Util = gpu.Value{}
	}
	return append([]gpu.Card{card}, parts...), err
}

// instances of a GPU; nil where MIG is off.
func (d *driver) instances(device nvml.Device, whole gpu.Card) []gpu.Card {
	if !d.mig {
		return nil
	}
	if mode, _, r := device.GetMigMode(); r != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	cards := []gpu.Card{}
	n, _ := device.GetMaxMigDeviceCount()
	for i := range n {
		part, r := device.GetMigDeviceHandleByIndex(i)
		if r != nvml.SUCCESS {
			continue // as a rule there are fewer than the most
		}
		id, r := part.GetGpuInstanceId()
		card := whole
		card.Instance = strconv.Itoa(id)
		if r != nvml.SUCCESS || slices.ContainsFunc(cards, func(c gpu.Card) bool { return c.Instance == card.Instance }) {
			continue // compute instances share the memory of a GPU instance
		}
		if d.sized {
			if a, r := part.GetAttributes(); r == nvml.SUCCESS && a.GpuInstanceSliceCount <= gpu.MaxSlices {
				card.Slices = int(a.GpuInstanceSliceCount)
			}
		}
		_ = d.read(part, &card, true)
		cards = append(cards, card)
	}
	return cards
}

// read fills card. What fails is missing; the error is that of a device that
// answers nothing.
func (d *driver) read(device nvml.Device, card *gpu.Card, part bool) error {
	var failure error
	answered := false
	for _, row := range d.rows {
		to := row.to(card)
		if part && !row.part || to.OK {
			continue
		}
		v, r := row.read(device)
		switch {
		case r == nvml.ERROR_GPU_IS_LOST:
			return r
		case r != nvml.SUCCESS:
			failure = r
		default:
			answered = true
			if v >= 0 && v <= row.max {
				*to = gpu.Some(v * row.scale)
			}
		}
	}
	if answered {
		return nil
	}
	return failure
}

// register asks for the XID errors of a GPU, once.
func (d *driver) register(device nvml.Device, id string) {
	if _, ok := d.xids[id]; ok || d.events == nil {
		return
	}
	if device.RegisterEvents(nvml.EventTypeXidCriticalError, d.events) == nvml.SUCCESS {
		d.xids[id] = xid{}
	}
}

// takeEvents takes the XID errors that came since the last look.
func (d *driver) takeEvents(now time.Time) {
	for range maxEvents {
		if d.events == nil {
			return
		}
		event, r := d.events.Wait(0)
		if r != nvml.SUCCESS { // as a rule a timeout: none is waiting
			return
		}
		if event.EventType != nvml.EventTypeXidCriticalError || event.Device == nil {
			continue
		}
		if id, r := event.Device.GetUUID(); r == nvml.SUCCESS {
			d.xids[id] = xid{event.EventData, now}
		}
	}
}
