//go:build cgo && linux

package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/weirproxy/weir/gpu"
	"github.com/weirproxy/weir/gpu/library"
)

// Open opens DCGM and looks once. It fails if the library cannot be loaded or
// used, the host engine does not answer, or there is no GPU; from then on the
// reader opens again what is lost.
func Open(cfg Config) (*library.Reader, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	return library.Open("dcgm", newDriver(cfg), cfg.Config)
}

// driver is DCGM as gpu/library drives it.
type driver struct {
	cfg    Config
	engine *engine // Started: while it runs
	close  func() error

	boards  []*board // in the order of DCGM's ids
	sets    map[string]dcgm.FieldHandle
	told    map[outage]time.Time
	serial  int // of names of groups
	migTold bool
}

var _ library.Driver = (*driver)(nil)

func newDriver(cfg Config) *driver {
	return &driver{cfg: cfg, told: map[outage]time.Time{}}
}

// Open loads the library and connects to the host engine of the mode.
func (d *driver) Open(time.Time) error {
	if err := symbols(); err != nil {
		return err
	}
	d.boards, d.sets = nil, map[string]dcgm.FieldHandle{}
	var err error
	switch d.cfg.Mode {
	case Embedded:
		_, err = dcgm.Init(dcgm.Embedded)
	case Standalone:
		_, err = dcgm.Init(dcgm.Standalone, connection(d.cfg.Address)...)
	case Started:
		if d.engine, err = startEngine(d.cfg.Engine); err == nil {
			_, err = dcgm.Init(dcgm.Standalone, d.engine.socket, "1")
		}
	}
	if err != nil {
		return err
	}
	d.close = dcgm.Shutdown
	d.cfg.Log.Info("DCGM is open", "mode", d.cfg.Mode.String(), "address", d.cfg.Address)
	return nil
}

// Close ends the watches with the connection, and a started engine.
func (d *driver) Close() error {
	var err error
	if d.close != nil {
		err = d.close()
		d.close = nil
	}
	if d.engine != nil {
		err = errors.Join(err, d.engine.stop())
		d.engine = nil
	}
	return err
}

// Cards finds the GPUs and instances that there are now, watches the new ones
// and reads them all. It fails where nothing can be read at all.
func (d *driver) Cards(now time.Time) ([]gpu.Card, error) {
	if err := d.find(now); err != nil {
		return nil, err
	}
	var cards []gpu.Card
	var answers int
	var failure error
	for _, b := range d.boards {
		for _, w := range b.watches() {
			for _, e := range w.entities {
				values, err := read(w.kind, e)
				if err == nil {
					answers++
				} else if failure == nil {
					failure = fmt.Errorf("%s: %w", e.name(), err)
				}
				cards = append(cards, e.take(now, values, w == b.whole && b.parts != nil))
				e.outages(now, d.told, func(f *field, why missing) {
					d.cfg.Log.Warn("DCGM field is missing", "first", e.name(), "field", f.id, "what", f.name, "why", why.String(), "error", err)
				})
			}
			d.renew(now, w)
		}
	}
	if answers == 0 {
		return nil, failure
	}
	return cards, nil
}

// read asks for the latest values of one entity.
func read(kind dcgm.Field_Entity_Group, e *entity) ([]raw, error) {
	ids := make([]dcgm.Short, 0, len(e.fields)+1)
	for _, f := range e.fields {
		ids = append(ids, dcgm.Short(f.id))
	}
	if kind == dcgm.FE_GPU && e.card.ID == "" {
		ids = append(ids, uuidField)
	}
	values, err := dcgm.EntityGetLatestValues(kind, e.id, ids)
	if err != nil {
		return failed(err, len(e.fields)), err
	}
	list := make([]raw, len(values))
	for i := range values {
		v := &values[i]
		list[i] = raw{status: v.Status, kind: v.FieldType, stamp: v.TS, value: v.Value[:]}
	}
	if len(list) > len(e.fields) {
		e.card.ID = text(list[len(e.fields)])
	}
	return list, nil
}

// failed is the answer of an entity that cannot be read at all.
func failed(err error, n int) []raw {
	status := -3
	var e *dcgm.Error
	if errors.As(err, &e) {
		status = int(e.Code)
	}
	return slices.Repeat([]raw{{status: status}}, n)
}

// find holds the boards against what DCGM lists now.
func (d *driver) find(now time.Time) error {
	ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return library.ErrNoGPU
	}
	d.boards = slices.DeleteFunc(d.boards, func(b *board) bool {
		gone := !slices.Contains(ids, b.id)
		if gone {
			d.cfg.Log.Error("GPU is gone", "gpu", b.id, "left", len(ids))
			d.drop(b.whole)
			d.drop(b.parts)
		}
		return gone
	})
	for _, id := range ids {
		if !slices.ContainsFunc(d.boards, func(b *board) bool { return b.id == id }) {
			card := gpu.Card{Host: d.cfg.Host, Index: strconv.FormatUint(uint64(id), 10)}
			b := &board{id: id, whole: d.watch(dcgm.FE_GPU, []*entity{newEntity(id, card, fields(), d.cfg.Every)})}
			d.boards = append(d.boards, b)
		}
	}
	slices.SortFunc(d.boards, func(a, b *board) int { return int(a.id) - int(b.id) })
	d.findInstances()
	return nil
}

// findInstances holds the MIG instances of each board against the hierarchy.
// Where that cannot be read, those known stay.
func (d *driver) findInstances() {
	h, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil {
		if !d.migTold {
			d.cfg.Log.Warn("DCGM gives no MIG hierarchy", "error", err)
			d.migTold = true
		}
		return
	}
	for _, b := range d.boards {
		var list []*entity
		for _, x := range h.EntityList[:min(int(h.Count), len(h.EntityList))] {
			if x.Entity.EntityGroupId != dcgm.FE_GPU_I || x.Parent.EntityGroupId != dcgm.FE_GPU || x.Parent.EntityId != b.id {
				continue
			}
			card := b.whole.entities[0].card
			card.ID = x.Info.GpuUuid
			card.Instance = strconv.FormatUint(uint64(x.Info.NvmlInstanceId), 10)
			card.Slices = int(min(x.Info.NvmlProfileSlices, gpu.MaxSlices))
			list = append(list, newEntity(x.Entity.EntityId, card, instanceFields(), d.cfg.Every))
		}
		if b.parts.same(list) {
			continue
		}
		d.drop(b.parts)
		b.parts = nil
		if len(list) > 0 {
			b.parts = d.watch(dcgm.FE_GPU_I, list)
		}
	}
}
