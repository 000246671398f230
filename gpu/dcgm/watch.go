//go:build cgo && linux

package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// board is one GPU and its MIG instances.
type board struct {
	id    uint
	whole *watch // the GPU
	parts *watch // its instances; nil = none
}

func (b *board) watches() []*watch {
	if b.parts == nil {
		return []*watch{b.whole}
	}
	return []*watch{b.whole, b.parts}
}

// watch is a group of entities of one board whose fields DCGM samples. DCGM
// has room for 64 groups; this takes at most two for each of its 32 boards,
// and what finds no room is read from whoever else watches it.
type watch struct {
	kind     dcgm.Field_Entity_Group
	entities []*entity // of one kind, with the same fields
	group    dcgm.GroupHandle
	grouped  bool
	live     []dcgm.FieldHandle
	renewal  renewal
}

// same reports whether w holds these entities, by id, instance and size.
func (w *watch) same(list []*entity) bool {
	var own []*entity
	if w != nil {
		own = w.entities
	}
	return slices.EqualFunc(own, list, func(a, b *entity) bool {
		return a.id == b.id && a.card.Instance == b.card.Instance && a.card.Slices == b.card.Slices
	})
}

// watch makes DCGM sample the fields of entities.
func (d *driver) watch(kind dcgm.Field_Entity_Group, entities []*entity) *watch {
	w := &watch{kind: kind, entities: entities}
	d.subscribe(w)
	return w
}

// subscribe watches the fields in two bundles, those of the profiling module
// apart. A bundle that is refused is watched field by field.
func (d *driver) subscribe(w *watch) {
	var err error
	d.serial++
	if w.group, err = dcgm.CreateGroup(fmt.Sprintf("weir-%d", d.serial)); err != nil {
		d.cfg.Log.Error("DCGM group refused", "first", w.entities[0].name(), "error", err)
		return
	}
	w.grouped = true
	for _, e := range w.entities {
		if err := dcgm.AddEntityToGroup(w.group, w.kind, e.id); err != nil {
			d.cfg.Log.Error("DCGM watch refused", "first", e.name(), "error", err)
		}
	}
	var basic, profiling []dcgm.Short
	for _, f := range w.entities[0].fields {
		if f.profiling {
			profiling = append(profiling, dcgm.Short(f.id))
		} else {
			basic = append(basic, dcgm.Short(f.id))
		}
	}
	if w.kind == dcgm.FE_GPU {
		basic = append(basic, uuidField)
	}
	for _, bundle := range [][]dcgm.Short{basic, profiling} {
		if d.sample(w, bundle) == nil {
			continue
		}
		for _, id := range bundle {
			w.refuse(uint16(id), d.sample(w, []dcgm.Short{id}) != nil)
		}
	}
}

// refuse remembers of each entity whether the watch of a field was refused.
func (w *watch) refuse(id uint16, refused bool) {
	for _, e := range w.entities {
		if i := slices.IndexFunc(e.fields, func(f field) bool { return f.id == id }); i >= 0 {
			e.memory[i].refused = refused
		}
	}
}

// sample makes DCGM sample some fields of a group each Every and keep one
// sample.
func (d *driver) sample(w *watch, ids []dcgm.Short) error {
	set, err := d.fieldSet(ids)
	if err != nil {
		return err
	}
	if err := dcgm.WatchFieldsWithGroupEx(set, w.group, d.cfg.Every.Microseconds(), 0, 1); err != nil {
		return err
	}
	w.live = append(w.live, set)
	return nil
}

// fieldSet is DCGM's handle for some fields; it is made once. DCGM has room
// for 64; the table makes 4 and one for each field.
func (d *driver) fieldSet(ids []dcgm.Short) (dcgm.FieldHandle, error) {
	key := fmt.Sprint(ids)
	if set, ok := d.sets[key]; ok {
		return set, nil
	}
	set, err := dcgm.FieldGroupCreate(fmt.Sprintf("weir-%d-%d", len(d.sets), len(ids)), ids)
	if err == nil {
		d.sets[key] = set
	}
	return set, err
}

// drop ends a watch; nil has none. Errors are those of a GPU that is gone.
func (d *driver) drop(w *watch) {
	if w == nil {
		return
	}
	var errs []error
	for _, set := range w.live {
		errs = append(errs, dcgm.UnwatchFields(set, w.group))
	}
	if w.grouped {
		errs = append(errs, dcgm.DestroyGroup(w.group))
	}
	w.live, w.grouped = nil, false
	if err := errors.Join(errs...); err != nil {
		d.cfg.Log.Debug("DCGM watch not ended cleanly", "error", err)
	}
}

// renew watches anew what has been blank for too long (DCGM#202).
func (d *driver) renew(now time.Time, w *watch) {
	if !w.renewal.due(now, slices.ContainsFunc(w.entities, (*entity).ailing), d.cfg.Renew) {
		return
	}
	d.cfg.Log.Info("DCGM values stay blank: watching anew", "first", w.entities[0].name(), "since", w.renewal.since, "next", w.renewal.pause)
	d.drop(w)
	for _, e := range w.entities {
		for i := range e.memory {
			e.memory[i].refused = false
		}
	}
	d.subscribe(w)
}
