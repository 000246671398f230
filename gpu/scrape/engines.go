package scrape

import (
	"time"

	"github.com/weirproxy/weir/gpu"
)

// maxCount is the largest number of requests that is believed.
const maxCount = 1e7

// engines reads the text of one or more engines behind one address. The
// series of one engine (the same labels but for those of its ranks) are one
// figure, the largest; over the engines, waiting and running are sums and
// KV-cache use is the largest.
type engines struct {
	page
	engine engine
	roles  [numRoles]figures
}

// figures are the values of one role by engine; only those of the lowest
// rank that had any.
type figures struct {
	rank   int
	values map[uint64]float64
}

func newEngines(match map[string]string, e engine) *engines {
	r := &engines{page: newPage(match), engine: e}
	for i := range r.roles {
		r.roles[i].values = make(map[uint64]float64)
	}
	return r
}

func (e *engines) begin(now time.Time) {
	e.page.begin(now)
	for i := range e.roles {
		clear(e.roles[i].values)
	}
}

func (e *engines) want(name []byte) bool {
	_, ok := e.engine.names[string(name)]
	return ok
}

func (e *engines) take(s *series) {
	fresh, asked := false, false
	for _, c := range e.engine.names[string(s.name)] {
		if !c.selector.pass(s) {
			continue
		}
		if !asked {
			fresh, asked = e.fresh(s), true
			if fresh && e.total(s.name) {
				e.faults[gpu.FaultCounter]++
				fresh = false
			}
		}
		if fresh {
			e.put(c, s)
		}
	}
}

// put keeps a value.
func (e *engines) put(c candidate, s *series) {
	top := float64(maxCount)
	switch c.role {
	case roleKV:
		top = 1
	case roleKVUsed, roleKVMax:
		top = 1e12
	}
	if !e.plausible(s.value, top) {
		return
	}
	f := &e.roles[c.role]
	if len(f.values) > 0 && c.rank > f.rank {
		return
	}
	if c.rank < f.rank {
		clear(f.values)
	}
	f.rank = c.rank
	id := e.labels(s, c.apart)
	f.values[id] = max(f.values[id], s.value)
}

func (e *engines) end() (gpu.Sample, error) {
	if !e.known {
		return gpu.Sample{}, errEmpty
	}
	kv := e.fullest()
	s := e.sample()
	s.Waiting, s.Running, s.KV = e.roles[roleWaiting].sum(), e.roles[roleRunning].sum(), kv
	return s, nil
}

func (f *figures) sum() gpu.Value {
	v := gpu.Value{OK: len(f.values) > 0}
	for _, n := range f.values {
		v.V += n
	}
	return v
}

// fullest is the largest KV-cache use; by blocks where no share is told.
func (e *engines) fullest() gpu.Value {
	var v gpu.Value
	for _, n := range e.roles[roleKV].values {
		v = gpu.Some(max(v.V, n))
	}
	if v.OK {
		return v
	}
	for id, used := range e.roles[roleKVUsed].values {
		most := e.roles[roleKVMax].values[id]
		switch {
		case used > most && most > 0:
			e.faults[gpu.FaultRange]++
		case most > 0:
			v = gpu.Some(max(v.V, used/most))
		}
	}
	return v
}
