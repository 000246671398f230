package scrape

import "github.com/weirproxy/weir/gpu"

// maxCount is the largest number of requests that is believed.
const maxCount = 1e7

// engines reads the text of one or more engines behind one address: waiting
// and running are sums, KV-cache use is the largest.
type engines struct {
	table  table
	match  filter
	sums   [roleKV + 1]tally
	known  bool // a metric of the table was there
	missed int  // values dropped
}

// tally gathers the values of one role; those of the lowest rank count.
type tally struct {
	rank  int
	any   bool
	value float64
}

func newEngines(match map[string]string, names func() table) *engines {
	return &engines{table: names(), match: newFilter(match)}
}

func (e *engines) begin() {
	e.sums = [roleKV + 1]tally{}
	e.known, e.missed = false, 0
}

func (e *engines) want(name []byte) bool {
	_, ok := e.table[string(name)]
	return ok
}

func (e *engines) take(s *series) {
	if !e.match.pass(s) {
		return
	}
	e.known = true
	c := e.table[string(s.name)]
	top := float64(maxCount)
	if c.role == roleKV {
		top = 1
	}
	if !(s.value >= 0 && s.value <= top) { // also NaN
		e.missed++
		return
	}
	t := &e.sums[c.role]
	switch {
	case t.any && c.rank > t.rank:
	case !t.any || c.rank < t.rank:
		*t = tally{rank: c.rank, any: true, value: s.value}
	case c.role == roleKV:
		t.value = max(t.value, s.value)
	default:
		t.value += s.value
	}
}

func (e *engines) end() (gpu.Sample, error) {
	if !e.known {
		return gpu.Sample{}, ErrNoSignal
	}
	value := func(r role) gpu.Value { return gpu.Value{V: e.sums[r].value, OK: e.sums[r].any} }
	return gpu.Sample{
		Waiting: value(roleWaiting),
		Running: value(roleRunning),
		KV:      value(roleKV),
		Dropped: e.missed,
	}, nil
}
